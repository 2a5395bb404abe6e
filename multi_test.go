package stile_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/memstore"
)

// A multiWaiter is a call of LockAll in progress.
type multiWaiter struct {
	t    *testing.T
	done chan struct{}
	hold *stile.MultiHold
	err  error
}

func lockAll(ctx context.Context, t *testing.T, c *stile.Client, names ...string) *multiWaiter {
	t.Helper()
	w := &multiWaiter{t: t, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.hold, w.err = c.LockAll(ctx, names...)
	}()
	synctest.Wait()
	return w
}

func (w *multiWaiter) expectWaiting() {
	w.t.Helper()
	if closed(w.done) {
		w.t.Fatalf("LockAll returned %v, %v, want it to wait", w.hold, w.err)
	}
}

func (w *multiWaiter) expectHold() *stile.MultiHold {
	w.t.Helper()
	if !closesWithin(w.done, ttl) || w.err != nil {
		w.t.Fatalf("LockAll: got error %v, want a hold within %v", w.err, ttl)
	}
	return w.hold
}

func releaseAll(t *testing.T, m *stile.MultiHold) {
	t.Helper()
	if err := m.Release(t.Context()); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// bothForms runs a scenario on a store where LockAll joins all lines in one step, and on one where it takes
// one lock after another.
func bothForms(t *testing.T, run func(t *testing.T, w *testEnv)) {
	t.Helper()
	for form, oneByOne := range map[string]bool{"in one step": false, "one by one": true} {
		t.Run(form, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				w.oneByOne = oneByOne
				run(t, w)
			})
		})
	}
}

// Promise: P1
func TestLockAll_holdsAll(t *testing.T) {
	bothForms(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		m := lockAll(t.Context(), t, ann, "c", "a", "b").expectHold()
		if got := m.Names(); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("Names: got %q, want a, b, c", got)
		}
		if !m.Valid() || m.Err() != nil || m.Context().Err() != nil || m.Deadline().Before(time.Now()) {
			t.Errorf("got valid %v, error %v, context %v, deadline %v", m.Valid(), m.Err(), m.Context().Err(), m.Deadline())
		}
		var waiters []*waiter
		for _, name := range []string{"a", "b", "c"} {
			w.expectLine(name, "ann")
			if m.Token(name) == 0 {
				t.Errorf("lock %q has no token", name)
			}
			waiters = append(waiters, wait(t.Context(), t, bob, name))
		}
		if m.Token("d") != 0 {
			t.Errorf("a lock that is not held has the token %d", m.Token("d"))
		}
		releaseAll(t, m)
		for i, name := range []string{"a", "b", "c"} {
			h := waiters[i].expectHoldNow()
			if h.Token() <= m.Token(name) {
				t.Errorf("lock %q: tokens %d, then %d; want an increase", name, m.Token(name), h.Token())
			}
			release(t, h)
		}
		if m.Valid() || m.Err() != nil || context.Cause(m.Context()) != stile.ErrReleased {
			t.Errorf("after Release: got valid %v, error %v, cause %v", m.Valid(), m.Err(), context.Cause(m.Context()))
		}
		releaseAll(t, m) // again
	})
}

