package stile

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/internal/keeper"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// newStalledClient returns a client whose session's goroutine blocks from when renewal is overdue
// until long after the deadline, as if the process were not scheduled: no timer reports the loss.
// After cut is called, renewals are dropped.
func newStalledClient(t *testing.T, st *memstore.Store) (c *Client, s *keeper.Session, cut func()) {
	t.Helper()
	c, err := New(st, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err = keeper.Open(t.Context(), st, store.SessionOptions{TTL: DefaultTTL},
		keeper.Callbacks{AtRisk: func(error, time.Duration) { time.Sleep(2 * DefaultTTL) }})
	if err != nil {
		t.Fatal(err)
	}
	c.current, c.sessions = s, []*keeper.Session{s}
	return c, s, func() {
		st.SetFaults(func(call memstore.Call) memstore.Fault {
			return memstore.Fault{Drop: call.Op == memstore.Confirm && call.Session == s.Store().ID()}
		})
	}
}

// sleepPastDeadline sleeps until just after the deadline of a stalled session.
func sleepPastDeadline(t *testing.T, s *keeper.Session) {
	t.Helper()
	time.Sleep(time.Until(s.Deadline().Time()) + time.Millisecond)
	if s.Context().Err() != nil {
		t.Fatal("the test setup failed: the session's context has ended")
	}
}

func TestValid_readsTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, cut := newStalledClient(t, memstore.New())
		defer c.Close(context.Background())
		h, err := c.Mutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cut()
		if !h.Valid() {
			t.Error("Valid before the deadline: got false")
		}
		sleepPastDeadline(t, s)
		if h.Valid() {
			t.Error("Valid after the deadline: got true")
		}
		if lost, ok := h.Release(t.Context()).(*LostError); !ok || lost.Reason != LostDeadline { //nolint:errorlint // it must not be wrapped
			t.Errorf("Release returned %v, want a loss by deadline", lost)
		}
	})
}

// The store admits an entry whose session's deadline has passed. Only the clock shows that.
func TestLock_neverReturnsEndedHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		c, s, cut := newStalledClient(t, st)
		defer c.Close(context.Background())
		other, err := New(st, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close(context.Background())

		held, err := other.Mutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		place, err := c.Mutex("a").Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // its entry is in the store's line
		cut()
		sleepPastDeadline(t, s)
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		h, err := place.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !h.Valid() {
			t.Error("Wait returned a hold that is not valid")
		}
		if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
