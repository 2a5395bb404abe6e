package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func enqueueAll(s suite) {
	const rounds = 30

	s.test("entries of free locks are all admitted", func(t *testing.T, w *testEnv) {
		names := []string{w.name("b"), w.name("a"), w.name("c")}
		set := w.openKept().enqueueAll(names...)
		for i, p := range set {
			p.admitted()
			w.wantLine(names[i], p)
		}
		for _, p := range set {
			p.withdraw()
			w.wantLine(p.name)
		}
	})

	s.needs(Fencing).test("the orders are larger than earlier ones and smaller than later ones", func(t *testing.T, w *testEnv) {
		names := []string{w.name("a"), w.name("b")}
		last := map[string]uint64{}
		for n := range 4 {
			set := []*entry{}
			if n%2 == 1 {
				set = w.openKept().enqueueAll(names...)
			} else {
				for _, name := range names {
					set = append(set, w.openKept().hold(name, line.Exclusive))
				}
			}
			for _, p := range set {
				if order := p.admitted(); order <= last[p.name] {
					t.Errorf("lock %q was admitted with order %d, want more than %d, the last one", p.name, order, last[p.name])
				} else {
					last[p.name] = order
				}
				p.withdraw()
			}
		}
	})

	s.test("each entry stands for itself", func(t *testing.T, w *testEnv) {
		free, busy := w.name("free"), w.name("busy")
		a := w.openKept().hold(busy, line.Exclusive)
		set := w.openKept().enqueueAll(free, busy)
		set[0].admitted()
		set[1].waiting(1)
		behind := w.openKept().enqueue(free, line.Exclusive)
		behind.waiting(1)
		w.wantLine(busy, a, set[1])
		set[0].withdraw()
		behind.admitted()
		set[1].stays(store.Waiting)
		a.withdraw()
		set[1].admitted()
	})

	s.test("entries wait behind those that came before, and keep later ones waiting", func(t *testing.T, w *testEnv) {
		names := []string{w.name("a"), w.name("b")}
		var before, after []*entry
		for _, name := range names {
			before = append(before, w.openKept().hold(name, line.Exclusive))
		}
		set := w.openKept().enqueueAll(names...)
		for i, name := range names {
			after = append(after, w.openKept().enqueue(name, line.Exclusive))
			set[i].waiting(1)
			after[i].waiting(2)
			w.wantLine(name, before[i], set[i], after[i])
		}
		for i := range names {
			before[i].withdraw()
			set[i].admitted()
			after[i].waiting(1)
			set[i].withdraw()
			after[i].admitted()
		}
	})

	s.test("of two calls that share names, one is ahead in all lines", func(t *testing.T, w *testEnv) {
		const calls = 4
		var cs []*client
		for range calls {
			cs = append(cs, w.openKept())
		}
		for range rounds {
			names := []string{w.newName(), w.newName(), w.newName()}
			sets := make([][]*entry, calls)
			var all sync.WaitGroup
			for i, c := range cs {
				mine := slices.Clone(names)
				if i%2 == 1 {
					slices.Reverse(mine)
				}
				all.Go(func() {
					set, err := c.tryEnqueueAll(false, mine...)
					if err != nil {
						w.brokenf("%v", err)
					}
					sets[i] = set
				})
			}
			all.Wait()
			var first []string
			for n, name := range names {
				var sessions []string
				for _, e := range w.line(name).Entries {
					sessions = append(sessions, e.Session)
				}
				if n == 0 {
					first = sessions
				} else if !slices.Equal(sessions, first) {
					t.Fatalf("the lines of %q and %q have the sessions %q and %q, want the same order", names[0], name, first, sessions)
				}
			}
			for _, set := range sets {
				for _, p := range set {
					p.withdraw()
				}
			}
		}
	})

	s.test("a try of free locks is admitted", func(t *testing.T, w *testEnv) {
		set, err := w.openKept().tryEnqueueAll(true, w.name("a"), w.name("b"))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range set {
			p.admitted()
			p.stays(store.Admitted)
		}
	})

	s.test("a try fails with a HeldError if one lock is held, and leaves no entry", func(t *testing.T, w *testEnv) {
		free, busy := w.name("free"), w.name("busy")
		a := w.openKept().hold(busy, line.Exclusive)
		c := w.openKept()
		for _, names := range [][]string{{free, busy}, {busy, free}} {
			set, err := c.tryEnqueueAll(true, names...)
			held, ok := errors.AsType[*store.HeldError](err)
			if !ok || held.Name != busy {
				t.Errorf("a try of a free and a held lock returned %v, want a HeldError for %q", err, busy)
			}
			w.wantLine(free)
			w.wantLine(busy, a)
			for _, p := range set {
				p.neverAdmitted()
			}
		}
		w.openKept().hold(free, line.Exclusive)
	})

	s.needs(SharedModes).test("a call is refused if one line is of another kind, and leaves no entry", func(t *testing.T, w *testEnv) {
		free, slots := w.name("free"), w.name("slots")
		a := w.openKept().hold(slots, line.Slot(2))
		for _, try := range []bool{false, true} {
			set, err := w.openKept().tryEnqueueAll(try, free, slots)
			kind, ok := errors.AsType[*store.KindError](err)
			if !ok || kind.Name != slots {
				t.Errorf("EnqueueAll (try %v) with a line of another kind returned %v, want a KindError for %q", try, err, slots)
			}
			w.wantLine(free)
			w.wantLine(slots, a)
			for _, p := range set {
				p.neverAdmitted()
			}
		}
	})

	s.test("an end of the context at any moment leaves no entry", func(t *testing.T, w *testEnv) {
		c, other := w.openKept(), w.openKept()
		names := []string{w.name("a"), w.name("b")}
		w.stagger(rounds, func(ctx context.Context) {
			set, err := c.enqueueAllWith(ctx, false, names...)
			if err != nil && (ctx.Err() == nil || !errors.Is(err, ctx.Err())) {
				t.Fatalf("EnqueueAll returned %v, want nil or an error matching ctx.Err(), which is %v", err, ctx.Err())
			}
			for _, p := range set {
				if err == nil {
					p.withdraw()
				}
			}
			for _, name := range names {
				p := other.hold(name, line.Exclusive)
				w.wantLine(name, p)
				p.withdraw()
			}
		})
	})

	s.test("the entries end with their session", func(_ *testing.T, w *testEnv) {
		names := []string{w.name("a"), w.name("b")}
		c := w.openKept()
		c.enqueueAll(names...)
		c.close()
		for _, p := range w.openKept().enqueueAll(names...) {
			p.admitted()
		}
	})

	s.needs(Fencing).test("a broken entry is gone, and the others stay", func(t *testing.T, w *testEnv) {
		a, b := w.name("a"), w.name("b")
		set := w.openKept().enqueueAll(a, b)
		set[1].admitted()
		if _, err := w.breakEntry(a, set[0].admitted()); err != nil {
			t.Fatalf("Break: %v", err)
		}
		set[0].gone()
		w.wantLine(a)
		w.wantLine(b, set[1])
		set[1].stays(store.Admitted)
	})

	s.test("a session of another store is refused", func(t *testing.T, w *testEnv) {
		other := struct{ store.Session }{w.openKept().Session}
		if _, err := w.caps.EnqueueAll(t.Context(), other, []store.Request{{Name: w.name("a")}, {Name: w.name("b")}}); err == nil {
			t.Error("EnqueueAll with a session of another type returned no error")
		}
	})

	s.needs(Cut).test("an unanswered call leaves no entry", func(t *testing.T, w *testEnv) {
		for _, try := range []bool{false, true} {
			names := []string{w.name("a"), w.name("b")}
			c := w.open()
			heal := w.cut(c)
			defer heal()
			ctx, cancel := context.WithTimeout(t.Context(), w.h.Brief/8)
			set, err := c.enqueueAllWith(ctx, try, names...)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("EnqueueAll (try %v) during an outage returned %v, want an error matching %v", try, err, context.DeadlineExceeded)
			}
			cancel()
			heal()
			if err := c.confirmAfterOutage(); err != nil {
				t.Fatalf("Confirm after the outage: %v", err)
			}
			time.Sleep(settleTime) // gives a late request time to arrive
			for i, name := range names {
				next := w.openKept().hold(name, line.Exclusive)
				w.wantLine(name, next)
				set[i].neverAdmitted()
				next.withdraw()
			}
		}
	})

	s.needs(Cut).test("an entry is not passed while its client is away", func(t *testing.T, w *testEnv) {
		names := []string{w.name("a"), w.name("b")}
		holder := w.openKept()
		first, second := holder.hold(names[0], line.Exclusive), holder.hold(names[1], line.Exclusive)
		c := w.open()
		set := c.enqueueAll(names...)
		var behind []*entry
		for i, name := range names {
			set[i].waiting(1)
			behind = append(behind, w.openKept().enqueue(name, line.Exclusive))
			behind[i].waiting(2)
		}
		heal := w.cut(c)
		defer heal()
		time.Sleep(settleTime) // until the servers have noticed that the client is away
		first.withdraw()
		second.withdraw()
		for _, p := range behind {
			p.stays(store.Waiting)
		}
		heal()
		c.keep()
		for i := range names {
			set[i].admitted()
			behind[i].stays(store.Waiting)
			set[i].withdraw()
			behind[i].admitted()
		}
	})
}

