package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func marker(s suite) {
	shared := s.needs(Fair, SharedModes)

	s.test("a withdrawn entry leaves no marker", func(t *testing.T, w *testEnv) {
		c, name := w.openKept(), w.name("lock")
		for range 3 {
			p := c.hold(name, line.Exclusive)
			p.mark()
			p.withdraw()
		}
		w.openKept().hold(name, line.Exclusive).mark()
	})

	s.test("an entry of a closed session leaves its marker", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		order := w.unreleased(name)
		w.openKept().hold(name, line.Exclusive).markFinds(order)
	})

	s.test("an entry of an expired session leaves its marker", func(t *testing.T, w *testEnv) {
		var order uint64
		c, _, next := w.expiringHold(func(_ *client, held, _ *entry) (err error) {
			_, err = held.tryMarkFinds()
			order = held.order()
			return err
		})
		next.admittedWithin(c.Terms().TTL + 2*w.h.Grace)
		next.markFinds(order)
	})

	s.test("a broken entry leaves its marker, also for its own session", func(t *testing.T, w *testEnv) {
		c, name := w.openKept(), w.name("lock")
		p := c.hold(name, line.Exclusive)
		order := p.mark()
		if _, err := w.breakEntry(name, order); err != nil {
			t.Fatalf("Break: %v", err)
		}
		p.gone()
		own := c.hold(name, line.Exclusive)
		own.markFinds(order)
		own.withdraw()
		w.openKept().hold(name, line.Exclusive).markFinds(order)
	})

	s.test("an entry without Mark leaves no marker", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.open()
		c.hold(name, line.Exclusive)
		c.close()
		w.openKept().hold(name, line.Exclusive).mark()
	})

	s.test("an entry that finds a marker leaves none", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		order := w.unreleased(name)
		c := w.open()
		p := c.hold(name, line.Exclusive)
		p.markFinds(order)
		c.close()
		w.openKept().hold(name, line.Exclusive).markFinds(order)
	})

	s.test("a marker stays until it is cleared", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		order := w.unreleased(name)
		for range 2 {
			p := w.openKept().hold(name, line.Exclusive)
			p.markFinds(order)
			p.withdraw()
		}
		p := w.openKept().hold(name, line.Exclusive)
		w.clear(name, order)
		p.mark()
		p.withdraw()
		w.openKept().hold(name, line.Exclusive).mark()
	})

	s.test("clearing a marker spares those of other locks", func(t *testing.T, w *testEnv) {
		name, below, other := w.name("lock"), w.name("lock/below"), w.name("other")
		orders := make(map[string]uint64)
		for _, n := range []string{name, below, other} {
			orders[n] = w.unreleased(n)
		}
		w.clear(name, orders[name], orders[other])
		w.clear(below, orders[name])
		w.openKept().hold(name, line.Exclusive).mark()
		for _, n := range []string{below, other} {
			w.openKept().hold(n, line.Exclusive).markFinds(orders[n])
		}
	})

	shared.test("several markers are cleared independently", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		var clients []*client
		var orders []uint64
		for range 3 {
			c := w.open()
			clients, orders = append(clients, c), append(orders, c.hold(name, line.Shared).mark())
		}
		for _, c := range clients {
			c.close()
		}
		p := w.openKept().hold(name, line.Exclusive)
		p.markFinds(orders...)
		w.clear(name, orders[1])
		p.markFinds(orders[0], orders[2])
		w.clear(name, orders...)
		p.mark()
	})

	s.test("clearing unknown markers does nothing", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		w.clear(name, 1, store.MaxOrder)
		w.clear(name)
		order := w.unreleased(name)
		w.clear(name, order+1, order-1)
		w.clear(name)
		w.openKept().hold(name, line.Exclusive).markFinds(order)
	})

	s.test("a marker is found only under its own name", func(t *testing.T, w *testEnv) {
		w.unreleased(w.name("lock"))
		for _, other := range []string{w.name("lock/below"), w.name("other"), w.prefix} {
			w.openKept().hold(other, line.Exclusive).mark()
		}
	})

	s.test("an entry that has gone cannot be marked", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		broken := w.openKept().hold(name, line.Exclusive)
		if _, err := w.breakEntry(name, broken.admitted()); err != nil {
			t.Fatalf("Break: %v", err)
		}
		broken.cannotMark()
		c := w.open()
		lost := c.hold(name, line.Exclusive)
		c.close()
		lost.cannotMark()
		w.openKept().hold(name, line.Exclusive).mark()
	})

	s.needs(ReleaseAfter).
		test("an entry released with a delay leaves no marker", func(t *testing.T, w *testEnv) {
			name := w.name("lock")
			c := w.open()
			p := c.hold(name, line.Exclusive)
			p.mark()
			next := w.openKept().enqueue(name, line.Exclusive)
			called := p.withdrawAfter(w.h.Brief / 2)
			c.close()
			w.wantOutAfter(w.h.Brief/2, called, next)
			next.mark()
		})

	shared.test("a marker is not found while its entry exists", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a, b := w.openKept().hold(name, line.Shared), w.openKept().hold(name, line.Shared)
		a.mark()
		b.mark()
		a.mark()
	})

	s.test("a marker names the owner of its entry", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.open()
		order := c.hold(name, line.Exclusive).mark()
		c.close()
		found := w.openKept().hold(name, line.Exclusive).markFinds(order)
		if e := found[0]; e.Owner.Command != c.owner.Command || e.Owner.PID != c.owner.PID || e.Mode != line.Exclusive {
			t.Errorf("the marker of the entry of %+v is %+v", c.owner, e)
		}
	})

	s.test("marking twice leaves one marker", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.open()
		p := c.hold(name, line.Exclusive)
		p.mark()
		p.mark()
		p.withdraw()
		p = c.hold(name, line.Exclusive)
		p.mark()
		order := p.mark()
		c.close()
		w.openKept().hold(name, line.Exclusive).markFinds(order)
	})

	s.test("an entry withdrawn after an abandoned Mark leaves no marker", func(t *testing.T, w *testEnv) {
		c, name := w.openKept(), w.name("lock")
		w.stagger(20, func(ctx context.Context) {
			p := c.hold(name, line.Exclusive)
			_, _ = p.ticket.Extensions().Mark(ctx) // may succeed or fail
			p.withdraw()
		})
		w.openKept().hold(name, line.Exclusive).mark()
	})

	s.needs(Cut).test("an entry withdrawn during an outage leaves no marker", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		p := c.hold(name, line.Exclusive)
		p.mark()
		next := w.openKept().enqueue(name, line.Exclusive)
		heal := w.cut(c)
		defer heal()
		ctx, cancel := context.WithTimeout(t.Context(), w.h.Brief/8)
		defer cancel()
		if err := p.withdrawWith(ctx); err == nil {
			t.Error("Withdraw during an outage returned nil, want an error")
		}
		heal()
		next.admitted()
		next.mark()
	})
}

