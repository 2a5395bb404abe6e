package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func following(s suite) {
	s.test("following begins with all lines that have the prefix", func(t *testing.T, w *testEnv) {
		a, b := w.name("a"), w.name("a/b")
		c, other := w.openKept(), w.openKept()
		held := c.hold(a, line.Exclusive)
		waits := other.enqueue(a, line.Exclusive)
		c.hold(b, line.Shared)
		c.hold(w.name("b"), line.Exclusive)
		f := w.follow(w.name("a"))
		first := f.next()
		if !first.All || len(first.Lines) != 2 || first.Lines[0].Name != a || first.Lines[1].Name != b {
			t.Fatalf("the first call has %+v, want all lines, %q and %q", first, a, b)
		}
		f.wantEntries(first.Lines[0], held, waits)
		if e := first.Lines[0].Entries; !e[0].Admitted || e[1].Admitted || e[0].Owner.Command == "" {
			t.Errorf("the line has %+v, want a holder with an owner, and a waiter", e)
		}
		if m := first.Lines[1].Entries[0].Mode; m != line.Shared {
			t.Errorf("the entry has the mode %v, want shared", m)
		}
	})

	s.test("following reports every state of a line in order", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a, b := w.openKept(), w.openKept()
		f := w.followed(name)
		for range 50 {
			first := a.hold(name, line.Exclusive)
			second := b.enqueue(name, line.Exclusive)
			first.withdraw()
			second.admitted()
			second.withdraw()
			f.wants(name, first)
			f.wants(name, first, second)
			if e := f.wants(name, second).Entries[0]; !e.Admitted || e.Order != second.order() {
				t.Fatalf("the line has %+v, want the order %d admitted", e, second.order())
			}
			f.wants(name)
		}
	})

	s.test("following reports no remaining time", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		held := c.hold(name, line.Exclusive)
		f := w.follow(name)
		all := f.wants(name, held)
		waits := c.enqueue(name, line.Exclusive)
		for _, l := range []store.Line{all, f.wants(name, held, waits)} {
			if left := l.Entries[0].Remaining; left != 0 {
				t.Errorf("the entry has the remaining time %v, want 0", left)
			}
		}
	})

	s.test("following reports entries that are broken or go with their session", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.open()
		f := w.followed(name)
		p := c.hold(name, line.Exclusive)
		f.wants(name, p)
		if _, err := w.breakEntry(name, p.admitted()); err != nil {
			t.Fatalf("Break: %v", err)
		}
		f.wants(name)
		next := c.hold(name, line.Exclusive)
		f.wants(name, next)
		c.close()
		f.wants(name)
	})

	s.needs(OwnerUpdates, OwnerEvents).test("following reports a changed owner", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		f := w.followed(name)
		p := w.openKept().hold(name, line.Exclusive)
		f.wants(name, p)
		p.setOwner()
		if got := f.wants(name, p).Entries[0].Owner; got.Obtained.IsZero() {
			t.Errorf("the entry has the owner %+v, want the one that was set", got)
		}
	})

	s.needs(Limits, SharedModes).test("following reports a limit, and whom it admits", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		f := w.followed(name)
		w.setLimit(name, 1)
		if l := f.wants(name); l.Limit != 1 {
			t.Fatalf("the line has the limit %d, want 1", l.Limit)
		}
		a := w.openKept().hold(name, line.Slot(3))
		b := w.openKept().enqueue(name, line.Slot(3))
		f.wants(name, a)
		if l := f.wants(name, a, b); l.Limit != 1 || l.Entries[1].Admitted {
			t.Fatalf("the line is %+v, want the limit 1, and a waiter", l)
		}
		w.setLimit(name, 2)
		if l := f.wants(name, a, b); l.Limit != 2 || !l.Entries[1].Admitted {
			t.Fatalf("the line is %+v, want the limit 2, and two holders", l)
		}
	})

	s.test("following reports the names with the prefix and no others", func(_ *testing.T, w *testEnv) {
		c := w.openKept()
		f, deep := w.followed(w.name("a")), w.followed(w.name("a/b"))
		for _, n := range []string{"b", "a", "a/b/c", "ab", "a/b", "a%"} {
			name := w.name(n)
			p := c.hold(name, line.Exclusive)
			p.withdraw()
			if n == "b" {
				continue
			}
			f.wantsNext(name, p)
			f.wantsNext(name)
			if strings.HasPrefix(n, "a/b") {
				deep.wantsNext(name, p)
				deep.wantsNext(name)
			}
		}
	})

	s.test("a follower that blocks gets the newest state", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		f := w.followed(name)
		release := f.block(func() { c.hold(name, line.Exclusive).withdraw() })
		for range 20 {
			c.hold(name, line.Exclusive).withdraw()
		}
		last := c.hold(name, line.Exclusive)
		time.Sleep(settleTime)
		release()
		f.shows(name, last)
	})

	s.test("following a long line shows its newest state", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		f := w.followed(name)
		var all []*entry
		for range store.MaxFollowed + 2 {
			all = append(all, c.enqueue(name, line.Exclusive))
		}
		f.shows(name, all...)
		for _, p := range all[:3] {
			p.withdraw()
		}
		f.shows(name, all[3:]...)
	})

	s.test("following returns when its context ends and stops calling", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		f := w.followed(name)
		f.cancel()
		timer := time.NewTimer(w.h.Grace)
		defer timer.Stop()
		select {
		case <-f.done:
		case <-timer.C:
			t.Fatalf("Follow did not return within %v of the end of its context", w.h.Grace)
		}
		if !errors.Is(f.err, context.Canceled) {
			t.Errorf("Follow returned %v, want an error matching context.Canceled", f.err)
		}
		w.openKept().hold(name, line.Exclusive).withdraw()
		time.Sleep(settleTime) // onChange checks that there is no call
	})

	s.needs(Cut).test("following shows after an outage the changes made during it", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		c, other := w.open(), w.openKept()
		f := w.followOn(c.store, name)
		f.next()
		for range 2 {
			heal := w.cut(c)
			defer heal()
			p := other.hold(name, line.Exclusive)
			time.Sleep(w.h.Brief / 8)
			heal()
			f.shows(name, p)
			p.withdraw()
			f.shows(name)
		}
	})
}

