package storetest

import (
	"errors"
	"sync"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func try(s suite) {
	fair, shared := s.needs(Fair), s.needs(Fair, SharedModes)

	s.test("a try for a free lock is admitted", func(t *testing.T, w *world) {
		p, err := w.openKept().try(w.name("lock"), line.Exclusive)
		if err != nil {
			t.Fatal(err)
		}
		p.admitted()
		p.stays(store.Admitted)
	})

	s.test("a lock can be had by a try as soon as it was released", func(t *testing.T, w *world) {
		a, b, name := w.openKept(), w.openKept(), w.name("lock")
		for range 20 {
			a.hold(name, line.Exclusive).withdraw()
			p, err := b.try(name, line.Exclusive)
			if err != nil {
				t.Fatal(err)
			}
			p.admitted()
			p.withdraw()
		}
	})

	s.test("a try for a held lock is a HeldError and leaves nothing behind", func(t *testing.T, w *world) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b := w.openKept()
		p, err := b.try(name, line.Exclusive)
		wantHeld(t, p, err)
		w.lineOf(name, a)
		a.withdraw()
		a.client.hold(name, line.Exclusive) // nothing is in the way
		p.neverAdmitted()
	})

	s.test("a try for a held lock tells who holds it", func(t *testing.T, w *world) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		p, err := w.openKept().try(name, line.Exclusive)
		wantHeld(t, p, err)
		switch held, _ := errors.AsType[*store.HeldError](err); {
		case held.Name != name:
			t.Errorf("the HeldError is for lock %q, want %q", held.Name, name)
		case held.Holder == nil:
			t.Log("the store could not tell who holds the lock; it should where it can")
		case held.Holder.Session != a.client.ID():
			t.Errorf("the HeldError says that session %s holds the lock; session %s does", held.Holder.Session, a.client.ID())
		}
	})

	fair.test("a failed try does not hold up those who wait", func(t *testing.T, w *world) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b := w.openKept().enqueue(name, line.Exclusive)
		p, err := w.openKept().try(name, line.Exclusive)
		wantHeld(t, p, err)
		c := w.openKept().enqueue(name, line.Exclusive)
		c.waiting(2)
		a.withdraw()
		b.admitted()
		b.withdraw()
		c.admitted()
	})

	shared.test("a try stands beside those it may stand beside", func(t *testing.T, w *world) {
		name := w.name("lock")
		w.openKept().hold(name, line.Shared)
		p, err := w.openKept().try(name, line.Shared)
		if err != nil {
			t.Fatal(err)
		}
		p.admitted()
		p, err = w.openKept().try(name, line.Exclusive)
		wantHeld(t, p, err)
	})

	shared.test("a try does not overtake those who wait", func(t *testing.T, w *world) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Shared)
		b := w.openKept().enqueue(name, line.Exclusive)
		p, err := w.openKept().try(name, line.Shared)
		wantHeld(t, p, err)
		a.withdraw()
		b.admitted()
	})

	shared.test("a try takes a slot only if one is free", func(t *testing.T, w *world) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Slot(2))
		w.openKept().hold(name, line.Slot(2))
		c := w.openKept()
		p, err := c.try(name, line.Slot(2))
		wantHeld(t, p, err)
		a.withdraw()
		if p, err = c.try(name, line.Slot(2)); err != nil {
			t.Fatal(err)
		}
		p.admitted()
	})

	s.test("of many tries at once one is admitted at most", func(t *testing.T, w *world) {
		const clients, rounds = 5, 20
		name := w.name("lock")
		var cs []*client
		for range clients {
			cs = append(cs, w.openKept())
		}
		for range rounds {
			places, errs := make([]*place, clients), make([]error, clients)
			var all sync.WaitGroup
			for i, c := range cs {
				all.Go(func() { places[i], errs[i] = c.try(name, line.Exclusive) })
			}
			all.Wait()
			var in []*place
			for i, p := range places {
				if errs[i] == nil {
					p.admitted()
					in = append(in, p)
				} else {
					wantHeld(t, p, errs[i])
				}
			}
			// Those that fail may have stood in each other's way for a moment; in a line the first one cannot fail.
			if len(in) > 1 || w.caps.Fair && len(in) == 0 {
				t.Fatalf("%d of %d tries were admitted", len(in), clients)
			}
			for _, p := range in {
				p.withdraw()
			}
		}
	})
}

// wantHeld checks the outcome of a try that had to fail.
func wantHeld(t *testing.T, p *place, err error) {
	t.Helper()
	p.neverAdmitted()
	if _, ok := errors.AsType[*store.HeldError](err); !ok {
		t.Fatalf("a try that could not succeed returned %v, want a *store.HeldError", err)
	}
}
