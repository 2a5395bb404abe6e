package stile_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// lingerFor is the linger time of the scenarios: longer than the second in which a hold is published.
const lingerFor = 5 * time.Second

func lingering(o *stile.Options) { o.Linger = lingerFor }

var changes = on(memstore.Enqueue, memstore.EnqueueAll, memstore.Withdraw, memstore.Requeue)

// The client locks again without a request, with rising tokens of one entry.
// Promise: P2, P3
func TestLinger_locksAgainWithoutRequest(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann", lingering)
		h := lock(t, ann, "a")
		n := w.requests(changes...)
		release(t, h)
		for i, again := range []func(context.Context) (*stile.Hold, error){
			ann.Mutex("a").Lock, ann.Mutex("a").TryLock, ann.RWMutex("a").Lock, ann.Mutex("a").Lock,
		} {
			next, err := again(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if next.Token() != h.Token()+1 || !next.Valid() || h.Valid() {
				t.Errorf("turn %d: got token %d after %d, valid: %v, %v", i, next.Token(), h.Token(), next.Valid(), h.Valid())
			}
			h = next
			release(t, h)
		}
		if *n != 0 {
			t.Errorf("got %d requests, want none", *n)
		}
		w.expectLine("a", "ann")
		if n := ann.Queues(); n != 1 {
			t.Errorf("got %d queues, want that of the kept lock", n)
		}
		if err := ann.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.expectLine("a")
		if n := ann.Queues(); n != 0 {
			t.Errorf("got %d queues after Close, want 0", n)
		}
	})
}

// A waiter that comes when the lock is only kept does not concern the hold that has ended.
func TestLinger_contendedAfterTheEnd(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		var log record[string]
		ann := w.client("ann", lingering, func(o *stile.Options) {
			o.Hooks.HoldEnd = func(context.Context, stile.HoldEndEvent) { log.add("end") }
			o.Hooks.Contended = func(context.Context, stile.ContentionEvent) { log.add("contended") }
		})
		release(t, lock(t, ann, "a"))
		synctest.Wait()
		release(t, lock(t, w.client("bob"), "a"))
		synctest.Wait()
		if got := log.all(); !slices.Equal(got, []string{"end"}) {
			t.Errorf("got hooks %q, want end alone", got)
		}
	})
}

// A waiter of another client gets a kept lock at once, and a held one at its release.
// Promise: P4, P7
func TestLinger_endsForAWaiter(t *testing.T) {
	for name, held := range map[string]bool{"kept": false, "held again": true} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann, bob := w.client("ann", lingering), w.client("bob")
				h := lock(t, ann, "a")
				release(t, h)
				if held {
					h = lock(t, ann, "a")
				}
				other := wait(t.Context(), t, bob, "a")
				if held {
					other.expectWaiting()
					release(t, h)
				}
				bobs := other.expectHoldNow()
				if bobs.Token() <= h.Token() {
					t.Errorf("got token %d after %d", bobs.Token(), h.Token())
				}
				w.expectLine("a", "bob")
				release(t, bobs)
				if n := ann.Queues(); n != 0 {
					t.Errorf("got %d queues, want 0", n)
				}
			})
		})
	}
}

// If the report of a waiter is lost, the linger time bounds its wait, however often the client locks again.
// Promise: P4, P7
func TestLinger_endsAbsolutely(t *testing.T) {
	for name, again := range map[string]bool{"kept": false, "locked again and again": true} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				bob := w.client("bob")
				w.deaf = true
				ann := w.client("deaf ann", lingering)
				w.deaf = false
				began := time.Now()
				release(t, lock(t, ann, "a"))
				other := wait(t.Context(), t, bob, "a")
				for again && time.Since(began) < lingerFor {
					h := lock(t, ann, "a")
					time.Sleep(lingerFor / 10)
					release(t, h)
				}
				h := other.expectHold()
				if took := time.Since(began); took != lingerFor {
					t.Errorf("the other client waited for %v, want %v", took, lingerFor)
				}
				release(t, h)
			})
		})
	}
}

// The linger time goes on while the machine is suspended. Timers do not.
// Promise: P4
func TestLinger_suspendCounts(t *testing.T) {
	short := func(o *stile.Options) { o.Linger = overdueAfter / 4 }
	t.Run("kept", func(t *testing.T) {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann := w.client("ann", short)
			first := lock(t, ann, "a")
			release(t, first)
			bootclock.PretendSuspend(overdueAfter / 2)
			h := lock(t, ann, "a")
			if h.Token()>>store.TurnBits == first.Token()>>store.TurnBits {
				t.Errorf("got tokens %d and %d of one entry, after the linger time", first.Token(), h.Token())
			}
			release(t, h)
		})
	})
	t.Run("held", func(t *testing.T) {
		scenario(t, func(t *testing.T, w *testEnv) {
			h := lock(t, w.client("ann", short), "a")
			bootclock.PretendSuspend(overdueAfter / 2)
			release(t, h)
			w.expectLine("a")
		})
	})
}

