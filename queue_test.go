package stile_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// Promise: P3
func TestQueue_clientsInOrderOfArrival(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		h := lock(t, w.client("ann"), "a")
		names := []string{"ann"}
		var waiters []*waiter
		for _, name := range []string{"bob", "cid", "dan", "eve"} {
			waiters = append(waiters, wait(t.Context(), t, w.client(name), "a"))
			names = append(names, name)
			w.expectLine("a", names...)
		}
		for i, wt := range waiters {
			for _, later := range waiters[i:] {
				later.expectWaiting()
			}
			release(t, h)
			h = wt.expectHoldNow()
			w.expectLine("a", names[i+1:]...)
		}
	})
}

// A process has one entry in the line, however many of its goroutines wait for the lock.
// Promise: P3
func TestQueue_goroutinesInOrderOfArrival(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		h := lock(t, c, "a")
		var waiters []*waiter
		for range 20 {
			waiters = append(waiters, wait(t.Context(), t, c, "a"))
			w.expectLine("a", "ann")
		}
		for i, wt := range waiters {
			for _, later := range waiters[i:] {
				later.expectWaiting()
			}
			release(t, h)
			h = wt.expectHoldNow()
			w.expectLine("a", "ann")
		}
		release(t, h)
		w.expectLine("a")
	})
}

// A process rejoins the line at its end for each of its goroutines, so that other processes do not
// starve.
func TestQueue_busyProcessTakesTurnsWithOthers(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann", strict), w.client("bob", strict)
		first := lock(t, ann, "a")
		a2, a3 := wait(t.Context(), t, ann, "a"), wait(t.Context(), t, ann, "a")
		b1, b2 := wait(t.Context(), t, bob, "a"), wait(t.Context(), t, bob, "a")
		w.expectLine("a", "ann", "bob")

		release(t, first)
		h := b1.expectHoldNow()
		w.expectLine("a", "bob", "ann")
		release(t, h)
		h = a2.expectHoldNow()
		w.expectLine("a", "ann", "bob")
		release(t, h)
		h = b2.expectHoldNow()
		w.expectLine("a", "bob", "ann")
		release(t, h)
		release(t, a3.expectHoldNow())
		w.expectLine("a")
	})
}

func TestQueue_namesAreIndependent(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		lock(t, bob, "a")
		wt := wait(t.Context(), t, ann, "a")
		release(t, lock(t, ann, "b"))
		wt.expectWaiting()
	})
}

// A release causes one request and wakes only the next waiter.
// Promise: P4
// Bug: solid_queue #630
func TestQueue_wakesOnlyTheNext(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		h := lock(t, w.client("ann"), "a")
		b := wait(t.Context(), t, w.client("bob"), "a")
		c := wait(t.Context(), t, w.client("cid"), "a")
		requests := 0
		w.store.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op != memstore.Notify {
				requests++
			}
			return memstore.Fault{}
		})
		release(t, h)
		b.expectHoldNow()
		c.expectWaiting()
		if requests != 1 {
			t.Errorf("requests for a hand-over: got %d, want 1, the release", requests)
		}
	})
}

