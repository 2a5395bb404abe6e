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
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// yielding calls Yield in a goroutine and returns when all goroutines are blocked.
func yielding(ctx context.Context, t *testing.T, h *stile.Hold) *waiter {
	t.Helper()
	return waitWith(t, func() (*stile.Hold, error) { return h.Yield(ctx) })
}

// expectYielded checks that a hold has ended by a Yield, and that all its methods agree.
func expectYielded(t *testing.T, h *stile.Hold) {
	t.Helper()
	if cause := context.Cause(h.Context()); !errors.Is(cause, stile.ErrYielded) {
		t.Errorf("cause of the context of a yielded hold: got %v, want ErrYielded", cause)
	}
	if h.Valid() || h.Err() != nil || closed(h.Lost()) {
		t.Errorf("a yielded hold: valid %v, error %v, lost %v; want neither", h.Valid(), h.Err(), closed(h.Lost()))
	}
}

// operations counts the requests of a session from now on.
func (w *testEnv) operations(session string) *record[memstore.Op] {
	var ops record[memstore.Op]
	w.store.SetFaults(func(c memstore.Call) memstore.Fault {
		if c.Session == session && c.Op != memstore.Confirm && c.Op != memstore.Notify && c.Op != memstore.SetOwner {
			ops.add(c.Op)
		}
		return memstore.Fault{}
	})
	return &ops
}

// Yield joins the line in the step in which the next waiter gets the lock: before all who come later,
// behind all who came before.
// Promise: P3
func TestYield_handsOverAndJoinsAtTheEnd(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid, dan := w.client("ann"), w.client("bob"), w.client("cid"), w.client("dan")
		h := lock(t, ann, "a")
		second, third := wait(t.Context(), t, bob, "a"), wait(t.Context(), t, cid, "a")
		ops := w.operations(w.session("ann"))
		again := yielding(t.Context(), t, h)
		expectYielded(t, h)
		again.expectWaiting()
		fourth := wait(t.Context(), t, dan, "a")
		w.expectLine("a", "bob", "cid", "ann", "dan")
		if got := ops.all(); !slices.Equal(got, []memstore.Op{memstore.Requeue}) {
			t.Errorf("requests of Yield: got %v, want one requeue", got)
		}
		last := h.Token()
		for _, wt := range []*waiter{second, third, again, fourth} {
			next := wt.expectHoldNow()
			expectHeld(t, next)
			if next.Token() <= last {
				t.Errorf("token: got %d after %d, want a larger one", next.Token(), last)
			}
			last = next.Token()
			release(t, next)
		}
	})
}

func TestYield_nobodyWaits(t *testing.T) {
	for _, mode := range []line.Mode{line.Exclusive, line.Shared, line.Slot(2)} {
		scenario(t, func(t *testing.T, w *testEnv) {
			h := lockFor(t, w.client("ann"), "a", mode)
			again := yielding(t.Context(), t, h).expectHoldNow()
			expectYielded(t, h)
			expectHeld(t, again)
			if again.Token() <= h.Token() || again.Mode() != mode {
				t.Errorf("got a hold in mode %v with token %d, want mode %v and more than %d", again.Mode(), again.Token(), mode, h.Token())
			}
			w.expectLine("a", "ann")
			release(t, again)
		})
	}
}

// A TryLock of another client never finds the lock free during a Yield. It would if the lock were
// released before the requests of Lock: these are slow.
func TestYield_nobodyFindsTheLockFree(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		bobs := lock(t, bob, "b")
		w.faults(memstore.Fault{Delay: time.Second, ReplyDelay: time.Second},
			on(memstore.Enqueue, memstore.Withdraw, memstore.Requeue), w.session("ann"))
		again := yielding(t.Context(), t, h)
		for again.hold == nil {
			if _, err := bob.Mutex("a").TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
				t.Fatalf("TryLock during a Yield: got %v, want ErrHeld", err)
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
		}
		w.heal()
		release(t, again.expectHoldNow())
		release(t, bobs)
	})
}