// Whatever ends a kept tenure stops its timer, which would hold on to it for the linger time.
func TestLinger_timerEndsWithTheTenure(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, w *testEnv, ann *stile.Client){
		"another client waits": func(t *testing.T, w *testEnv, _ *stile.Client) { release(t, lock(t, w.client("bob"), "a")) },
		"the entry is broken":  func(_ *testing.T, w *testEnv, _ *stile.Client) { w.evict("a", "ann") },
		"the session expires":  func(_ *testing.T, w *testEnv, _ *stile.Client) { w.store.Expire(w.session("ann")) },
		"the client is closed": func(t *testing.T, _ *testEnv, ann *stile.Client) { _ = ann.Close(t.Context()) },
		"the last turn": func(t *testing.T, _ *testEnv, ann *stile.Client) {
			for range 2 {
				release(t, lock(t, ann, "a"))
			}
		},
		"a place that cannot use it": func(t *testing.T, _ *testEnv, ann *stile.Client) {
			_ = ann.RWMutex("a").RDo(t.Context(), func(context.Context, *stile.Hold) error { return nil })
		},
		"a hold that is lost": func(t *testing.T, w *testEnv, ann *stile.Client) {
			h := lock(t, ann, "a")
			w.evict("a", "ann")
			<-h.Lost()
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann := w.client("ann", lingering, func(o *stile.Options) { o.Turns = 3 })
				h := lock(t, ann, "a")
				release(t, h)
				end(t, w, ann)
				synctest.Wait()
				if h.Tenure().StopLingerTimer() {
					t.Error("the timer was still running")
				}
			})
		})
	}
}

// When the turns are used up, the entry is withdrawn.
func TestLinger_endsWithTheTurns(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann", lingering, func(o *stile.Options) { o.Turns = 3 })
		for range 2 {
			release(t, lock(t, ann, "a"))
			w.expectLine("a", "ann")
		}
		release(t, lock(t, ann, "a"))
		w.expectLine("a")
	})
}

// What no turn may follow is not kept, and what may have no turn does not use a kept lock.
// Promise: P2
func TestLinger_notWithAnEntryOfItsOwn(t *testing.T) {
	for name, use := range map[string]func(ctx context.Context, c *stile.Client) error{
		"EntryKey": func(ctx context.Context, c *stile.Client) error {
			return c.Mutex("a").Do(ctx, func(_ context.Context, h *stile.Hold) error { h.EntryKey(); return nil })
		},
		"SetRecord": func(ctx context.Context, c *stile.Client) error {
			return c.Mutex("a").Do(ctx, func(ctx context.Context, h *stile.Hold) error { return h.SetRecord(ctx, []byte("x")) })
		},
		"a reason": func(ctx context.Context, c *stile.Client) error {
			return c.Mutex("a").With(stile.LockOptions{Reason: "x"}).Do(ctx, func(context.Context, *stile.Hold) error { return nil })
		},
		"a candidate": func(ctx context.Context, c *stile.Client) error {
			l, err := c.Election("a").Campaign(ctx, "x")
			if err != nil {
				return err
			}
			return l.Resign(ctx)
		},
		"LockAll": func(ctx context.Context, c *stile.Client) error {
			m, err := c.LockAll(ctx, "a", "b")
			if err != nil {
				return err
			}
			return m.Release(ctx)
		},
		"TryLockAll": func(ctx context.Context, c *stile.Client) error {
			m, err := c.TryLockAll(ctx, "a", "b")
			if err != nil {
				return err
			}
			return m.Release(ctx)
		},
		"a reader": func(ctx context.Context, c *stile.Client) error {
			return c.RWMutex("a").RDo(ctx, func(context.Context, *stile.Hold) error { return nil })
		},
		"TryRLock": func(ctx context.Context, c *stile.Client) error {
			h, err := c.RWMutex("a").TryRLock(ctx)
			if err != nil {
				return err
			}
			return h.Release(ctx)
		},
		"a downgraded writer": func(ctx context.Context, c *stile.Client) error {
			return c.RWMutex("a").Do(ctx, func(ctx context.Context, h *stile.Hold) error { return h.Downgrade(ctx) })
		},
		"a slot": func(ctx context.Context, c *stile.Client) error {
			return c.Semaphore("a", 2).Do(ctx, func(context.Context, *stile.Hold) error { return nil })
		},
		"Yield": func(ctx context.Context, c *stile.Client) error {
			return c.Mutex("a").Do(ctx, func(_ context.Context, h *stile.Hold) error { _, err := h.Yield(ctx); return err })
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann := w.client("ann", lingering)
				release(t, lock(t, ann, "a")) // is kept
				if err := use(t.Context(), ann); err != nil {
					t.Fatal(err)
				}
				w.expectLine("a")
				w.expectLine("b")
				if n := ann.Queues(); n != 0 {
					t.Errorf("got %d queues, want 0", n)
				}
			})
		})
	}
}

