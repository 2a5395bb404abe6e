package stilesync_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stilesync"
	"github.com/stilelock/stile/store/memstore"
)

func newClient(t *testing.T, st *memstore.Store) *stile.Client {
	t.Helper()
	c, err := stile.New(st, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// panicOf returns the error that f panics with; nil if it does not.
func panicOf(f func()) (err error) {
	defer func() { err, _ = recover().(error) }()
	f()
	return nil
}

// Goroutines of two processes increment a variable that nothing else protects.
// Promise: P1
func TestLocker_excludes(t *testing.T) {
	st := memstore.New()
	const processes, goroutines, rounds = 2, 4, 20
	count := 0
	var wg sync.WaitGroup
	for range processes {
		var l sync.Locker = stilesync.New(newClient(t, st).Mutex("a"))
		for range goroutines {
			wg.Go(func() {
				for range rounds {
					l.Lock()
					count++
					l.Unlock()
				}
			})
		}
	}
	wg.Wait()
	if want := processes * goroutines * rounds; count != want {
		t.Errorf("got %d increments, want %d", count, want)
	}
}

// Lock has no error, so it waits until the store is back.
func TestLocker_outlastsOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		failed := 0
		c, err := stile.New(st, &stile.Options{Hooks: stile.Hooks{
			AttemptEnd: func(_ context.Context, e stile.AttemptEndEvent) {
				if e.Err != nil {
					failed++
				}
			},
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		st.SetFaults(func(memstore.Call) memstore.Fault { return memstore.Fault{Err: errors.New("no route to host")} })
		time.AfterFunc(time.Hour, func() { st.SetFaults(nil) })
		start := time.Now()
		l := stilesync.New(c.Mutex("a"))
		l.Lock()
		if got := time.Since(start); got < time.Hour || got > time.Hour+10*time.Second {
			t.Errorf("Lock returned after %v, want an hour and at most one pause", got)
		}
		if failed < 100 {
			t.Errorf("the hook was called for %d failed attempts, want one for each", failed)
		}
		if !l.Hold().Valid() {
			t.Error("Lock returned without a valid hold")
		}
		l.Unlock()
	})
}

func TestLocker_LockPanicsIfWaitingCannotHelp(t *testing.T) {
	st := memstore.New()
	c, closed := newClient(t, st), newClient(t, st)
	if err := closed.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	held, err := c.Semaphore("slots", 2).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release(t.Context())
	for _, c := range []struct {
		mutex *stile.Mutex
		want  error
	}{
		{closed.Mutex("a"), stile.ErrClosed},
		{c.Mutex(""), stile.ErrBadName},
		{c.Mutex("slots"), stile.ErrKind},
	} {
		if err := panicOf(stilesync.New(c.mutex).Lock); !errors.Is(err, c.want) {
			t.Errorf("Lock panics with %v, want %v", err, c.want)
		}
	}
}

// A Lock that waits ends when the client is closed.
func TestLocker_CloseEndsLock(t *testing.T) {
	st := memstore.New()
	first := stilesync.New(newClient(t, st).Mutex("a"))
	first.Lock()
	c := newClient(t, st)
	waiting := make(chan error)
	go func() { waiting <- panicOf(stilesync.New(c.Mutex("a")).Lock) }()
	for l, err := range c.WatchLine(t.Context(), "a") {
		if err != nil {
			t.Fatal(err)
		}
		if len(l.Waiters) == 1 {
			break
		}
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-waiting; !errors.Is(err, stile.ErrClosed) {
		t.Errorf("the waiting Lock panics with %v, want ErrClosed", err)
	}
	first.Unlock()
}

func TestLocker_UnlockPanicsIfNotLocked(t *testing.T) {
	l := stilesync.New(newClient(t, memstore.New()).Mutex("a"))
	if err := panicOf(l.Unlock); err == nil || err.Error() != `stilesync: lock "a": unlock of a lock that is not held` {
		t.Errorf("Unlock without Lock panics with %v", err)
	}
	l.Lock()
	if err := panicOf(l.Unlock); err != nil {
		t.Errorf("Unlock after Lock panics with %v", err)
	}
	if panicOf(l.Unlock) == nil {
		t.Error("the second Unlock does not panic")
	}
	if l.Hold() != nil {
		t.Errorf("Hold after Unlock: got %v, want nil", l.Hold())
	}
}

// The only sign of a loss is Hold. A store that does not answer delays Unlock by two seconds.
func TestLocker_loss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		c := newClient(t, st)
		l := stilesync.New(c.Mutex("a"))
		l.Lock()
		if _, err := c.Break(t.Context(), "a", l.Hold().Token()); err != nil {
			t.Fatal(err)
		}
		<-l.Hold().Lost()
		if !errors.Is(l.Hold().Err(), stile.ErrLost) {
			t.Errorf("Err of the hold: got %v, want the loss", l.Hold().Err())
		}
		if err := panicOf(l.Unlock); err != nil {
			t.Errorf("Unlock of a lost hold panics with %v", err)
		}

		l.Lock()
		st.SetFaults(func(c memstore.Call) memstore.Fault { return memstore.Fault{Drop: c.Op == memstore.Withdraw} })
		start := time.Now()
		l.Unlock()
		if got := time.Since(start); got != 2*time.Second {
			t.Errorf("Unlock without a reply of the store took %v, want 2s", got)
		}
		st.SetFaults(nil)
		l.Lock()
		if !l.Hold().Valid() {
			t.Error("Lock after that Unlock returned without a valid hold")
		}
		l.Unlock()
	})
}
