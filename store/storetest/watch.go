package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func watching(s suite) {
	fair := s.needs(Fair)

	s.test("a watch calls when it is established", func(_ *testing.T, w *testEnv) {
		w.watch(w.name("lock")) // waits for the first call
	})

	s.test("a watch reports an entry joining", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		watch := w.watch(name)
		p := w.openKept().hold(name, line.Exclusive)
		watch.shows(name, p)
	})

	fair.test("a watch reports an entry joining behind others", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		watch := w.watch(name)
		b := w.openKept().enqueue(name, line.Exclusive)
		watch.shows(name, a, b)
	})

	fair.test("a watch reports a waiter leaving", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		a, b := w.openKept().hold(name, line.Exclusive), w.openKept().enqueue(name, line.Exclusive)
		watch := w.watch(name)
		b.withdraw()
		watch.shows(name, a)
	})

	s.test("a watch reports a release", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		watch := w.watch(name)
		p.withdraw()
		watch.shows(name)
	})

	fair.test("a watch reports an admission", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a, b := w.openKept().hold(name, line.Exclusive), w.openKept().enqueue(name, line.Exclusive)
		watch := w.watch(name)
		a.withdraw()
		if e := watch.shows(name, b)[0]; !e.Admitted {
			t.Errorf("the line has %+v, want it admitted", e)
		}
	})

	s.test("a watch reports entries that went with their session", func(_ *testing.T, w *testEnv) {
		for _, expire := range []bool{false, true} {
			if !expire {
				name := w.name("lock")
				c := w.open()
				c.hold(name, line.Exclusive)
				watch := w.watch(name)
				c.close()
				watch.shows(name)
				continue
			}
			var p *entry
			var watch *watch
			c := w.expiring(func(c *client, name string) (err error) {
				if p, err = c.tryHold(name, line.Exclusive); err != nil {
					return err
				}
				watch = w.watch(name)
				return c.confirmNow()
			})
			watch.showsWithin(c.Terms().TTL+2*w.h.Grace, p.name)
		}
	})

	s.needs(Fencing).test("a watch reports a broken entry", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		watch := w.watch(name)
		if _, err := w.breakEntry(name, p.admitted()); err != nil {
			t.Fatalf("Break: %v", err)
		}
		watch.shows(name)
	})

	s.needs(ReleaseAfter).
		test("a watch reports the end of an outlasting entry", func(_ *testing.T, w *testEnv) {
			w.retryLonger(func(brief time.Duration) bool {
				name := w.newName()
				c := w.open()
				called := c.hold(name, line.Exclusive).withdrawAfter(brief)
				c.close()
				watch := w.watch(name)
				if time.Since(called) >= brief {
					return false
				}
				watch.showsWithin(brief+2*w.h.Grace, name)
				return true
			})
		})

	s.test("a watch reports every name with its prefix", func(_ *testing.T, w *testEnv) {
		c := w.openKept()
		all, deep, shallow, exact := w.watch(""), w.watch(w.prefix), w.watch(w.name("a")), w.watch(w.name("a/b"))
		for _, n := range []string{"a", "a/b", "a/b/c", "ab", "b", "a%"} {
			name := w.name(n)
			for _, watch := range []*watch{all, deep, shallow, exact} {
				watch.mark()
			}
			p := c.hold(name, line.Exclusive)
			all.shows(name, p)
			deep.shows(name, p)
			if n != "b" {
				shallow.shows(name, p)
			}
			if n == "a/b" || n == "a/b/c" {
				exact.shows(name, p)
			}
		}
	})

	s.test("a watch whose callback blocks misses nothing and calls once for all changes", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		watch, other := w.watch(name), w.watch(name)
		release := watch.block()
		before := watch.calls()
		const rounds = 20
		for range rounds {
			p := c.hold(name, line.Exclusive)
			time.Sleep(clockRounding)
			p.withdraw()
			time.Sleep(clockRounding)
		}
		last := c.hold(name, line.Exclusive)
		other.shows(name, last) // the change has been delivered
		time.Sleep(settleTime)
		if n := watch.calls(); n > before+1 {
			t.Errorf("%d calls were made during another call, want none", n-before-1)
		}
		watch.mark()
		release()
		watch.shows(name, last)
		time.Sleep(settleTime)
		if n := watch.calls() - before; n > rounds/2 {
			t.Errorf("%d changes during a call led to %d calls afterwards, want them combined", 2*rounds+1, n)
		}
	})

	s.test("a watch returns when its context ends and stops calling", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		ctx, cancel := context.WithCancel(context.Background())
		watch := w.watchWith(ctx, name)
		cancel()
		watch.returns(context.Canceled)
		w.openKept().hold(name, line.Exclusive).withdraw()
		time.Sleep(settleTime) // watch.onChange checks that there is no call
	})

	s.test("a watch returns at its deadline", func(_ *testing.T, w *testEnv) {
		w.retryLonger(func(brief time.Duration) (stood bool) {
			ctx, cancel := context.WithTimeout(context.Background(), brief)
			defer cancel()
			watch := w.startWatch(ctx, w.name("lock"))
			<-ctx.Done()
			watch.returns(context.DeadlineExceeded)
			return watch.calls() > 0
		})
	})

	s.test("a watch with an ended context returns", func(t *testing.T, w *testEnv) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		w.startWatch(ended, w.name("lock")).returns(context.Canceled)
	})

	// Bug: etcd #16223
	s.needs(Cut).test("a watch reports after an outage the changes made during it", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		c, other := w.open(), w.openKept()
		watch := w.watchOn(c.store, name)
		for range 2 { // the watch must survive more than one outage
			heal := w.cut(c)
			defer heal()
			p := other.hold(name, line.Exclusive)
			time.Sleep(w.h.Brief / 8)
			heal()
			watch.shows(name, p)
			p.withdraw()
			watch.shows(name)
		}
	})
}

