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

func newClient(t *testing.T, st *memstore.Store, opts *stile.Options) *stile.Client {
	t.Helper()
	c, err := stile.New(st, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

func TestLockAndRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memstore.New(), nil)
		h, err := c.Mutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Mutex("a").TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if !h.Valid() {
			t.Fatal(h.Err())
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}
