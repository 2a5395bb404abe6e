package stile_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func TestMutex_lockAndRelease(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		expectHeld(t, h)
		if h.Token() == 0 || h.Token()>>63 != 0 {
			t.Errorf("token: got %d, want it positive and below 2^63", h.Token())
		}
		if h.Name() != "a" || h.Owner().Command != "ann" {
			t.Errorf("got a hold of %q by %v, want one of a by ann", h.Name(), h.Owner())
		}
		w.expectLine("a", "ann")

		release(t, h)
		if h.Valid() || h.Err() != nil || closed(h.Lost()) {
			t.Errorf("a released hold: got valid %v, error %v, lost %v, want false, nil, false", h.Valid(), h.Err(), closed(h.Lost()))
		}
		if h.Context().Err() == nil || context.Cause(h.Context()) != stile.ErrReleased {
			t.Errorf("cause of a released hold's context: got %v, want ErrReleased", context.Cause(h.Context()))
		}
		w.expectLine("a")
		release(t, lock(t, bob, "a"))
	})
}

func TestHold_lastsUntilReleased(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		wt := wait(t.Context(), t, bob, "a")
		time.Sleep(time.Hour)
		expectHeld(t, h)
		wt.expectWaiting()
		release(t, h)
		wt.expectHoldNow()
	})
}

func TestMutex_differentNames(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		for _, name := range []string{"a", "a/b", "a/b/c", "A"} {
			lock(t, ann, name)
		}
		lock(t, bob, "a/c")
	})
}

func TestMutex_sameName(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		one, two := c.Mutex("a"), c.Mutex("a")
		h, err := one.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := two.TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("TryLock with another Mutex: got %v, want ErrHeld", err)
		}
		if one.Name() != "a" {
			t.Errorf("Name: got %q, want a", one.Name())
		}
		release(t, h)
	})
}

// Bug: RedissonWriteLock
func TestLock_isNotReentrant(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		h := lock(t, c, "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		before := time.Now()
		_, err := c.Mutex("a").Lock(ctx)
		expectError(t, err, context.DeadlineExceeded)
		if d := time.Since(before); d != time.Hour {
			t.Errorf("the second Lock returned after %v, want 1h", d)
		}
		expectHeld(t, h)
		w.expectLine("a", "ann")
	})
}

func TestTryLock(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h, err := ann.Mutex("a").TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		expectHeld(t, h)
		for who, c := range map[string]*stile.Client{"another process": bob, "the same process": ann} {
			before := time.Now()
			h2, err := c.Mutex("a").TryLock(t.Context())
			var held *stile.HeldError
			if h2 != nil || !errors.Is(err, stile.ErrHeld) || !errors.As(err, &held) {
				t.Fatalf("TryLock by %s: got %v, %v, want a HeldError that matches ErrHeld", who, h2, err)
			}
			if held.Name != "a" || held.Holder == nil || held.Holder.Owner.Command != "ann" {
				t.Errorf("TryLock by %s: got %+v, want the lock a and the holder ann", who, held)
			}
			if s := err.Error(); !strings.Contains(s, "ann") || !strings.Contains(s, `"a"`) {
				t.Errorf("TryLock by %s: the error %q lacks the lock or its holder", who, s)
			}
			if d := time.Since(before); d != 0 {
				t.Errorf("TryLock by %s took %v, want 0", who, d)
			}
		}
		w.expectLine("a", "ann")
		release(t, h)
		if h, err = bob.Mutex("a").TryLock(t.Context()); err != nil {
			t.Fatalf("TryLock after the release: %v", err)
		}
		release(t, h)
	})
}

func TestTryLock_errorHasHolderToken(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		_, err := bob.Mutex("a").TryLock(t.Context())
		var held *stile.HeldError
		if !errors.As(err, &held) || held.Holder.Token != h.Token() {
			t.Fatalf("TryLock: got %+v, want the holder's token %d", err, h.Token())
		}
		if _, err := bob.Break(t.Context(), "a", held.Holder.Token); err != nil {
			t.Errorf("Break with the token of the HeldError: %v", err)
		}
	})
}

