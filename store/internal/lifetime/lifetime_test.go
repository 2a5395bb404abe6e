package lifetime_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/lifetime"
)

var errLost = fmt.Errorf("%w: ended by the test", store.ErrSessionLost)

func nothing() {}

func TestLife_endsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		calls := make(map[string]int)
		count := func(what string) func() {
			return func() {
				mu.Lock()
				defer mu.Unlock()
				calls[what]++
			}
		}
		var session sync.Mutex
		l := lifetime.New(t.Context(), &session, func(error) { count("lost")() })
		ends := 0
		for range 8 {
			go func() {
				if l.End(errLost, true, count("take"), count("notify")) {
					count("end")()
				}
			}()
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if ends = calls["end"]; ends != 1 || calls["take"] != 1 || calls["notify"] != 1 || calls["lost"] != 1 {
			t.Errorf("8 calls of End: %d returned true, want 1; callbacks: %v", ends, calls)
		}
	})
}

// The stores rely on this order: what joined is taken out with the mutex held, before the life is
// seen to have ended; the owner is notified last.
func TestLife_endOrder(t *testing.T) {
	var mu sync.Mutex
	var steps []string
	l := lifetime.New(t.Context(), &mu, func(err error) {
		if !errors.Is(err, store.ErrSessionLost) {
			t.Errorf("the owner got %v, want ErrSessionLost", err)
		}
		steps = append(steps, "owner")
	})
	take := func() {
		if mu.TryLock() {
			t.Error("takeLocked was called without the mutex")
		}
		if l.Err() != nil {
			t.Errorf("in takeLocked the life has ended: %v", l.Err())
		}
		if !l.Start(nothing) {
			t.Error("Start in takeLocked: got false")
		}
		steps = append(steps, "take")
	}
	notify := func() {
		if !mu.TryLock() {
			t.Error("notify was called with the mutex held")
		} else {
			mu.Unlock()
		}
		if l.Start(nothing) {
			t.Error("Start in notify: got true")
		}
		if !errors.Is(l.Err(), errLost) || l.Context().Err() == nil {
			t.Errorf("in notify the life has not ended: %v", l.Err())
		}
		steps = append(steps, "entries")
	}
	l.End(errLost, true, take, notify)
	if want := []string{"take", "entries", "owner"}; !slices.Equal(steps, want) {
		t.Errorf("got steps %v, want %v", steps, want)
	}
	l.AwaitWork()
}

func TestLife_closeDoesNotNotifyOwner(t *testing.T) {
	var mu sync.Mutex
	l := lifetime.New(t.Context(), &mu, func(err error) { t.Errorf("the owner got %v", err) })
	l.End(errLost, false, nothing, nothing)
	if l.End(errLost, true, nothing, nothing) {
		t.Error("second End: got true")
	}
	if !l.EndedLocked() {
		t.Error("EndedLocked: got false")
	}
}

func TestLife_closeWaitsForNotificationsAndWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		l := lifetime.New(t.Context(), &mu, func(error) { time.Sleep(time.Second) })
		l.Start(func() { l.End(errLost, true, nothing, func() { time.Sleep(time.Second) }) }) // the notifications are part of the work
		l.Start(func() { time.Sleep(time.Minute) })
		synctest.Wait()
		start := time.Now()
		if l.End(errLost, false, nothing, nothing) {
			t.Error("second End: got true, want false")
		}
		l.AwaitNotified()
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("AwaitNotified took %v, want 2s", took)
		}
		l.AwaitWork()
		if took := time.Since(start); took != time.Minute {
			t.Errorf("AwaitWork took %v, want 1m", took)
		}
	})
}

// With the mutex held, something joins and is taken out, or it sees that the session has ended.
func TestLife_nothingJoinsAfterEnd(t *testing.T) {
	for range 200 {
		var mu sync.Mutex
		l := lifetime.New(t.Context(), &mu, nil)
		joined, taken, refused := 0, 0, 0
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				mu.Lock()
				defer mu.Unlock()
				if l.Err() != nil {
					refused++
					return
				}
				joined++
			})
		}
		l.End(errLost, true, func() { taken = joined }, nothing)
		all.Wait()
		if taken+refused != 4 {
			t.Fatalf("of 4 entries %d were taken out and %d refused; %d joined an ended session", taken, refused, joined-taken)
		}
	}
}

func TestLife_endsWithParent(t *testing.T) {
	var mu sync.Mutex
	parent, cancel := context.WithCancel(t.Context())
	l := lifetime.New(parent, &mu, nil)
	cancel()
	if l.Err() == nil || l.EndedLocked() {
		t.Errorf("after the parent ended: Err %v, EndedLocked %t; want an error, false", l.Err(), l.EndedLocked())
	}
	if !l.End(errLost, true, nothing, nothing) {
		t.Error("End: got false, want true")
	}
}

func TestLife_errorsOfCalls(t *testing.T) {
	var mu sync.Mutex
	l := lifetime.New(t.Context(), &mu, nil)
	failed := errors.New("connection refused")
	if err := l.EndedDuring(t.Context()); err != nil {
		t.Errorf("EndedDuring before the end: got %v, want nil", err)
	}
	if err := l.RemovedWithSession(t.Context(), failed); err != failed {
		t.Errorf("RemovedWithSession before the end: got %v", err)
	}
	within, cancel := l.Within(t.Context())
	defer cancel()
	l.End(errLost, true, nothing, nothing)
	if <-within.Done(); !errors.Is(context.Cause(within), errLost) {
		t.Errorf("Within: got cause %v", context.Cause(within))
	}
	if err := l.EndedDuring(t.Context()); !errors.Is(err, errLost) {
		t.Errorf("EndedDuring: got %v", err)
	}
	if err := l.RemovedWithSession(t.Context(), failed); !errors.Is(err, store.ErrGone) || !errors.Is(err, failed) {
		t.Errorf("RemovedWithSession: got %v, want ErrGone and the error", err)
	}
	over, giveUp := context.WithCancel(t.Context())
	giveUp()
	if err := l.EndedDuring(over); err != nil {
		t.Errorf("EndedDuring after ctx ended: got %v, want nil", err)
	}
	if err := l.RemovedWithSession(over, failed); err != failed {
		t.Errorf("RemovedWithSession after ctx ended: got %v", err)
	}
}