// Waiters of the same client come first, in the order of their calls.
// Promise: P3
func TestYield_localWaitersComeFirst(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann", strict), w.client("bob")
		h := lock(t, ann, "a")
		first, second := wait(t.Context(), t, ann, "a"), wait(t.Context(), t, ann, "a")
		again := yielding(t.Context(), t, h)
		third := wait(t.Context(), t, ann, "a")
		other := wait(t.Context(), t, bob, "a")
		for _, wt := range []*waiter{first, other, second, again, third} {
			next := wt.expectHoldNow()
			expectHeld(t, next)
			release(t, next)
		}
		if n := ann.Queues(); n != 0 {
			t.Errorf("got %d queues at the end, want 0", n)
		}
	})
}

// A reader leaves the entry that it shares, and a writer gets the lock once all readers have left it.
func TestYield_readersOfAProcess(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		first, second := lockFor(t, ann, "a", line.Shared), lockFor(t, ann, "a", line.Shared)
		writer := waitFor(t.Context(), t, bob, "a", line.Exclusive)
		again := yielding(t.Context(), t, first)
		expectYielded(t, first)
		expectHeld(t, second)
		w.expectLine("a", "ann", "bob", "ann")
		writer.expectWaiting()
		other := yielding(t.Context(), t, second)
		w.expectLine("a", "bob", "ann", "ann")
		release(t, writer.expectHoldNow())
		one, two := again.expectHoldNow(), other.expectHoldNow()
		if one.Token() == two.Token() || one.Token() <= first.Token() {
			t.Errorf("tokens after Yield: got %d and %d, want different ones above %d", one.Token(), two.Token(), first.Token())
		}
		release(t, one)
		release(t, two)
	})
}

// A reader that yields never joins the entry of another reader: that may be ahead of a writer.
func TestYield_readerBehindLocalWriter(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		reader, other := lockFor(t, ann, "a", line.Shared), lockFor(t, ann, "a", line.Shared)
		writer := waitFor(t.Context(), t, ann, "a", line.Exclusive)
		again := yielding(t.Context(), t, reader)
		writer.expectWaiting()
		release(t, other)
		h := writer.expectHoldNow()
		again.expectWaiting()
		release(t, h)
		release(t, again.expectHoldNow())
	})
}

// A reader that yields gets an entry of its own, behind a writer that the store has not reported.
// Promise: P3
func TestYield_readerBehindUnreportedWriter(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, err := stile.New(noContentionStore{w.store}, &stile.Options{TTL: ttl, Owner: stile.Owner{Command: "ann"}})
		if err != nil {
			t.Fatal(err)
		}
		defer ann.Close(t.Context())
		one, two := lockFor(t, ann, "a", line.Shared), lockFor(t, ann, "a", line.Shared)
		writer := waitFor(t.Context(), t, w.client("bob"), "a", line.Exclusive)
		again := yielding(t.Context(), t, one)
		w.expectLine("a", "ann", "bob", "ann")
		release(t, two)
		release(t, writer.expectHoldNow())
		release(t, again.expectHoldNow())
	})
}

// Others see the new entry as a waiter's, and not that its client held the lock before.
func TestYield_owner(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h, err := ann.Mutex("a").With(stile.LockOptions{Reason: "batch"}).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		next := wait(t.Context(), t, bob, "a")
		time.Sleep(2 * time.Second) // until it is published that ann holds the lock
		again := yielding(t.Context(), t, h)
		l, err := bob.Line(t.Context(), "a")
		if err != nil || len(l.Waiters) != 1 {
			t.Fatalf("line: got %+v, %v, want one waiter", l, err)
		}
		if o := l.Waiters[0].Owner; !o.Obtained.IsZero() || o.Reason != "batch" || time.Since(o.Since) != 0 {
			t.Errorf("owner of the new entry: got %+v, want the reason batch, waiting since now", o)
		}
		release(t, next.expectHoldNow())
		release(t, again.expectHoldNow())
	})
}

