package stile_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/memstore"
)

// The minimum time between two readings of a watch, and the maximum time without changes.
const (
	watchInterval  = 100 * time.Millisecond
	resyncInterval = 10 * time.Second
)

// A watchResult is one result that a watch has yielded.
type watchResult struct {
	at    time.Duration // since the start of the watch
	lines string        // "a: ann bob", joined by semicolons
	err   error
}

// A watcher is a loop over a watch.
type watcher struct {
	record[watchResult]
	t    *testing.T
	stop context.CancelFunc
	done chan struct{}
}

// watch starts a loop over the lines with the prefix. It ends with the test, or when body, if not
// nil, returns false. body is called after each result with the number of results so far.
func watch(t *testing.T, c *stile.Client, prefix string, body func(n int) (proceed bool)) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	return loop(t, cancel, c.WatchLines(ctx, prefix), func(lines []stile.Line) string {
		var all []string
		for _, l := range lines {
			all = append(all, asText(l))
		}
		return strings.Join(all, "; ")
	}, body)
}

func asText(l stile.Line) string {
	return strings.TrimSpace(l.Name + ": " + strings.TrimSpace(commands(l.Holders)+" "+commands(l.Waiters)))
}

func loop[T any](t *testing.T, cancel context.CancelFunc, readings iter.Seq2[T, error], text func(T) string,
	body func(n int) bool,
) *watcher {
	w := &watcher{t: t, stop: cancel, done: make(chan struct{})}
	start, n := time.Now(), 0
	go func() {
		defer close(w.done)
		for got, err := range readings {
			s := watchResult{at: time.Since(start), err: err}
			if err == nil {
				s.lines = text(got)
			}
			w.add(s)
			if n++; body != nil && !body(n) {
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-w.done })
	return w
}

// last waits long enough for the watch to read the current state and returns its last result.
func (w *watcher) last() watchResult {
	w.t.Helper()
	time.Sleep(watchInterval)
	all := w.all()
	if len(all) == 0 {
		w.t.Fatal("the watch has yielded no result")
	}
	return all[len(all)-1]
}

func (w *watcher) expectLines(lines string) {
	w.t.Helper()
	if s := w.last(); s.err != nil || s.lines != lines {
		w.t.Fatalf("last result: got %q, %v, want %q", s.lines, s.err, lines)
	}
}

// expectEnd checks that the loop has ended after the given number of readings and a final error
// that matches want.
func (w *watcher) expectEnd(readings int, want error) {
	w.t.Helper()
	if !closed(w.done) {
		w.t.Fatalf("the watch has not ended, after the results %+v", w.all())
	}
	all := w.all()
	if len(all) != readings+1 {
		w.t.Fatalf("results: got %+v, want %d readings and an error that matches %q", all, readings, want)
	}
	for _, s := range all[:readings] {
		if s.err != nil {
			w.t.Errorf("error of a reading: got %v, want nil", s.err)
		}
	}
	expectError(w.t, all[readings].err, want)
}

func TestWatchLines(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		lines := watch(t, w.client("eve"), "a", nil)
		lines.expectLines("")
		h := lock(t, ann, "a/1")
		lines.expectLines("a/1: ann")
		place := wait(t.Context(), t, bob, "a/1")
		lines.expectLines("a/1: ann bob")
		other := lock(t, bob, "a/2")
		lines.expectLines("a/1: ann bob; a/2: bob")
		lock(t, bob, "b")
		release(t, h)
		next := place.expectHoldNow()
		lines.expectLines("a/1: bob; a/2: bob")
		release(t, other)
		if _, err := ann.Break(t.Context(), "a/1", next.Token()); err != nil {
			t.Fatal(err)
		}
		lines.expectLines("")
	})
}

func TestWatchLine(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		ctx, cancel := context.WithCancel(t.Context())
		line := loop(t, cancel, w.client("eve").WatchLine(ctx, "a"), asText, nil)
		line.expectLines("a:")
		h := lock(t, ann, "a")
		line.expectLines("a: ann")
		lock(t, bob, "a/1")
		line.expectLines("a: ann")
		wait(t.Context(), t, bob, "a")
		line.expectLines("a: ann bob")
		release(t, h)
		line.expectLines("a: bob")
	})
}

// The first reading does not wait for the store to set up the watch.
func TestWatch_readsAtOnce(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, eve := w.client("ann"), w.client("eve")
		w.faults(memstore.Fault{Delay: time.Second}, on(memstore.Watch))
		h := lock(t, ann, "a")
		lines := watch(t, eve, "", nil)
		synctest.Wait()
		if all := lines.all(); len(all) != 1 || all[0].at != 0 || all[0].lines != "a: ann" {
			t.Fatalf("results before any time passes: got %+v, want one reading", all)
		}
		// A change before the store has set up the watch is read afterwards.
		release(t, h)
		time.Sleep(time.Second)
		lines.expectLines("")
	})
}

func TestWatch_readsAtMostTenTimesASecond(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		lines := watch(t, w.client("eve"), "", nil)
		for start := time.Now(); time.Since(start) < 2*time.Second; time.Sleep(time.Millisecond) {
			release(t, lock(t, ann, "a"))
		}
		lock(t, ann, "last")
		lines.expectLines("last: ann")
		all := lines.all()
		for i := 1; i < len(all); i++ {
			if d := all[i].at - all[i-1].at; d < watchInterval {
				t.Errorf("reading %d: got %v since the one before, want 100ms at least", i, d)
			}
		}
		if len(all) < 20 {
			t.Errorf("readings in two seconds of changes: got %d, want at least 20", len(all))
		}
	})
}

