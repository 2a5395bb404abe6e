package storetest

import (
	"errors"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func breaking(s suite) {
	// The whole topic needs Fencing, because Break names an entry by its order.

	s.test("breaking a hold admits the next waiter", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		if _, err := w.breakEntry(name, p.admitted()); err != nil {
			t.Fatalf("Break: %v", err)
		}
		next.admitted()
		p.gone()
		w.wantLine(name, next)
	})

	s.test("breaking an entry returns it as it was", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		order := p.admitted()
		broken, err := w.breakEntry(name, order)
		if err != nil {
			t.Fatalf("Break: %v", err)
		}
		wantEntry(t, broken, p, true)
		if broken.Order != order {
			t.Errorf("Break returned order %d, want %d as delivered to the holder", broken.Order, order)
		}
	})

	s.test("breaking an unknown order returns ErrGone and changes nothing", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		order := p.admitted()
		for _, wrong := range []uint64{order + 1_000_000, order - 1, store.MaxOrder} {
			wantNothingBroken(t, w, name, wrong)
		}
		p.stays(store.Admitted)
		next.stays(store.Waiting)
	})

	s.test("breaking a released order returns ErrGone and keeps the session's next hold", func(t *testing.T, w *testEnv) {
		c, name := w.openKept(), w.name("lock")
		old := c.hold(name, line.Exclusive)
		order := old.admitted()
		old.withdraw()
		now := c.hold(name, line.Exclusive)
		wantNothingBroken(t, w, name, order)
		now.stays(store.Admitted)
		now.withdraw()
	})

	s.test("an entry can be broken only once", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		order := p.admitted()
		if _, err := w.breakEntry(name, order); err != nil {
			t.Fatalf("Break: %v", err)
		}
		next.admitted()
		wantNothingBroken(t, w, name, order)
		next.stays(store.Admitted)
	})

	s.test("breaking under another name returns ErrGone and changes nothing", func(t *testing.T, w *testEnv) {
		p := w.openKept().hold(w.name("lock"), line.Exclusive)
		for _, other := range []string{w.name("other"), w.name("lock/below"), w.prefix} {
			wantNothingBroken(t, w, other, p.admitted())
		}
		p.stays(store.Admitted)
		p.withdraw()
	})

	s.test("a session continues after its entry is broken", func(t *testing.T, w *testEnv) {
		name, other := w.name("lock"), w.name("other")
		c := w.openKept()
		broken, stays := c.hold(name, line.Exclusive), c.hold(other, line.Exclusive)
		if _, err := w.breakEntry(name, broken.admitted()); err != nil {
			t.Fatalf("Break: %v", err)
		}
		broken.gone()
		stays.stays(store.Admitted)
		again := c.hold(name, line.Exclusive)
		w.wantLine(name, again)
		w.wantLine(other, stays)
	})
}

func wantNothingBroken(t *testing.T, w *testEnv, name string, order uint64) {
	t.Helper()
	if e, err := w.breakEntry(name, order); !errors.Is(err, store.ErrGone) {
		t.Fatalf("Break(%q, %d) of an unknown order returned %+v and %v, want an error matching ErrGone",
			name, order, e, err)
	}
}