// A wait in Yield with the context of another hold is part of the graph of waits.
func TestYield_inTheWaitGraph(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		outer, h := lock(t, ann, "outer"), lock(t, ann, "a")
		next := wait(t.Context(), t, w.client("bob"), "a")
		again := yielding(outer.Context(), t, h)
		bobs := next.expectHoldNow()
		time.Sleep(2 * time.Second)
		g, err := ann.WaitGraph(t.Context(), "")
		if err != nil || len(g.Waits) != 1 || g.Waits[0].Held != "outer" || g.Waits[0].For != "a" {
			t.Errorf("wait graph: got %+v, %v, want that the holder of outer waits for a", g, err)
		}
		release(t, bobs)
		release(t, again.expectHoldNow())
		release(t, outer)
	})
}

func TestYield_slots(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		mode := line.Slot(2)
		one, two := lockFor(t, ann, "a", mode), lockFor(t, ann, "a", mode)
		remote := waitFor(t.Context(), t, bob, "a", mode)
		again := yielding(t.Context(), t, one)
		h := remote.expectHoldNow()
		expectHeld(t, two)
		again.expectWaiting()
		local := waitFor(t.Context(), t, ann, "a", mode)
		back := yielding(t.Context(), t, two) // behind the local waiter
		w.expectLine("a", "bob", "ann", "ann")
		for _, wt := range []*waiter{again, local, back} {
			next := wt.expectHoldNow()
			release(t, next)
		}
		release(t, h)
	})
}

// withoutRequeue is a store without Requeue.
type withoutRequeue struct{ *memstore.Store }

func (s withoutRequeue) Capabilities() store.Capabilities {
	caps := s.Store.Capabilities()
	caps.Requeue = false
	return caps
}

func (s withoutRequeue) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	inner, err := s.Store.Open(ctx, opts)
	return withoutRequeueSession{inner}, err
}

type withoutRequeueSession struct{ store.Session }

func (s withoutRequeueSession) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	inner, err := s.Session.Enqueue(ctx, req)
	return withoutRequeueTicket{inner}, err
}

type withoutRequeueTicket struct{ store.Ticket }

func (t withoutRequeueTicket) Extensions() store.Extensions {
	e := t.Ticket.Extensions()
	e.Requeue = nil
	return e
}

// A downgraded hold joins the line again as a reader, behind the waiting writer.
// Promise: P1, P3
func TestYield_downgraded(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		h := lock(t, ann, "a")
		if err := h.Downgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		writer := waitFor(t.Context(), t, w.client("bob"), "a", line.Exclusive)
		again := yielding(t.Context(), t, h)
		expectYielded(t, h)
		w.expectLine("a", "bob", "ann")
		reader := waitFor(t.Context(), t, w.client("eve"), "a", line.Shared)
		release(t, writer.expectHoldNow())
		shared, other := again.expectHoldNow(), reader.expectHoldNow()
		if shared.Mode() != line.Shared {
			t.Errorf("the new hold has mode %v, want shared", shared.Mode())
		}
		release(t, other)
		release(t, shared)
	})
}

func TestYield_storeWithoutRequeue(t *testing.T) {
	for _, mode := range []line.Mode{line.Exclusive, line.Shared, line.Slot(1)} {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann, err := stile.New(withoutRequeue{w.store}, &stile.Options{TTL: ttl, Owner: stile.Owner{Command: "ann"}})
			if err != nil {
				t.Fatal(err)
			}
			defer ann.Close(t.Context())
			other := mode
			if mode == line.Shared {
				other = line.Exclusive
			}
			h := lockFor(t, ann, "a", mode)
			next := waitFor(t.Context(), t, w.client("bob"), "a", other)
			again := yielding(t.Context(), t, h)
			expectYielded(t, h)
			w.expectLine("a", "bob", "ann")
			local := waitFor(t.Context(), t, ann, "a", other)
			w.expectLine("a", "bob", "ann") // it waits behind the hold that has yielded
			for _, wt := range []*waiter{next, again, local} {
				release(t, wt.expectHoldNow())
			}
			if n := ann.Queues(); n != 0 {
				t.Errorf("got %d queues at the end, want 0", n)
			}
		})
	}
}

