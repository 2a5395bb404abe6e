package stile_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/store/memstore"
)

func inBackground(o *stile.Options) { o.ReleaseInBackground = true }

// slowRemovals makes requests that remove or replace an entry take a second.
func (w *testEnv) slowRemovals() {
	w.faults(memstore.Fault{Delay: time.Second}, on(memstore.Withdraw, memstore.Requeue))
}

// A release returns at once. The store has the entry until the request has reached it, and others get the
// lock only then.
// Promise: P1, P5
func TestReleaseInBackground_returnsAtOnce(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		var ends record[stile.HoldEndEvent]
		ann, bob := w.client("ann", inBackground, func(o *stile.Options) {
			o.Hooks.HoldEnd = func(_ context.Context, e stile.HoldEndEvent) { ends.add(e) }
		}), w.client("bob")
		h := lock(t, ann, "a")
		other := wait(t.Context(), t, bob, "a")
		w.slowRemovals()
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		if err := h.Release(ctx); err != nil {
			t.Fatal(err)
		}
		cancel() // does not end the request
		if took := time.Since(began); took != 0 {
			t.Errorf("Release took %v", took)
		}
		if h.Valid() || !errors.Is(context.Cause(h.Context()), stile.ErrReleased) {
			t.Error("the hold has not ended")
		}
		other.expectWaiting()
		w.expectLine("a", "ann", "bob")
		if got := ends.all(); len(got) != 0 {
			t.Errorf("HoldEnd was called before the entry was removed: %+v", got)
		}
		time.Sleep(time.Second)
		release(t, other.expectHoldNow())
		got := ends.all()
		if len(got) != 1 || got[0].Err != nil || got[0].Reason != stile.EndReleased || got[0].Held != time.Second {
			t.Errorf("got the ends %+v, want one release after a second", got)
		}
		if n := ann.Queues(); n != 0 {
			t.Errorf("got %d queues, want 0", n)
		}
	})
}

// Every way to release a hold releases it in the background.
func TestReleaseInBackground_allWays(t *testing.T) {
	for name, use := range map[string]func(ctx context.Context, c *stile.Client) error{
		"Do": func(ctx context.Context, c *stile.Client) error {
			return c.Mutex("a").Do(ctx, func(context.Context, *stile.Hold) error { return nil })
		},
		"Leave": func(ctx context.Context, c *stile.Client) error {
			p, err := c.Mutex("a").Join(ctx)
			if err != nil {
				return err
			}
			<-p.Ready()
			return p.Leave(ctx)
		},
		"LockAll": func(ctx context.Context, c *stile.Client) error {
			m, err := c.LockAll(ctx, "a", "b")
			if err != nil {
				return err
			}
			return m.Release(ctx)
		},
		"Resign": func(ctx context.Context, c *stile.Client) error {
			l, err := c.Election("a").Campaign(ctx, "x")
			if err != nil {
				return err
			}
			return l.Resign(ctx)
		},
		"a slot": func(ctx context.Context, c *stile.Client) error {
			return c.Semaphore("a", 2).Do(ctx, func(context.Context, *stile.Hold) error { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann := w.client("ann", inBackground)
				w.slowRemovals()
				began := time.Now()
				if err := use(t.Context(), ann); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != 0 {
					t.Errorf("took %v", took)
				}
				w.expectLine("a", "ann")
				time.Sleep(time.Second)
				w.expectLine("a")
				w.expectLine("b")
			})
		})
	}
}

// The client locks the name again while the old entry is still there: Lock waits behind it in the store, the
// Try methods and other kinds of locks wait for the release, and none is refused.
// Promise: P1
func TestReleaseInBackground_lockAgain(t *testing.T) {
	for name, again := range map[string]func(ctx context.Context, c *stile.Client) (*stile.Hold, error){
		"Lock":    func(ctx context.Context, c *stile.Client) (*stile.Hold, error) { return c.Mutex("a").Lock(ctx) },
		"TryLock": func(ctx context.Context, c *stile.Client) (*stile.Hold, error) { return c.Mutex("a").TryLock(ctx) },
		"RLock":   func(ctx context.Context, c *stile.Client) (*stile.Hold, error) { return c.RWMutex("a").RLock(ctx) },
		"TryRLock": func(ctx context.Context, c *stile.Client) (*stile.Hold, error) {
			return c.RWMutex("a").TryRLock(ctx)
		},
		"a slot": func(ctx context.Context, c *stile.Client) (*stile.Hold, error) {
			return c.Semaphore("a", 2).Acquire(ctx)
		},
		"TryLockAll": func(ctx context.Context, c *stile.Client) (*stile.Hold, error) {
			m, err := c.TryLockAll(ctx, "a", "b")
			if err != nil {
				return nil, err
			}
			return nil, m.Release(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann := w.client("ann", inBackground)
				first := lock(t, ann, "a")
				w.slowRemovals()
				release(t, first)
				began := time.Now()
				h, err := again(t.Context(), ann)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != time.Second {
					t.Errorf("took %v, want the second of the release", took)
				}
				if h != nil {
					if h.Token() <= first.Token() {
						t.Errorf("got token %d after %d", h.Token(), first.Token())
					}
					w.expectLine("a", "ann")
					release(t, h)
				}
				time.Sleep(time.Second)
				w.expectLine("a")
			})
		})
	}
}

