package stile_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stilelock/stile"
)

// A caller that already holds the lock would wait for itself (shakenfist #3802).
// Promise: P7
// Bug: shakenfist #3802
func TestNested_sameName(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		reader, err := c.RWMutex("a").RLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		inner, cancel := context.WithCancel(reader.Context())
		defer cancel()
		other, err := c.Mutex("b").Lock(inner)
		if err != nil {
			t.Fatal(err)
		}
		for what, ctx := range map[string]context.Context{"the hold's": reader.Context(), "a derived": inner, "an inner hold's": other.Context()} {
			for method, lock := range map[string]func(context.Context) (*stile.Hold, error){
				"an upgrade": c.RWMutex("a").Lock, "RLock": c.RWMutex("a").RLock, "Mutex.Lock": c.Mutex("a").Lock,
			} {
				if _, err := lock(ctx); !errors.Is(err, stile.ErrReentrant) || !strings.Contains(err.Error(), `"a"`) {
					t.Errorf("%s with %s context: got %v, want ErrReentrant", method, what, err)
				}
			}
			if _, err := c.RWMutex("a").Join(ctx); !errors.Is(err, stile.ErrReentrant) {
				t.Errorf("Join with %s context: got %v, want ErrReentrant", what, err)
			}
			if _, err := c.RWMutex("a").TryLock(ctx); !errors.Is(err, stile.ErrHeld) {
				t.Errorf("TryLock with %s context: got %v, want ErrHeld", what, err)
			}
		}
		w.expectLine("a", "ann")
		release(t, other)
		release(t, reader)
	})
}

func TestNested_allowed(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		again := wait(context.WithoutCancel(h.Context()), t, bob, "a") // another client: it may be another store
		again.expectWaiting()
		release(t, h)
		release(t, again.expectHoldNow())
		release(t, wait(context.WithoutCancel(h.Context()), t, ann, "a").expectHoldNow()) // the hold has ended
	})
}

// Bug: shakenfist #3802
func TestNested_inDo(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		s := w.client("ann").Semaphore("a", 2)
		err := s.Do(t.Context(), func(ctx context.Context, _ *stile.Hold) error {
			_, err := s.Acquire(ctx)
			return err
		})
		expectError(t, err, stile.ErrReentrant)
	})
}