// watch is one call of Watch in progress.
type watch struct {
	w      *testEnv
	store  store.Store
	prefix string
	done   chan struct{}
	err    error // set when done is closed

	mu       sync.Mutex
	called   chan struct{} // closed and replaced by each call
	n        int           // number of calls
	marked   int           // n at the last mark
	all      bool          // a call since the last mark or change has said that any line may have changed
	named    []string      // the lines that these calls have named
	calling  bool
	returned bool
	gate     chan struct{} // if not nil, calls block until it is closed
}

// watch starts a watch that lasts until the test ends, and waits until it is established.
func (w *testEnv) watch(prefix string) *watch {
	w.t.Helper()
	return w.watchOn(w.stores[len(w.stores)-1], prefix)
}

func (w *testEnv) watchOn(st store.Store, prefix string) *watch {
	w.t.Helper()
	watch := w.beginWatch(context.Background(), st, prefix)
	watch.waitEstablished()
	return watch
}

func (w *testEnv) watchWith(ctx context.Context, prefix string) *watch {
	w.t.Helper()
	watch := w.startWatch(ctx, prefix)
	watch.waitEstablished()
	return watch
}

func (w *testEnv) startWatch(ctx context.Context, prefix string) *watch {
	w.t.Helper()
	return w.beginWatch(ctx, w.stores[len(w.stores)-1], prefix)
}

func (w *testEnv) beginWatch(ctx context.Context, st store.Store, prefix string) *watch {
	ctx, cancel := context.WithCancel(ctx)
	watch := &watch{w: w, store: st, prefix: prefix, done: make(chan struct{}), called: make(chan struct{})}
	go func() {
		defer close(watch.done)
		watch.err = st.Watch(ctx, prefix, watch.onChange)
		watch.mu.Lock()
		defer watch.mu.Unlock()
		watch.returned = true
	}()
	w.t.Cleanup(func() {
		cancel()
		watch.returns(context.Canceled, context.DeadlineExceeded)
	})
	return watch
}

// onChange is the watch's callback.
func (watch *watch) onChange(names []string) {
	watch.mu.Lock()
	if watch.n == 0 && names != nil {
		watch.w.brokenf("the first call of Watch(%q) had the names %q, want nil", watch.prefix, names)
	}
	for i, name := range names {
		if !strings.HasPrefix(name, watch.prefix) || i > 0 && name <= names[i-1] {
			watch.w.brokenf("Watch(%q) named %q, want names with the prefix, in order, each once", watch.prefix, names)
		}
	}
	watch.all = watch.all || names == nil
	watch.named = append(watch.named, names...)
	if watch.calling {
		watch.w.brokenf("Watch(%q) called its callback during another call", watch.prefix)
	}
	if watch.returned {
		watch.w.brokenf("Watch(%q) called its callback after it had returned", watch.prefix)
	}
	watch.calling = true
	watch.n++
	close(watch.called)
	watch.called = make(chan struct{})
	gate := watch.gate
	watch.mu.Unlock()

	runtime.Gosched() // give an erroneous concurrent call a chance to run
	if gate != nil {
		<-gate
	}
	ctx, cancel := context.WithTimeout(context.Background(), watch.w.h.TTL)
	defer cancel()
	// The callback may call the store. The result does not matter: the test may have ended.
	_, _ = watch.store.Line(ctx, watch.w.name("nobody"))

	watch.mu.Lock()
	defer watch.mu.Unlock()
	watch.calling = false
}