// If the request gets no reply, whether it was carried out or not, nothing is held and nothing is left.
// Promise: P5
func TestYield_noReply(t *testing.T) {
	refused := errors.New("refused")
	for what, f := range map[string]memstore.Fault{
		"the request is lost":      {Drop: true},
		"the reply is lost":        {LoseReply: true},
		"the request is refused":   {Err: refused},
		"it fails after the fact":  {Err: refused, LoseReply: true},
		"the request is very late": {Delay: time.Hour},
		"the reply is very late":   {ReplyDelay: time.Hour},
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann, bob := w.client("ann"), w.client("bob")
			h := lock(t, ann, "a")
			next := wait(t.Context(), t, bob, "a")
			w.faults(f, on(memstore.Requeue))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			again, err := h.Yield(ctx)
			want := context.DeadlineExceeded
			if f.Err != nil {
				want = refused
			}
			if again != nil || !errors.Is(err, want) || errors.Is(err, stile.ErrLost) {
				t.Fatalf("%s: got %v, %v, want an error matching %v", what, again, err, want)
			}
			expectYielded(t, h)
			w.heal()
			bobs := next.expectHold()
			w.expectLine("a", "bob")
			release(t, bobs)
			release(t, h) // does nothing
			release(t, lock(t, ann, "a"))
		})
	}
}

// If ctx ends while Yield waits, nothing is held and nothing is left.
// Promise: P5
func TestYield_givesUp(t *testing.T) {
	for _, local := range []bool{false, true} {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann, bob := w.client("ann"), w.client("bob")
			h := lock(t, ann, "a")
			other := bob
			if local {
				other = ann
			}
			next := wait(t.Context(), t, other, "a")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			again := yielding(ctx, t, h)
			holder := next.expectHoldNow()
			again.expectWaiting()
			time.Sleep(time.Second)
			again.expectFailure(context.DeadlineExceeded)
			synctest.Wait()
			if l := w.line("a"); len(l) != 1 {
				t.Errorf("line after Yield has failed: got %q, want the holder only", l)
			}
			release(t, holder)
			release(t, h) // does nothing
		})
	}
}

// With a context that has ended, Yield releases the lock.
func TestYield_contextHasEnded(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		h := lock(t, ann, "a")
		next := wait(t.Context(), t, w.client("bob"), "a")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if again, err := h.Yield(ctx); again != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("Yield: got %v, %v, want Canceled", again, err)
		}
		expectYielded(t, h)
		release(t, next.expectHoldNow())
		if n := ann.Queues(); n != 0 {
			t.Errorf("got %d queues, want 0", n)
		}
	})
}

// A lock that was lost before the hand-over is not waited for again.
// Promise: P6
func TestYield_lostBefore(t *testing.T) {
	for what, lose := range map[string]func(w *testEnv){
		"the entry was broken":  func(w *testEnv) { w.evict("a", "ann") },
		"the session has ended": func(w *testEnv) { w.store.Expire(w.session("ann")) },
	} {
		for _, told := range []bool{false, true} {
			scenario(t, func(t *testing.T, w *testEnv) {
				h := lock(t, w.client("ann"), "a")
				if !told {
					w.delayNotifications("a")
				}
				lose(w)
				synctest.Wait()
				again, err := h.Yield(t.Context())
				if again != nil || !errors.Is(err, stile.ErrLost) {
					t.Errorf("%s, notified: %v: Yield: got %v, %v, want ErrLost", what, told, again, err)
				}
				w.heal()
				w.expectLine("a")
			})
		}
	}
}

// If the new entry or its session is lost while Yield waits, Yield joins the line once more.
// Promise: P7
func TestYield_lostWhileWaiting(t *testing.T) {
	for what, lose := range map[string]func(w *testEnv){
		"the entry is broken": func(w *testEnv) { w.evict("a", "ann") },
		"the session ends":    func(w *testEnv) { w.store.Expire(w.session("ann")) },
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			h := lock(t, w.client("ann"), "a")
			next := wait(t.Context(), t, w.client("bob"), "a")
			again := yielding(t.Context(), t, h)
			bobs := next.expectHoldNow()
			lose(w)
			again.expectWaiting()
			w.expectLine("a", "bob", "ann")
			release(t, bobs)
			last := again.expectHoldNow()
			if last.Token() <= bobs.Token() {
				t.Errorf("%s: token: got %d after %d", what, last.Token(), bobs.Token())
			}
			release(t, last)
		})
	}
}

