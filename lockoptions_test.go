package stile_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
)

// LockOptions add to the client's owner in the entries of that Mutex, and in no others.
func TestMutex_With(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ours := map[string]string{"team": "web", "stage": "test"}
		ann := w.client("ann", func(o *stile.Options) {
			o.Owner.Reason, o.Owner.Labels = "nightly", ours
		})
		expectOwner := func(h *stile.Hold, reason string, labels map[string]string) {
			t.Helper()
			l, err := ann.Line(t.Context(), h.Name())
			if err != nil || len(l.Holders) != 1 {
				t.Fatalf("Line: got %+v, %v, want one holder", l, err)
			}
			for who, o := range map[string]stile.Owner{"the line": l.Holders[0].Owner, "Hold.Owner": h.Owner()} {
				if o.Reason != reason || !maps.Equal(o.Labels, labels) || o.Command != "ann" {
					t.Errorf("%s: got %q %v of %q, want %q %v of ann", who, o.Reason, o.Labels, o.Command, reason, labels)
				}
			}
		}
		plain := ann.Mutex("a")
		labels := map[string]string{"stage": "live", "build": "17"}
		with := plain.With(stile.LockOptions{Reason: "deploy 17", Labels: labels})
		labels["build"] = "18" // must have no effect

		h, err := with.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		expectOwner(h, "deploy 17", map[string]string{"team": "web", "stage": "live", "build": "17"})
		held, ok := errors.AsType[*stile.HeldError](tryOnly(t.Context(), plain))
		if !ok || held.Holder.Owner.Reason != "deploy 17" {
			t.Errorf("TryLock: got %+v, want the reason \"deploy 17\"", held)
		}
		release(t, h)

		h = lock(t, ann, "a")
		expectOwner(h, "nightly", ours)
		release(t, h)

		h, err = with.With(stile.LockOptions{Labels: map[string]string{"x": "y"}}).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		expectOwner(h, "nightly", map[string]string{"team": "web", "stage": "test", "x": "y"})
		release(t, h)
	})
}

// everyKind has the methods of all kinds of locks that wait for a lock called a.
var everyKind = map[string]func(ctx context.Context, c *stile.Client, opts stile.LockOptions) (*stile.Hold, error){
	"Mutex.Lock": func(ctx context.Context, c *stile.Client, opts stile.LockOptions) (*stile.Hold, error) {
		return c.Mutex("a").With(opts).Lock(ctx)
	},
	"Mutex.Join": func(ctx context.Context, c *stile.Client, opts stile.LockOptions) (*stile.Hold, error) {
		return waitFirst(ctx, c.Mutex("a").With(opts).Join)
	},
	"RWMutex.Lock": func(ctx context.Context, c *stile.Client, opts stile.LockOptions) (*stile.Hold, error) {
		return c.RWMutex("a").With(opts).Lock(ctx)
	},
	"RWMutex.Join": func(ctx context.Context, c *stile.Client, opts stile.LockOptions) (*stile.Hold, error) {
		return waitFirst(ctx, c.RWMutex("a").With(opts).Join)
	},
	"RWMutex.RLock": func(ctx context.Context, c *stile.Client, opts stile.LockOptions) (*stile.Hold, error) {
		return c.RWMutex("a").With(opts).RLock(ctx)
	},
	"RWMutex.RJoin": func(ctx context.Context, c *stile.Client, opts stile.LockOptions) (*stile.Hold, error) {
		return waitFirst(ctx, c.RWMutex("a").With(opts).RJoin)
	},
	"Semaphore.Acquire": func(ctx context.Context, c *stile.Client, opts stile.LockOptions) (*stile.Hold, error) {
		return c.Semaphore("a", 2).With(opts).Acquire(ctx)
	},
	"Semaphore.Join": func(ctx context.Context, c *stile.Client, opts stile.LockOptions) (*stile.Hold, error) {
		return waitFirst(ctx, c.Semaphore("a", 2).With(opts).Join)
	},
	"Semaphore.Numbered": func(ctx context.Context, c *stile.Client, opts stile.LockOptions) (*stile.Hold, error) {
		return c.Semaphore("a", 2).Numbered().With(opts).Acquire(ctx)
	},
	"Semaphore.With.Numbered": func(ctx context.Context, c *stile.Client, opts stile.LockOptions) (*stile.Hold, error) {
		return c.Semaphore("a", 2).With(opts).Numbered().Acquire(ctx)
	},
	"Election.Campaign": func(ctx context.Context, c *stile.Client, opts stile.LockOptions) (*stile.Hold, error) {
		l, err := c.Election("a").With(opts).Campaign(ctx, "ann")
		if err != nil {
			return nil, err
		}
		return l.Hold, nil
	},
	"Election.Join": func(ctx context.Context, c *stile.Client, opts stile.LockOptions) (*stile.Hold, error) {
		p, err := c.Election("a").With(opts).Join(ctx, "ann")
		if err != nil {
			return nil, err
		}
		return p.Place.Wait(ctx)
	},
}