// Callers in several processes and goroutines name overlapping sets in random orders. All of them
// get their locks (redisson #4050, #1160).
// Promise: P1, P7
// Bug: redisson #4050
func TestLockAll_noDeadlock(t *testing.T) {
	for seed := range uint64(20) {
		bothForms(t, func(t *testing.T, w *testEnv) {
			const processes, callers, rounds = 3, 2, 10
			names := []string{"a", "b", "c", "d"}
			var mu sync.Mutex
			holders := map[string]int{}
			enter := func(set []string, n int) {
				mu.Lock()
				defer mu.Unlock()
				for _, name := range set {
					if holders[name] += n; holders[name] > 1 {
						t.Errorf("lock %q has %d holders", name, holders[name])
					}
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			var all sync.WaitGroup
			for i := range processes {
				c := w.client(fmt.Sprint("client", i))
				for j := range callers {
					rng := rand.New(rand.NewPCG(seed, uint64(i*callers+j)))
					all.Go(func() {
						for range rounds {
							set := make([]string, 0, len(names))
							for _, k := range rng.Perm(len(names))[:1+rng.IntN(len(names))] {
								set = append(set, names[k])
							}
							m, err := c.LockAll(ctx, set...)
							if err != nil {
								t.Errorf("seed %d: LockAll(%q): %v", seed, set, err)
								return
							}
							enter(set, 1)
							time.Sleep(time.Duration(rng.IntN(10)) * time.Millisecond)
							enter(set, -1)
							if err := m.Release(ctx); err != nil {
								t.Errorf("seed %d: Release: %v", seed, err)
							}
						}
					})
				}
			}
			all.Wait()
		})
	}
}

// Promise: P5
// Bug: CURATOR-462
func TestLockAll_givenUpLeavesNothing(t *testing.T) {
	bothForms(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		held := lock(t, bob, "b")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := ann.LockAll(ctx, "a", "b", "c")
		expectError(t, err, context.DeadlineExceeded)
		if !strings.Contains(err.Error(), `"b"`) {
			t.Errorf("error %q does not name the lock that was waited for", err)
		}
		synctest.Wait()
		w.expectLine("a")
		w.expectLine("b", "bob")
		w.expectLine("c")
		release(t, held)
	})
}

func TestTryLockAll(t *testing.T) {
	bothForms(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		held := lock(t, bob, "b")
		_, err := ann.TryLockAll(t.Context(), "c", "b", "a")
		if other, ok := errors.AsType[*stile.HeldError](err); !ok || other.Name != "b" {
			t.Errorf("TryLockAll: got %v, want a HeldError for b", err)
		}
		w.expectLine("a")
		w.expectLine("c")
		release(t, held)
		m, err := ann.TryLockAll(t.Context(), "c", "b", "a")
		if err != nil {
			t.Fatal(err)
		}
		releaseAll(t, m)
	})
}

// ReleaseAfter keeps all locks closed for the given time.
func TestMultiHold_releaseAfter(t *testing.T) {
	bothForms(t, func(t *testing.T, w *testEnv) {
		const d = 2 * ttl
		m := lockAll(t.Context(), t, w.client("ann"), "a", "b").expectHold()
		if err := m.ReleaseAfter(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		released := time.Now()
		if m.Valid() || m.Err() != nil || closed(m.Lost()) || !errors.Is(context.Cause(m.Context()), stile.ErrReleased) {
			t.Errorf("after ReleaseAfter: got valid %v, error %v, context %v, want released holds", m.Valid(), m.Err(), context.Cause(m.Context()))
		}
		bob := w.client("bob")
		for _, name := range []string{"a", "b"} {
			_, err := bob.Mutex(name).TryLock(t.Context())
			expectError(t, err, stile.ErrHeld)
		}
		next := lockAll(t.Context(), t, bob, "a", "b")
		<-next.done
		if waited := time.Since(released); waited < d {
			t.Errorf("the next caller got the locks after %v, want at least %v", waited, d)
		}
		releaseAll(t, next.expectHold())
	})
}

// If the store does not support ReleaseAfter, all locks are still held.
func TestMultiHold_releaseAfterUnsupported(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, err := stile.New(noReleaseAfterStore{w.store}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer ann.Close(t.Context())
		m := lockAll(t.Context(), t, ann, "a", "b").expectHold()
		expectError(t, m.ReleaseAfter(t.Context(), ttl), stile.ErrUnsupported)
		if !m.Valid() || m.Context().Err() != nil {
			t.Errorf("after the error: got valid %v, context %v, want valid holds", m.Valid(), m.Context().Err())
		}
		releaseAll(t, m)
	})
}

// One lock is lost. The holder is notified, and the others stay held until it releases them.
// Promise: P6
func TestLockAll_lossOfOne(t *testing.T) {
	bothForms(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		m := lockAll(t.Context(), t, ann, "a", "b", "c").expectHold()
		w.evict("b", "ann")
		synctest.Wait()
		if m.Valid() || m.Context().Err() == nil {
			t.Errorf("after a loss: got valid %v, context %v", m.Valid(), m.Context().Err())
		}
		if !closed(m.Lost()) {
			t.Error("after a loss the channel of Lost is open")
		}
		for _, err := range []error{m.Err(), context.Cause(m.Context())} {
			if lost := asLost(t, err); lost.Name != "b" || lost.Reason != stile.LostEvicted {
				t.Errorf("got %v, want the loss of b", lost)
			}
		}
		w.expectLine("a", "ann")
		w.expectLine("b")
		err := m.Release(t.Context())
		expectError(t, err, stile.ErrLost)
		for _, name := range []string{"a", "b", "c"} {
			w.expectLine(name)
		}
		if lost := asLost(t, m.Err()); lost.Name != "b" {
			t.Errorf("after Release: got %v, want the loss of b", lost)
		}
	})
}