// The context of the hold ends at the hand-over, so it cannot bound the wait. The hold is kept.
func TestYield_withTheContextOfTheHold(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		h := lock(t, ann, "a")
		if again, err := h.Yield(h.Context()); again != nil || !errors.Is(err, stile.ErrReentrant) {
			t.Errorf("Yield with the hold's own context: got %v, %v, want ErrReentrant", again, err)
		}
		expectHeld(t, h)
		other, err := ann.Mutex("b").Lock(h.Context()) // another name is no obstacle
		if err != nil {
			t.Fatal(err)
		}
		if again, err := other.Yield(other.Context()); again != nil || !errors.Is(err, stile.ErrReentrant) {
			t.Errorf("Yield of the inner hold with its own context: got %v, %v, want ErrReentrant", again, err)
		}
		again, err := other.Yield(h.Context())
		if err != nil {
			t.Fatal(err)
		}
		expectHeld(t, h)
		release(t, again)
		release(t, h)
	})
}

func TestYield_twice(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		h := lock(t, w.client("ann"), "a")
		again := yielding(t.Context(), t, h).expectHoldNow()
		if other, err := h.Yield(t.Context()); other != nil || !errors.Is(err, stile.ErrReleased) {
			t.Errorf("second Yield of a hold: got %v, %v, want ErrReleased", other, err)
		}
		expectHeld(t, again)
		third := yielding(t.Context(), t, again).expectHoldNow()
		release(t, third)
		if other, err := third.Yield(t.Context()); other != nil || !errors.Is(err, stile.ErrReleased) {
			t.Errorf("Yield after the release: got %v, %v, want ErrReleased", other, err)
		}
	})
}

// Of several concurrent calls one yields, and the others fail.
func TestYield_concurrently(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		h := lock(t, w.client("ann"), "a")
		var holds record[*stile.Hold]
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				again, err := h.Yield(t.Context())
				switch {
				case err == nil:
					holds.add(again)
				case !errors.Is(err, stile.ErrReleased):
					t.Errorf("Yield: got %v, want ErrReleased", err)
				}
			})
		}
		all.Wait()
		got := holds.all()
		if len(got) != 1 {
			t.Fatalf("%d calls have yielded, want 1", len(got))
		}
		release(t, got[0])
	})
}

