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

// An abandoned request arrives after the entry was withdrawn, at once or for later.
// Promise: P1
func TestSetOwner_lateRequestChangesNothing(t *testing.T) {
	for how, leave := range map[string]func(context.Context, *testEntry) error{
		"withdrawn": func(ctx context.Context, s *testEntry) error { return s.Withdraw(ctx) },
		"for later": func(ctx context.Context, s *testEntry) error { return s.Extensions().WithdrawAfter(ctx, longTTL) },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server := testservers.StartRedis(t)
			name := newName(t)
			st, interceptor := interceptedStore(t, server.Addr())
			s := hold(t, open(t, st, longTTL), name)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var deliver func(context.Context) []rueidis.RedisResult
			interceptor.next("owner", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
				deliver = send
				cancel()
				return failRequest(ctx, send)
			})
			if err := s.Extensions().SetOwner(ctx, store.Owner{Host: "late"}); !errors.Is(err, context.Canceled) {
				t.Fatalf("SetOwner: got %v, want Canceled", err)
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
				t.Fatalf("line before: %+v, after: %+v, %v", before, after, err)
			}
			for i, e := range after.Entries {
				b := before.Entries[i]
				if e.Owner.Host != "test" || e.Order != b.Order || e.Remaining > b.Remaining+time.Millisecond {
					t.Errorf("entry before: %+v, after: %+v", b, e)
				}
			}
		})
	}
}

// An abandoned request arrives after a later one was carried out.
// Promise: P6
func TestSetOwner_lateRequestAfterLaterOne(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, interceptor := interceptedStore(t, server.Addr())
	s := hold(t, open(t, st, longTTL), name)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var deliver func(context.Context) []rueidis.RedisResult
	interceptor.next("owner", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		deliver = send
		cancel()
		return failRequest(ctx, send)
	})
	if err := s.Extensions().SetOwner(ctx, store.Owner{Value: "first"}); !errors.Is(err, context.Canceled) {
		t.Fatalf("SetOwner: got %v, want Canceled", err)
	}
	if err := s.Extensions().SetOwner(t.Context(), store.Owner{Value: "second"}); err != nil {
		t.Fatal(err)
	}
	for _, r := range deliver(t.Context()) {
		if err := r.Error(); err != nil {
			t.Error(err)
		}
	}
	l, err := st.Line(t.Context(), name)
	if err != nil || len(l.Entries) != 1 || l.Entries[0].Owner.Value != "second" {
		t.Errorf("line: got %+v, %v, want the second value", l, err)
	}
}