// A lock is lost while LockAll waits for the next one. It never returns with a part of the locks.
// Promise: P1, P7
func TestLockAll_lossWhileWaiting(t *testing.T) {
	bothForms(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		last := lock(t, bob, "c")
		all := lockAll(t.Context(), t, ann, "a", "b", "c")
		next := wait(t.Context(), t, cid, "a")
		before := w.order("b", "ann")
		w.evict("a", "ann")
		other := next.expectHoldNow()
		all.expectWaiting()
		w.expectLine("a", "cid", "ann")
		if w.oneByOne {
			w.expectLine("b") // given up, until a is held again
			w.expectLine("c", "bob")
		} else if w.expectLine("b", "ann"); w.order("b", "ann") <= before {
			t.Error("the entry of b is the one that LockAll had before it lost a")
		}
		release(t, last)
		all.expectWaiting()
		release(t, other)
		m := all.expectHold()
		if !m.Valid() {
			t.Error("LockAll returned with a lock that is not held")
		}
		releaseAll(t, m)
	})
}

// The first lock is lost after the last one was acquired, and before LockAll returns.
// Promise: P1, P7
func TestLockAll_lossBeforeReturn(t *testing.T) {
	bothForms(t, func(t *testing.T, w *testEnv) {
		evictions := 0
		ann := w.client("ann", func(o *stile.Options) {
			o.Hooks.HoldStart = func(ctx context.Context, e stile.HoldStartEvent) context.Context {
				if e.Name == "b" && evictions < 3 {
					evictions++
					w.evict("a", "ann")
					time.Sleep(time.Millisecond) // until the loss is known
				}
				return ctx
			}
		})
		m := lockAll(t.Context(), t, ann, "a", "b").expectHold()
		if !m.Valid() || evictions != 3 {
			t.Errorf("got valid %v after %d evictions, want true after 3", m.Valid(), evictions)
		}
		releaseAll(t, m)
	})
}

// A hook that panics leaves no lock behind.
// Promise: P5
// Bug: RedissonMultiLock
func TestLockAll_panic(t *testing.T) {
	bothForms(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann", func(o *stile.Options) {
			o.Hooks.AttemptStart = func(ctx context.Context, e stile.AttemptStartEvent) context.Context {
				if e.Name == "b" {
					panic(errPanic)
				}
				return ctx
			}
		})
		func() {
			defer func() {
				if r := recover(); r != errPanic {
					t.Errorf("recovered %v, want the hook's panic", r)
				}
			}()
			_, _ = ann.LockAll(t.Context(), "a", "b")
		}()
		synctest.Wait()
		w.expectLine("a")
	})
}