// follower is one call of Follow in progress.
type follower struct {
	w      *testEnv
	prefix string
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set when done is closed

	mu       sync.Mutex
	changes  []store.Changes // that no test has taken
	arrived  chan struct{}   // closed and replaced by each call
	calling  bool
	returned bool
	gate     chan struct{} // if not nil, calls block until it is closed
	blocked  chan struct{} // closed when a call blocks

	states []store.Line // of the last change, that no test has taken
}

// follow starts to follow the lines until the test ends.
func (w *testEnv) follow(prefix string) *follower {
	return w.followOn(w.stores[len(w.stores)-1], prefix)
}

// followed is follow, and takes the first call.
func (w *testEnv) followed(prefix string) *follower {
	w.t.Helper()
	f := w.follow(prefix)
	if first := f.next(); !first.All || len(first.Lines) > 0 {
		w.t.Fatalf("the first call has %+v, want all lines, and there are none", first)
	}
	return f
}

func (w *testEnv) followOn(st store.Store, prefix string) *follower {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &follower{w: w, prefix: prefix, cancel: cancel, done: make(chan struct{}), arrived: make(chan struct{})}
	go func() {
		defer close(f.done)
		f.err = st.Capabilities().Follow(ctx, prefix, f.onChange)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.returned = true
	}()
	w.t.Cleanup(func() {
		cancel()
		f.mu.Lock()
		if f.gate != nil {
			close(f.gate)
			f.gate = nil
		}
		f.mu.Unlock()
		<-f.done
	})
	return f
}