// A deferred release of the first hold releases the hold that came of it.
// Promise: P5
func TestYield_releaseOfTheOldHold(t *testing.T) {
	t.Run("held again", func(t *testing.T) {
		scenario(t, func(t *testing.T, w *testEnv) {
			h := lock(t, w.client("ann"), "a")
			again := yielding(t.Context(), t, yielding(t.Context(), t, h).expectHoldNow()).expectHoldNow()
			release(t, h)
			if again.Valid() || !errors.Is(context.Cause(again.Context()), stile.ErrReleased) {
				t.Error("the new hold is valid after the release of the old one")
			}
			w.expectLine("a")
			release(t, h)
			release(t, again)
		})
	})
	t.Run("still waiting", func(t *testing.T) {
		scenario(t, func(t *testing.T, w *testEnv) {
			h := lock(t, w.client("ann"), "a")
			bobs := wait(t.Context(), t, w.client("bob"), "a")
			again := yielding(t.Context(), t, h)
			again.expectWaiting()
			release(t, h)
			again.expectFailure(stile.ErrLeft)
			w.expectLine("a", "bob")
			release(t, bobs.expectHoldNow())
		})
	})
	t.Run("during the request", func(t *testing.T) {
		scenario(t, func(t *testing.T, w *testEnv) {
			h := lock(t, w.client("ann"), "a")
			w.faults(memstore.Fault{Delay: time.Second}, on(memstore.Requeue))
			again := yielding(t.Context(), t, h)
			release(t, h)
			again.expectFailure(stile.ErrLeft)
			time.Sleep(time.Second)
			w.expectLine("a")
		})
	})
	t.Run("lost", func(t *testing.T) {
		scenario(t, func(t *testing.T, w *testEnv) {
			h := lock(t, w.client("ann"), "a")
			again := yielding(t.Context(), t, h).expectHoldNow()
			w.evict("a", "ann")
			expectLost(t, again, stile.LostEvicted)
			if err := h.Release(t.Context()); !errors.Is(err, stile.ErrLost) {
				t.Errorf("Release of the old hold: got %v, want ErrLost", err)
			}
		})
	})
	t.Run("after a time", func(t *testing.T) {
		scenario(t, func(t *testing.T, w *testEnv) {
			h := lock(t, w.client("ann"), "a")
			yielding(t.Context(), t, h).expectHoldNow()
			if err := h.ReleaseAfter(t.Context(), time.Minute); err != nil {
				t.Fatal(err)
			}
			bobs := wait(t.Context(), t, w.client("bob"), "a")
			time.Sleep(59 * time.Second)
			bobs.expectWaiting()
			release(t, bobs.expectHoldWithin(2*time.Second))
		})
	})
	t.Run("by Do", func(t *testing.T) {
		scenario(t, func(t *testing.T, w *testEnv) {
			var again *stile.Hold
			err := w.client("ann").Mutex("a").Do(t.Context(), func(ctx context.Context, h *stile.Hold) (err error) {
				again, err = h.Yield(t.Context())
				synctest.Wait()
				if cause := context.Cause(ctx); !errors.Is(cause, stile.ErrYielded) {
					t.Errorf("cause of the context of Do's function: got %v, want ErrYielded", cause)
				}
				return err
			})
			if err != nil || again.Valid() {
				t.Errorf("Do: got %v and a valid hold: %v, want neither", err, again.Valid())
			}
			w.expectLine("a")
		})
	})
}

func TestYield_close(t *testing.T) {
	for _, waiting := range []bool{false, true} {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann := w.client("ann")
			h := lock(t, ann, "a")
			wait(t.Context(), t, w.client("bob"), "a")
			if !waiting {
				w.faults(memstore.Fault{Delay: time.Second}, on(memstore.Requeue))
			}
			again := yielding(t.Context(), t, h)
			if err := ann.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			again.expectFailure(stile.ErrClosed)
			if other, err := h.Yield(t.Context()); other != nil || !errors.Is(err, stile.ErrClosed) {
				t.Errorf("Yield after Close: got %v, %v, want ErrClosed", other, err)
			}
			w.expectLine("a", "bob")
		})
	}
}

// A hand-over is a release: it removes the marker, so the lock is not closed for the next holder.
// Promise: LockDelay
func TestYield_lockDelay(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann", withLockDelay), w.client("bob", withLockDelay)
		h := lock(t, ann, "a")
		next := wait(t.Context(), t, bob, "a")
		again := yielding(t.Context(), t, h)
		release(t, next.expectHoldNow())
		last := again.expectHoldNow()
		w.evict("a", "ann") // the new hold has a marker
		expectLost(t, last, stile.LostEvicted)
		closedFor := wait(t.Context(), t, bob, "a")
		time.Sleep(lockDelay / 2)
		closedFor.expectWaiting()
		release(t, closedFor.expectHoldWithin(lockDelay))
	})
}

// Yield is an attempt, and the old hold ends with the reason EndYielded before Yield waits.
func TestYield_hooks(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		var ends record[stile.HoldEndEvent]
		pairs := newHookPairs(t)
		ann := w.client("ann", func(o *stile.Options) {
			o.Hooks = stile.JoinHooks(pairs.hooks(), stile.Hooks{HoldEnd: ending(ends.add)})
		})
		h := lock(t, ann, "a")
		next := wait(t.Context(), t, w.client("bob"), "a")
		time.Sleep(time.Second)
		again := yielding(t.Context(), t, h)
		got := ends.all()
		if len(got) != 1 || got[0].Reason != stile.EndYielded || got[0].Token != h.Token() || got[0].Err != nil || got[0].Held != time.Second {
			t.Errorf("HoldEnd: got %+v, want one end of token %d after 1s, yielded", got, h.Token())
		}
		release(t, next.expectHoldNow())
		release(t, again.expectHoldNow())
		pairs.checkPaired()
		if n := pairs.attempts(); n != 2 {
			t.Errorf("got %d attempts, want 2", n)
		}
	})
}

