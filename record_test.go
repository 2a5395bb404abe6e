package stile_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func setRecord(t *testing.T, h *stile.Hold, value string) {
	t.Helper()
	if err := h.SetRecord(t.Context(), []byte(value)); err != nil {
		t.Fatalf("SetRecord: %v", err)
	}
}

func expectRecord(t *testing.T, c *stile.Client, name, want string) {
	t.Helper()
	if got, err := c.Record(t.Context(), name); err != nil || string(got) != want {
		t.Errorf("record of %q: got %q, %v, want %q", name, got, err, want)
	}
}

// A record outlasts the hold and the client that has written it.
func TestHold_setRecord(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		expectRecord(t, bob, "a", "")
		h := lock(t, ann, "a")
		setRecord(t, h, "one")
		setRecord(t, h, "two")
		expectRecord(t, bob, "a", "two")
		release(t, h)
		if err := ann.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		expectRecord(t, bob, "a", "two")
		h = lock(t, bob, "a")
		setRecord(t, h, "")
		expectRecord(t, bob, "a", "")
		release(t, h)
	})
}

// A hold that has been replaced cannot overwrite what the next holder has recorded, although it does not
// know of its loss yet.
func TestHold_setRecordAfterBreak(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		w.faults(memstore.Fault{Delay: time.Second}, on(memstore.Notify), w.session("ann"))
		if _, err := bob.Break(t.Context(), "a", h.Token()); err != nil {
			t.Fatal(err)
		}
		next := lock(t, bob, "a")
		setRecord(t, next, "bob's")
		expectHeld(t, h) // as far as it knows
		if err := h.SetRecord(t.Context(), []byte("ann's")); !errors.Is(err, stile.ErrLost) {
			t.Errorf("SetRecord of a broken hold: got %v, want ErrLost", err)
		}
		if h.Err() == nil || h.Valid() {
			t.Error("the hold is not lost after SetRecord has found no entry")
		}
		expectRecord(t, bob, "a", "bob's")
		w.heal()
		release(t, next)
	})
}

func TestHold_setRecordErrors(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		h := lock(t, c, "a")
		setRecord(t, h, strings.Repeat("x", stile.MaxRecordBytes))
		if err := h.SetRecord(t.Context(), make([]byte, stile.MaxRecordBytes+1)); err == nil {
			t.Error("SetRecord of a value that is too long: got no error")
		}
		setRecord(t, h, "value")

		w.faults(memstore.Fault{Drop: true}, on(memstore.SetRecord))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		expectError(t, h.SetRecord(ctx, []byte("dropped")), context.DeadlineExceeded)
		expectHeld(t, h)
		w.heal()
		expectRecord(t, c, "a", "value")

		release(t, h)
		expectError(t, h.SetRecord(t.Context(), []byte("late")), stile.ErrReleased)
		expectRecord(t, c, "a", "value")
		_, err := c.Record(t.Context(), "/a")
		expectError(t, err, stile.ErrBadName)
	})
}

// A hold that is released during the call returns ErrReleased.
func TestHold_setRecordAndRelease(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		h := lock(t, c, "a")
		w.faults(memstore.Fault{Delay: time.Second}, on(memstore.SetRecord))
		errs := make(chan error)
		go func() { errs <- h.SetRecord(context.Background(), []byte("late")) }()
		synctest.Wait()
		release(t, h)
		expectError(t, <-errs, stile.ErrReleased)
		expectRecord(t, c, "a", "")
	})
}

func TestRecord_unsupported(t *testing.T) {
	c, err := stile.New(withRecords{memstore.New(), nil}, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := lock(t, c, "a")
	expectError(t, h.SetRecord(t.Context(), []byte("value")), stile.ErrUnsupported)
	if !h.Valid() {
		t.Error("the hold is lost")
	}
	_, err = c.Record(t.Context(), "a")
	expectError(t, err, stile.ErrUnsupported)
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = c.Record(t.Context(), "a")
	expectError(t, err, stile.ErrClosed)
}

// Another client has written more than a record can have.
func TestRecord_tooLong(t *testing.T) {
	c, err := stile.New(withRecords{memstore.New(), func(context.Context, string) ([]byte, error) {
		return make([]byte, stile.MaxRecordBytes+1), nil
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	if _, err := c.Record(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "longer than the maximum") {
		t.Errorf("Record: got %v, want an error about its length", err)
	}
}

// withRecords is a store with another Record, or with none.
type withRecords struct {
	store.Store
	record func(context.Context, string) ([]byte, error)
}

func (s withRecords) Capabilities() store.Capabilities {
	c := s.Store.Capabilities()
	c.Record = s.record
	return c
}