// ReleaseAfter keeps the lock closed, also to its own client.
func TestLinger_notAfterReleaseAfter(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann", lingering)
		if err := lock(t, ann, "a").ReleaseAfter(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if _, err := ann.Mutex("a").TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("got %v, want ErrHeld", err)
		}
		time.Sleep(2 * time.Minute)
	})
}

// A lock is not kept, nor taken again without a request, once the renewal of its session is overdue.
// Promise: P1, P6
func TestLinger_endsWhenTheSessionIsInDoubt(t *testing.T) {
	long := func(o *stile.Options) { o.Linger = time.Hour }
	t.Run("kept", func(t *testing.T) {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann, bob := w.client("ann", long), w.client("bob")
			release(t, lock(t, ann, "a"))
			w.faults(memstore.Fault{Drop: true}, on(memstore.Confirm), w.session("ann"))
			time.Sleep(overdueAfter)
			w.expectLine("a")
			w.heal()
			release(t, lock(t, bob, "a"))
		})
	})
	t.Run("held", func(t *testing.T) {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann := w.client("ann", long)
			h := lock(t, ann, "a")
			w.faults(memstore.Fault{Drop: true}, on(memstore.Confirm), w.session("ann"))
			time.Sleep(overdueAfter + time.Millisecond) // what is kept at the moment of doubt is given up then
			release(t, h)
			w.expectLine("a")
		})
	})
	t.Run("taken after a suspend", func(t *testing.T) {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann := w.client("ann", long)
			first := lock(t, ann, "a")
			release(t, first)
			bootclock.PretendSuspend(ttl)
			h, err := ann.Mutex("a").Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !h.Valid() || h.Token()>>store.TurnBits == first.Token()>>store.TurnBits {
				t.Errorf("got the token %d after %d, valid: %v", h.Token(), first.Token(), h.Valid())
			}
			release(t, h)
		})
	})
}

// A kept entry that is removed by others is not lent.
// Promise: P1
func TestLinger_endsWithTheEntry(t *testing.T) {
	for name, end := range map[string]func(w *testEnv){
		"broken":  func(w *testEnv) { w.evict("a", "ann") },
		"expired": func(w *testEnv) { w.store.Expire(w.session("ann")) },
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann := w.client("ann", lingering)
				first := lock(t, ann, "a")
				release(t, first)
				end(w)
				synctest.Wait()
				h := lock(t, ann, "a")
				if h.Token()>>store.TurnBits == first.Token()>>store.TurnBits {
					t.Errorf("got tokens %d and %d of one entry", first.Token(), h.Token())
				}
				w.expectLine("a", "ann")
				release(t, h)
				if err := ann.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				if n := ann.Queues(); n != 0 {
					t.Errorf("got %d queues, want 0", n)
				}
			})
		})
	}
}

// TryLock elsewhere gets a kept lock, and waits at most a second for one that is held.
func TestLinger_tryLockElsewhere(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann", lingering), w.client("bob")
		h := lock(t, ann, "a")
		began := time.Now()
		_, err := bob.Mutex("a").TryLock(t.Context())
		if took := time.Since(began); !errors.Is(err, stile.ErrHeld) || took != time.Second {
			t.Errorf("got %v after %v, want ErrHeld after a second", err, took)
		}
		if !strings.Contains(err.Error(), "held or kept by") {
			t.Errorf("the error %q claims more than is known", err)
		}
		w.expectLine("a", "ann")
		release(t, h)
		w.expectLine("a", "ann")
		began = time.Now()
		bobs, err := bob.Mutex("a").TryLock(t.Context())
		if took := time.Since(began); err != nil || took != 0 {
			t.Fatalf("got %v after %v, want the lock at once", err, took)
		}
		if o := bobs.Owner(); o.Lingers {
			t.Error("the entry of a client without Linger says that it lingers")
		}
		release(t, bobs)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		h = lock(t, ann, "a")
		if _, err := bob.Mutex("a").TryLock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want DeadlineExceeded", err)
		}
		w.expectLine("a", "ann")
		release(t, h)
	})
}