// Many goroutines of several clients increment a counter that only the lock protects, so that the
// race detector checks the exclusion, too.
// Promise: P1
func TestQueue_exclusion(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		counter, last := 0, uint64(0)
		var all sync.WaitGroup
		for _, name := range []string{"ann", "bob", "cid"} {
			c := w.client(name)
			for range 5 {
				all.Go(func() {
					for range 20 {
						err := c.Mutex("a").Do(t.Context(), func(_ context.Context, h *stile.Hold) error {
							was := counter
							time.Sleep(time.Millisecond)
							counter = was + 1
							if h.Token() <= last {
								t.Errorf("token: got %d, want more than %d", h.Token(), last)
							}
							last = h.Token()
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
		if counter != 300 {
			t.Errorf("counter: got %d, want 300", counter)
		}
	})
}

// cancelable returns a context, the function that ends it, and the cause with which it ends.
func cancelable(t *testing.T) (ctx context.Context, end func(), cause error) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause = errors.New("canceled by the caller")
	return ctx, func() { cancel(cause); synctest.Wait() }, cause
}

func TestGiveUp_inLocalQueue(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		h := lock(t, c, "a")
		ctx, end, cause := cancelable(t)
		first := wait(t.Context(), t, c, "a")
		canceledWaiter := wait(ctx, t, c, "a")
		last := wait(t.Context(), t, c, "a")
		end()
		canceledWaiter.expectFailure(context.Canceled, cause)
		release(t, h)
		release(t, first.expectHoldNow())
		release(t, last.expectHoldNow())
	})
}

func TestGiveUp_inLineInStore(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		h := lock(t, ann, "a")
		ctx, end, cause := cancelable(t)
		canceledWaiter := wait(ctx, t, bob, "a")
		behind := wait(t.Context(), t, bob, "a")
		next := wait(t.Context(), t, cid, "a")
		w.expectLine("a", "ann", "bob", "cid")
		end()
		canceledWaiter.expectFailure(context.Canceled, cause)
		w.expectLine("a", "ann", "cid", "bob")
		release(t, h)
		release(t, next.expectHoldNow())
		release(t, behind.expectHoldNow())
	})
}

func TestGiveUp_contextDeadline(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		cause := errors.New("too slow")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, cause)
		defer cancel()
		before := time.Now()
		for _, c := range []*stile.Client{ann, bob} {
			_, err := c.Mutex("a").Lock(ctx)
			expectError(t, err, context.DeadlineExceeded, cause)
		}
		if d := time.Since(before); d != time.Minute {
			t.Errorf("Lock waited for %v, want 1m", d)
		}
		expectHeld(t, h)
		w.expectLine("a", "ann")
	})
}

func TestGiveUp_whileSessionOpens(t *testing.T) {
	for what, f := range map[string]memstore.Fault{
		"the request is slow": {Delay: time.Second},
		"the reply is slow":   {ReplyDelay: time.Second},
		"the request is lost": {Drop: true},
		"the reply is lost":   {LoseReply: true},
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			c := w.client("ann")
			w.faults(f, on(memstore.Open))
			ctx, end, cause := cancelable(t)
			opener := wait(ctx, t, c, "a")
			behind := wait(t.Context(), t, c, "a")
			sameSession := wait(t.Context(), t, c, "b") // waits for the same session
			time.Sleep(time.Millisecond)
			w.heal()
			end()
			opener.expectFailure(context.Canceled, cause)
			release(t, behind.expectHoldNow())
			release(t, sameSession.expectHoldNow())
			w.expectLine("a")
			if ids := w.store.Sessions(); len(ids) != 1 {
				t.Errorf("%s: got the sessions %v, want one", what, ids)
			}
		})
	}
}

// customErrorStore is a store whose Open returns err when its context ends.
type customErrorStore struct {
	store.Store
	err error
}

func (s customErrorStore) Open(ctx context.Context, _ store.SessionOptions) (store.Session, error) {
	<-ctx.Done()
	return nil, s.err
}

func TestGiveUp_errorMatchesContextError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reset := errors.New("connection reset")
		c, err := stile.New(customErrorStore{memstore.New(), reset}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, end, cause := cancelable(t)
		wt := wait(ctx, t, c, "a")
		end()
		wt.expectFailure(context.Canceled, cause, reset)
		wt = wait(t.Context(), t, c, "a")
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		wt.expectFailure(stile.ErrClosed)
	})
}

// Bug: hazelcast-csharp-client #884
func TestGiveUp_whileAnotherCallOpensSession(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		w.faults(memstore.Fault{Delay: time.Second}, on(memstore.Open))
		opener := wait(t.Context(), t, c, "a")
		ctx, end, cause := cancelable(t)
		canceledWaiter := wait(ctx, t, c, "b")
		end()
		canceledWaiter.expectFailure(context.Canceled, cause)
		opener.expectHold()
		w.expectLine("b")
	})
}

