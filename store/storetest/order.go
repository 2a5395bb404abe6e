package storetest

import (
	"testing"

	"github.com/stilelock/stile/line"
)

func order(s suite) {
	// In every test, entry.check checks that an order is positive, at most MaxOrder and constant.

	s.test("orders increase from hold to hold, also across an empty line", func(t *testing.T, w *testEnv) {
		a, b, name := w.openKept(), w.openKept(), w.name("lock")
		var orders risingOrders
		for range 20 {
			for _, c := range []*client{a, b} {
				p := c.hold(name, line.Exclusive)
				orders.next(t, p)
				p.withdraw()
			}
			w.wantLine(name)
		}
	})

	s.needs(Fair).test("orders increase along a line of waiters", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		var entries []*entry
		for range 8 {
			entries = append(entries, w.openKept().enqueue(name, line.Exclusive))
		}
		var orders risingOrders
		for _, p := range entries {
			orders.next(t, p)
			p.withdraw()
		}
	})

	s.test("an order is not reused after a failed try", func(t *testing.T, w *testEnv) {
		a, b, name := w.openKept(), w.openKept(), w.name("lock")
		var orders risingOrders
		for range 5 {
			p := a.hold(name, line.Exclusive)
			orders.next(t, p)
			failed, err := b.try(name, line.Exclusive)
			wantHeld(t, failed, err)
			p.withdraw()
		}
	})

	s.test("an order is not reused after its session expired", func(t *testing.T, w *testEnv) {
		var orders risingOrders
		_, p, next := w.expiringHold()
		orders.last = p.order()
		next.admittedWithin(p.client.Terms().TTL + 2*w.h.Grace)
		orders.next(t, next)
	})

	s.test("an order is not reused after its entry was broken", func(t *testing.T, w *testEnv) {
		a, b, name := w.openKept(), w.openKept(), w.name("lock")
		var orders risingOrders
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

	s.test("an order is not reused after its session was closed", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		var orders risingOrders
		for range 5 {
			c := w.open()
			orders.next(t, c.hold(name, line.Exclusive))
			c.close()
		}
	})

	s.needs(SharedModes).test("orders increase between conflicting modes", func(t *testing.T, w *testEnv) {
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
				t.Fatalf("the orders of readers, a writer and two readers are %d, %d, %d and %d, want an increase between modes", last, first, second, third)
			}
			last = max(second, third)
		}
	})

	s.test("Line and Notify report the same order", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		if got, want := w.wantLine(name, p).Entries[0].Order, p.admitted(); got != want {
			t.Errorf("the line has order %d, want %d as delivered to the holder", got, want)
		}
	})
}

// risingOrders checks that the orders of consecutive holds increase.
type risingOrders struct{ last uint64 }

func (r *risingOrders) next(t *testing.T, p *entry) {
	t.Helper()
	now := p.admitted()
	if now <= r.last {
		t.Fatalf("session %s, lock %q: admitted with order %d, want more than the previous hold's %d", p.client.ID(), p.name, now, r.last)
	}
	r.last = now
}
