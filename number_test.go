package stile_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func waitNumbered(t *testing.T, c *stile.Client, name string, slots int) *waiter {
	t.Helper()
	return waitWith(t, func() (*stile.Hold, error) { return c.Semaphore(name, slots).Numbered().Acquire(t.Context()) })
}

// expectNumber checks a hold's slot number.
func expectNumber(t *testing.T, h *stile.Hold, want int) {
	t.Helper()
	if got := h.Slot(); got != want {
		t.Fatalf("Slot: got %d, want %d", got, want)
	}
}

// Holds have different numbers, and the next hold gets the one that is free.
// Promise: P1
func TestNumbered_numberOfEachHold(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h0, h1 := waitNumbered(t, ann, "a", 3).expectHoldNow(), waitNumbered(t, bob, "a", 3).expectHoldNow()
		h2 := waitNumbered(t, ann, "a", 3).expectHoldNow()
		for want, h := range []*stile.Hold{h0, h1, h2} {
			expectNumber(t, h, want)
		}
		next := waitNumbered(t, bob, "a", 3)
		next.expectWaiting()
		token := h1.SlotToken()
		if token < h1.Token() {
			t.Errorf("SlotToken: got %d, want at least the token of the hold, %d", token, h1.Token())
		}
		release(t, h1)
		h := next.expectHoldNow()
		expectNumber(t, h, 1)
		if h.SlotToken() <= token {
			t.Errorf("SlotToken of the next hold with number 1: got %d, want more than %d", h.SlotToken(), token)
		}
		release(t, h0)
		release(t, h2)
		release(t, h)
	})
}

// Holds without numbers take slots only.
func TestNumbered_besideOthers(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		plain := waitSlot(t, c, "a", 2).expectHoldNow()
		expectNumber(t, plain, -1)
		if token := plain.SlotToken(); token != 0 {
			t.Errorf("SlotToken of a hold without number: got %d, want 0", token)
		}
		numbered, err := c.Semaphore("a", 2).Numbered().TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		expectNumber(t, numbered, 0)
		if _, err := c.Semaphore("a", 2).Numbered().TryAcquire(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("TryAcquire of a third slot of two: got %v, want ErrHeld", err)
		}
		release(t, plain)
		release(t, numbered)
		mutex := lock(t, c, "b")
		expectNumber(t, mutex, -1)
		release(t, mutex)
	})
}

// The number of a crashed process is free when its slot is.
// Promise: P1, P4
// Bug: redisson #2045
func TestNumbered_crashedHolder(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		crashed := waitNumbered(t, w.client("ann"), "a", 2).expectHoldNow()
		other := waitNumbered(t, w.client("bob"), "a", 2).expectHoldNow()
		next := waitNumbered(t, w.client("cid"), "a", 2)
		w.cut(w.session("ann"))
		h := next.expectHoldWithin(ttl + time.Second)
		if crashed.Valid() {
			t.Error("the number of a valid hold was given to another")
		}
		expectNumber(t, h, crashed.Slot())
		w.heal()
		release(t, h)
		release(t, other)
	})
}

// Two waiters are admitted by one step, and claim their numbers at the same time.
// Promise: P1
func TestNumbered_admittedTogether(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		waitNumbered(t, ann, "a", 2).expectHoldNow()
		waitNumbered(t, ann, "a", 2).expectHoldNow()
		w3, w4 := waitNumbered(t, w.client("bob"), "a", 2), waitNumbered(t, w.client("cid"), "a", 2)
		w.faults(memstore.Fault{Delay: time.Second}, on(memstore.ClaimNumber))
		if err := ann.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		h3, h4 := w3.expectHoldWithin(2*time.Second), w4.expectHoldWithin(2*time.Second)
		if h3.Slot() == h4.Slot() {
			t.Errorf("two holds have the number %d", h3.Slot())
		}
		release(t, h3)
		release(t, h4)
	})
}