// If the caller gives up during the request, no entry is left and nobody waits for one, whether or
// not the request was carried out.
// Promise: P5
// Bug: CURATOR-462
func TestGiveUp_duringEnqueue(t *testing.T) {
	for what, f := range map[string]memstore.Fault{
		"the request is slow": {Delay: time.Second},
		"the reply is slow":   {ReplyDelay: time.Second},
		"the request is lost": {Drop: true},
		"the reply is lost":   {LoseReply: true},
	} {
		for _, held := range []bool{false, true} {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann, bob := w.client("ann"), w.client("bob")
				var h *stile.Hold
				var line []string
				if held {
					h, line = lock(t, bob, "a"), []string{"bob"}
				}
				w.faults(f, on(memstore.Enqueue))
				ctx, end, cause := cancelable(t)
				canceledWaiter := wait(ctx, t, ann, "a")
				behind := wait(t.Context(), t, ann, "a")
				time.Sleep(time.Millisecond)
				w.heal()
				end()
				t.Log(what, "; held:", held)
				canceledWaiter.expectFailure(context.Canceled, cause)
				w.expectLine("a", append(line, "ann")...)
				if held {
					behind.expectWaiting()
					release(t, h)
				}
				release(t, behind.expectHoldNow())
				release(t, lock(t, bob, "a"))
			})
		}
	}
}

// The caller gives up while it is admitted. It gets either the lock or an error; no entry is left,
// and the next waiter is admitted.
// Promise: P5
func TestGiveUp_duringAdmission(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid := w.client("ann"), w.client("bob", strict), w.client("cid")
		got := 0
		for range 300 {
			h := lock(t, ann, "a")
			ctx, cancel := context.WithCancel(t.Context())
			racer := wait(ctx, t, bob, "a")
			behind := wait(t.Context(), t, bob, "a")
			next := wait(t.Context(), t, cid, "a")
			go cancel()
			release(t, h)
			<-racer.done
			if racer.err == nil {
				got++
				expectHeld(t, racer.hold)
				next.expectWaiting()
				release(t, racer.hold)
			} else {
				expectError(t, racer.err, context.Canceled)
			}
			release(t, next.expectHoldNow())
			release(t, behind.expectHoldNow())
			w.expectLine("a")
		}
		t.Logf("got the lock %d times of 300", got)
	})
}

// The same as [TestGiveUp_duringAdmission] within one process.
func TestGiveUp_duringAdmissionInLocalQueue(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		for range 300 {
			h := lock(t, c, "a")
			ctx, cancel := context.WithCancel(t.Context())
			racer := wait(ctx, t, c, "a")
			next := wait(t.Context(), t, c, "a")
			go cancel()
			release(t, h)
			<-racer.done
			if racer.err == nil {
				next.expectWaiting()
				release(t, racer.hold)
			} else {
				expectError(t, racer.err, context.Canceled)
			}
			release(t, next.expectHoldNow())
			w.expectLine("a")
		}
	})
}

// If the entry cannot be withdrawn at once, the next waiter of the process is delayed by one second
// and the caller not at all.
// Promise: P5
func TestGiveUp_storeUnreachable(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		h := lock(t, bob, "a")
		ctx, end, cause := cancelable(t)
		canceledWaiter := wait(ctx, t, ann, "a")
		behind := wait(t.Context(), t, ann, "a")
		next := wait(t.Context(), t, cid, "a")
		w.faults(memstore.Fault{Drop: true}, on(memstore.Withdraw), w.session("ann"))
		end()
		canceledWaiter.expectFailure(context.Canceled, cause)
		w.expectLine("a", "bob", "ann", "cid")
		time.Sleep(time.Second)
		w.expectLine("a", "bob", "ann", "cid", "ann")
		w.heal()
		time.Sleep(2 * time.Second)
		w.expectLine("a", "bob", "cid", "ann")
		release(t, h)
		release(t, next.expectHoldNow())
		release(t, behind.expectHoldNow())
	})
}