func (watch *watch) calls() int {
	watch.mu.Lock()
	defer watch.mu.Unlock()
	return watch.n
}

// block makes the next call wait until release is called, and returns when that call has begun.
func (watch *watch) block() (release func()) {
	watch.w.t.Helper()
	gate := make(chan struct{})
	watch.mu.Lock()
	watch.gate = gate
	watch.marked = watch.n // set together with gate: the next call is the one that blocks
	watch.mu.Unlock()
	release = sync.OnceFunc(func() {
		watch.mu.Lock()
		watch.gate = nil
		watch.mu.Unlock()
		close(gate)
	})
	watch.w.t.Cleanup(release)
	p := watch.w.openKept().hold(watch.prefix, line.Exclusive)
	if !watch.next(watch.w.h.Grace) {
		watch.w.t.Fatalf("Watch(%q) did not call its callback within %v of a change", watch.prefix, watch.w.h.Grace)
	}
	p.withdraw()
	return release
}

// mark makes next and shows ignore earlier calls.
func (watch *watch) mark() {
	watch.mu.Lock()
	defer watch.mu.Unlock()
	watch.marked = watch.n
	watch.forgetNamesLocked()
}

func (watch *watch) forgetNamesLocked() { watch.all, watch.named = false, nil }

// hasNamed reports whether a call since the last mark or change has said that the line may have
// changed. If so, it forgets what these calls have named.
func (watch *watch) hasNamed(name string) bool {
	watch.mu.Lock()
	defer watch.mu.Unlock()
	if !watch.all && !slices.Contains(watch.named, name) {
		return false
	}
	watch.forgetNamesLocked()
	return true
}

// next waits for a call since the mark and moves the mark there. It returns false on timeout.
func (watch *watch) next(within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		watch.mu.Lock()
		there, called := watch.n > watch.marked, watch.called
		if there {
			watch.marked = watch.n
		}
		watch.mu.Unlock()
		if there {
			return true
		}
		select {
		case <-called:
		case <-timer.C:
			return false
		}
	}
}

// waitEstablished waits for the first call.
func (watch *watch) waitEstablished() {
	watch.w.t.Helper()
	if !watch.next(watch.w.h.Grace) {
		watch.w.t.Fatalf("Watch(%q) did not call its callback within %v", watch.prefix, watch.w.h.Grace)
	}
	watch.mark()
}

// shows waits for calls until one has named the line behind name and a read returns exactly these
// entries in it. A call before the change, or before the mark, is not sufficient.
func (watch *watch) shows(name string, places ...*entry) []store.Entry {
	watch.w.t.Helper()
	return watch.showsWithin(watch.w.h.Grace, name, places...)
}

func (watch *watch) showsWithin(d time.Duration, name string, places ...*entry) []store.Entry {
	watch.w.t.Helper()
	var want, got []string
	for _, p := range places {
		want = append(want, p.client.ID())
	}
	calls, shown := 0, false
	for end := time.Now().Add(d); watch.next(time.Until(end)); {
		calls++
		entries := watch.w.line(name).Entries
		got = got[:0]
		for _, e := range entries {
			got = append(got, e.Session)
		}
		// A call for another line may come first.
		if shown = slices.Equal(got, want); shown && watch.hasNamed(name) {
			return entries
		}
	}
	problem := fmt.Sprintf("the line of %q never had the sessions %q", name, want)
	switch {
	case calls == 0:
		problem += ": there was no call"
	case shown:
		problem = fmt.Sprintf("none has named the line of %q, which has changed", name)
	default:
		problem += fmt.Sprintf(": the last read returned %q", got)
	}
	watch.w.t.Fatalf("Watch(%q) made %d calls within %v, but %s", watch.prefix, calls, d, problem)
	return nil
}

// returns checks that Watch returns with one of the errors.
func (watch *watch) returns(want ...error) {
	watch.w.t.Helper()
	timer := time.NewTimer(watch.w.h.Grace)
	defer timer.Stop()
	select {
	case <-watch.done:
	case <-timer.C:
		watch.w.t.Errorf("Watch(%q) did not return within %v of the end of its context", watch.prefix, watch.w.h.Grace)
		return
	}
	for _, err := range want {
		if errors.Is(watch.err, err) {
			return
		}
	}
	watch.w.t.Errorf("Watch(%q) returned %v when its context ended, want an error matching %v", watch.prefix, watch.err, want)
}