func TestWatch_quietWithoutChanges(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		lines := watch(t, w.client("eve"), "", nil)
		time.Sleep(resyncInterval)
		// One reading at first and one when the watch is set up; later one to check that the store
		// is reachable.
		if all := lines.all(); len(all) != 2 {
			t.Errorf("results: got %+v, want two readings", all)
		}
		time.Sleep(time.Second)
		if all := lines.all(); len(all) != 3 {
			t.Errorf("results: got %+v, want three readings", all)
		}
	})
}

// Changes while the body of the loop is busy are read afterwards.
// Promise: P7
// Bug: Observe in etcd
func TestWatch_slowLoopSeesLastState(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		lines := watch(t, w.client("eve"), "", func(n int) bool {
			if n == 2 {
				time.Sleep(time.Minute)
			}
			return true
		})
		time.Sleep(time.Second)
		lock(t, ann, "a")
		time.Sleep(time.Minute)
		lines.expectLines("a: ann")
	})
}

// Promise: P7
func TestWatch_continuesAfterFailedReading(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, eve := w.client("ann"), w.client("eve")
		lines := watch(t, eve, "", nil)
		lines.expectLines("")
		down := errors.New("the store is down")
		lock(t, ann, "a")
		w.faults(memstore.Fault{Err: down}, on(memstore.Read))
		time.Sleep(3*time.Second + watchInterval/2)
		all := lines.all()
		failed := 0
		for i, s := range all {
			if s.err == nil {
				continue
			}
			expectError(t, s.err, down)
			if failed++; failed > 1 && s.at-all[i-1].at < time.Second {
				t.Errorf("time between a failed reading and the next: got %v, want 1s at least", s.at-all[i-1].at)
			}
		}
		if failed < 3 {
			t.Errorf("results: got %+v, want three errors at least", all)
		}
		w.heal()
		time.Sleep(time.Second)
		lines.expectLines("a: ann")
		release(t, lock(t, ann, "b"))
		lines.expectLines("a: ann")
	})
}

// The watch stops when the loop is left. synctest fails the test if a goroutine of it remains.
func TestWatch_endsWithTheLoop(t *testing.T) {
	for _, after := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann := w.client("ann")
				lines := watch(t, w.client("eve"), "", func(n int) bool { return n < after })
				time.Sleep(time.Second)
				release(t, lock(t, ann, "a"))
				time.Sleep(time.Second)
				if !closed(lines.done) {
					t.Fatal("the loop has not ended")
				}
				if all := lines.all(); len(all) != after {
					t.Errorf("results: got %+v, want %d readings", all, after)
				}
			})
		})
	}
}

func TestWatch_endsWithContext(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		lines := watch(t, w.client("eve"), "", nil)
		time.Sleep(time.Second)
		lines.stop()
		if !closed(lines.done) {
			t.Fatal("the watch has not ended with its context")
		}
		release(t, lock(t, ann, "a"))
		for _, s := range lines.all() {
			if s.err != nil {
				t.Errorf("result after the end of the context: got the error %v", s.err)
			}
		}
	})
}

func TestWatch_endsWithContextDuringReading(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		eve := w.client("eve")
		w.faults(memstore.Fault{Drop: true}, on(memstore.Read, memstore.Watch))
		lines := watch(t, eve, "", nil)
		synctest.Wait()
		lines.stop()
		if !closed(lines.done) || len(lines.all()) > 0 {
			t.Errorf("results: got %+v, want none and the end of the loop", lines.all())
		}
	})
}

func TestWatch_closedClient(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		eve := w.client("eve")
		lines := watch(t, eve, "", nil)
		time.Sleep(time.Second)
		if err := eve.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		lines.expectEnd(2, stile.ErrClosed)
		watch(t, eve, "", nil).expectEnd(0, stile.ErrClosed)
	})
}

// Whenever the client is closed, ErrClosed is yielded once, as the last result.
func TestWatch_clientClosesMeanwhile(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		for range 200 {
			eve := w.client("eve")
			lines := watch(t, eve, "", nil)
			if err := eve.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !closed(lines.done) {
				t.Fatal("the watch has not ended with the client")
			}
			lines.expectEnd(len(lines.all())-1, stile.ErrClosed)
		}
	})
}

func TestWatch_badPrefix(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		eve := w.client("eve")
		watch(t, eve, "a\x00", nil).expectEnd(0, stile.ErrBadName)
	})
}

func TestWatch_refusedByStore(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		denied := errors.New("permission denied")
		w.faults(memstore.Fault{Err: denied}, on(memstore.Watch))
		lines := watch(t, w.client("eve"), "", nil)
		time.Sleep(time.Second)
		lines.expectEnd(1, denied)
	})
}

// The store may refuse both the watch and each reading. Then the watch ends too, after a last attempt to read.
func TestWatch_refusedByStoreWithReadings(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		denied := errors.New("permission denied")
		w.faults(memstore.Fault{Err: denied}, on(memstore.Watch, memstore.Read))
		lines := watch(t, w.client("eve"), "", nil)
		time.Sleep(time.Minute)
		if !closed(lines.done) {
			t.Errorf("the watch has not ended, after the results %+v", lines.all())
		}
	})
}
