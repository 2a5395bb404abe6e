package redisstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// An abandoned request arrives after the entry was withdrawn, at once or for later.
// Promise: P1
func TestDowngrade_lateRequestChangesNothing(t *testing.T) {
	for how, leave := range map[string]func(context.Context, *testEntry) error{
		"withdrawn": func(ctx context.Context, s *testEntry) error { return s.Withdraw(ctx) },
		"for later": func(ctx context.Context, s *testEntry) error { return s.Extensions().WithdrawAfter(ctx, longTTL) },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server := testservers.StartRedis(t)
			name := newName(t)
			st, interceptor := interceptedStore(t, server.Addr())
			se := open(t, st, longTTL)
			s := hold(t, se, name)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var deliver func(context.Context) []rueidis.RedisResult
			interceptor.next("downgrade", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
				deliver = send
				cancel()
				return failRequest(ctx, send)
			})
			if err := s.Extensions().Downgrade(ctx); !errors.Is(err, context.Canceled) {
				t.Fatalf("Downgrade: got %v, want Canceled", err)
			}
			if err := leave(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if how == "withdrawn" {
				hold(t, se, name) // the next entry must stay exclusive
			}
			for _, r := range deliver(t.Context()) {
				if err := r.Error(); err != nil {
					t.Error(err)
				}
			}
			l, err := st.Line(t.Context(), name)
			if err != nil || len(l.Entries) != 1 || l.Entries[0].Mode != line.Exclusive {
				t.Errorf("line: got %+v, %v, want one exclusive entry", l, err)
			}
		})
	}
}

// The reply to the request is lost. A repetition finds the entry shared.
// Promise: P5
func TestDowngrade_replyLost(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, interceptor := interceptedStore(t, server.Addr())
	s := hold(t, open(t, st, longTTL), name)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	interceptor.next("downgrade", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		send(t.Context())
		cancel()
		return failRequest(ctx, send)
	})
	if err := s.Extensions().Downgrade(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("Downgrade: got %v, want Canceled", err)
	}
	if err := s.Extensions().Downgrade(t.Context()); err != nil {
		t.Errorf("Downgrade again: got %v", err)
	}
	l, err := st.Line(t.Context(), name)
	if err != nil || len(l.Entries) != 1 || l.Entries[0].Mode != line.Shared {
		t.Errorf("line: got %+v, %v, want one shared entry", l, err)
	}
}

// The readers beside a downgraded entry still share the lock when that entry has left: what the script
// knows of the kind of the holders must not come from the id of an entry that has left.
// Promise: P7
func TestDowngrade_readersRemain(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st := newStore(t, connect(t, server.Addr()), nil)
	writer := hold(t, open(t, st, longTTL), name)
	if err := writer.Extensions().Downgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	se := open(t, st, longTTL)
	reader := func() store.Ticket {
		t.Helper()
		r, err := se.Enqueue(t.Context(), store.Request{Name: name, Mode: line.Shared, Try: true})
		if err != nil {
			t.Fatalf("a try of a reader: %v", err)
		}
		return r
	}
	first := reader()
	if err := writer.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := reader()
	for _, r := range []store.Ticket{first, second} {
		if _, err := se.Enqueue(t.Context(), store.Request{Name: name, Try: true}); !errors.As(err, new(*store.HeldError)) {
			t.Errorf("a try of a writer beside readers: got %v, want a HeldError", err)
		}
		if err := r.Withdraw(t.Context()); err != nil {
			t.Error(err)
		}
	}
	hold(t, se, name)
}
