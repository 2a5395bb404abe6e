package stile_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func waitWrite(t *testing.T, c *stile.Client, name string) *waiter {
	t.Helper()
	return waitWith(t, func() (*stile.Hold, error) { return c.RWMutex(name).Lock(t.Context()) })
}

func waitRead(t *testing.T, c *stile.Client, name string) *waiter {
	t.Helper()
	return waitWith(t, func() (*stile.Hold, error) { return c.RWMutex(name).RLock(t.Context()) })
}

// Promise: P1, P3
// Bug: redisson #5349
func TestRWMutex_inOrderOfArrival(t *testing.T) {
	for what, clients := range map[string][5]string{
		"five processes": {"ann", "bob", "cid", "dan", "eve"},
		"one process":    {"ann", "ann", "ann", "ann", "ann"},
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
				r1, r2 := waitRead(t, c(0), "a").expectHoldNow(), waitRead(t, c(1), "a").expectHoldNow()
				writer := waitWrite(t, c(2), "a")
				r3, r4 := waitRead(t, c(3), "a"), waitRead(t, c(4), "a")
				release(t, r1)
				writer.expectWaiting()
				release(t, r2)
				h := writer.expectHoldNow()
				r3.expectWaiting()
				r4.expectWaiting()
				if h.Token() <= r1.Token() || h.Token() <= r2.Token() {
					t.Errorf("tokens: readers %d and %d, then writer %d; want an increase", r1.Token(), r2.Token(), h.Token())
				}
				release(t, h)
				late := r3.expectHoldNow()
				release(t, r4.expectHoldNow())
				if late.Token() <= h.Token() {
					t.Errorf("tokens: writer %d, then reader %d; want an increase", h.Token(), late.Token())
				}
				release(t, late)
				w.expectLine("a")
			})
		})
	}
}

// In each of three processes there is always a reader, and the next one arrives before it leaves. A
// writer of a fourth process gets in nevertheless, within the time that readers hold the lock
// (redisson #5379, rustfs #6573).
// Promise: P3, P7
// Bug: rustfs #5939, redisson #5379
func TestRWMutex_readersThatNeverStopDoNotStarveWriter(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		const stay = 10 * time.Millisecond
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var readers [3]atomic.Int64
		for i, name := range []string{"ann", "bob", "cid"} {
			m := w.client(name).RWMutex("a")
			for range 2 {
				go func() {
					for ctx.Err() == nil {
						h, err := m.RLock(ctx)
						if err != nil {
							return
						}
						readers[i].Add(1)
						time.Sleep(stay)
						_ = h.Release(ctx)
					}
				}()
				time.Sleep(stay / 2) // the two take turns
			}
		}
		time.Sleep(time.Second)
		writer := w.client("dan").RWMutex("a")
		for range 5 {
			before := time.Now()
			h, err := writer.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if waited := time.Since(before); waited > 2*stay {
				t.Errorf("the writer waited for %v, want at most %v", waited, 2*stay)
			}
			release(t, h)
			time.Sleep(5 * stay)
		}
		stop()
		time.Sleep(2 * stay)
		for i := range readers {
			if n := readers[i].Load(); n < 100 {
				t.Errorf("precondition failed: the readers of process %d held the lock %d times", i, n)
			}
		}
	})
}

// A try for reading must not overtake a waiting writer (kazoo #213).
// Promise: P3
// Bug: kazoo #213
func TestRWMutex_tryRLock(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		try := func(c *stile.Client) *stile.Hold {
			t.Helper()
			h, err := c.RWMutex("a").TryRLock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		first, second, third := try(ann), try(ann), try(bob)
		if _, err := bob.RWMutex("a").TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("TryLock beside readers: got %v, want ErrHeld", err)
		}
		writer := waitWrite(t, cid, "a")
		for name, c := range map[string]*stile.Client{"a reader's process": ann, "the writer's process": cid, "another": w.client("dan")} {
			if _, err := c.RWMutex("a").TryRLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
				t.Errorf("TryRLock behind a waiting writer in %s: got %v, want ErrHeld", name, err)
			}
		}
		release(t, first)
		release(t, second)
		release(t, third)
		release(t, writer.expectHoldNow())
	})
}

