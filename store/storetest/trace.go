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

func trace(s suite) {
	s.test("an entry can leave a trace or that is refused with ErrUnsupported", func(t *testing.T, w *world) {
		p := w.openKept().hold(w.name("lock"), line.Exclusive)
		if w.caps.Traces {
			if !w.caps.Fencing {
				t.Error("Traces is set and Fencing is not: by what are traces known?")
			}
			p.leaveTrace()
			return
		}
		vanished, err := p.ticket.LeaveTrace(t.Context())
		if !errors.Is(err, store.ErrUnsupported) || len(vanished) > 0 {
			t.Errorf("LeaveTrace, which the capabilities exclude, returned %+v and %v, want an error matching ErrUnsupported",
				vanished, err)
		}
		if err := w.stores[0].ForgetTraces(t.Context(), p.name, []uint64{1}); !errors.Is(err, store.ErrUnsupported) {
			t.Errorf("ForgetTraces, which the capabilities exclude, returned %v, want an error matching ErrUnsupported", err)
		}
		p.stays(store.Admitted)
		p.withdraw()
	})

	s = s.needs(Traces)
	shared := s.needs(Fair, SharedModes)

	s.test("an entry that is withdrawn leaves no trace", func(t *testing.T, w *world) {
		c, name := w.openKept(), w.name("lock")
		for range 3 {
			p := c.hold(name, line.Exclusive)
			p.leaveTrace()
			p.withdraw()
		}
		w.openKept().hold(name, line.Exclusive).leaveTrace()
	})

	s.test("an entry whose session is closed leaves its trace", func(t *testing.T, w *world) {
		name := w.name("lock")
		order := w.vanish(name)
		w.openKept().hold(name, line.Exclusive).finds(order)
	})

	s.test("an entry whose session expires leaves its trace", func(t *testing.T, w *world) {
		var order uint64
		c, _, next := w.doomed(func(_ *client, held, _ *place) (err error) {
			_, err = held.find()
			order = held.order()
			return err
		})
		next.admittedWithin(c.Terms().TTL + 2*w.h.Grace)
		next.finds(order)
	})

	s.test("an entry that is broken leaves its trace, also for its own session", func(t *testing.T, w *world) {
		c, name := w.openKept(), w.name("lock")
		p := c.hold(name, line.Exclusive)
		order := p.leaveTrace()
		if _, err := w.breakEntry(name, order); err != nil {
			t.Fatalf("Break: %v", err)
		}
		p.gone()
		own := c.hold(name, line.Exclusive)
		own.finds(order)
		own.withdraw()
		w.openKept().hold(name, line.Exclusive).finds(order)
	})

	s.test("an entry of which no trace was asked leaves none", func(t *testing.T, w *world) {
		name := w.name("lock")
		c := w.open()
		c.hold(name, line.Exclusive)
		c.close()
		w.openKept().hold(name, line.Exclusive).leaveTrace()
	})

	s.test("who finds a trace leaves none", func(t *testing.T, w *world) {
		name := w.name("lock")
		order := w.vanish(name)
		c := w.open()
		p := c.hold(name, line.Exclusive)
		p.finds(order)
		c.close()
		w.openKept().hold(name, line.Exclusive).finds(order)
	})

	s.test("a trace stays until it is forgotten", func(t *testing.T, w *world) {
		name := w.name("lock")
		order := w.vanish(name)
		for range 2 {
			p := w.openKept().hold(name, line.Exclusive)
			p.finds(order)
			p.withdraw()
		}
		p := w.openKept().hold(name, line.Exclusive)
		w.forget(name, order)
		p.leaveTrace()
		p.withdraw()
		w.openKept().hold(name, line.Exclusive).leaveTrace()
	})

	s.test("forgetting a trace spares those of other locks", func(t *testing.T, w *world) {
		name, below, other := w.name("lock"), w.name("lock/below"), w.name("other")
		orders := make(map[string]uint64)
		for _, n := range []string{name, below, other} {
			orders[n] = w.vanish(n)
		}
		w.forget(name, orders[name], orders[other])
		w.forget(below, orders[name])
		w.openKept().hold(name, line.Exclusive).leaveTrace()
		for _, n := range []string{below, other} {
			w.openKept().hold(n, line.Exclusive).finds(orders[n])
		}
	})

	shared.test("of several traces each is forgotten by itself", func(t *testing.T, w *world) {
		name := w.name("lock")
		var clients []*client
		var orders []uint64
		for range 3 {
			c := w.open()
			clients, orders = append(clients, c), append(orders, c.hold(name, line.Shared).leaveTrace())
		}
		for _, c := range clients {
			c.close()
		}
		p := w.openKept().hold(name, line.Exclusive)
		p.finds(orders...)
		w.forget(name, orders[1])
		p.finds(orders[0], orders[2])
		w.forget(name, orders...)
		p.leaveTrace()
	})

	s.test("forgetting what is not there does nothing", func(t *testing.T, w *world) {
		name := w.name("lock")
		w.forget(name, 1, store.MaxOrder)
		w.forget(name)
		order := w.vanish(name)
		w.forget(name, order+1, order-1)
		w.forget(name)
		w.openKept().hold(name, line.Exclusive).finds(order)
	})

	s.test("a trace is told to those of its own lock only", func(t *testing.T, w *world) {
		w.vanish(w.name("lock"))
		for _, other := range []string{w.name("lock/below"), w.name("other"), w.prefix} {
			w.openKept().hold(other, line.Exclusive).leaveTrace()
		}
	})

	s.test("an entry that has gone leaves no trace", func(t *testing.T, w *world) {
		name := w.name("lock")
		broken := w.openKept().hold(name, line.Exclusive)
		if _, err := w.breakEntry(name, broken.admitted()); err != nil {
			t.Fatalf("Break: %v", err)
		}
		broken.cannotLeaveTrace()
		c := w.open()
		lost := c.hold(name, line.Exclusive)
		c.close()
		lost.cannotLeaveTrace()
		w.openKept().hold(name, line.Exclusive).leaveTrace()
	})

	s.needs(Outlasting).
		test("an entry that is let go later leaves no trace", func(t *testing.T, w *world) {
			name := w.name("lock")
			c := w.open()
			p := c.hold(name, line.Exclusive)
			p.leaveTrace()
			next := w.openKept().enqueue(name, line.Exclusive)
			called := p.withdrawAfter(w.h.Brief / 2)
			c.close()
			w.wantOutAfter(w.h.Brief/2, called, next)
			next.leaveTrace()
		})

	shared.test("a trace is told to nobody while its entry stands", func(t *testing.T, w *world) {
		name := w.name("lock")
		a, b := w.openKept().hold(name, line.Shared), w.openKept().hold(name, line.Shared)
		a.leaveTrace()
		b.leaveTrace()
		a.leaveTrace()
	})

	s.test("a trace tells whose it is", func(t *testing.T, w *world) {
		name := w.name("lock")
		c := w.open()
		order := c.hold(name, line.Exclusive).leaveTrace()
		c.close()
		found := w.openKept().hold(name, line.Exclusive).finds(order)
		if e := found[0]; e.Owner.Command != c.owner.Command || e.Owner.PID != c.owner.PID || e.Mode != line.Exclusive {
			t.Errorf("the trace of the entry of %+v is told as %+v", c.owner, e)
		}
	})

	s.test("a trace can be left twice and is one", func(t *testing.T, w *world) {
		name := w.name("lock")
		c := w.open()
		p := c.hold(name, line.Exclusive)
		p.leaveTrace()
		p.leaveTrace()
		p.withdraw()
		p = c.hold(name, line.Exclusive)
		p.leaveTrace()
		order := p.leaveTrace()
		c.close()
		w.openKept().hold(name, line.Exclusive).finds(order)
	})

	s.test("an entry leaves no trace that is withdrawn when leaving one was given up", func(t *testing.T, w *world) {
		c, name := w.openKept(), w.name("lock")
		w.stagger(20, func(ctx context.Context) {
			p := c.hold(name, line.Exclusive)
			_, _ = p.ticket.LeaveTrace(ctx) // may say anything
			p.withdraw()
		})
		w.openKept().hold(name, line.Exclusive).leaveTrace()
	})

	s.needs(Cut).test("an entry that is withdrawn during an outage leaves no trace", func(t *testing.T, w *world) {
		name := w.name("lock")
		c := w.openKept()
		p := c.hold(name, line.Exclusive)
		p.leaveTrace()
		next := w.openKept().enqueue(name, line.Exclusive)
		heal := w.cut(c)
		defer heal()
		ctx, cancel := context.WithTimeout(t.Context(), w.h.Brief/8)
		defer cancel()
		if err := p.withdrawWith(ctx); err == nil {
			t.Error("Withdraw out of the store's reach returned no error")
		}
		heal()
		next.admitted()
		next.leaveTrace()
	})
}