// Two releases at once free two numbers.
// Bug: solid_queue #761
func TestNumbered_releasedTogether(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h0, h1 := waitNumbered(t, ann, "a", 2).expectHoldNow(), waitNumbered(t, bob, "a", 2).expectHoldNow()
		w2, w3 := waitNumbered(t, ann, "a", 2), waitNumbered(t, bob, "a", 2)
		w.faults(memstore.Fault{Delay: time.Second}, on(memstore.Withdraw))
		released := make(chan error, 2)
		for _, h := range []*stile.Hold{h0, h1} {
			go func() { released <- h.Release(t.Context()) }()
		}
		for range 2 {
			if err := <-released; err != nil {
				t.Error(err)
			}
		}
		h2, h3 := w2.expectHoldNow(), w3.expectHoldNow()
		if h2.Slot() == h3.Slot() {
			t.Errorf("two holds have the number %d", h2.Slot())
		}
		w.heal()
		release(t, h2)
		release(t, h3)
	})
}

// A claim that fails ends the attempt, and leaves neither an entry nor a number.
// Promise: P5
// Bug: CURATOR-462
func TestNumbered_claimFails(t *testing.T) {
	failed := errors.New("failed")
	for what, fault := range map[string]memstore.Fault{
		"it is refused":      {Err: failed},
		"the reply is lost":  {Err: failed, LoseReply: true},
		"no number is free":  {Err: store.ErrNoNumber},
		"no answer arrives":  {Drop: true},
		"the reply is late ": {ReplyDelay: time.Hour},
	} {
		t.Run(what, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				c := w.client("ann")
				w.faults(fault, on(memstore.ClaimNumber))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				want := fault.Err
				if want == nil {
					want = context.DeadlineExceeded
				}
				_, err := c.Semaphore("a", 1).Numbered().Acquire(ctx)
				expectError(t, err, want)
				w.heal()
				w.expectLine("a")
				h := waitNumbered(t, w.client("bob"), "a", 1).expectHoldNow()
				expectNumber(t, h, 0)
				release(t, h)
			})
		})
	}
}

// An entry that is lost before its number is claimed joins the line again, as it would while waiting.
// Promise: P5
func TestNumbered_lostBeforeClaim(t *testing.T) {
	for what, lose := range map[string]func(w *testEnv){
		"broken":  func(w *testEnv) { w.evict("a", "ann") },
		"expired": func(w *testEnv) { w.store.Expire(w.session("ann")) },
	} {
		t.Run(what, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				w.faults(memstore.Fault{Delay: time.Second}, on(memstore.ClaimNumber))
				waiting := waitNumbered(t, w.client("ann"), "a", 1)
				w.expectLine("a", "ann")
				lose(w)
				h := waiting.expectHoldWithin(time.Minute)
				expectNumber(t, h, 0)
				w.heal()
				release(t, h)
			})
		})
	}
}

// After ReleaseAfter the number stays taken as long as the slot.
func TestNumbered_releaseAfter(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		h0, h1 := waitNumbered(t, c, "a", 2).expectHoldNow(), waitNumbered(t, c, "a", 2).expectHoldNow()
		if err := h0.ReleaseAfter(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		release(t, h1)
		next, last := waitNumbered(t, c, "a", 2).expectHoldNow(), waitNumbered(t, c, "a", 2)
		expectNumber(t, next, 1)
		last.expectWaiting()
		time.Sleep(time.Minute)
		synctest.Wait()
		h := last.expectHoldNow()
		expectNumber(t, h, 0)
		release(t, next)
		release(t, h)
	})
}

// A store without slot numbers is an error of every locking method.
func TestNumbered_unsupported(t *testing.T) {
	c, err := stile.New(withoutNumbers{memstore.New()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	s := c.Semaphore("a", 2).Numbered()
	if _, err := s.Acquire(t.Context()); !errors.Is(err, stile.ErrUnsupported) {
		t.Errorf("Acquire: got %v, want ErrUnsupported", err)
	}
	if _, err := s.TryAcquire(t.Context()); !errors.Is(err, stile.ErrUnsupported) {
		t.Errorf("TryAcquire: got %v, want ErrUnsupported", err)
	}
}

type withoutNumbers struct{ store.Store }

func (s withoutNumbers) Capabilities() store.Capabilities {
	c := s.Store.Capabilities()
	c.SlotNumbers, c.SetLimit = false, nil
	return c
}
