package stile_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// requests counts the requests of some kinds that reach the store from now on.
func (w *testEnv) requests(ops ...memstore.Op) *int {
	n := new(int)
	w.store.SetFaults(func(c memstore.Call) memstore.Fault {
		for _, op := range ops {
			if c.Op == op {
				*n++
			}
		}
		return memstore.Fault{}
	})
	return n
}

// The goroutines of a client get the lock in their order, with one entry and rising tokens, and without a
// request to the store.
// Promise: P2, P3
func TestTurn_passesLocally(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		h := lock(t, ann, "a")
		waiters := []*waiter{wait(t.Context(), t, ann, "a"), wait(t.Context(), t, ann, "a"), wait(t.Context(), t, ann, "a")}
		n := w.requests(memstore.Enqueue, memstore.Withdraw, memstore.Requeue)
		for i, wt := range waiters {
			first := h
			release(t, h)
			h = wt.expectHoldNow()
			if first.Context().Err() == nil || first.Valid() {
				t.Errorf("turn %d: the hold before has not ended", i)
			}
			if h.Token() != first.Token()+1 {
				t.Errorf("turn %d: got token %d after %d, want the next one", i, h.Token(), first.Token())
			}
		}
		if *n != 0 {
			t.Errorf("got %d requests, want none", *n)
		}
		release(t, h)
		w.expectLine("a")
		if n := ann.Queues(); n != 0 {
			t.Errorf("got %d queues at the end, want 0", n)
		}
	})
}

// When the turns are used up, the client goes behind the other clients that wait, in one step.
// Promise: P3
func TestTurn_bounded(t *testing.T) {
	for name, use := range map[string]func(t *testing.T, h *stile.Hold){
		"by number": func(*testing.T, *stile.Hold) {},
		"by time":   func(*testing.T, *stile.Hold) { time.Sleep(10 * time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				turns := map[string]int{"by number": 2, "by time": 1000}[name]
				ann, bob := w.client("ann", func(o *stile.Options) { o.Turns = turns }), w.client("bob")
				h := lock(t, ann, "a")
				second, third := wait(t.Context(), t, ann, "a"), wait(t.Context(), t, ann, "a")
				other := wait(t.Context(), t, bob, "a")
				if name == "by number" {
					release(t, h)
					h = second.expectHoldNow()
					second = third
				}
				use(t, h)
				n := w.requests(memstore.Enqueue, memstore.Withdraw, memstore.Requeue)
				release(t, h)
				bobs := other.expectHoldNow()
				w.expectLine("a", "bob", "ann")
				if *n != 1 {
					t.Errorf("got %d requests, want one", *n)
				}
				release(t, bobs)
				next := second.expectHoldNow()
				if next.Token() <= bobs.Token() {
					t.Errorf("got token %d after %d", next.Token(), bobs.Token())
				}
				release(t, next)
			})
		})
	}
}

// A place that needs an entry of its own gets no turn, and nobody gets a turn after it.
func TestTurn_notWithAnEntryOfItsOwn(t *testing.T) {
	plain := func(t *testing.T, c *stile.Client) *waiter { return wait(t.Context(), t, c, "a") }
	for name, special := range map[string]func(t *testing.T, c *stile.Client) *waiter{
		"another owner": func(t *testing.T, c *stile.Client) *waiter {
			return waitWith(t, func() (*stile.Hold, error) {
				return c.Mutex("a").With(stile.LockOptions{Reason: "special"}).Lock(t.Context())
			})
		},
		"a candidate": func(t *testing.T, c *stile.Client) *waiter {
			return waitWith(t, func() (*stile.Hold, error) {
				l, err := c.Election("a").Campaign(t.Context(), "")
				if err != nil {
					return nil, err
				}
				return l.Hold, nil
			})
		},
	} {
		for order, pair := range map[string][2]func(t *testing.T, c *stile.Client) *waiter{
			"before": {special, plain}, "after": {plain, special},
		} {
			t.Run(name+" "+order, func(t *testing.T) {
				scenario(t, func(t *testing.T, w *testEnv) {
					ann := w.client("ann")
					h := lock(t, ann, "a")
					first := pair[0](t, ann)
					second := pair[1](t, ann)
					release(t, h)
					one := first.expectHoldNow()
					release(t, one)
					two := second.expectHoldNow()
					if two.Token()>>11 == one.Token()>>11 {
						t.Errorf("got tokens %d and %d of one entry", one.Token(), two.Token())
					}
					release(t, two)
				})
			})
		}
	}
}