// vanish has an entry leave a trace and go with its session, and returns its order.
func (w *world) vanish(name string) (order uint64) {
	w.t.Helper()
	c := w.open()
	order = c.hold(name, line.Exclusive).leaveTrace()
	c.close()
	return order
}

// forget does away with traces.
func (w *world) forget(name string, orders ...uint64) {
	w.t.Helper()
	ctx, cancel := w.call()
	defer cancel()
	if err := w.stores[len(w.stores)-1].ForgetTraces(ctx, name, orders); err != nil {
		w.t.Fatalf("ForgetTraces(%q, %v): %v", name, orders, err)
	}
}

// leaveTrace has the entry leave a trace, checks that there are none of others, and returns its order.
func (p *place) leaveTrace() (order uint64) {
	p.client.w.t.Helper()
	p.finds()
	return p.admitted()
}

// finds checks that what the entry hears, instead of leaving a trace, is of the traces of entries with the given orders;
// if there are none, that it has left one.
func (p *place) finds(orders ...uint64) []store.Entry {
	p.client.w.t.Helper()
	vanished, err := p.find(orders...)
	if err != nil {
		p.client.w.t.Fatal(err)
	}
	return vanished
}

// find is finds for an entry whose session may be over.
func (p *place) find(orders ...uint64) ([]store.Entry, error) {
	ctx, cancel := p.client.w.call()
	defer cancel()
	vanished, err := p.ticket.LeaveTrace(ctx)
	if err != nil {
		return nil, fmt.Errorf("session %s, lock %q: LeaveTrace: %w", p.client.ID(), p.name, err)
	}
	var found []uint64
	for _, e := range vanished {
		found = append(found, e.Order)
	}
	slices.Sort(found)
	if slices.Sort(orders); !slices.Equal(found, orders) {
		return nil, fmt.Errorf("session %s, lock %q: LeaveTrace found the traces of the entries %d, want %d",
			p.client.ID(), p.name, found, orders)
	}
	return vanished, nil
}

// cannotLeaveTrace checks that the entry, which has gone, is told so.
func (p *place) cannotLeaveTrace() {
	p.client.w.t.Helper()
	ctx, cancel := p.client.w.call()
	defer cancel()
	vanished, err := p.ticket.LeaveTrace(ctx)
	if !errors.Is(err, store.ErrGone) && !errors.Is(err, store.ErrSessionLost) {
		p.client.w.t.Errorf("session %s, lock %q: LeaveTrace of an entry that is gone returned %+v and %v, "+
			"want an error matching ErrGone or ErrSessionLost", p.client.ID(), p.name, vanished, err)
	}
}