// Lock does not wait for the outcome of the release: it joins the line at once.
func TestReleaseInBackground_lockJoinsAtOnce(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann", inBackground), w.client("bob")
		h := lock(t, ann, "a")
		w.slowRemovals()
		release(t, h)
		again := wait(t.Context(), t, ann, "a")
		w.expectLine("a", "ann", "ann")
		other := wait(t.Context(), t, bob, "a")
		h = again.expectHold()
		release(t, h)
		release(t, other.expectHold())
	})
}

// A goroutine of the client that waits gets the turn at once, without a request; when the turns are used up,
// the entry is replaced in one step, in the background.
// Promise: P3
func TestReleaseInBackground_turns(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann", inBackground, func(o *stile.Options) { o.Turns = 2 }), w.client("bob")
		h := lock(t, ann, "a")
		second, third := wait(t.Context(), t, ann, "a"), wait(t.Context(), t, ann, "a")
		other := wait(t.Context(), t, bob, "a")
		w.slowRemovals()
		release(t, h)
		h = second.expectHoldNow()
		release(t, h)
		w.expectLine("a", "ann", "bob")
		other.expectWaiting()
		time.Sleep(time.Second)
		w.expectLine("a", "bob", "ann")
		bobs := other.expectHoldNow()
		third.expectWaiting()
		w.heal()
		release(t, bobs)
		release(t, third.expectHoldNow())
	})
}

// A release that fails is reported once, to the hook and to the logger. The entry goes with the session at the
// latest.
// Promise: P5
func TestReleaseInBackground_failure(t *testing.T) {
	refused := errors.New("refused")
	for name, fail := range map[string]struct {
		prepare func(w *testEnv)
		want    error
		reason  stile.EndReason
	}{
		"refused":     {func(w *testEnv) { w.faults(memstore.Fault{Err: refused}, on(memstore.Withdraw)) }, refused, stile.EndReleased},
		"no answer":   {func(w *testEnv) { w.faults(memstore.Fault{Drop: true}, on(memstore.Withdraw)) }, context.DeadlineExceeded, stile.EndReleased},
		"lost before": {func(w *testEnv) { w.delayNotifications("a"); w.evict("a", "ann") }, stile.ErrLost, stile.EndLost},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				var ends record[stile.HoldEndEvent]
				var log strings.Builder
				ann := w.client("ann", inBackground, func(o *stile.Options) {
					o.Hooks.HoldEnd = func(_ context.Context, e stile.HoldEndEvent) { ends.add(e) }
					o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
				})
				h := lock(t, ann, "a")
				fail.prepare(w)
				release(t, h)
				release(t, h)
				time.Sleep(11 * time.Second)
				got := ends.all()
				if len(got) != 1 || got[0].Reason != fail.reason {
					t.Fatalf("got the ends %+v, want one", got)
				}
				expectError(t, got[0].Err, fail.want)
				if n := strings.Count(log.String(), "level=WARN"); n != 1 {
					t.Errorf("got %d warnings, want one:\n%s", n, log.String())
				}
				w.heal()
				time.Sleep(2 * time.Second)
				w.expectLine("a")
			})
		})
	}
}

// If the deadline has passed, the store is asked first, and the caller learns of the loss.
// Promise: P5
func TestReleaseInBackground_afterTheDeadline(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann", inBackground)
		h := lock(t, ann, "a")
		bootclock.PretendSuspend(ttl)
		expectError(t, h.Release(t.Context()), stile.ErrLost)
	})
}

// Close waits for the release, so that no LockDelay applies; but not longer than its context allows.
func TestReleaseInBackground_close(t *testing.T) {
	delayed := func(o *stile.Options) { o.LockDelay = time.Minute }
	for name, patience := range map[string]time.Duration{"waits": time.Hour, "gives up": time.Second / 2} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann, bob := w.client("ann", inBackground, delayed), w.client("bob", delayed)
				h := lock(t, ann, "a")
				w.slowRemovals()
				release(t, h)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				began := time.Now()
				err := ann.Close(ctx)
				if took := time.Since(began); took != min(patience, time.Second) {
					t.Errorf("Close took %v", took)
				}
				if patience < time.Second {
					_ = err // the session may have been ended or not
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				w.expectLine("a")
				release(t, lock(t, bob, "a"))
				if err := h.Release(t.Context()); err != nil {
					t.Errorf("another release: %v", err)
				}
			})
		})
	}
}

// ReleaseAfter and Yield wait for the store: what they promise must be confirmed.
func TestReleaseInBackground_notReleaseAfter(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann", inBackground)
		w.slowRemovals()
		began := time.Now()
		h, err := lock(t, ann, "a").Yield(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := h.ReleaseAfter(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("took %v, want two seconds", took)
		}
		w.heal()
		if _, err := ann.Mutex("a").TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("got %v, want ErrHeld", err)
		}
		l, err := w.store.Line(t.Context(), "a")
		if err != nil || len(l.Entries) != 1 {
			t.Fatalf("got the line %+v, %v", l, err)
		}
		if _, err := w.store.Break(t.Context(), "a", l.Entries[0].Order); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
	})
}