// A panic in a hook of one lock leaves no attempt of the others open, and none of them counts as acquired.
func TestLockAll_panicEndsAllAttempts(t *testing.T) {
	for what, c := range map[string]struct {
		held     string // by another client
		panics   func(*stile.Hooks)
		acquired []string // in one step
	}{
		"AttemptEnd after a failure": {"c", func(h *stile.Hooks) {
			end := h.AttemptEnd
			h.AttemptEnd = func(ctx context.Context, e stile.AttemptEndEvent) {
				end(ctx, e)
				if e.Err != nil {
					panic(errPanic)
				}
			}
		}, nil},
		"HoldStart": {"z", func(h *stile.Hooks) {
			start := h.HoldStart
			h.HoldStart = func(ctx context.Context, e stile.HoldStartEvent) context.Context {
				if e.Name == "b" {
					panic(errPanic)
				}
				return start(ctx, e)
			}
		}, []string{"a", "b"}},
	} {
		t.Run(what, func(t *testing.T) {
			bothForms(t, func(t *testing.T, w *testEnv) {
				pairs := newHookPairs(t)
				ann := w.client("ann", func(o *stile.Options) {
					o.Hooks = pairs.hooks()
					c.panics(&o.Hooks)
				})
				defer release(t, lock(t, w.client("bob"), c.held))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				func() {
					defer func() {
						if r := recover(); r != errPanic {
							t.Errorf("recovered %v, want the hook's panic", r)
						}
					}()
					_, _ = ann.LockAll(ctx, "a", "b", "c")
				}()
				pairs.checkPaired()
				var acquired []string
				for _, s := range pairs.spans {
					if s.attempt != nil && s.outcome == stile.Acquired {
						acquired = append(acquired, s.attempt.Name)
					}
				}
				want := c.acquired
				if w.oneByOne {
					want = []string{"a", "b"}
				}
				if !slices.Equal(acquired, want) {
					t.Errorf("the acquired attempts are %q, want %q", acquired, want)
				}
			})
		})
	}
}

// After a panic in HoldStart the next place of the client joins the line when the entry is out of it.
func TestLockAll_panicKeepsTurn(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann", func(o *stile.Options) {
			panicked := false
			o.Hooks.HoldStart = func(ctx context.Context, _ stile.HoldStartEvent) context.Context {
				if !panicked {
					panicked = true
					panic(errPanic)
				}
				return ctx
			}
		})
		w.faults(memstore.Fault{Delay: time.Second / 2}, on(memstore.Withdraw))
		func() {
			defer func() { _ = recover() }()
			_, _ = ann.LockAll(t.Context(), "a", "b")
		}()
		next := wait(t.Context(), t, ann, "a")
		w.expectLine("a", "ann")
		h := next.expectHold()
		w.heal()
		release(t, h)
	})
}

// In an outage the releases of all locks together take no longer than that of one.
// Bug: RedissonMultiLock
func TestLockAll_releasesInOutage(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f"}
	for what, ends := range map[string]func(t *testing.T, w *testEnv, c *stile.Client, ctx context.Context){
		"given up": func(t *testing.T, w *testEnv, c *stile.Client, ctx context.Context) {
			held := lock(t, w.client("bob"), "z")
			defer release(t, held)
			all := lockAll(ctx, t, c, append(names, "z")...)
			w.cut(w.session("ann"))
			<-ctx.Done()
			if !closesWithin(all.done, 2*time.Second) {
				t.Error("LockAll has not returned 2s after the end of its context")
			}
			w.heal()
		},
		"released": func(t *testing.T, w *testEnv, c *stile.Client, ctx context.Context) {
			m := lockAll(ctx, t, c, names...).expectHold()
			w.cut(w.session("ann"))
			<-ctx.Done()
			before := time.Now()
			if err := m.Release(ctx); err == nil {
				t.Error("Release in an outage succeeded")
			}
			if d := time.Since(before); d > 2*time.Second {
				t.Errorf("Release took %v after the end of its context, want at most 2s", d)
			}
			w.heal()
		},
	} {
		t.Run(what, func(t *testing.T) {
			bothForms(t, func(t *testing.T, w *testEnv) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				ends(t, w, w.client("ann"), ctx)
			})
		})
	}
}

func TestLockAll_sessionLostWhileWaiting(t *testing.T) {
	bothForms(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		last := lock(t, bob, "b")
		all := lockAll(t.Context(), t, ann, "a", "b")
		w.cut(w.session("ann"))
		time.Sleep(2 * ttl)
		w.heal()
		all.expectWaiting()
		release(t, last)
		m := all.expectHold()
		releaseAll(t, m)
	})
}

func TestLockAll_badNames(t *testing.T) {
	bothForms(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		_, err := c.LockAll(t.Context(), "a", "")
		expectError(t, err, stile.ErrBadName)
		for _, names := range [][]string{nil, {"a", "b", "a"}} {
			if _, err := c.LockAll(t.Context(), names...); err == nil {
				t.Errorf("LockAll(%q): got no error", names)
			}
		}
		if ids := w.store.Sessions(); len(ids) > 0 {
			t.Errorf("got sessions %v, want none", ids)
		}
	})
}