// The client's own goroutines take turns as without Linger, in their order.
// Promise: P3
func TestLinger_ownWaitersGoFirst(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann", lingering)
		h := lock(t, ann, "a")
		second := wait(t.Context(), t, ann, "a")
		if _, err := ann.Mutex("a").TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("got %v, want ErrHeld", err)
		}
		release(t, h)
		next := second.expectHoldNow()
		if next.Token() != h.Token()+1 {
			t.Errorf("got token %d after %d", next.Token(), h.Token())
		}
		third := wait(t.Context(), t, ann, "a")
		time.Sleep(10 * time.Millisecond) // the time of the turns is over, the linger time is not
		release(t, next)
		last := third.expectHoldNow()
		if last.Token()>>store.TurnBits == next.Token()>>store.TurnBits {
			t.Errorf("got the tokens %d and %d of one entry", next.Token(), last.Token())
		}
		release(t, last)
		w.expectLine("a", "ann")
	})
}

// Options that do not go together are refused.
func TestLinger_options(t *testing.T) {
	for name, c := range map[string]struct {
		change func(o *stile.Options)
		store  store.Store
		want   string
	}{
		"negative":             {func(o *stile.Options) { o.Linger = -1 }, memstore.New(), "negative"},
		"with a LockDelay":     {func(o *stile.Options) { o.LockDelay = time.Second }, memstore.New(), "LockDelay"},
		"with one turn":        {func(o *stile.Options) { o.Turns = 1 }, memstore.New(), "Turns"},
		"without reports":      {func(*stile.Options) {}, silentStore{memstore.New()}, "not supported"},
		"nothing is wrong":     {func(*stile.Options) {}, memstore.New(), ""},
		"with two turns":       {func(o *stile.Options) { o.Turns = 2 }, memstore.New(), ""},
		"with quick releases":  {inBackground, memstore.New(), ""},
		"LockDelay, no Linger": {func(o *stile.Options) { o.Linger, o.LockDelay = 0, time.Second }, memstore.New(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := &stile.Options{Linger: time.Second}
			c.change(o)
			_, err := stile.New(c.store, o)
			if got := err == nil; got != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want %q", err, c.want)
			}
		})
	}
}

// A silentStore does not report waiters.
type silentStore struct{ *memstore.Store }

func (s silentStore) Capabilities() store.Capabilities {
	caps := s.Store.Capabilities()
	caps.Contention = false
	return caps
}

// A deafStore loses the reports of waiters.
type deafStore struct{ *memstore.Store }

func (s deafStore) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	se, err := s.Store.Open(ctx, opts)
	return deafSession{se}, err
}

type deafSession struct{ store.Session }

func (s deafSession) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	t, err := s.Session.Enqueue(ctx, req)
	if err != nil {
		return nil, err
	}
	return deafTicket{t}, nil
}

type deafTicket struct{ store.Ticket }

func (t deafTicket) Extensions() store.Extensions {
	e := t.Ticket.Extensions()
	e.NotifyContended = func(func()) {}
	return e
}

// The client locks and releases while another one comes and goes. No hold overlaps, and nothing is left over.
// Promise: P1, P5, P7
func TestLinger_manyClients(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		w.store.SetFaults(func(memstore.Call) memstore.Fault { return memstore.Fault{Delay: time.Millisecond} })
		var last uint64
		held := make(chan struct{}, 1)
		var done []*waiter
		for i, name := range []string{"ann", "bob", "cid"} {
			c := w.client(name, lingering, func(o *stile.Options) { o.Turns, o.ReleaseInBackground = 5, i == 1 })
			for g := range 3 {
				done = append(done, waitWith(t, func() (*stile.Hold, error) {
					for range 100 {
						h, err := c.Mutex("a").Lock(t.Context())
						if err != nil {
							return nil, err
						}
						held <- struct{}{}
						if len(held) != 1 || h.Token() <= last {
							t.Errorf("got token %d after %d", h.Token(), last)
						}
						last = h.Token()
						time.Sleep(time.Duration(g) * 300 * time.Microsecond)
						<-held
						if err := h.Release(t.Context()); err != nil {
							return nil, err
						}
						time.Sleep(time.Duration(g) * time.Millisecond)
					}
					return nil, nil
				}))
			}
		}
		for _, d := range done {
			d.expectReturn(time.Minute)
			if d.err != nil {
				t.Error(d.err)
			}
		}
	})
}
