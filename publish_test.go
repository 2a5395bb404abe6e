package stile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// ownerUpdates has the times of the owner updates that were sent to the store, and the withdrawals.
type ownerUpdates struct {
	record[time.Time]
	withdrawals record[memstore.Op]
}

// recordOwnerUpdates records owner updates from now on, and sets the fault for them.
func (w *testEnv) recordOwnerUpdates(f memstore.Fault) *ownerUpdates {
	p := &ownerUpdates{}
	w.store.SetFaults(func(c memstore.Call) memstore.Fault {
		switch {
		case c.Op == memstore.SetOwner:
			p.add(time.Now())
			return f
		case c.Op == memstore.Withdraw:
			p.withdrawals.add(c.Op)
		}
		return memstore.Fault{}
	})
	return p
}

// ownerOf returns the owner of a lock's first holder as the store has it.
func (w *testEnv) ownerOf(name string) stile.Owner {
	w.t.Helper()
	l, err := w.store.Line(context.Background(), name)
	if err != nil || len(l.Entries) == 0 || !l.Entries[0].Admitted {
		w.t.Fatalf("Line(%q): got %+v, %v, want a holder", name, l, err)
	}
	return l.Entries[0].Owner
}

func TestPublish_othersSeeTimeOfAcquisition(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		const waited = 3 * time.Minute
		ann, bob := w.client("ann"), w.client("bob")
		first := lock(t, ann, "a")
		joined := time.Now()
		wt := wait(t.Context(), t, bob, "a")
		wt.expectWaiting()
		time.Sleep(waited)
		release(t, first)
		h := wt.expectHoldNow()
		obtained := time.Now()

		time.Sleep(time.Second - 1)
		synctest.Wait()
		if o := w.ownerOf("a"); !o.Obtained.IsZero() || !h.Owner().Obtained.IsZero() {
			t.Errorf("before a second has passed: got the owner %+v in the store and %+v from the hold, want no Obtained", o, h.Owner())
		}
		time.Sleep(1)
		synctest.Wait()
		for _, o := range []stile.Owner{w.ownerOf("a"), h.Owner()} {
			if !o.Obtained.Equal(obtained) || !o.Since.Equal(joined) || o.Command != "bob" {
				t.Errorf("after a second: got the owner %+v, want bob, Since %v, Obtained %v", o, joined, obtained)
			}
		}
		expectHeld(t, h)
		release(t, h)
		w.expectLine("a")
	})
}

func TestPublish_shortHoldSendsNoRequest(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		p := w.recordOwnerUpdates(memstore.Fault{})
		ann := w.client("ann")
		for range 100 {
			h := lock(t, ann, "a")
			time.Sleep(time.Second - 1)
			release(t, h)
		}
		lost := lock(t, ann, "b")
		if _, err := ann.Break(t.Context(), "b", lost.Token()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if at := p.all(); len(at) > 0 {
			t.Errorf("owner updates: got %v, want none", at)
		}
	})
}

// TryLock does not wait, so its entry has the time of the acquisition from the start.
func TestPublish_notAfterTryLock(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		p := w.recordOwnerUpdates(memstore.Fault{})
		now := time.Now()
		h, err := w.client("ann").Mutex("a").TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if o := w.ownerOf("a"); !o.Obtained.Equal(now) || !o.Since.Equal(now) {
			t.Errorf("owner: got %+v, want Obtained %v", o, now)
		}
		time.Sleep(time.Minute)
		release(t, h)
		if at := p.all(); len(at) > 0 {
			t.Errorf("owner updates: got %v, want none", at)
		}
	})
}

// noOwnerUpdatesStore is a store without the capability OwnerUpdates.
type noOwnerUpdatesStore struct{ *memstore.Store }

func (s noOwnerUpdatesStore) Capabilities() store.Capabilities {
	caps := s.Store.Capabilities()
	caps.OwnerUpdates = false
	return caps
}

func TestPublish_notIfUnsupported(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		p := w.recordOwnerUpdates(memstore.Fault{})
		c, err := stile.New(noOwnerUpdatesStore{w.store}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context())
		h := lock(t, c, "a")
		time.Sleep(time.Minute)
		if at := p.all(); len(at) > 0 || !h.Owner().Obtained.IsZero() {
			t.Errorf("got owner updates at %v and the owner %+v, want none and no Obtained", at, h.Owner())
		}
		release(t, h)
	})
}

