package stile_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// waitFor is wait in any mode.
func waitFor(ctx context.Context, t *testing.T, c *stile.Client, name string, mode line.Mode) *waiter {
	t.Helper()
	w := &waiter{t: t, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.hold, w.err = c.Locker(name, mode).Lock(ctx)
	}()
	synctest.Wait()
	return w
}

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
			t.Errorf("the tokens are %d and %d, want one for the entry", first.Token(), second.Token())
		}
		writer := waitFor(t.Context(), t, w.client("bob"), "a", line.Exclusive)
		release(t, first)
		expectHeld(t, second)
		writer.expectWaiting()
		release(t, second)
		release(t, writer.expectHoldNow())
	})
}

// A reader that comes while somebody waits behind the entry of its process stands behind that one.
func TestShare_readersDoNotOvertakeWriterOfAnotherProcess(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		reader := lockFor(t, ann, "a", line.Shared)
		writer := waitFor(t.Context(), t, bob, "a", line.Exclusive)
		late := waitFor(t.Context(), t, ann, "a", line.Shared)
		w.expectLine("a", "ann", "bob", "ann")
		if _, err := ann.Locker("a", line.Shared).TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("a try that would pass the writer: %v, want ErrHeld", err)
		}
		release(t, reader)
		late.expectWaiting()
		release(t, writer.expectHoldNow())
		release(t, late.expectHoldNow())
	})
}

func TestShare_readersDoNotOvertakeWriterOfTheirProcess(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		reader := lockFor(t, ann, "a", line.Shared)
		writer := waitFor(t.Context(), t, ann, "a", line.Exclusive)
		late := waitFor(t.Context(), t, ann, "a", line.Shared)
		if _, err := ann.Locker("a", line.Shared).TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("a try that would pass the writer: %v, want ErrHeld", err)
		}
		release(t, reader)
		h := writer.expectHoldNow()
		late.expectWaiting()
		release(t, h)
		release(t, late.expectHoldNow())
	})
}

// Readers that come together behind a writer of their process get one entry, although another writer waits behind them.
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

// deaf is a memory store that tells nobody of those who wait behind.
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

// Though nobody tells of a writer, readers do not keep it out for ever.
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

// The first of them puts the entry into the line. If its request is lost, the others wait no longer than it does.
func TestShare_firstGivesUpDuringEnqueue(t *testing.T) {
	for what, f := range map[string]memstore.Fault{
		"the request is lost": {Drop: true},
		"the reply is lost":   {LoseReply: true},
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann := w.client("ann")
			release(t, lock(t, ann, "b")) // it has a session
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
			t.Errorf("a hold that was released before is lost: %v", released.Err())
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
			t.Errorf("a try for what others of its process wait for: %v, want ErrHeld", err)
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
			t.Errorf("ReleaseAfter of a shared hold: %v, want ErrUnsupported", err)
		}
		expectHeld(t, h)
		release(t, h)
	})
}

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
