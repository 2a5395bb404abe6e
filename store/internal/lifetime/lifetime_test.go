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

var errLost = fmt.Errorf("%w: somebody ended it", store.ErrSessionLost)

func nothing() {}

func TestLife_EndHappensOnce(t *testing.T) {
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
			t.Errorf("eight calls of End ended it %d times; calls: %v", ends, calls)
		}
	})
}

// The order is what the stores rely on: what joined is taken with the mutex held, before the life is seen to have ended by
// anybody who holds it; the owner is notified last.
func TestLife_EndOrder(t *testing.T) {
	var mu sync.Mutex
	var steps []string
	l := lifetime.New(t.Context(), &mu, func(err error) {
		if !errors.Is(err, store.ErrSessionLost) {
			t.Errorf("the owner was notified of %v", err)
		}
		steps = append(steps, "owner")
	})
	take := func() {
		if mu.TryLock() {
			t.Error("what joined is taken without the mutex")
		}
		if l.Err() != nil {
			t.Errorf("the life has ended before what joined was taken: %v", l.Err())
		}
		if !l.Start(nothing) {
			t.Error("no work can be started for what was taken")
		}
		steps = append(steps, "take")
	}
	notify := func() {
		if !mu.TryLock() {
			t.Error("entries are notified with the mutex held")
		} else {
			mu.Unlock()
		}
		if l.Start(nothing) {
			t.Error("work is started for a session that has ended")
		}
		if !errors.Is(l.Err(), errLost) || l.Context().Err() == nil {
			t.Errorf("entries are notified while the life goes on: %v", l.Err())
		}
		steps = append(steps, "entries")
	}
	l.End(errLost, true, take, notify)
	if want := []string{"take", "entries", "owner"}; !slices.Equal(steps, want) {
		t.Errorf("the steps were %v, want %v", steps, want)
	}
	l.AwaitWork()
}

func TestLife_OwnerIsNotNotifiedOfAClose(t *testing.T) {
	var mu sync.Mutex
	l := lifetime.New(t.Context(), &mu, func(err error) { t.Errorf("notified of %v", err) })
	l.End(errLost, false, nothing, nothing)
	if l.End(errLost, true, nothing, nothing) {
		t.Error("a session that was closed is lost afterwards")
	}
	if !l.EndedLocked() {
		t.Error("it has not ended")
	}
}

func TestLife_CloseWaitsForNotificationsAndWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		l := lifetime.New(t.Context(), &mu, func(error) { time.Sleep(time.Second) })
		l.Start(func() { l.End(errLost, true, nothing, func() { time.Sleep(time.Second) }) }) // part of the work
		l.Start(func() { time.Sleep(time.Minute) })
		synctest.Wait()
		start := time.Now()
		if l.End(errLost, false, nothing, nothing) {
			t.Error("it was ended twice")
		}
		l.AwaitNotified()
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("waited %v for notifications that take 2s", took)
		}
		l.AwaitWork()
		if took := time.Since(start); took != time.Minute {
			t.Errorf("waited %v for work that takes a minute", took)
		}
	})
}

// With the mutex held, something joins; it is taken out, or it sees that the session has ended. There is nothing between.
func TestLife_NothingJoinsWhatHasEnded(t *testing.T) {
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
			t.Fatalf("of 4, %d were taken out and %d refused: %d have joined a session that had ended", taken, refused, joined-taken)
		}
	}
}

func TestLife_EndsWithItsParent(t *testing.T) {
	var mu sync.Mutex
	parent, cancel := context.WithCancel(t.Context())
	l := lifetime.New(parent, &mu, nil)
	cancel()
	if l.Err() == nil || l.EndedLocked() {
		t.Errorf("after its parent: err %v, ended %t", l.Err(), l.EndedLocked())
	}
	if !l.End(errLost, true, nothing, nothing) {
		t.Error("what joined was never taken out")
	}
}

func TestLife_ErrorsOfCalls(t *testing.T) {
	var mu sync.Mutex
	l := lifetime.New(t.Context(), &mu, nil)
	failed := errors.New("connection refused")
	if err := l.CutShort(t.Context()); err != nil {
		t.Errorf("a life that goes on has cut a call short: %v", err)
	}
	if err := l.WentWith(t.Context(), failed); err != failed {
		t.Errorf("the entry went with a session that lives: %v", err)
	}
	within, cancel := l.Within(t.Context())
	defer cancel()
	l.End(errLost, true, nothing, nothing)
	if <-within.Done(); !errors.Is(context.Cause(within), errLost) {
		t.Errorf("a call within the life ends because of %v", context.Cause(within))
	}
	if err := l.CutShort(t.Context()); !errors.Is(err, errLost) {
		t.Errorf("the call was cut short by %v", err)
	}
	if err := l.WentWith(t.Context(), failed); !errors.Is(err, store.ErrGone) || !errors.Is(err, failed) {
		t.Errorf("the entry went with its session, and the error is %v", err)
	}
	over, giveUp := context.WithCancel(t.Context())
	giveUp()
	if err := l.CutShort(over); err != nil {
		t.Errorf("the caller gave up, and the session is blamed: %v", err)
	}
	if err := l.WentWith(over, failed); err != failed {
		t.Errorf("the caller gave up, and the entry is said to be gone: %v", err)
	}
}