// A candidate that yields leads again with the value that it last proclaimed.
func TestLeadership_Yield(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann").Election("a"), w.client("bob").Election("a")
		lead, err := ann.Campaign(t.Context(), "first")
		if err != nil {
			t.Fatal(err)
		}
		if err := lead.Proclaim(t.Context(), "second"); err != nil {
			t.Fatal(err)
		}
		candidate, err := bob.Join(t.Context(), "bob")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		done := make(chan struct{})
		go func() {
			defer close(done)
			if lead, err = lead.Yield(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		bobs, err := candidate.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := bobs.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-done
		if now, err := bob.Leader(t.Context()); err != nil || now == nil || now.Value != "second" || now.Token != lead.Token() {
			t.Errorf("leader after Yield: got %+v, %v, want the value second and token %d", now, err, lead.Token())
		}
		release(t, lead.Hold)
	})
}

// Contention is known from the first waiter until the tenure ends: a hold that is lent later sees it at
// once. A waiter that has given up counts.
func TestContended_latchedPerTenure(t *testing.T) {
	for what, local := range map[string]bool{"another process": false, "the same process": true} {
		t.Run(what, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann, writer := w.client("ann"), w.client("bob")
				if local {
					writer = ann
				}
				first := lockFor(t, ann, "a", line.Shared)
				second := lockFor(t, ann, "a", line.Shared)
				if closed(first.Contended()) {
					t.Fatal("contended, but nobody waits")
				}
				ctx, cancel := context.WithCancel(t.Context())
				waiting := waitFor(ctx, t, writer, "a", line.Exclusive)
				cancel()
				waiting.expectFailure(context.Canceled)
				if !closed(first.Contended()) || !closed(second.Contended()) {
					t.Error("the holds of a shared entry are not contended, but a waiter existed")
				}
				later := lockFor(t, ann, "a", line.Shared)
				if sameEntry := later.Token() == first.Token(); closed(later.Contended()) != sameEntry {
					t.Errorf("a later hold is contended: %v; it has the entry of the first: %v", !sameEntry, sameEntry)
				}
			})
		})
	}
}

// All holders of slots are notified of a waiter, and none of a holder.
func TestContended_slots(t *testing.T) {
	for what, local := range map[string]bool{"another process": false, "the same process": true} {
		t.Run(what, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann, other := w.client("ann"), w.client("bob")
				if local {
					other = ann
				}
				mode := line.Slot(2)
				one := lockFor(t, ann, "a", mode)
				one.Contended()
				two := lockFor(t, ann, "a", mode)
				if closed(one.Contended()) || closed(two.Contended()) {
					t.Fatal("contended, but nobody waits")
				}
				next := waitFor(t.Context(), t, other, "a", mode)
				if !closed(one.Contended()) || !closed(two.Contended()) {
					t.Error("not contended, but a waiter exists")
				}
				release(t, one)
				if h := next.expectHoldNow(); closed(h.Contended()) {
					t.Error("the next holder is contended, but nobody waits")
				}
			})
		})
	}
}

// A new hold after Yield has a channel of its own, which the waiters of its own entry close.
func TestContended_afterYield(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		next := wait(t.Context(), t, bob, "a")
		if !closed(h.Contended()) {
			t.Fatal("not contended, but a waiter exists")
		}
		again := yielding(t.Context(), t, h)
		bobs := next.expectHoldNow()
		if !closed(bobs.Contended()) {
			t.Error("the holder is not contended, but the holder before it waits again")
		}
		release(t, bobs)
		last := again.expectHoldNow()
		if closed(last.Contended()) {
			t.Error("contended, but nobody waits")
		}
		wait(t.Context(), t, bob, "a")
		if !closed(last.Contended()) {
			t.Error("not contended, but a waiter exists")
		}
	})
}
