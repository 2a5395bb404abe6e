package stile_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// waitFor is wait with a mode.
func waitFor(ctx context.Context, t *testing.T, c *stile.Client, name string, mode line.Mode) *waiter {
	t.Helper()
	return waitWith(t, func() (*stile.Hold, error) { return c.Locker(name, mode).Lock(ctx) })
}

// lockFor is lock with a mode.
func lockFor(t *testing.T, c *stile.Client, name string, mode line.Mode) *stile.Hold {
	t.Helper()
	return waitFor(t.Context(), t, c, name, mode).expectHoldNow()
}

func TestShare_readersOfAProcessHaveOneEntry(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		first := lockFor(t, ann, "a", line.Shared)
		second := lockFor(t, ann, "a", line.Shared)
		w.expectLine("a", "ann")
		if first.Token() != second.Token() {
			t.Errorf("tokens: got %d and %d, want the same for both", first.Token(), second.Token())
		}
		writer := waitFor(t.Context(), t, w.client("bob"), "a", line.Exclusive)
		release(t, first)
		expectHeld(t, second)
		writer.expectWaiting()
		release(t, second)
		release(t, writer.expectHoldNow())
	})
}

// The session is renewed as long as a reader is left, and one reader's release ends no renewal that
// another needs.
// Promise: P1
// Bug: redisson #1604
func TestShare_renewedUntilLastRelease(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		var readers []*stile.Hold
		for range 3 {
			readers = append(readers, lockFor(t, ann, "a", line.Shared))
		}
		writer := waitFor(t.Context(), t, w.client("bob"), "a", line.Exclusive)
		for len(readers) > 0 {
			time.Sleep(3 * ttl)
			for _, h := range readers {
				expectHeld(t, h)
			}
			writer.expectWaiting()
			release(t, readers[0])
			readers = readers[1:]
		}
		release(t, writer.expectHoldNow())
	})
}

// A reader that arrives while a writer waits behind the entry of the reader's process gets a new
// entry behind that writer.
// Bug: redisson #5379
func TestShare_readersDoNotOvertakeWriterOfAnotherProcess(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		reader := lockFor(t, ann, "a", line.Shared)
		writer := waitFor(t.Context(), t, bob, "a", line.Exclusive)
		late := waitFor(t.Context(), t, ann, "a", line.Shared)
		w.expectLine("a", "ann", "bob", "ann")
		if _, err := ann.Locker("a", line.Shared).TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("TryLock past the writer: got %v, want ErrHeld", err)
		}
		release(t, reader)
		late.expectWaiting()
		release(t, writer.expectHoldNow())
		release(t, late.expectHoldNow())
	})
}

// Bug: redisson #5379
func TestShare_readersDoNotOvertakeWriterOfTheirProcess(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		reader := lockFor(t, ann, "a", line.Shared)
		writer := waitFor(t.Context(), t, ann, "a", line.Exclusive)
		late := waitFor(t.Context(), t, ann, "a", line.Shared)
		if _, err := ann.Locker("a", line.Shared).TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("TryLock past the writer: got %v, want ErrHeld", err)
		}
		release(t, reader)
		h := writer.expectHoldNow()
		late.expectWaiting()
		release(t, h)
		release(t, late.expectHoldNow())
	})
}

// Readers that wait behind a writer of their process get one entry, even if another writer waits
// behind them.
func TestShare_readersBetweenWritersHaveOneEntry(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		first := lockFor(t, ann, "a", line.Exclusive)
		r1 := waitFor(t.Context(), t, ann, "a", line.Shared)
		r2 := waitFor(t.Context(), t, ann, "a", line.Shared)
		last := waitFor(t.Context(), t, ann, "a", line.Exclusive)
		release(t, first)
		h1, h2 := r1.expectHoldNow(), r2.expectHoldNow()
		w.expectLine("a", "ann")
		release(t, h1)
		release(t, h2)
		release(t, last.expectHoldNow())
	})
}

// noContentionStore is a store that never reports contention.
type noContentionStore struct{ store.Store }

func (s noContentionStore) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	inner, err := s.Store.Open(ctx, opts)
	return noContentionSession{inner}, err
}

type noContentionSession struct{ store.Session }

func (s noContentionSession) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	inner, err := s.Session.Enqueue(ctx, req)
	return noContentionTicket{inner}, err
}

type noContentionTicket struct{ store.Ticket }

func (t noContentionTicket) Extensions() store.Extensions {
	e := t.Ticket.Extensions()
	e.NotifyContended = func(func()) {}
	return e
}

