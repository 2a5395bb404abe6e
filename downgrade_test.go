package stile_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store/memstore"
)

func downgrade(t *testing.T, h *stile.Hold) {
	t.Helper()
	if err := h.Downgrade(t.Context()); err != nil {
		t.Fatalf("Downgrade: %v", err)
	}
	expectHeld(t, h)
	if h.Mode() != line.Shared {
		t.Errorf("after a downgrade: got mode %v, want shared", h.Mode())
	}
}

// A writer that becomes a reader keeps its place: the readers directly behind it get in, the writer
// behind them does not (CURATOR-276, CURATOR-621, redisson #4217).
// Promise: P1, P3, P7
// Bug: redisson #5349, CURATOR-276
func TestHold_downgradeAdmitsReadersNotWriters(t *testing.T) {
	for what, clients := range map[string][5]string{
		"several processes": {"ann", "bob", "cid", "dan", "eve"},
		"one process":       {"ann", "ann", "ann", "ann", "ann"},
		"readers of one":    {"ann", "bob", "bob", "cid", "dan"},
	} {
		t.Run(what, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				byName := map[string]*stile.Client{}
				c := func(i int) *stile.Client {
					if byName[clients[i]] == nil {
						byName[clients[i]] = w.client(clients[i])
					}
					return byName[clients[i]]
				}
				h, err := c(0).RWMutex("a").Lock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				token := h.Token()
				near1, near2 := waitRead(t, c(1), "a"), waitRead(t, c(2), "a")
				writer, far := waitWrite(t, c(3), "a"), waitRead(t, c(4), "a")
				downgrade(t, h)
				r1, r2 := near1.expectHoldNow(), near2.expectHoldNow()
				writer.expectWaiting()
				far.expectWaiting()
				if h.Token() != token || r1.Token() <= token || r2.Token() <= token {
					t.Errorf("tokens: writer %d, then %d as a reader, readers %d and %d; want an increase behind the same token",
						token, h.Token(), r1.Token(), r2.Token())
				}
				release(t, r1)
				release(t, h)
				writer.expectWaiting()
				release(t, r2)
				last := writer.expectHoldNow()
				far.expectWaiting()
				release(t, last)
				release(t, far.expectHoldNow())
				w.expectLine("a")
			})
		})
	}
}

// A reader of the same process never overtakes a writer of another one that waits behind a downgraded
// entry, however early or late its client learns of that writer.
// Promise: P3
// Bug: CURATOR-276
func TestHold_downgradedEntryIsNotShared(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h, err := ann.RWMutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.delayNotifications("a")
		writer := waitWrite(t, bob, "a")
		downgrade(t, h)
		if _, err := ann.RWMutex("a").TryRLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("TryRLock while a writer waits behind a downgraded hold: got %v, want ErrHeld", err)
		}
		reader := waitRead(t, ann, "a")
		reader.expectWaiting()
		w.heal()
		w.expectLine("a", "ann", "bob", "ann")
		release(t, h)
		release(t, writer.expectHold())
		release(t, reader.expectHold())
	})
}

// Without a writer, readers of all processes get in at once. Readers of one process share an entry of
// their own.
func TestHold_downgradeThenReaders(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h, err := ann.RWMutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		downgrade(t, h)
		for _, c := range []*stile.Client{ann, bob} {
			r, err := c.RWMutex("a").TryRLock(t.Context())
			if err != nil {
				t.Fatalf("TryRLock: %v", err)
			}
			defer release(t, r)
			if _, err := c.RWMutex("a").TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
				t.Errorf("TryLock beside a downgraded hold: got %v, want ErrHeld", err)
			}
		}
		release(t, h)
		if _, err := bob.RWMutex("a").TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("TryLock beside readers: got %v, want ErrHeld", err)
		}
	})
}

// Asking for an upgrade is an error at once, also for a hold that was exclusive.
// Bug: shakenfist #3802
func TestHold_downgradeThenUpgradeIsReentrant(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		h, err := c.RWMutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		downgrade(t, h)
		downgrade(t, h) // again
		for _, method := range []func(context.Context) (*stile.Hold, error){c.RWMutex("a").Lock, c.RWMutex("a").RLock} {
			if _, err := method(h.Context()); !errors.Is(err, stile.ErrReentrant) {
				t.Errorf("a lock inside a downgraded hold: got %v, want ErrReentrant", err)
			}
		}
		if err := h.ReleaseAfter(t.Context(), time.Minute); !errors.Is(err, stile.ErrUnsupported) {
			t.Errorf("ReleaseAfter of a downgraded hold: got %v, want ErrUnsupported", err)
		}
		release(t, h)
	})
}