// LockAll waits for nothing in the store while it is not the head of all its local queues, and others of
// the client do not pass it.
// Promise: P3
func TestLockAll_waitsLocallyWithoutEntries(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		held := lock(t, ann, "b")
		all := lockAll(t.Context(), t, ann, "a", "b")
		behind := wait(t.Context(), t, ann, "a")
		w.expectLine("a")
		w.expectLine("b", "ann")
		behind.expectWaiting()
		release(t, held)
		m := all.expectHold()
		behind.expectWaiting()
		releaseAll(t, m)
		release(t, behind.expectHoldNow())
	})
}

// Two sets share two locks. Whichever joins first has both of them first.
// Promise: P3, P7
func TestLockAll_arrivalInOneStep(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		held := lock(t, ann, "b")
		first := lockAll(t.Context(), t, bob, "a", "b")
		second := lockAll(t.Context(), t, cid, "b", "a")
		w.expectLine("a", "bob", "cid")
		w.expectLine("b", "ann", "bob", "cid")
		release(t, held)
		m := first.expectHold()
		second.expectWaiting()
		releaseAll(t, m)
		releaseAll(t, second.expectHold())
	})
}

// A try of several locks that fails writes nothing, not even for a moment.
func TestTryLockAll_writesNothing(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		held := lock(t, bob, "b")
		changes := 0
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = w.store.Watch(ctx, "a", func([]string) { changes++ }) }()
		synctest.Wait()
		before := changes
		_, err := ann.TryLockAll(t.Context(), "a", "b")
		expectError(t, err, stile.ErrHeld)
		synctest.Wait()
		if changes != before {
			t.Errorf("a failed try changed a free lock %d times", changes-before)
		}
		release(t, held)
	})
}

// LockAll takes all locks with one request.
func TestLockAll_oneRequest(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		release(t, lock(t, ann, "warm-up"))
		requests := map[memstore.Op]int{}
		w.store.SetFaults(func(c memstore.Call) memstore.Fault {
			requests[c.Op]++
			return memstore.Fault{}
		})
		m := lockAll(t.Context(), t, ann, "a", "b", "c").expectHold()
		w.heal()
		if requests[memstore.EnqueueAll] != 1 || requests[memstore.Enqueue] != 0 {
			t.Errorf("got %d requests to join several lines and %d to join one, want 1 and 0",
				requests[memstore.EnqueueAll], requests[memstore.Enqueue])
		}
		releaseAll(t, m)
	})
}

// The reply to the request that joins the lines is lost. The entries are removed, and the next call gets
// the locks.
// Promise: P5
func TestLockAll_replyLost(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		release(t, lock(t, ann, "warm-up"))
		w.faults(memstore.Fault{LoseReply: true}, []memstore.Op{memstore.EnqueueAll})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := ann.LockAll(ctx, "a", "b")
		expectError(t, err, context.DeadlineExceeded)
		w.heal()
		w.expectLine("a")
		w.expectLine("b")
		releaseAll(t, lockAll(t.Context(), t, ann, "a", "b").expectHold())
	})
}

// The caller's context may end while LockAll is about to return. It returns holds, or an error and nothing
// is held. Run with the race detector: the end is noticed in another goroutine.
func TestLockAll_contextEndsAtTheEnd(t *testing.T) {
	bothForms(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		held := 0
		for range 1000 {
			ctx, cancel := context.WithCancel(t.Context())
			w.store.SetFaults(func(c memstore.Call) memstore.Fault {
				if c.Op == memstore.Notify {
					go cancel()
				}
				return memstore.Fault{}
			})
			m, err := ann.LockAll(ctx, "a", "b")
			w.heal()
			cancel()
			if err == nil {
				held++
				releaseAll(t, m)
				continue
			}
			expectError(t, err, context.Canceled)
			synctest.Wait()
			w.expectLine("a")
			w.expectLine("b")
		}
		t.Logf("held %d times of 1000", held)
	})
}

