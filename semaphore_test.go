package stile_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
)

func waitSlot(t *testing.T, c *stile.Client, name string, slots int) *waiter {
	t.Helper()
	return waitWith(t, func() (*stile.Hold, error) { return c.Semaphore(name, slots).Acquire(t.Context()) })
}

// Promise: P1, P3
func TestSemaphore_inOrderOfArrival(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		h1, h2 := waitSlot(t, ann, "a", 2).expectHoldNow(), waitSlot(t, bob, "a", 2).expectHoldNow()
		w3, w4 := waitSlot(t, cid, "a", 2), waitSlot(t, ann, "a", 2)
		w.expectLine("a", "ann", "bob", "cid", "ann")
		release(t, h2)
		h3 := w3.expectHoldNow()
		w4.expectWaiting()
		release(t, h1)
		h4 := w4.expectHoldNow()
		if h1.Token() == h2.Token() || h3.Token() == h4.Token() {
			t.Errorf("tokens: got %d, %d, %d and %d, want different ones", h1.Token(), h2.Token(), h3.Token(), h4.Token())
		}
		release(t, h3)
		release(t, h4)
		w.expectLine("a")
	})
}

// A hold is released once, however often Release is called: a second slot does not become free
// (solid_queue 761).
// Promise: P1
// Bug: solid_queue #761
func TestSemaphore_releasedTwice(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h1, h2 := waitSlot(t, ann, "a", 2).expectHoldNow(), waitSlot(t, ann, "a", 2).expectHoldNow()
		w3, w4 := waitSlot(t, bob, "a", 2), waitSlot(t, bob, "a", 2)
		release(t, h1)
		release(t, h1)
		h3 := w3.expectHoldNow()
		w4.expectWaiting()
		release(t, h2)
		release(t, h3)
		release(t, w4.expectHoldNow())
	})
}

// Two slots become free at the same time, and both waiters are admitted (redisson #6664).
// Promise: P7
// Bug: redisson #6664
func TestSemaphore_severalSlotsBecomeFreeTogether(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		waitSlot(t, ann, "a", 2).expectHoldNow()
		waitSlot(t, ann, "a", 2).expectHoldNow()
		w3, w4 := waitSlot(t, w.client("bob"), "a", 2), waitSlot(t, w.client("cid"), "a", 2)
		if err := ann.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		release(t, w3.expectHoldNow())
		release(t, w4.expectHoldNow())
	})
}

// The slot of a crashed process is free after the TTL (redisson #2045).
// Promise: P4
// Bug: redisson #2045, CURATOR-335
func TestSemaphore_crashedHolderLosesSlot(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		crashed := waitSlot(t, w.client("ann"), "a", 2).expectHoldNow()
		other := waitSlot(t, w.client("bob"), "a", 2).expectHoldNow()
		next := waitSlot(t, w.client("cid"), "a", 2)
		w.cut(w.session("ann"))
		h := next.expectHoldWithin(ttl + time.Second)
		if crashed.Valid() {
			t.Error("three holds of two slots are valid at the same time")
		}
		expectHeld(t, other)
		w.heal()
		release(t, h)
		release(t, other)
	})
}

// Bug: kazoo #213
func TestSemaphore_tryAcquire(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann").Semaphore("a", 2), w.client("bob").Semaphore("a", 2)
		h1, err := ann.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h2, err := bob.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []*stile.Semaphore{ann, bob} {
			if _, err := s.TryAcquire(t.Context()); !errors.Is(err, stile.ErrHeld) {
				t.Errorf("TryAcquire of a third slot of two: got %v, want ErrHeld", err)
			}
		}
		release(t, h1)
		release(t, h2)
	})
}

// All clients must agree on the number of slots (Curator and Redisson do not check it), and on the
// kind of lock (hazelcast #20387).
// Bug: hazelcast #20387
func TestSemaphore_otherKind(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := waitSlot(t, ann, "a", 5).expectHoldNow()
		for what, c := range map[string]*stile.Client{"the same process": ann, "another process": bob} {
			_, err := c.Semaphore("a", 3).Acquire(t.Context())
			expectError(t, err, stile.ErrKind)
			for _, part := range []string{`"a"`, "3 slots", "5 slots", "ann"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("in %s: error %q does not contain %q", what, err, part)
				}
			}
			for method, lock := range map[string]func(context.Context) (*stile.Hold, error){
				"TryAcquire": c.Semaphore("a", 3).TryAcquire, "Mutex.Lock": c.Mutex("a").Lock, "Mutex.TryLock": c.Mutex("a").TryLock,
				"RLock": c.RWMutex("a").RLock, "TryRLock": c.RWMutex("a").TryRLock,
			} {
				if _, err := lock(t.Context()); !errors.Is(err, stile.ErrKind) {
					t.Errorf("%s in %s: got %v, want ErrKind", method, what, err)
				}
			}
		}
		w.expectLine("a", "ann")
		release(t, h)
		if n := ann.Queues() + bob.Queues(); n != 0 {
			t.Errorf("%d queues are left after refusals, want none", n)
		}
		release(t, waitSlot(t, bob, "a", 3).expectHoldNow())
		release(t, lock(t, ann, "a"))
	})
}

func TestSemaphore_invalidNumberOfSlots(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		for _, slots := range []int{-1, 0, stile.MaxSlots + 1} {
			s := c.Semaphore("a", slots)
			if _, err := s.Acquire(t.Context()); err == nil || !strings.Contains(err.Error(), "slots") {
				t.Errorf("Acquire of %d slots: got %v, want an error", slots, err)
			}
			if _, err := s.Join(t.Context()); err == nil {
				t.Errorf("Join of %d slots: got no error", slots)
			}
		}
		release(t, waitSlot(t, c, "a", stile.MaxSlots).expectHoldNow())
	})
}

func TestSemaphore_joinAndDo(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		s := w.client("ann").Semaphore("a", 3).With(stile.LockOptions{Reason: "import"})
		if s.Name() != "a" || s.Slots() != 3 {
			t.Errorf("got %q with %d slots, want a with 3", s.Name(), s.Slots())
		}
		p, err := s.Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		h, err := p.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = s.Do(t.Context(), func(_ context.Context, h *stile.Hold) error {
			if h.Mode() != line.Slot(3) || h.Owner().Reason != "import" {
				t.Errorf("Do: got mode %v and reason %q, want slot/3 and import", h.Mode(), h.Owner().Reason)
			}
			w.expectLine("a", "ann", "ann")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		release(t, h)
	})
}
