package watchpump_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/store/internal/watchpump"
)

func TestRun_mergesChangesDuringACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var sent atomic.Int32
		calls, seen := 0, int32(0)
		listen := func(ctx context.Context, notify watchpump.Notify) error {
			for range 10 {
				sent.Add(1)
				notify() // never waits for the callback
			}
			<-ctx.Done()
			return ctx.Err()
		}
		err := watchpump.Run(ctx, func([]string) {
			time.Sleep(time.Second) // the other changes arrive meanwhile
			calls++
			if seen = sent.Load(); seen == 10 && calls == 2 {
				cancel()
			}
			time.AfterFunc(time.Minute, cancel) // in case the first call was after all changes
		}, listen)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		if seen != 10 || calls > 2 {
			t.Errorf("after %d calls the watcher has seen %d of 10 changes", calls, seen)
		}
	})
}

func TestRun_callsAfterEachChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		calls := 0
		done := make(chan error)
		var notify watchpump.Notify
		go func() {
			done <- watchpump.Run(ctx, func([]string) { calls++ }, func(ctx context.Context, t watchpump.Notify) error {
				notify = t
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		synctest.Wait()
		for n := 1; n <= 3; n++ {
			notify()
			synctest.Wait()
			if calls != n {
				t.Fatalf("after change %d: got %d calls", n, calls)
			}
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		notify()
		synctest.Wait()
		if calls != 3 {
			t.Error("the watcher was called after Run had returned")
		}
	})
}

func TestRun_passesNames(t *testing.T) {
	many := make([]string, watchpump.MaxNames)
	for i := range many {
		many[i] = fmt.Sprintf("%04d", i)
	}
	for _, tt := range []struct {
		name   string
		notify func(watchpump.Notify) // while a call runs
		want   []string               // of the next call
	}{
		{"in order, each once", func(n watchpump.Notify) { n("b"); n("c", "a"); n("b") }, []string{"a", "b", "c"}},
		{"any line", func(n watchpump.Notify) { n("a"); n(); n("b") }, nil},
		{"as many as are kept", func(n watchpump.Notify) { n(many...) }, many},
		{"more than are kept", func(n watchpump.Notify) { n(many...); n("another"); n("a") }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var notify watchpump.Notify
				var got [][]string
				listen := func(ctx context.Context, n watchpump.Notify) error {
					notify = n
					n()
					<-ctx.Done()
					return ctx.Err()
				}
				go func() {
					_ = watchpump.Run(ctx, func(names []string) {
						if got = append(got, names); len(got) == 1 {
							time.Sleep(time.Second)
						}
					}, listen)
				}()
				synctest.Wait()
				tt.notify(notify)
				time.Sleep(time.Minute)
				notify("later")
				synctest.Wait()
				if want := [][]string{nil, tt.want, {"later"}}; !reflect.DeepEqual(got, want) {
					t.Errorf("got calls with %q, want %q", got, want)
				}
			})
		})
	}
}

func TestRun_returnsErrorOfListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("permission denied")
		err := watchpump.Run(t.Context(), func([]string) { t.Error("called") }, func(context.Context, watchpump.Notify) error { return refused })
		if err != refused {
			t.Errorf("Run returned %v, want the refusal", err)
		}
	})
}

// Store.Watch promises that it waits for a running call and leaves no goroutine behind.
func TestRun_waitsForCallAndListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		called, listened := false, false
		start := time.Now()
		time.AfterFunc(time.Second, cancel)
		err := watchpump.Run(ctx, func([]string) {
			time.Sleep(time.Minute)
			called = true
		}, func(ctx context.Context, notify watchpump.Notify) error {
			notify()
			<-ctx.Done()
			time.Sleep(2 * time.Minute)
			listened = true
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) || !called || !listened {
			t.Errorf("Run returned %v after %v; callback returned: %t, listen returned: %t", err, time.Since(start), called, listened)
		}
	})
}

func TestRun_stopsListenIfCallbackPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		defer func() {
			if recover() == nil || !ended {
				t.Errorf("no panic, or listen still runs (ended: %t)", ended)
			}
		}()
		_ = watchpump.Run(t.Context(), func([]string) { panic("panic in the callback") }, func(ctx context.Context, notify watchpump.Notify) error {
			notify()
			<-ctx.Done()
			ended = true
			return ctx.Err()
		})
	})
}
