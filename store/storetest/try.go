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

	s.test("a try for a free lock is admitted", func(t *testing.T, w *testEnv) {
		p, err := w.openKept().try(w.name("lock"), line.Exclusive)
		if err != nil {
			t.Fatal(err)
		}
		p.admitted()
		p.stays(store.Admitted)
	})

	s.test("a try succeeds right after a release", func(t *testing.T, w *testEnv) {
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

	s.test("a try for a held lock returns a HeldError and leaves no entry", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b := w.openKept()
		p, err := b.try(name, line.Exclusive)
		wantHeld(t, p, err)
		w.wantLine(name, a)
		a.withdraw()
		a.client.hold(name, line.Exclusive) // the failed try does not block it
		p.neverAdmitted()
	})

	s.test("a try for a held lock names the holder", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		p, err := w.openKept().try(name, line.Exclusive)
		wantHeld(t, p, err)
		switch held, _ := errors.AsType[*store.HeldError](err); {
		case held.Name != name:
			t.Errorf("the HeldError is for lock %q, want %q", held.Name, name)
		case held.Holder == nil:
			t.Log("the HeldError has no Holder; a store should set it if it can")
		case held.Holder.Session != a.client.ID():
			t.Errorf("the HeldError names session %s as the holder, want %s", held.Holder.Session, a.client.ID())
		}
	})

	fair.test("a failed try does not delay waiters", func(t *testing.T, w *testEnv) {
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

	shared.test("a try is admitted beside compatible holds", func(t *testing.T, w *testEnv) {
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

	// Bug: kazoo #213
	shared.test("a try does not overtake waiters", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Shared)
		b := w.openKept().enqueue(name, line.Exclusive)
		p, err := w.openKept().try(name, line.Shared)
		wantHeld(t, p, err)
		a.withdraw()
		b.admitted()
	})

	// Bug: kazoo #213
	shared.test("a try takes a slot only if one is free", func(t *testing.T, w *testEnv) {
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

	s.test("at most one of many concurrent tries is admitted", func(t *testing.T, w *testEnv) {
		const clients, rounds = 5, 20
		name := w.name("lock")
		var cs []*client
		for range clients {
			cs = append(cs, w.openKept())
		}
		for range rounds {
			entries, errs := make([]*entry, clients), make([]error, clients)
			var all sync.WaitGroup
			for i, c := range cs {
				all.Go(func() { entries[i], errs[i] = c.try(name, line.Exclusive) })
			}
			all.Wait()
			var in []*entry
			for i, p := range entries {
				if errs[i] == nil {
					p.admitted()
					in = append(in, p)
				} else {
					wantHeld(t, p, errs[i])
				}
			}
			// In a store that is not fair, failing tries may briefly block each other. In a fair
			// store the first one succeeds.
			if len(in) > 1 || w.caps.Fair && len(in) == 0 {
				t.Fatalf("%d of %d concurrent tries were admitted", len(in), clients)
			}
			for _, p := range in {
				p.withdraw()
			}
		}
	})
}

// wantHeld checks that a try failed with a HeldError.
func wantHeld(t *testing.T, p *entry, err error) {
	t.Helper()
	p.neverAdmitted()
	if _, ok := errors.AsType[*store.HeldError](err); !ok {
		t.Fatalf("a try for a held lock returned %v, want a *store.HeldError", err)
	}
}