// Even if the store does not report a waiting writer, readers can join an admitted entry only for a
// second, so that the writer is admitted.
// Bug: redisson #5379
func TestShare_windowEndsWithoutNotification(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, err := stile.New(noContentionStore{w.store}, &stile.Options{TTL: ttl, Owner: stile.Owner{Command: "ann"}})
		if err != nil {
			t.Fatal(err)
		}
		defer ann.Close(t.Context())
		reader := lockFor(t, ann, "a", line.Shared)
		writer := waitFor(t.Context(), t, w.client("bob"), "a", line.Exclusive)
		early := lockFor(t, ann, "a", line.Shared)
		w.expectLine("a", "ann", "bob")
		time.Sleep(time.Second)
		late := waitFor(t.Context(), t, ann, "a", line.Shared)
		w.expectLine("a", "ann", "bob", "ann")
		release(t, reader)
		release(t, early)
		release(t, writer.expectHoldNow())
		release(t, late.expectHoldNow())
	})
}

func TestShare_firstGivesUp(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		writer := lock(t, bob, "a")
		ctx, end, cause := cancelable(t)
		first := waitFor(ctx, t, ann, "a", line.Shared)
		second := waitFor(t.Context(), t, ann, "a", line.Shared)
		behind := waitFor(t.Context(), t, cid, "a", line.Exclusive)
		w.expectLine("a", "bob", "ann", "cid")
		end()
		first.expectFailure(context.Canceled, cause)
		w.expectLine("a", "bob", "ann", "cid")
		release(t, writer)
		h := second.expectHoldNow()
		behind.expectWaiting()
		release(t, h)
		release(t, behind.expectHoldNow())
	})
}

// The first reader enqueues the shared entry. If its request is lost and it gives up, the others do
// not keep waiting for it.
// Bug: CURATOR-462
func TestShare_firstGivesUpDuringEnqueue(t *testing.T) {
	for what, f := range map[string]memstore.Fault{
		"the request is lost": {Drop: true},
		"the reply is lost":   {LoseReply: true},
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann := w.client("ann")
			release(t, lock(t, ann, "b")) // opens the session
			w.faults(f, on(memstore.Enqueue))
			ctx, end, cause := cancelable(t)
			first := waitFor(ctx, t, ann, "a", line.Shared)
			second := waitFor(t.Context(), t, ann, "a", line.Shared)
			w.heal()
			t.Log(what)
			second.expectWaiting()
			end()
			first.expectFailure(context.Canceled, cause)
			release(t, second.expectHoldNow())
			w.expectLine("a")
		})
	}
}

func TestShare_allGiveUp(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		writer := lock(t, bob, "a")
		ctx, end, cause := cancelable(t)
		first := waitFor(ctx, t, ann, "a", line.Shared)
		second := waitFor(ctx, t, ann, "a", line.Shared)
		end()
		first.expectFailure(context.Canceled, cause)
		second.expectFailure(context.Canceled, cause)
		w.expectLine("a", "bob")
		third := waitFor(t.Context(), t, ann, "a", line.Shared)
		release(t, writer)
		release(t, third.expectHoldNow())
	})
}

func TestShare_allAreLostTogether(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		first, second := lockFor(t, ann, "a", line.Shared), lockFor(t, ann, "a", line.Shared)
		released := lockFor(t, ann, "a", line.Shared)
		release(t, released)
		w.evict("a", "ann")
		expectLost(t, first, stile.LostEvicted)
		expectLost(t, second, stile.LostEvicted)
		if released.Err() != nil {
			t.Errorf("Err of a hold released before: got %v, want nil", released.Err())
		}
		release(t, lockFor(t, ann, "a", line.Shared))
	})
}

func TestShare_tryJoinsAdmittedEntry(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		first := lockFor(t, ann, "a", line.Shared)
		second, err := ann.Locker("a", line.Shared).TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.expectLine("a", "ann")
		release(t, first)
		expectHeld(t, second)
		release(t, second)
	})
}

func TestShare_tryDoesNotWait(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		writer := lock(t, bob, "a")
		waiting := waitFor(t.Context(), t, ann, "a", line.Shared)
		if _, err := ann.Locker("a", line.Shared).TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("TryLock with a waiter of the same process: got %v, want ErrHeld", err)
		}
		w.expectLine("a", "bob", "ann")
		release(t, writer)
		release(t, waiting.expectHoldNow())
	})
}

func TestShare_releaseAfterIsUnsupported(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		h := lockFor(t, w.client("ann"), "a", line.Shared)
		if err := h.ReleaseAfter(t.Context(), time.Minute); !errors.Is(err, stile.ErrUnsupported) {
			t.Errorf("ReleaseAfter of a shared hold: got %v, want ErrUnsupported", err)
		}
		expectHeld(t, h)
		release(t, h)
	})
}

// Bug: CURATOR-335
func TestSlots_eachHasAnEntry(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		first, second := lockFor(t, ann, "a", line.Slot(2)), lockFor(t, ann, "a", line.Slot(2))
		w.expectLine("a", "ann", "ann")
		here := waitFor(t.Context(), t, ann, "a", line.Slot(2))
		there := waitFor(t.Context(), t, bob, "a", line.Slot(2))
		release(t, first)
		h := there.expectHoldNow()
		here.expectWaiting()
		release(t, second)
		release(t, here.expectHoldNow())
		release(t, h)
	})
}
