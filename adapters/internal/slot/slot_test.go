package slot_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/internal/slot"
	"github.com/stilelock/stile/store/memstore"
)

func newClient(t *testing.T, st *memstore.Store) *stile.Client {
	t.Helper()
	c, err := stile.New(st, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// lose occupies the slot with a hold of m, and breaks the hold.
func lose(t *testing.T, s *slot.Slot, c *stile.Client, m *stile.Mutex) {
	t.Helper()
	if err := s.Lock(t.Context(), m.Lock); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Break(t.Context(), m.Name(), s.Hold().Token()); err != nil {
		t.Fatal(err)
	}
	<-s.Hold().Lost()
}

// The Unlock of a user whose hold was lost must not release the hold of the next user, so there is no next
// user before it. Meanwhile the lock is free for other processes.
// Promise: P1
func TestSlot_lostHoldKeepsItUntilUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		c := newClient(t, st)
		m := c.Mutex("a")
		var s slot.Slot
		lose(t, &s, c, m)

		var locked error
		done := make(chan struct{})
		go func() {
			defer close(done)
			locked = s.Lock(t.Context(), m.Lock)
		}()
		synctest.Wait()
		select {
		case <-done:
			t.Fatalf("Lock beside a user whose hold was lost: got %v, want it to wait", locked)
		default:
		}
		other, err := newClient(t, st).Mutex("a").TryLock(t.Context())
		if err != nil {
			t.Fatalf("TryLock of another process: %v", err)
		}
		if err := other.Release(t.Context()); err != nil {
			t.Fatal(err)
		}

		if err := s.Unlock(t.Context()); !errors.Is(err, stile.ErrLost) {
			t.Errorf("Unlock of the lost hold: got %v, want the loss", err)
		}
		<-done
		if locked != nil || !s.Hold().Valid() {
			t.Fatalf("Lock after that Unlock: got %v, want a valid hold", locked)
		}
		if err := s.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestSlot_LockEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memstore.New())
		m := c.Mutex("a")
		var s slot.Slot
		lose(t, &s, c, m)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.Lock(ctx, m.Lock); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Lock beside a user whose hold was lost: got %v, want the deadline", err)
		}
		if h, err := m.TryLock(t.Context()); err != nil {
			t.Errorf("the attempt that was given up holds the lock: %v", err)
		} else if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestSlot_TryLockOccupied(t *testing.T) {
	c := newClient(t, memstore.New())
	m := c.Mutex("a")
	var s slot.Slot
	lose(t, &s, c, m)
	if err := s.TryLock(t.Context(), m.TryLock); !errors.Is(err, stile.ErrHeld) {
		t.Errorf("TryLock beside a user whose hold was lost: got %v, want ErrHeld", err)
	}
	if err := s.Relock(t.Context(), s.Hold(), m.TryLock); err != nil || !s.Hold().Valid() {
		t.Errorf("Relock: got %v, want a valid hold", err)
	}
	if err := s.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock after Relock: %v", err)
	}
}

// Unlock is called while Relock acquires the lock. Relock releases the new hold, because no other Unlock will.
func TestSlot_UnlockDuringRelock(t *testing.T) {
	c := newClient(t, memstore.New())
	m := c.Mutex("a")
	var s slot.Slot
	lose(t, &s, c, m)
	err := s.Relock(t.Context(), s.Hold(), func(ctx context.Context) (*stile.Hold, error) {
		_ = s.Unlock(ctx)
		return m.TryLock(ctx)
	})
	if !errors.Is(err, slot.ErrEmpty) || s.Hold() != nil {
		t.Errorf("Relock: got %v and the hold %v, want ErrEmpty", err, s.Hold())
	}
	if h, err := m.TryLock(t.Context()); err != nil {
		t.Errorf("the lock is not free: %v", err)
	} else if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestSlot_UnlockEmpty(t *testing.T) {
	var s slot.Slot
	if err := s.Unlock(t.Context()); !errors.Is(err, slot.ErrEmpty) {
		t.Errorf("got %v, want ErrEmpty", err)
	}
}
