package stile_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/memstore"
)

func resize(t *testing.T, c *stile.Client, name string, slots int) {
	t.Helper()
	if err := c.Resize(t.Context(), name, slots); err != nil {
		t.Fatal(err)
	}
}

// The limit applies to all clients, wakes the waiters that now fit, and evicts nobody.
// Promise: P1, P7
// Bug: redisson #6664
func TestResize_limitsAndWakes(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, operator := w.client("ann"), w.client("bob"), w.client("operator")
		resize(t, operator, "a", 1)
		h1 := waitSlot(t, ann, "a", 3).expectHoldNow()
		w2, w3, w4 := waitSlot(t, bob, "a", 3), waitSlot(t, ann, "a", 3), waitSlot(t, bob, "a", 3)
		w2.expectWaiting()
		resize(t, operator, "a", 3)
		h2, h3 := w2.expectHoldNow(), w3.expectHoldNow()
		w4.expectWaiting()

		resize(t, operator, "a", 1)
		for _, h := range []*stile.Hold{h1, h2, h3} {
			expectHeld(t, h)
		}
		if l, err := operator.Line(t.Context(), "a"); err != nil || len(l.Holders) != 3 || len(l.Waiters) != 1 {
			t.Errorf("Line after the limit was lowered: got %+v, %v, want 3 holders and a waiter", l, err)
		}
		release(t, h1)
		release(t, h2)
		w4.expectWaiting()
		release(t, h3)
		release(t, w4.expectHoldNow())
		w.expectLimit("a", 1)
		resize(t, operator, "a", 0)
		w.expectLimit("a", 0)
	})
}

// expectLimit checks the limit in the store.
func (w *testEnv) expectLimit(name string, want int) {
	w.t.Helper()
	l, err := w.store.Line(context.Background(), name)
	if err != nil || l.Limit != want {
		w.t.Fatalf("limit of %q: got %d, %v, want %d", name, l.Limit, err, want)
	}
}

// A limit outlasts every client, and a line shows it.
func TestResize_outlastsClients(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		operator, ann := w.client("operator"), w.client("ann")
		resize(t, operator, "a", 1)
		if err := operator.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * ttl)
		l, err := ann.Line(t.Context(), "a")
		if err != nil || l.Limit != 1 {
			t.Errorf("Line: got limit %d, %v, want 1", l.Limit, err)
		}
		h := waitSlot(t, ann, "a", 2).expectHoldNow()
		if _, err := ann.Semaphore("a", 2).TryAcquire(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("TryAcquire beyond the limit: got %v, want ErrHeld", err)
		}
		release(t, h)
	})
}

// A number beyond the limit is not given: the attempt fails, and leaves nothing.
// Promise: P5
func TestResize_numbersAreWithinLimit(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		h0, h1 := waitNumbered(t, c, "a", 3).expectHoldNow(), waitNumbered(t, c, "a", 3).expectHoldNow()
		w.faults(memstore.Fault{Delay: time.Second}, on(memstore.ClaimNumber))
		late := make(chan error, 1)
		go func() {
			_, err := c.Semaphore("a", 3).Numbered().Acquire(t.Context())
			late <- err
		}()
		synctest.Wait()
		resize(t, c, "a", 2) // between the admission and the claim
		expectError(t, <-late, stile.ErrNoNumber)
		w.expectLine("a", "ann", "ann")
		w.heal()
		next := waitNumbered(t, c, "a", 3)
		next.expectWaiting()
		release(t, h0)
		h := next.expectHoldNow()
		expectNumber(t, h, 0)
		release(t, h1)
		release(t, h)
		resize(t, c, "a", 0)
	})
}

func TestResize_errors(t *testing.T) {
	c, err := stile.New(withoutNumbers{memstore.New()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, slots := range []int{-1, stile.MaxSlots + 1} {
		if err := c.Resize(t.Context(), "a", slots); err == nil {
			t.Errorf("Resize to %d slots: got no error", slots)
		}
	}
	expectError(t, c.Resize(t.Context(), "/a", 1), stile.ErrBadName)
	expectError(t, c.Resize(t.Context(), "a", 1), stile.ErrUnsupported)
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	expectError(t, c.Resize(t.Context(), "a", 1), stile.ErrClosed)
}