func TestTryLock_endedContext(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 {
			_, err := c.Mutex("a").TryLock(ctx)
			expectError(t, err, context.Canceled)
			_, err = c.Mutex("a").Lock(ctx)
			expectError(t, err, context.Canceled)
		}
		w.expectLine("a")
	})
}

// Fencing needs tokens that increase with each hold, however the earlier holds ended.
// Promise: P2
func TestToken_increases(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		var last uint64
		next := func(after string, h *stile.Hold) *stile.Hold {
			t.Helper()
			if h.Token() <= last {
				t.Errorf("token after %s: got %d, want more than %d", after, h.Token(), last)
			}
			last = h.Token()
			return h
		}
		release(t, next("nothing", lock(t, ann, "a")))
		release(t, next("a release", lock(t, ann, "a")))
		release(t, next("a hold of another client", lock(t, bob, "a")))

		h := lock(t, ann, "a")
		next("another", h)
		behind := wait(t.Context(), t, ann, "a")
		w.store.Expire(w.session("ann"))
		expectLost(t, h, stile.LostExpired)
		h = next("a session that expired", behind.expectHold())

		if _, err := bob.Break(t.Context(), "a", h.Token()); err != nil {
			t.Fatal(err)
		}
		expectLost(t, h, stile.LostEvicted)
		h = next("a hold that was broken", lock(t, bob, "a"))

		w.cut(w.session("bob"))
		time.Sleep(ttl)
		expectLost(t, h, stile.LostDeadline)
		w.heal()
		next("a hold whose deadline passed", lock(t, ann, "a"))
		if err := ann.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		release(t, next("a client that was closed", lock(t, bob, "a")))
	})
}

type key struct{}

func TestLock_contextBoundsOnlyTheWait(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Second)
		h, err := c.Mutex("a").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(time.Hour)
		expectHeld(t, h)
		if got := h.Context().Value(key{}); got != "value" {
			t.Errorf("value of the hold's context: got %v, want that of Lock's context", got)
		}
		if d, ok := h.Context().Deadline(); ok {
			t.Errorf("deadline of the hold's context: got %v, want none", d)
		}
		release(t, h)
	})
}

func TestDo_holdsLockWhileFRuns(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		ctx := context.WithValue(t.Context(), key{}, "value")
		var inside *stile.Hold
		err := c.Mutex("a").Do(ctx, func(ctx context.Context, h *stile.Hold) error {
			inside = h
			expectHeld(t, h)
			w.expectLine("a", "ann")
			if ctx.Value(key{}) != "value" || ctx.Err() != nil {
				t.Errorf("f's context: got the value %v and the error %v", ctx.Value(key{}), ctx.Err())
			}
			return nil
		})
		if err != nil || inside == nil {
			t.Fatalf("Do: got %v; f was called: %v", err, inside != nil)
		}
		w.expectLine("a")
		if inside.Valid() || context.Cause(inside.Context()) != stile.ErrReleased {
			t.Error("after Do the hold is not released")
		}
	})
}

func TestDo_returnsErrorOfF(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		mine := errors.New("mine")
		err := w.client("ann").Mutex("a").Do(t.Context(), func(context.Context, *stile.Hold) error { return mine })
		expectError(t, err, mine)
		w.expectLine("a")
	})
}

func TestDo_doesNotRunFWithoutLock(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		lock(t, ann, "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := bob.Mutex("a").Do(ctx, func(context.Context, *stile.Hold) error { panic("f was called") })
		expectError(t, err, context.DeadlineExceeded)
	})
}

// Bug: kyverno #14984
func TestDo_lossEndsContextOfF(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		mine := errors.New("mine")
		err := ann.Mutex("a").Do(t.Context(), func(ctx context.Context, h *stile.Hold) error {
			if _, err := bob.Break(t.Context(), "a", h.Token()); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			if ctx.Err() != context.Canceled {
				t.Errorf("error of f's context: got %v, want context.Canceled", ctx.Err())
			}
			if lost := asLost(t, context.Cause(ctx)); lost.Reason != stile.LostEvicted {
				t.Errorf("cause of f's context: got %v, want LostEvicted", lost)
			}
			return mine
		})
		expectError(t, err, mine, stile.ErrLost)
		if lost := asLost(t, err); lost.Reason != stile.LostEvicted {
			t.Errorf("Do: got %v, want the reason LostEvicted", err)
		}
	})
}

