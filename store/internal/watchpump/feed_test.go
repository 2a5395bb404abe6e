package watchpump_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/watchpump"
)

// followedLines are lines that a test changes. The orders of their entries are 1 to n.
type followedLines struct {
	sync.Mutex
	feed  *watchpump.Feed
	lines map[string]int // number of entries, by name
}

func (f *followedLines) LenLocked(name string) int { return f.lines[name] }

func (f *followedLines) LineLocked(name string) store.Line {
	return store.Line{Name: name, Entries: make([]store.Entry, f.lines[name])}
}

func (f *followedLines) AllLocked() (all []store.Line) {
	for _, name := range slices.Sorted(maps.Keys(f.lines)) {
		if f.lines[name] > 0 {
			all = append(all, f.LineLocked(name))
		}
	}
	return all
}

// set changes lines in one step.
func (f *followedLines) set(n int, names ...string) {
	f.Lock()
	defer f.Unlock()
	for _, name := range names {
		f.lines[name] = n
	}
	f.feed.Step(names, time.Now())
}

// followFeed calls body with lines that are followed, and returns what changed was called with, as text, after body
// has returned. changed is called before each call is recorded; it may be nil.
func followFeed(t *testing.T, changed func(n int), body func(f *followedLines)) (got []string) {
	t.Helper()
	f := &followedLines{lines: make(map[string]int)}
	stopped := errors.New("stopped")
	err := watchpump.Follow(t.Context(), f, func(c store.Changes) {
		if changed != nil {
			changed(len(got) + 1)
		}
		text := ""
		if c.All {
			text = "all "
		}
		if c.Err != nil {
			text = c.Err.Error()
		}
		for _, l := range c.Lines {
			text += fmt.Sprintf("%s%d ", l.Name, len(l.Entries))
		}
		got = append(got, text)
	}, func(_ context.Context, feed *watchpump.Feed) error {
		f.feed = feed
		body(f)
		synctest.Wait()
		return stopped
	})
	if !errors.Is(err, stopped) {
		t.Errorf("Follow returned %v, want the error of listen", err)
	}
	return got
}

func TestFollow_eachStepInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := followFeed(t, nil, func(f *followedLines) {
			f.Lock()
			f.feed.All(time.Now())
			f.Unlock()
			synctest.Wait()
			for i := range 3 {
				f.set(i, "a", "b")
			}
			f.set(7, "c")
		})
		if want := []string{"all ", "a0 b0 ", "a1 b1 ", "a2 b2 ", "c7 "}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// While the callback blocks, steps are kept. If they become too many, all lines replace them.
func TestFollow_blockedCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct{ steps, calls int }{{1000, 1001}, {4096, 4097}, {4097, 2}, {10_000, 2}} {
			release := make(chan struct{})
			got := followFeed(t, func(n int) {
				if n == 1 {
					<-release
				}
			}, func(f *followedLines) {
				f.set(1, "first")
				synctest.Wait()
				for i := range tt.steps {
					f.set(i%100+1, "a")
				}
				close(release)
			})
			if len(got) != tt.calls {
				t.Errorf("%d steps: got %d calls, want %d", tt.steps, len(got), tt.calls)
			}
			want := fmt.Sprintf("a%d ", (tt.steps-1)%100+1)
			if tt.calls == 2 {
				want = "all " + want + "first1 "
			}
			if last := got[len(got)-1]; last != want {
				t.Errorf("%d steps: got the last call %q, want %q", tt.steps, last, want)
			}
		}
	})
}

// A long line is reported ten times a second, with its newest state. Others are not delayed by it.
func TestFollow_longLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		got := followFeed(t, func(int) { at = append(at, time.Since(began)) }, func(f *followedLines) {
			for i := range 250 { // for 250 ms
				f.set(store.MaxFollowed+1+i, "long")
				time.Sleep(time.Millisecond)
			}
			f.set(1, "short")
			synctest.Wait()
			f.set(2, "long") // it is short now
			time.Sleep(time.Second)
		})
		want := []string{fmt.Sprintf("long%d ", store.MaxFollowed+100), fmt.Sprintf("long%d ", store.MaxFollowed+200), "short1 ", "long2 "}
		if len(got) != 4 || got[2] != want[2] || got[3] != want[3] {
			t.Errorf("got %q at %v, want about %q", got, at, want)
		}
	})
}

// An error is reported, and then all lines. The error of an outage that is over is left out.
func TestFollow_errors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := followFeed(t, nil, func(f *followedLines) {
			fail := func() { f.Lock(); defer f.Unlock(); f.feed.Fail(errors.New("down")) }
			all := func() { f.Lock(); defer f.Unlock(); f.feed.All(time.Now()) }
			f.set(1, "a")
			fail()
			synctest.Wait()
			all()
			synctest.Wait()
			all()
			fail()
			synctest.Wait()
			fail()
			all()
		})
		if want := []string{"a1 ", "down", "all a1 ", "down", "all a1 "}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// The callback is not called after the end of the context, and a timer for long lines ends with Follow.
func TestFollow_ends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := &followedLines{lines: make(map[string]int)}
		calls := 0
		err := watchpump.Follow(ctx, f, func(store.Changes) {
			calls++
			cancel()
		}, func(ctx context.Context, feed *watchpump.Feed) error {
			f.feed = feed
			f.set(1000, "long")
			f.Lock()
			f.feed.Step([]string{"a"}, time.Now())
			f.feed.Step([]string{"a"}, time.Now())
			f.Unlock()
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) || calls != 1 {
			t.Errorf("got %v after %d calls, want an error matching context.Canceled after one", err, calls)
		}
		time.Sleep(time.Second)
		if calls != 1 {
			t.Error("there was a call after Follow had returned")
		}
	})
}
