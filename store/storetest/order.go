package storetest

import (
	"testing"

	"github.com/stilelock/stile/line"
)

func order(s suite) {
	// Each place checks that its own order is positive, at most MaxOrder and never changes: see place.check.

	s.test("orders rise from hold to hold although the line is empty between", func(t *testing.T, w *world) {
		a, b, name := w.openKept(), w.openKept(), w.name("lock")
		var orders rising
		for range 20 {
			for _, c := range []*client{a, b} {
				p := c.hold(name, line.Exclusive)
				orders.next(t, p)
				p.withdraw()
			}
			w.lineOf(name)
		}
	})

	s.needs(Fair).test("orders rise along a line of waiters", func(t *testing.T, w *world) {
		name := w.name("lock")
		var places []*place
		for range 8 {
			places = append(places, w.openKept().enqueue(name, line.Exclusive))
		}
		var orders rising
		for _, p := range places {
			orders.next(t, p)
			p.withdraw()
		}
	})

	s.test("an order is not given out again after a try that failed", func(t *testing.T, w *world) {
		a, b, name := w.openKept(), w.openKept(), w.name("lock")
		var orders rising
		for range 5 {
			p := a.hold(name, line.Exclusive)
			orders.next(t, p)
			failed, err := b.try(name, line.Exclusive)
			wantHeld(t, failed, err)
			p.withdraw()
		}
	})

	s.test("an order is not given out again after its session expired", func(t *testing.T, w *world) {
		var orders rising
		_, p, next := w.doomed()
		orders.last = p.order()
		next.admittedWithin(p.client.Terms().TTL + 2*w.h.Grace)
		orders.next(t, next)
	})

	s.test("an order is not given out again after its entry was broken", func(t *testing.T, w *world) {
		a, b, name := w.openKept(), w.openKept(), w.name("lock")
		var orders rising
		for range 5 {
			p := a.hold(name, line.Exclusive)
			orders.next(t, p)
			if _, err := w.breakEntry(name, p.admitted()); err != nil {
				t.Fatalf("Break: %v", err)
			}
			p.gone()
			p = b.hold(name, line.Exclusive)
			orders.next(t, p)
			p.withdraw()
		}
	})

	s.test("an order is not given out again after its session was closed", func(t *testing.T, w *world) {
		name := w.name("lock")
		var orders rising
		for range 5 {
			c := w.open()
			orders.next(t, c.hold(name, line.Exclusive))
			c.close()
		}
	})

	s.needs(SharedModes).test("orders rise from kind to kind of conflicting entries", func(t *testing.T, w *world) {
		a, b, name := w.openKept(), w.openKept(), w.name("lock")
		var last uint64
		for range 5 {
			writer := a.hold(name, line.Exclusive)
			first := writer.admitted()
			writer.withdraw()
			p, q := a.hold(name, line.Shared), b.hold(name, line.Shared)
			second, third := p.admitted(), q.admitted()
			p.withdraw()
			q.withdraw()
			if first <= last || second <= first || third <= first {
				t.Fatalf("the orders of two readers, a writer and two readers: up to %d, %d, %d and %d", last, first, second, third)
			}
			last = max(second, third)
		}
	})

	s.test("a line shows the order that the holder was told", func(t *testing.T, w *world) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		if got, want := w.lineOf(name, p).Entries[0].Order, p.admitted(); got != want {
			t.Errorf("the line shows order %d, the holder was told %d", got, want)
		}
	})
}

// rising checks that the orders of holds that follow each other rise.
type rising struct{ last uint64 }

func (r *rising) next(t *testing.T, p *place) {
	t.Helper()
	now := p.admitted()
	if now <= r.last {
		t.Fatalf("session %s, lock %q: admitted with order %d after a hold with order %d", p.client.ID(), p.name, now, r.last)
	}
	r.last = now
}
