package redisstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// An entry goes with its session. A withdrawal during which the session ends must return ErrGone:
// ErrSessionLost alone would mean that the entry may still stand.
func TestWithdraw_sessionEndsMeanwhile(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, interceptor := interceptedStore(t, server.Addr())
	se := open(t, st, longTTL)
	ticket := hold(t, se, newName(t))
	asked := make(chan struct{})
	interceptor.next("leave", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		close(asked)
		return failRequest(ctx, send) // it is not sent
	})
	done := make(chan error, 1)
	go func() { done <- ticket.Withdraw(t.Context()) }()
	<-asked
	if err := se.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw: got %v, want ErrGone", err)
	}
}

// A reply is lost, and the repetition finds no entry. The lost request may have removed it, or
// another client before that: a withdrawal that returned nil might be wrong.
// Promise: P5
// Bug: solid_queue #761
func TestWithdraw_replyLost(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	type request = func(context.Context) []rueidis.RedisResult
	for what, c := range map[string]struct {
		broken bool // the entry is broken before the request arrives
		giveUp bool // the caller gives up and calls again
	}{
		"removed by the request":            {},
		"broken before":                     {broken: true},
		"removed by the request, two calls": {giveUp: true},
		"broken before, two calls":          {broken: true, giveUp: true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name := newName(t)
			st, interceptor := interceptedStore(t, server.Addr())
			ticket := hold(t, open(t, st, longTTL), name)
			standing, _, _ := ticket.standing()
			again := storeAt(t, server.Addr())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			interceptor.next("leave", func(ctx context.Context, send request) []rueidis.RedisResult {
				first := make(chan struct{})
				interceptor.hold("leave", first) // the repetition finds no entry, even if this request takes long
				defer close(first)
				if c.broken {
					if _, err := again.Break(t.Context(), name, standing.Order); err != nil {
						t.Error(err)
					}
				}
				send(t.Context())
				if c.giveUp {
					cancel()
				}
				return cutConnection(send)
			})
			err := ticket.Withdraw(ctx)
			if c.giveUp {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("first call: got %v, want Canceled", err)
				}
				err = ticket.Withdraw(t.Context())
				if errors.Is(err, store.ErrGone) {
					return // the background removal finished before this call
				}
			}
			if !errors.Is(err, store.ErrNotKnown) || errors.Is(err, store.ErrGone) {
				t.Errorf("Withdraw: got %v, want ErrNotKnown only", err)
			}
		})
	}
}

// A reply is late, so the request is repeated. The reply still proves that the request has removed
// the entry.
func TestWithdraw_replyLate(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, interceptor := interceptedStore(t, server.Addr())
	ticket := hold(t, open(t, st, longTTL), newName(t))
	interceptor.next("leave", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		late := send(t.Context())
		repeated := make(chan struct{})
		interceptor.next("leave", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
			results := send(ctx)
			close(repeated)
			return results
		})
		<-repeated
		return late
	})
	if err := ticket.Withdraw(t.Context()); err != nil {
		t.Errorf("Withdraw: got %v, want nil", err)
	}
}

// cutConnection returns the client's error for a broken connection.
func cutConnection(send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	return send(ended)
}

// The request is lost on its way, so the repetition finds the entry.
func TestWithdraw_requestLost(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, interceptor := interceptedStore(t, server.Addr())
	ticket := hold(t, open(t, st, longTTL), newName(t))
	interceptor.next("leave", func(_ context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		return cutConnection(send)
	})
	if err := ticket.Withdraw(t.Context()); err != nil {
		t.Errorf("Withdraw: got %v, want nil", err)
	}
}

// A hold has lost one of its keys. Withdrawing it, at once or later, must not succeed.
// Promise: P5
func TestWithdraw_holdLostAKey(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	for key, what := range map[int]string{0: "lock", 2: "holders", 3: "leases", 4: "entries"} {
		for how, leave := range map[string]func(*testEntry) error{
			"Withdraw":      func(s *testEntry) error { return s.Withdraw(t.Context()) },
			"WithdrawAfter": func(s *testEntry) error { return s.Extensions().WithdrawAfter(t.Context(), longTTL) },
		} {
			t.Run(how+"/"+what, func(t *testing.T) {
				name := newName(t)
				s := hold(t, open(t, storeAt(t, server.Addr()), longTTL), name)
				waiter := join(t, open(t, storeAt(t, server.Addr()), longTTL), name, line.Exclusive)
				waiter.checkWaits(t)
				server.Do("DEL", redisstore.Keys("", name)[key])
				if err := leave(s); !errors.Is(err, store.ErrGone) {
					t.Errorf("%s: got %v, want ErrGone", how, err)
				}
			})
		}
	}
}

// An entry withdrawn for later may expire, so a repetition may find nothing though the first
// request was carried out.
// Promise: P5
func TestWithdrawAfter_repetitionFindsNothing(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, interceptor := interceptedStore(t, server.Addr())
	name := newName(t)
	ticket := hold(t, open(t, st, longTTL), name)
	deleted := make(chan struct{})
	interceptor.next("detach", func(_ context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		interceptor.hold("detach", deleted) // the store may give this request up, and repeat it
		defer close(deleted)
		send(t.Context())
		server.Do(append([]string{"DEL"}, redisstore.Keys("", name)...)...)
		return cutConnection(send)
	})
	if err := ticket.Extensions().WithdrawAfter(t.Context(), longTTL); !errors.Is(err, store.ErrNotKnown) {
		t.Errorf("WithdrawAfter: got %v, want ErrNotKnown", err)
	}
}