// All locks are closed after holders that did not release them. LockAll waits for all delays at once.
func TestLockAll_lockDelay(t *testing.T) {
	bothForms(t, func(t *testing.T, w *testEnv) {
		const delay = time.Minute
		delayed := func(o *stile.Options) { o.LockDelay = delay }
		names := []string{"a", "b", "c"}
		lockAll(t.Context(), t, w.client("ann", delayed), names...).expectHold()
		for _, name := range names {
			w.evict(name, "ann")
		}
		lost := time.Now()
		next := lockAll(t.Context(), t, w.client("bob", delayed), names...)
		<-next.done
		waited, limit := time.Since(lost), delay+time.Second
		if w.oneByOne {
			limit = time.Duration(len(names))*delay + time.Second
		}
		if waited < delay || waited > limit {
			t.Errorf("LockAll waited %v, want between %v and %v", waited, delay, limit)
		}
		releaseAll(t, next.expectHold())
	})
}

// A name that is in use for another kind of lock fails LockAll, which names it.
func TestLockAll_otherKind(t *testing.T) {
	bothForms(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		slot, err := bob.Semaphore("b", 2).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []*stile.Client{ann, bob} { // found in the store, and in the client
			_, err = c.LockAll(t.Context(), "a", "b")
			expectError(t, err, stile.ErrKind)
			if !strings.Contains(err.Error(), `"b"`) {
				t.Errorf("error %q does not name the lock", err)
			}
			synctest.Wait()
			w.expectLine("a")
		}
		release(t, slot)
	})
}

// The holder of one lock waits for LockAll, which has one of its locks and waits for that holder's. The graph
// shows the cycle.
func TestWaitGraph_lockAll(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		held := lock(t, ann, "b")
		all := lockAll(t.Context(), t, bob, "a", "b")
		ctx, cancel := context.WithCancel(held.Context())
		defer cancel()
		nested := wait(ctx, t, ann, "a")
		time.Sleep(2 * time.Second)
		g, err := ann.WaitGraph(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		if len(g.Cycles) != 1 || !slices.Equal(g.Cycles[0], []string{"a", "b"}) {
			t.Errorf("got cycles %v, want one of a and b; waits %+v", g.Cycles, g.Waits)
		}
		cancel()
		<-nested.done
		release(t, held)
		m := all.expectHold()
		time.Sleep(2 * time.Second)
		if g, err := ann.WaitGraph(t.Context(), ""); err != nil || len(g.Waits) > 0 {
			t.Errorf("after the waits the graph is %+v, %v, want no waits", g, err)
		}
		releaseAll(t, m)
	})
}

// Each of the locks is recognized as held.
func TestLockAll_nested(t *testing.T) {
	bothForms(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		m := lockAll(t.Context(), t, c, "a", "b").expectHold()
		for _, name := range m.Names() {
			_, err := c.Mutex(name).Lock(m.Context())
			expectError(t, err, stile.ErrReentrant)
		}
		_, err := c.LockAll(m.Context(), "b", "c")
		expectError(t, err, stile.ErrReentrant)
		w.expectLine("c")
		releaseAll(t, m)
	})
}

// A context that comes from the locks ends when their release begins. The release goes on for two seconds more,
// but not beyond a timeout of the context.
func TestMultiHold_releaseWithItsContext(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		for name, test := range map[string]struct {
			timeout time.Duration // of a context derived from that of the locks; zero for none
			fault   memstore.Fault
			want    error
			took    time.Duration
		}{
			"the store answers within two seconds": {0, memstore.Fault{Delay: 2*time.Second - 1}, nil, 2*time.Second - 1},
			"the store does not answer":            {0, memstore.Fault{Drop: true}, context.Canceled, 2 * time.Second},
			"a timeout of its own":                 {time.Second, memstore.Fault{Drop: true}, context.DeadlineExceeded, time.Second},
		} {
			m, err := ann.LockAll(t.Context(), "a", "b")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := m.Context(), func() {}
			if test.timeout > 0 {
				ctx, cancel = context.WithTimeout(ctx, test.timeout)
			}
			w.faults(test.fault, on(memstore.Withdraw))
			start := time.Now()
			err = m.Release(ctx)
			if took := time.Since(start); !errors.Is(err, test.want) || took != test.took {
				t.Errorf("%s: the release returned %v after %v, want %v after %v", name, err, took, test.want, test.took)
			}
			cancel()
			w.heal()
			time.Sleep(time.Minute)
		}
	})
}
