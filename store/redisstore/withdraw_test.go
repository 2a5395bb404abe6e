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

// An entry goes with its session. A withdrawal that was under way when the session ended has to say so: "session lost" alone
// would mean that the entry may still stand.
func TestWithdrawWhoseSessionEndsMeanwhile_saysThatTheEntryHasGone(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, courier := storeBy(t, server.Addr())
	se := open(t, st, lasting)
	ticket := hold(t, se, newName(t))
	asked := make(chan struct{})
	courier.next("leave", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		close(asked)
		return failed(ctx, send) // it never leaves the client
	})
	done := make(chan error, 1)
	go func() { done <- ticket.Withdraw(t.Context()) }()
	<-asked
	if err := se.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw, whose session was closed meanwhile: %v, want ErrGone", err)
	}
}

// A reply is lost, and the repetition finds nothing. The lost request may have taken the entry out, or somebody else before it:
// nobody can tell, so a withdrawal that returned nil might be wrong.
// Promise: P5
func TestWithdrawWhoseReplyIsLost_isNotKnown(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	type request = func(context.Context) []rueidis.RedisResult
	for what, c := range map[string]struct {
		broken bool // before the request comes
		give   bool // the caller gives up, and asks again
	}{
		"the request takes it out":                   {},
		"somebody breaks it before":                  {broken: true},
		"the request takes it out, in another call":  {give: true},
		"somebody breaks it before, in another call": {broken: true, give: true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name := newName(t)
			st, courier := storeBy(t, server.Addr())
			ticket := hold(t, open(t, st, lasting), name)
			standing, _, _ := ticket.standing()
			again := storeAt(t, server.Addr())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			courier.next("leave", func(ctx context.Context, send request) []rueidis.RedisResult {
				if c.broken {
					if _, err := again.Break(t.Context(), name, standing.Order); err != nil {
						t.Error(err)
					}
				}
				send(t.Context())
				if c.give {
					cancel()
				}
				return cut(send)
			})
			err := ticket.Withdraw(ctx)
			if c.give {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("the call that was given up returned %v", err)
				}
				err = ticket.Withdraw(t.Context())
				if errors.Is(err, store.ErrGone) {
					return // the background was quicker: it had gone before this call
				}
			}
			if !errors.Is(err, store.ErrNotKnown) || errors.Is(err, store.ErrGone) {
				t.Errorf("Withdraw returned %v, want an error that matches ErrNotKnown alone", err)
			}
		})
	}
}

// A reply is late, so that the request is repeated; it tells all the same that it has taken the entry out.
func TestWithdrawWhoseReplyIsLate_isKnown(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, courier := storeBy(t, server.Addr())
	ticket := hold(t, open(t, st, lasting), newName(t))
	courier.next("leave", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		late := send(t.Context())
		repeated := make(chan struct{})
		courier.next("leave", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
			results := send(ctx)
			close(repeated)
			return results
		})
		<-repeated
		return late
	})
	if err := ticket.Withdraw(t.Context()); err != nil {
		t.Errorf("it was there until the first request has taken it out, and Withdraw says %v", err)
	}
}

// cut returns what the client returns when the connection breaks.
func cut(send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	return send(ended)
}

// The request is lost on its way, so the repetition finds the entry, and all is known.
func TestWithdrawWhoseRequestIsLost_isRepeated(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, courier := storeBy(t, server.Addr())
	ticket := hold(t, open(t, st, lasting), newName(t))
	courier.next("leave", func(_ context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		return cut(send)
	})
	if err := ticket.Withdraw(t.Context()); err != nil {
		t.Errorf("it was there until the repetition has taken it out, and Withdraw says %v", err)
	}
}

// A hold has lost one of its keys. To let it go, at once or later, is no success.
// Promise: P5
func TestWithdrawOfAHoldThatHasLostAKey_saysThatItHasGone(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	for key, what := range map[int]string{0: "the lock's own", 2: "who holds", 3: "the leases", 4: "what is known"} {
		for how, leave := range map[string]func(*seat) error{
			"Withdraw":      func(s *seat) error { return s.Withdraw(t.Context()) },
			"WithdrawAfter": func(s *seat) error { return s.Extensions().WithdrawAfter(t.Context(), lasting) },
		} {
			t.Run(how+"/"+what, func(t *testing.T) {
				name := newName(t)
				s := hold(t, open(t, storeAt(t, server.Addr()), lasting), name)
				waiter := join(t, open(t, storeAt(t, server.Addr()), lasting), name, line.Exclusive)
				waiter.waits(t)
				server.Do("DEL", redisstore.Keys("", name)[key])
				if err := leave(s); !errors.Is(err, store.ErrGone) {
					t.Errorf("%s returned %v, want ErrGone", how, err)
				}
			})
		}
	}
}

// An entry that has been let go ends by itself, so a repetition may find nothing though the first request was carried out.
// Promise: P5
func TestWithdrawAfterWhoseRepetitionFindsNothing_isNotKnown(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, courier := storeBy(t, server.Addr())
	name := newName(t)
	ticket := hold(t, open(t, st, lasting), name)
	courier.next("linger", func(_ context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		send(t.Context())
		server.Do(append([]string{"DEL"}, redisstore.Keys("", name)...)...)
		return cut(send)
	})
	if err := ticket.Extensions().WithdrawAfter(t.Context(), lasting); !errors.Is(err, store.ErrNotKnown) {
		t.Errorf("WithdrawAfter: %v, want ErrNotKnown", err)
	}
}