// enqueueAll adds an entry to each of the lines, in one step.
func (c *client) enqueueAll(names ...string) []*entry {
	c.w.t.Helper()
	set, err := c.tryEnqueueAll(false, names...)
	if err != nil {
		c.w.t.Fatal(err)
	}
	return set
}

func (c *client) tryEnqueueAll(try bool, names ...string) ([]*entry, error) {
	ctx, cancel := c.w.call()
	defer cancel()
	return c.enqueueAllWith(ctx, try, names...)
}

// enqueueAllWith returns the entries also if there is an error, so that their standings can be checked.
func (c *client) enqueueAllWith(ctx context.Context, try bool, names ...string) ([]*entry, error) {
	var set []*entry
	var requests []store.Request
	for _, name := range names {
		p := &entry{client: c, name: name, mode: line.Exclusive, owner: c.owner, changed: make(chan struct{})}
		set = append(set, p)
		requests = append(requests, store.Request{Name: name, Owner: c.owner, Try: try, Notify: p.onNotify})
	}
	tickets, err := c.store.Capabilities().EnqueueAll(ctx, c.Session, requests)
	if err != nil {
		return set, fmt.Errorf("session %s, EnqueueAll for %q: %w", c.ID(), names, err)
	}
	for i, p := range set {
		p.ticket = tickets[i]
	}
	return set, nil
}