// The read lock of a crashed process ends like any other lock (rustfs #5939).
// Promise: P4
// Bug: redisson #7098, rustfs #5939
func TestRWMutex_crashedReaderLetsWriterIn(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		reader := waitRead(t, w.client("ann"), "a").expectHoldNow()
		writer := waitWrite(t, w.client("bob"), "a")
		w.cut(w.session("ann"))
		h := writer.expectHoldWithin(ttl + time.Second)
		if reader.Valid() {
			t.Error("the reader and the writer are valid at the same time")
		}
		w.heal()
		release(t, h)
	})
}

// A Mutex of the same name is a writer.
// Promise: P1
func TestRWMutex_mutexOfSameName(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		reader := waitRead(t, ann, "a").expectHoldNow()
		mutex := wait(t.Context(), t, bob, "a")
		release(t, reader)
		h := mutex.expectHoldNow()
		reading := waitRead(t, ann, "a")
		reading.expectWaiting()
		release(t, h)
		release(t, reading.expectHoldNow())
	})
}

func TestRWMutex_joinAndDo(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		m := w.client("ann").RWMutex("a")
		modeOf := func(p *stile.Place, err error) line.Mode {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			h, err := p.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer release(t, h)
			return h.Mode()
		}
		if got := modeOf(m.Join(t.Context())); got != line.Exclusive {
			t.Errorf("Join: got mode %v, want exclusive", got)
		}
		if got := modeOf(m.RJoin(t.Context())); got != line.Shared {
			t.Errorf("RJoin: got mode %v, want shared", got)
		}
		inDo := func(do func(context.Context, func(context.Context, *stile.Hold) error) error) (mode line.Mode) {
			t.Helper()
			err := do(t.Context(), func(_ context.Context, h *stile.Hold) error {
				mode = h.Mode()
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return mode
		}
		if got := inDo(m.Do); got != line.Exclusive {
			t.Errorf("Do: got mode %v, want exclusive", got)
		}
		if got := inDo(m.RDo); got != line.Shared {
			t.Errorf("RDo: got mode %v, want shared", got)
		}
		if m.Name() != "a" {
			t.Errorf("Name: got %q, want a", m.Name())
		}
		w.expectLine("a")
	})
}

// A reader with an owner of its own has an entry of its own.
func TestRWMutex_with(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		m := w.client("ann").RWMutex("a")
		plain, err := m.RLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		special, err := m.With(stile.LockOptions{Reason: "report"}).RLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if special.Owner().Reason != "report" || plain.Owner().Reason != "" {
			t.Errorf("reasons: got %q and %q, want report and none", special.Owner().Reason, plain.Owner().Reason)
		}
		w.expectLine("a", "ann", "ann")
		release(t, plain)
		release(t, special)
	})
}

// exclusiveStore is a store without shared modes.
type exclusiveStore struct{ store.Store }

func (s exclusiveStore) Capabilities() store.Capabilities {
	c := s.Store.Capabilities()
	c.SharedModes = false
	return c
}

// The store is not asked: all methods fail, those for writing too.
func TestRWMutex_storeWithoutSharedModes(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c, err := stile.New(exclusiveStore{w.store}, &stile.Options{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context())
		m := c.RWMutex("a")
		for method, lock := range map[string]func(context.Context) (*stile.Hold, error){
			"Lock": m.Lock, "TryLock": m.TryLock, "RLock": m.RLock, "TryRLock": m.TryRLock, "Acquire": c.Semaphore("a", 1).Acquire,
		} {
			if _, err := lock(t.Context()); !errors.Is(err, stile.ErrUnsupported) {
				t.Errorf("%s: got %v, want ErrUnsupported", method, err)
			}
		}
		if sessions := w.store.Sessions(); len(sessions) > 0 {
			t.Errorf("got sessions %v, want none", sessions)
		}
	})
}
