package storetest

import (
	"context"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func withdraw(s suite) {
	fair, shared, fencing := s.needs(Fair), s.needs(Fair, SharedModes), s.needs(Fencing)

	s.test("withdrawing a hold removes it from the line", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		w.openKept().hold(name, line.Exclusive).withdraw()
		w.wantLine(name)
	})

	s.test("a second withdrawal returns ErrGone", func(t *testing.T, w *testEnv) {
		p := w.openKept().hold(w.name("lock"), line.Exclusive)
		p.withdraw()
		p.wantGone()
		p.wantGone()
	})

	// Bug: solid_queue #761
	s.test("a second withdrawal keeps the session's next entry", func(t *testing.T, w *testEnv) {
		c, name := w.openKept(), w.name("lock")
		old := c.hold(name, line.Exclusive)
		old.withdraw()
		now := c.hold(name, line.Exclusive)
		old.wantGone()
		w.openKept().enqueue(name, line.Exclusive).stays(store.Waiting)
		now.stays(store.Admitted)
		now.withdraw()
	})

	// Bug: solid_queue #761
	s.test("a second withdrawal keeps the next holder", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		old := w.openKept().hold(name, line.Exclusive)
		old.withdraw()
		now := w.openKept().hold(name, line.Exclusive)
		old.wantGone()
		now.stays(store.Admitted)
		now.withdraw()
	})

	fencing.test("withdrawing a broken entry returns ErrGone and keeps the session's next entry", func(t *testing.T, w *testEnv) {
		c, name := w.openKept(), w.name("lock")
		old := c.hold(name, line.Exclusive)
		if _, err := w.breakEntry(name, old.admitted()); err != nil {
			t.Fatalf("Break: %v", err)
		}
		old.gone()
		now := c.hold(name, line.Exclusive)
		old.wantGone()
		w.openKept().enqueue(name, line.Exclusive).stays(store.Waiting)
		now.stays(store.Admitted)
		now.withdraw()
	})

	s.test("withdrawing an entry of an expired session returns ErrGone", func(t *testing.T, w *testEnv) {
		_, p, now := w.expiringHold()
		p.goneInTime()
		now.admittedWithin(p.client.Terms().TTL + 2*w.h.Grace)
		p.wantGone()
		now.stays(store.Admitted)
		now.withdraw()
	})

	fair.test("entries behind a withdrawn waiter move up", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b, c := w.openKept().enqueue(name, line.Exclusive), w.openKept().enqueue(name, line.Exclusive)
		c.waiting(2)
		b.withdraw()
		c.waiting(1)
		w.wantLine(name, a, c)
		a.withdraw()
		c.admitted()
		b.neverAdmitted()
	})

	shared.test("withdrawing one of a session's entries leaves the other", func(t *testing.T, w *testEnv) {
		c, name := w.openKept(), w.name("lock")
		a, b := c.hold(name, line.Shared), c.hold(name, line.Shared)
		a.withdraw()
		b.stays(store.Admitted)
		w.wantLine(name, b)
		a.wantGone()
		w.openKept().enqueue(name, line.Exclusive).stays(store.Waiting)
		b.withdraw()
	})

	s.test("a withdrawal whose context has ended is carried out", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		err := p.withdrawWith(ended) // may succeed or fail
		next.admitted()
		if err != nil {
			_ = p.tryWithdraw() // may succeed if the first call could not determine its outcome
		}
		// If the reply to the first call was lost, the outcome stays unknown.
		if err := p.tryWithdraw(); !saysGone(err) {
			t.Errorf("Withdraw of an entry that is gone: got %v, want ErrGone or ErrNotKnown", err)
		}
		next.stays(store.Admitted)
	})
}
