package watchpump_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/store/internal/watchpump"
)

func TestRun_CallsStandForAllThatHappenedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var told atomic.Int32
		calls, shown := 0, int32(0)
		listen := func(ctx context.Context, tell func()) error {
			for range 10 {
				told.Add(1)
				tell() // which never waits for the watcher
			}
			<-ctx.Done()
			return ctx.Err()
		}
		err := watchpump.Run(ctx, func() {
			time.Sleep(time.Second) // in which all that is left is told
			calls++
			if shown = told.Load(); shown == 10 && calls == 2 {
				cancel()
			}
			time.AfterFunc(time.Minute, cancel) // if there is no second call, all was told before the first
		}, listen)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		if shown != 10 || calls > 2 {
			t.Errorf("after %d calls, %d of 10 changes are shown", calls, shown)
		}
	})
}

func TestRun_EveryChangeIsFollowedByACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		calls := 0
		done := make(chan error)
		var tell func()
		go func() {
			done <- watchpump.Run(ctx, func() { calls++ }, func(ctx context.Context, t func()) error {
				tell = t
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		synctest.Wait()
		for n := 1; n <= 3; n++ {
			tell()
			synctest.Wait()
			if calls != n {
				t.Fatalf("after change %d there were %d calls", n, calls)
			}
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		tell()
		synctest.Wait()
		if calls != 3 {
			t.Error("the watcher was called after Run had returned")
		}
	})
}

func TestRun_ReturnsWhatListeningEndedWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("permission denied")
		err := watchpump.Run(t.Context(), func() { t.Error("called") }, func(context.Context, func()) error { return refused })
		if err != refused {
			t.Errorf("Run returned %v, want the refusal", err)
		}
	})
}

// Watch promises both: it waits for a call under way, and it leaves no goroutine behind.
func TestRun_WaitsForTheCallAndTheListenerThatAreUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		called, listened := false, false
		start := time.Now()
		time.AfterFunc(time.Second, cancel)
		err := watchpump.Run(ctx, func() {
			time.Sleep(time.Minute)
			called = true
		}, func(ctx context.Context, tell func()) error {
			tell()
			<-ctx.Done()
			time.Sleep(2 * time.Minute)
			listened = true
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) || !called || !listened {
			t.Errorf("Run returned %v after %v; the call is over: %t, the listener: %t", err, time.Since(start), called, listened)
		}
	})
}

func TestRun_EndsListeningIfTheWatcherPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		defer func() {
			if recover() == nil || !ended {
				t.Errorf("the panic was swallowed, or the listener goes on (ended: %t)", ended)
			}
		}()
		_ = watchpump.Run(t.Context(), func() { panic("a defect of the watcher's") }, func(ctx context.Context, tell func()) error {
			tell()
			<-ctx.Done()
			ended = true
			return ctx.Err()
		})
	})
}