// unreleased leaves the marker of an entry whose session was closed, and returns its order.
func (w *testEnv) unreleased(name string) (order uint64) {
	w.t.Helper()
	c := w.open()
	order = c.hold(name, line.Exclusive).mark()
	c.close()
	return order
}

// clear removes the markers of the entries with the given orders.
func (w *testEnv) clear(name string, orders ...uint64) {
	w.t.Helper()
	ctx, cancel := w.call()
	defer cancel()
	if err := w.stores[len(w.stores)-1].Capabilities().ClearMarks(ctx, name, orders); err != nil {
		w.t.Fatalf("ClearMarks(%q, %v): %v", name, orders, err)
	}
}

// mark marks the entry, checks that no unreleased entries are found, and returns the entry's order.
func (p *entry) mark() (order uint64) {
	p.client.w.t.Helper()
	p.markFinds()
	return p.admitted()
}

// markFinds calls Mark and checks that it returns the unreleased entries with the given orders.
// Without orders it checks that the entry itself was marked.
func (p *entry) markFinds(orders ...uint64) []store.Entry {
	p.client.w.t.Helper()
	unreleased, err := p.tryMarkFinds(orders...)
	if err != nil {
		p.client.w.t.Fatal(err)
	}
	return unreleased
}

// tryMarkFinds is markFinds for an entry whose session may have expired.
func (p *entry) tryMarkFinds(orders ...uint64) ([]store.Entry, error) {
	ctx, cancel := p.client.w.call()
	defer cancel()
	unreleased, err := p.ticket.Extensions().Mark(ctx)
	if err != nil {
		return nil, fmt.Errorf("session %s, lock %q: Mark: %w", p.client.ID(), p.name, err)
	}
	var found []uint64
	for _, e := range unreleased {
		found = append(found, e.Order)
	}
	slices.Sort(found)
	if slices.Sort(orders); !slices.Equal(found, orders) {
		return nil, fmt.Errorf("session %s, lock %q: Mark found markers of the orders %d, want %d",
			p.client.ID(), p.name, found, orders)
	}
	return unreleased, nil
}

// cannotMark checks that marking an entry that has gone fails.
func (p *entry) cannotMark() {
	p.client.w.t.Helper()
	ctx, cancel := p.client.w.call()
	defer cancel()
	unreleased, err := p.ticket.Extensions().Mark(ctx)
	if !errors.Is(err, store.ErrGone) && !errors.Is(err, store.ErrSessionLost) {
		p.client.w.t.Errorf("session %s, lock %q: Mark of an entry that is gone returned %+v and %v, "+
			"want an error matching ErrGone or ErrSessionLost", p.client.ID(), p.name, unreleased, err)
	}
}