// The modes and stores that have no downgrade.
func TestHold_downgradeOfOtherHolds(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		reader, err := c.RWMutex("a").RLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		downgrade(t, reader)
		release(t, reader)
		if err := reader.Downgrade(t.Context()); !errors.Is(err, stile.ErrReleased) {
			t.Errorf("Downgrade after the release: got %v, want ErrReleased", err)
		}
		slot, err := c.Semaphore("s", 2).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := slot.Downgrade(t.Context()); !errors.Is(err, stile.ErrUnsupported) || slot.Mode() != line.Slot(2) {
			t.Errorf("Downgrade of a slot: got %v and mode %v, want ErrUnsupported and slot/2", err, slot.Mode())
		}
		release(t, slot)

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		h := lock(t, c, "a")
		if err := h.Downgrade(ended); !errors.Is(err, context.Canceled) || h.Mode() != line.Exclusive {
			t.Errorf("Downgrade with an ended context: got %v and mode %v, want Canceled and exclusive", err, h.Mode())
		}
		release(t, h)
	})
}

// Promise: P6
func TestHold_downgradeOfLostHold(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		h := lock(t, ann, "a")
		w.delayNotifications("a") // so that the request is the first to find the loss
		w.evict("a", "ann")
		if err := h.Downgrade(t.Context()); !errors.Is(err, stile.ErrLost) {
			t.Errorf("Downgrade of a broken hold: got %v, want ErrLost", err)
		}
		expectLost(t, h, stile.LostEvicted)
		if err := h.Downgrade(t.Context()); !errors.Is(err, stile.ErrLost) {
			t.Errorf("Downgrade of a lost hold: got %v, want ErrLost", err)
		}
	})
}

// The request or its reply is lost. The hold stays valid and never counts as exclusive again, because the
// entry may be shared. A repetition completes the downgrade, and a release without one frees the lock.
// Promise: P1, P5, P7
func TestHold_downgradeUnanswered(t *testing.T) {
	for what, f := range map[string]memstore.Fault{
		"request lost": {Drop: true},
		"reply lost":   {LoseReply: true},
	} {
		for _, again := range []bool{true, false} {
			t.Run(what, func(t *testing.T) {
				scenario(t, func(t *testing.T, w *testEnv) {
					ann, bob := w.client("ann"), w.client("bob")
					h := lock(t, ann, "a")
					reader := waitRead(t, bob, "a")
					w.faults(f, on(memstore.Downgrade))
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					result := make(chan error, 1)
					go func() { result <- h.Downgrade(ctx) }()
					synctest.Wait()
					if h.Mode() != line.Shared {
						t.Errorf("while the outcome is not known: got mode %v, want shared", h.Mode())
					}
					if err := <-result; !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, stile.ErrLost) {
						t.Errorf("Downgrade: got %v, want DeadlineExceeded", err)
					}
					expectHeld(t, h)
					if h.Mode() != line.Shared {
						t.Errorf("when the outcome is not known: got mode %v, want shared", h.Mode())
					}
					if f.Drop {
						reader.expectWaiting()
					}
					w.heal()
					if again {
						downgrade(t, h)
						reader.expectHoldNow()
						expectHeld(t, h)
					}
					release(t, h)
					release(t, reader.expectHoldNow())
					w.expectLine("a")
				})
			})
		}
	}
}

// The release overtakes the downgrade, which must not bring anything back.
// Promise: P5
func TestHold_downgradeDuringRelease(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		w.faults(memstore.Fault{Delay: 2 * time.Second}, on(memstore.Downgrade))
		result := make(chan error, 1)
		go func() { result <- h.Downgrade(t.Context()) }()
		synctest.Wait()
		release(t, h)
		next := lock(t, bob, "a")
		if err := <-result; !errors.Is(err, stile.ErrReleased) {
			t.Errorf("Downgrade: got %v, want ErrReleased", err)
		}
		expectHeld(t, next)
		if next.Mode() != line.Exclusive {
			t.Errorf("the next hold: got mode %v, want exclusive", next.Mode())
		}
		w.expectLine("a", "bob")
		release(t, next)
	})
}