// registrations is a context that counts the functions registered with AfterFunc, and those not
// stopped.
type registrations struct {
	context.Context
	mu   sync.Mutex
	open int
	all  int
}

// Value hides the type of the inner context, so that package context has to call AfterFunc.
func (*registrations) Value(any) any { return nil }

func (r *registrations) AfterFunc(f func()) func() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open++
	r.all++
	stop := context.AfterFunc(r.Context, f)
	return sync.OnceValue(func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.open--
		return stop()
	})
}

// The caller's context may last as long as the process, so a finished call must leave no function
// registered with it.
func TestGiveUp_leavesNothingOnCallersContext(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := &registrations{Context: ctx}
		m := ann.Mutex("a")
		var holds []*stile.Hold
		use := func(h *stile.Hold, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			holds = append(holds, h)
			release(t, h)
		}
		use(m.Lock(r))
		use(m.TryLock(r))
		p, err := m.Join(r)
		if err != nil {
			t.Fatal(err)
		}
		use(p.Wait(t.Context()))
		if err := m.Do(r, func(context.Context, *stile.Hold) error { return nil }); err != nil {
			t.Fatal(err)
		}
		h := lock(t, bob, "a")
		if _, err := m.TryLock(r); !errors.Is(err, stile.ErrHeld) {
			t.Fatal(err)
		}
		if p, err = m.Join(r); err != nil {
			t.Fatal(err)
		}
		if err := p.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		release(t, h)
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.open != 0 || r.all == 0 {
			t.Errorf("of %d functions registered with the context %d were not stopped", r.all, r.open)
		}
	})
}

func TestContended(t *testing.T) {
	for _, tt := range []struct {
		who       string
		contender func(w *testEnv, ann *stile.Client) *stile.Client
	}{
		{"another process", func(w *testEnv, _ *stile.Client) *stile.Client { return w.client("bob") }},
		{"the same process", func(_ *testEnv, ann *stile.Client) *stile.Client { return ann }},
	} {
		t.Run(tt.who, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann := w.client("ann")
				other := tt.contender(w, ann)
				h := lock(t, ann, "a")
				if closed(h.Contended()) {
					t.Fatal("contended, but nobody waits")
				}
				lock(t, other, "b")
				wait(t.Context(), t, ann, "b")
				if _, err := other.Mutex("a").TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
					t.Fatal(err)
				}
				if closed(h.Contended()) {
					t.Fatal("contended, but only a TryLock failed and only another name has waiters")
				}
				wt := wait(t.Context(), t, other, "a")
				if !closed(h.Contended()) {
					t.Error("not contended, but a waiter exists")
				}
				release(t, h)
				next := wt.expectHoldNow()
				if closed(next.Contended()) {
					t.Error("the next hold is contended, but nobody waits")
				}
				wait(t.Context(), t, other, "a")
				if !closed(next.Contended()) {
					t.Error("the next hold is not contended, but a waiter exists")
				}
			})
		})
	}
}

func TestContended_askedLate(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		a, b := lock(t, ann, "a"), lock(t, ann, "b")
		wait(t.Context(), t, bob, "a")
		wait(t.Context(), t, ann, "b")
		if !closed(a.Contended()) || !closed(b.Contended()) {
			t.Error("not contended, but a waiter existed before the call")
		}
	})
}

func TestContended_afterTheHold(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		release(t, h)
		lock(t, bob, "a")
		wait(t.Context(), t, ann, "a")
		if closed(h.Contended()) {
			t.Error("a released hold is contended by the waiter for a later hold")
		}
	})
}

func TestQueue_linesAreIndependent(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		var holds []*stile.Hold
		for _, name := range []string{"a", "b", "c"} {
			holds = append(holds, lock(t, c, name))
		}
		slices.Reverse(holds)
		for _, h := range holds {
			release(t, h)
		}
	})
}