// Do returns nil only if the lock was held to the end, even if f ignores its context.
func TestDo_lossIsAnErrorIfFSucceeds(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		err := ann.Mutex("a").Do(t.Context(), func(_ context.Context, h *stile.Hold) error {
			_, err := bob.Break(t.Context(), "a", h.Token())
			return err
		})
		expectError(t, err, stile.ErrLost)
	})
}

func TestDo_contextOfFEndsWithItsOwn(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		cause := errors.New("shutting down")
		ctx, cancel := context.WithCancelCause(t.Context())
		err := c.Mutex("a").Do(ctx, func(ctx context.Context, h *stile.Hold) error {
			cancel(cause)
			<-ctx.Done()
			expectError(t, context.Cause(ctx), cause)
			expectHeld(t, h)
			return nil
		})
		if err != nil {
			t.Errorf("Do whose context ended while f ran: %v", err)
		}
		w.expectLine("a")

		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		err = c.Mutex("a").Do(ctx, func(ctx context.Context, _ *stile.Hold) error {
			<-ctx.Done()
			return ctx.Err()
		})
		expectError(t, err, context.DeadlineExceeded)
		w.expectLine("a")
	})
}

func TestDo_notKnown(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		w.faults(memstore.Fault{LoseReply: true, Err: store.ErrNotKnown}, on(memstore.Withdraw))
		err := c.Mutex("a").Do(t.Context(), func(context.Context, *stile.Hold) error { return nil })
		expectError(t, err, stile.ErrNotKnown)
	})
}

func TestDo_releasesAfterPanic(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		func() {
			defer func() {
				if r := recover(); r != "boom" {
					t.Errorf("got the panic %v, want that of f", r)
				}
			}()
			_ = c.Mutex("a").Do(t.Context(), func(context.Context, *stile.Hold) error { panic("boom") })
		}()
		w.expectLine("a")
		lock(t, c, "a")
	})
}

func TestDo_releasesAfterGoexit(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		go func() {
			_ = c.Mutex("a").Do(t.Context(), func(context.Context, *stile.Hold) error {
				runtime.Goexit()
				return nil
			})
		}()
		synctest.Wait()
		w.expectLine("a")
		lock(t, c, "a")
	})
}

func TestDo_fMayRelease(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		err := ann.Mutex("a").Do(t.Context(), func(ctx context.Context, h *stile.Hold) error {
			release(t, h)
			lock(t, bob, "a")
			<-ctx.Done()
			expectError(t, context.Cause(ctx), stile.ErrReleased)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// evictingStore is a store that evicts the first entry of each name as soon as it is admitted, and
// notifies of both at once.
type evictingStore struct{ store.Store }

type evictingSession struct {
	store.Session
	seen map[string]bool
}

func (s evictingStore) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	se, err := s.Store.Open(ctx, opts)
	return evictingSession{se, make(map[string]bool)}, err
}

func (s evictingSession) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	ticket, err := s.Session.Enqueue(ctx, req)
	if err == nil && !s.seen[req.Name] {
		s.seen[req.Name] = true
		err = ticket.Withdraw(ctx)
		req.Notify(store.Standing{State: store.Gone, Cause: store.ErrGone})
	}
	return ticket, err
}

// When the caller wakes up, it has been notified both of the admission and of the eviction.
// Promise: P1
func TestLock_doesNotReturnHoldThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var acquired record[stile.HoldStartEvent]
		c, err := stile.New(evictingStore{memstore.New()}, &stile.Options{Hooks: stile.Hooks{HoldStart: starting(acquired.add)}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context())
		for n := range 30 { // the order in which select sees the two is random
			h := lock(t, c, fmt.Sprint("lock ", n))
			expectHeld(t, h)
			release(t, h)
		}
		if n := len(acquired.all()); n != 30 {
			t.Errorf("got %d calls of HoldStart, want 30", n)
		}
	})
}