func waitFirst(ctx context.Context, join func(context.Context) (*stile.Place, error)) (*stile.Hold, error) {
	p, err := join(ctx)
	if err != nil {
		return nil, err
	}
	return p.Wait(ctx)
}

// Every method of every kind of lock obeys the options of the client and of the lock.
// Bug: RedissonFencedLock
func TestOptions_everyKind(t *testing.T) {
	for kind, method := range everyKind {
		t.Run(kind, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				const long, delay = 4 * ttl, 30 * time.Second
				ann := w.client("ann", func(o *stile.Options) {
					o.TTL, o.LockDelay = long, delay
					o.Owner.Labels = map[string]string{"stage": "test"}
				})
				opts := stile.LockOptions{Reason: "deploy", Labels: map[string]string{"build": "17"}}
				began := time.Now()
				h, err := method(t.Context(), ann, opts)
				if err != nil {
					t.Fatal(err)
				}
				if want := began.Add(long * 9 / 10); !h.Deadline().Equal(want) {
					t.Errorf("deadline: got %v after the call, want %v", h.Deadline().Sub(began), want.Sub(began))
				}
				l, err := ann.Line(t.Context(), "a")
				if err != nil || len(l.Holders) != 1 {
					t.Fatalf("Line: got %+v, %v, want one holder", l, err)
				}
				want := map[string]string{"stage": "test", "build": "17"}
				if o := l.Holders[0].Owner; o.Reason != "deploy" || !maps.Equal(o.Labels, want) || o.Command != "ann" {
					t.Errorf("owner: got %q %v of %q, want \"deploy\" %v of ann", o.Reason, o.Labels, o.Command, want)
				}

				// The hold ends without a release, so the next one waits for the LockDelay.
				w.evict("a", "ann")
				expectLost(t, h, stile.LostEvicted)
				began = time.Now()
				h, err = method(t.Context(), ann, opts)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took < delay {
					t.Errorf("the lock was free again after %v, want the LockDelay of %v", took, delay)
				}
				release(t, h)

				// The context bounds the wait.
				keeper := w.client("bob").Semaphore("a", 2)
				if h.Mode().Slots() > 0 {
					first, err := keeper.Acquire(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					defer release(t, first)
					second, err := keeper.Acquire(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					defer release(t, second)
				} else {
					defer release(t, lock(t, w.client("bob"), "a"))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began = time.Now()
				_, err = method(ctx, ann, opts)
				expectError(t, err, context.DeadlineExceeded)
				if took := time.Since(began); took != time.Minute {
					t.Errorf("the method returned after %v, want a minute", took)
				}
			})
		})
	}
}

func tryOnly(ctx context.Context, m *stile.Mutex) error {
	_, err := m.TryLock(ctx)
	return err
}

func TestMutex_With_tooLarge(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		essay := stile.LockOptions{Reason: strings.Repeat("x", stile.MaxOwnerBytes)}
		m := w.client("ann").Mutex("a").With(essay)
		for what, try := range map[string]func() error{
			"Lock":    func() error { _, err := m.Lock(t.Context()); return err },
			"TryLock": func() error { _, err := m.TryLock(t.Context()); return err },
			"Join":    func() error { _, err := m.Join(t.Context()); return err },
		} {
			if err := try(); err == nil || !strings.Contains(err.Error(), `lock "a": the owner: `) {
				t.Errorf("%s: got %v, want an error about the size of the owner", what, err)
			}
		}
		w.expectLine("a")
	})
}

// Shared holds of one process share an entry unless their LockOptions differ.
func TestMutex_With_shared(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		plain := ann.Locker("a", line.Shared)
		var holds []*stile.Hold
		for _, l := range []stile.Locker{plain, plain, plain.With(stile.LockOptions{Reason: "report"})} {
			h, err := l.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			holds = append(holds, h)
		}
		got, err := ann.Line(t.Context(), "a")
		if err != nil || len(got.Holders) != 2 || got.Holders[0].Owner.Reason != "" || got.Holders[1].Owner.Reason != "report" {
			t.Errorf("Line: got %+v, %v, want two holders, the second with a reason", got, err)
		}
		for _, h := range holds {
			release(t, h)
		}
	})
}