func (f *follower) onChange(c store.Changes) {
	f.mu.Lock()
	if f.calling || f.returned {
		f.w.brokenf("Follow(%q) called its callback during another call, or after it had returned", f.prefix)
	}
	f.calling = true
	if c.Err == nil {
		f.changes = append(f.changes, c)
	}
	close(f.arrived)
	f.arrived = make(chan struct{})
	gate := f.gate
	if gate != nil && f.blocked != nil {
		close(f.blocked)
		f.blocked = nil
	}
	f.mu.Unlock()
	if gate != nil {
		<-gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calling = false
}

// block makes the next call wait until release is called, and returns when change has led to that call.
func (f *follower) block(change func()) (release func()) {
	f.w.t.Helper()
	gate, blocked := make(chan struct{}), make(chan struct{})
	f.mu.Lock()
	f.gate, f.blocked = gate, blocked
	f.mu.Unlock()
	change()
	select {
	case <-blocked:
	case <-time.After(f.w.h.Grace):
		f.w.t.Fatalf("Follow(%q) did not call its callback within %v of a change", f.prefix, f.w.h.Grace)
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.gate = nil
		close(gate)
	}
}

// take returns the next change; ok is false if none comes in time.
func (f *follower) take(within time.Duration) (c store.Changes, ok bool) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		f.mu.Lock()
		arrived := f.arrived
		if len(f.changes) > 0 {
			c, f.changes = f.changes[0], f.changes[1:]
			f.mu.Unlock()
			return c, true
		}
		f.mu.Unlock()
		select {
		case <-arrived:
		case <-timer.C:
			return store.Changes{}, false
		}
	}
}

// next returns the next change, and fails the test if there is none.
func (f *follower) next() store.Changes {
	f.w.t.Helper()
	c, ok := f.take(f.w.h.Grace)
	if !ok {
		f.w.t.Fatalf("Follow(%q) did not call its callback within %v", f.prefix, f.w.h.Grace)
	}
	return c
}

// wants checks that the next state of a line has exactly these entries, and returns it.
func (f *follower) wants(name string, entries ...*entry) store.Line {
	f.w.t.Helper()
	for {
		for len(f.states) > 0 {
			l := f.states[0]
			f.states = f.states[1:]
			if l.Name == name {
				f.wantEntries(l, entries...)
				return l
			}
		}
		f.states = f.next().Lines
	}
}

// wantsNext is wants for the line of the next change.
func (f *follower) wantsNext(name string, entries ...*entry) {
	f.w.t.Helper()
	c := f.next()
	if len(c.Lines) != 1 || c.Lines[0].Name != name {
		f.w.t.Fatalf("Follow(%q) reports %+v, want the line of %q", f.prefix, c, name)
	}
	f.wantEntries(c.Lines[0], entries...)
}

func (f *follower) wantEntries(l store.Line, entries ...*entry) {
	f.w.t.Helper()
	if got, want := ordersOf(l), ordersOfEntries(entries); !slices.Equal(got, want) {
		f.w.t.Fatalf("Follow(%q) reports the line of %q with the entries %v, want %v", f.prefix, l.Name, got, want)
	}
}

// shows waits for a state of a line with exactly these entries. Others may come before.
func (f *follower) shows(name string, entries ...*entry) {
	f.w.t.Helper()
	want, got := ordersOfEntries(entries), []string(nil)
	for end := time.Now().Add(f.w.h.Grace); ; {
		c, ok := f.take(time.Until(end))
		if !ok {
			f.w.t.Fatalf("Follow(%q): the last state of %q has the entries %v, want %v within %v", f.prefix, name, got, want, f.w.h.Grace)
		}
		for _, l := range c.Lines {
			if l.Name == name {
				got = ordersOf(l)
			}
		}
		if c.All && len(c.Lines) == 0 {
			got = nil
		}
		if slices.Equal(got, want) {
			return
		}
	}
}

// ordersOf returns the entries of a line as text.
func ordersOf(l store.Line) (all []string) {
	for _, e := range l.Entries {
		all = append(all, fmt.Sprintf("%s %d", e.Session, e.Order))
	}
	return all
}

func ordersOfEntries(entries []*entry) (all []string) {
	for _, p := range entries {
		all = append(all, fmt.Sprintf("%s %d", p.client.ID(), p.arrivalOrder()))
	}
	return all
}

// arrivalOrder returns the order that the entry got when it joined.
func (p *entry) arrivalOrder() uint64 {
	p.client.w.t.Helper()
	for timer := time.NewTimer(p.client.w.h.Grace); ; {
		var order uint64
		p.mu.Lock()
		for _, st := range p.received {
			order = max(order, st.Order)
		}
		changed := p.changed
		p.mu.Unlock()
		if order > 0 {
			return order
		}
		select {
		case <-changed:
		case <-timer.C:
			p.client.w.t.Fatalf("session %s, lock %q: Notify was not called with an order", p.client.ID(), p.name)
		}
	}
}