// Promise: P5
func TestPublish_threeAttempts(t *testing.T) {
	for what, f := range map[string]memstore.Fault{
		"refused":    {Err: errors.New("permission denied")},
		"lost":       {Drop: true},
		"unanswered": {LoseReply: true},
	} {
		t.Run(what, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				p := w.recordOwnerUpdates(f)
				l := &logRecorder{}
				h := lock(t, w.client("ann", func(o *stile.Options) { o.Logger = slog.New(l) }), "a")
				time.Sleep(10 * time.Minute)
				if n := len(p.all()); n != 3 {
					t.Errorf("got %d attempts, want 3", n)
				}
				if warnings := l.aboveDebug(); len(warnings) > 0 {
					t.Errorf("log above debug level: got %q, want none", warnings)
				}
				n := 0
				for _, r := range l.all() {
					if strings.Contains(r.Message, "could not publish the owner") {
						n++
					}
				}
				if n != 3 {
					t.Errorf("got %d failures in the log, want 3", n)
				}
				expectHeld(t, h)
				release(t, h)
				w.expectLine("a")
			})
		})
	}
}

func TestPublish_retrySucceeds(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		w.recordOwnerUpdates(memstore.Fault{Err: errors.New("busy")})
		h := lock(t, w.client("ann"), "a")
		obtained := time.Now()
		time.Sleep(2 * time.Second)
		w.heal()
		time.Sleep(time.Minute)
		if o := w.ownerOf("a"); !o.Obtained.Equal(obtained) {
			t.Errorf("owner: got %+v, want Obtained %v", o, obtained)
		}
		release(t, h)
	})
}

// A release does not wait for the owner update in flight. The update is canceled, and changes
// nothing if it arrives later.
// Promise: P5
func TestPublish_releaseEndsAttempt(t *testing.T) {
	for how, leave := range map[string]func(ctx context.Context, h *stile.Hold) error{
		"Release":      func(ctx context.Context, h *stile.Hold) error { return h.Release(ctx) },
		"ReleaseAfter": func(ctx context.Context, h *stile.Hold) error { return h.ReleaseAfter(ctx, time.Second) },
	} {
		t.Run(how, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				p := w.recordOwnerUpdates(memstore.Fault{Delay: time.Second})
				h := lock(t, w.client("ann"), "a")
				time.Sleep(1500 * time.Millisecond)
				began := time.Now()
				if err := leave(t.Context(), h); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != 0 {
					t.Errorf("the release took %v, want 0", took)
				}
				time.Sleep(time.Minute)
				if n, m := len(p.all()), len(p.withdrawals.all()); n != 1 || m != 1 {
					t.Errorf("got %d owner updates and %d withdrawals, want one each", n, m)
				}
				w.expectLine("a")
			})
		})
	}
}

// The number of goroutines that publish is bounded, even with many holds and a slow store.
func TestPublish_fewGoroutinesForManyHolds(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		const many = 2000
		p := w.recordOwnerUpdates(memstore.Fault{Delay: time.Second})
		ann := w.client("ann")
		var holds []*stile.Hold
		for i := range many {
			holds = append(holds, lock(t, ann, fmt.Sprint("lock ", i)))
		}
		synctest.Wait()
		before := runtime.NumGoroutine()
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		if more := runtime.NumGoroutine() - before; more > 50 {
			t.Errorf("publishing %d holds: got %d more goroutines, want 50 at most", many, more)
		}
		if n := len(p.all()); n == 0 || n > 50 {
			t.Errorf("got %d requests in flight, want 1 to 50", n)
		}
		w.heal()
		time.Sleep(time.Minute)
		if o := w.ownerOf(holds[many-1].Name()); o.Obtained.IsZero() {
			t.Error("the last hold was not published")
		}
		var releasing sync.WaitGroup
		for _, h := range holds {
			releasing.Go(func() { release(t, h) })
		}
		releasing.Wait()
	})
}

func TestPublish_closeDoesNotWait(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		for i := range 20 {
			lock(t, ann, fmt.Sprint("lock ", i))
		}
		p := w.recordOwnerUpdates(memstore.Fault{Drop: true})
		time.Sleep(1500 * time.Millisecond)
		began := time.Now()
		if err := ann.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("Close took %v, want 0", took)
		}
		asked := len(p.all())
		time.Sleep(time.Minute)
		if more := len(p.all()) - asked; more > 0 {
			t.Errorf("got %d requests after Close, want 0", more)
		}
	})
}
