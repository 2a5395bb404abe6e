package redisstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// A request that was given up arrives when the entry has left, or has been given a time of its own.
// Promise: P1
func TestAnOwnerThatArrivesLateChangesNothing(t *testing.T) {
	for how, leave := range map[string]func(context.Context, *seat) error{
		"withdrawn":   func(ctx context.Context, s *seat) error { return s.Withdraw(ctx) },
		"to go later": func(ctx context.Context, s *seat) error { return s.Extensions().WithdrawAfter(ctx, lasting) },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server := testservers.StartRedis(t)
			name := newName(t)
			st, courier := storeBy(t, server.Addr())
			s := hold(t, open(t, st, lasting), name)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var deliver func(context.Context) []rueidis.RedisResult
			courier.next("owner", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
				deliver = send
				cancel()
				return failed(ctx, send)
			})
			if err := s.Extensions().SetOwner(ctx, store.Owner{Host: "late"}); !errors.Is(err, context.Canceled) {
				t.Fatalf("SetOwner that was given up returned %v", err)
			}
			if err := leave(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			before, err := st.Line(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range deliver(t.Context()) {
				if err := r.Error(); err != nil {
					t.Error(err)
				}
			}
			after, err := st.Line(t.Context(), name)
			if err != nil || len(after.Entries) != len(before.Entries) {
				t.Fatalf("the line was %+v, and is %+v, %v", before, after, err)
			}
			for i, e := range after.Entries {
				b := before.Entries[i]
				if e.Owner.Host != "test" || e.Order != b.Order || e.Remaining > b.Remaining+time.Millisecond {
					t.Errorf("the entry was %+v, and after the late request is %+v", b, e)
				}
			}
		})
	}
}