// A hold whose entry was asked for is the last of its entry: a check that the entry is there must not
// find it with a later hold.
// Promise: P2
func TestTurn_noneAfterPin(t *testing.T) {
	for name, pin := range map[string]func(t *testing.T, h *stile.Hold){
		"EntryKey": func(_ *testing.T, h *stile.Hold) { h.EntryKey() },
		"SetRecord": func(t *testing.T, h *stile.Hold) {
			if err := h.SetRecord(t.Context(), []byte("done")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann := w.client("ann")
				h := lock(t, ann, "a")
				next := wait(t.Context(), t, ann, "a")
				pin(t, h)
				release(t, h)
				two := next.expectHoldNow()
				if two.Token()>>11 == h.Token()>>11 {
					t.Errorf("got tokens %d and %d of one entry", h.Token(), two.Token())
				}
				release(t, two)
			})
		})
	}
}

// A waiter gives up at the moment at which it gets the turn. The next one gets it, and nothing is left.
// Promise: P5
func TestTurn_givenUp(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		got := 0
		for range 300 {
			h := lock(t, ann, "a")
			ctx, cancel := context.WithCancel(t.Context())
			racer := wait(ctx, t, ann, "a")
			next := wait(t.Context(), t, ann, "a")
			go cancel()
			release(t, h)
			<-racer.done
			if racer.err == nil {
				got++
				next.expectWaiting()
				release(t, racer.hold)
			}
			release(t, next.expectHoldNow())
			w.expectLine("a")
			if n := ann.Queues(); n != 0 {
				t.Fatalf("got %d queues, want 0", n)
			}
		}
		t.Logf("got the lock %d times of 300", got)
	})
}

// A hold whose deadline has passed passes nothing on: only the store knows whether the lock was held until
// then.
// Promise: P1, P5
func TestTurn_notAfterTheDeadline(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		h := lock(t, ann, "a")
		next := wait(t.Context(), t, ann, "a")
		n := w.requests(memstore.Withdraw, memstore.Requeue)
		bootclock.PretendSuspend(ttl)
		_ = h.Release(t.Context())
		if *n == 0 {
			t.Error("the store was not asked")
		}
		second := next.expectHold()
		if second.Token()>>11 == h.Token()>>11 {
			t.Errorf("got tokens %d and %d of one entry", h.Token(), second.Token())
		}
		release(t, second)
	})
}

// A client that goes behind others has released the lock: Options.LockDelay keeps it closed for nobody.
func TestTurn_withLockDelay(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		delayed := func(o *stile.Options) { o.LockDelay, o.Turns = time.Minute, 2 }
		ann, bob := w.client("ann", delayed), w.client("bob", delayed)
		h := lock(t, ann, "a")
		second, third := wait(t.Context(), t, ann, "a"), wait(t.Context(), t, ann, "a")
		other := wait(t.Context(), t, bob, "a")
		release(t, h)
		release(t, second.expectHoldNow())
		release(t, other.expectHoldNow())
		release(t, third.expectHoldNow())
	})
}

// What a goroutine waits for after it has passed the lock on is not what the holder waits for.
func TestTurn_waitsOfAnEarlierTurn(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		b := lock(t, bob, "b")
		h := lock(t, ann, "a")
		next := wait(t.Context(), t, ann, "a")
		ctx := context.WithoutCancel(h.Context())
		late := wait(ctx, t, ann, "b")
		release(t, h)
		second := next.expectHoldNow()
		time.Sleep(2 * time.Second)
		expectGraph(t, bob, "")
		release(t, b)
		release(t, late.expectHold())
		release(t, second)
	})
}

// Tokens of all turns mean the entry: for Break, and for the processes under a hold.
func TestTurn_tokensOfTheEntry(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		next := wait(t.Context(), t, ann, "a")
		release(t, h)
		second := next.expectHoldNow()
		b := lock(t, bob, "b")
		child := wait(t.Context(), t, w.client("child", func(o *stile.Options) {
			o.Owner.Under = []store.Held{{Name: "a", Token: second.Token()}}
		}), "b")
		expectGraph(t, bob, "a>b")
		if _, err := bob.Break(t.Context(), "a", second.Token()); err != nil {
			t.Error(err)
		}
		<-second.Lost()
		if err := h.Err(); err != nil {
			t.Errorf("the hold of the first turn, which was released, has the error %v", err)
		}
		release(t, b)
		release(t, child.expectHold())
	})
}

// The session ends between two turns: the next goroutine gets a new entry.
// Promise: P1
func TestTurn_afterTheDeadline(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann", func(o *stile.Options) { o.Turns = 1000 }), w.client("bob")
		h := lock(t, ann, "a")
		next, other := wait(t.Context(), t, ann, "a"), wait(t.Context(), t, bob, "a")
		w.store.Expire(w.session("ann"))
		err := h.Release(t.Context())
		if err != nil && !errors.Is(err, stile.ErrLost) {
			t.Errorf("got %v, want nil or a LostError", err)
		}
		synctest.Wait()
		bobs := other.expectHoldNow()
		next.expectWaiting()
		release(t, bobs)
		release(t, next.expectHoldNow())
	})
}
