package storetest

import (
	"context"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func withdraw(s suite) {
	fair, shared, fencing := s.needs(Fair), s.needs(Fair, SharedModes), s.needs(Fencing)

	s.test("withdrawing a hold takes it out of the line", func(t *testing.T, w *world) {
		name := w.name("lock")
		w.openKept().hold(name, line.Exclusive).withdraw()
		w.lineOf(name)
	})

	s.test("a second withdrawal says ErrGone", func(t *testing.T, w *world) {
		p := w.openKept().hold(w.name("lock"), line.Exclusive)
		p.withdraw()
		p.wantGone()
		p.wantGone()
	})

	s.test("a second withdrawal spares the session's next entry", func(t *testing.T, w *world) {
		c, name := w.openKept(), w.name("lock")
		old := c.hold(name, line.Exclusive)
		old.withdraw()
		now := c.hold(name, line.Exclusive)
		old.wantGone()
		w.openKept().enqueue(name, line.Exclusive).stays(store.Waiting)
		now.stays(store.Admitted)
		now.withdraw()
	})

	s.test("a second withdrawal spares the next holder", func(t *testing.T, w *world) {
		name := w.name("lock")
		old := w.openKept().hold(name, line.Exclusive)
		old.withdraw()
		now := w.openKept().hold(name, line.Exclusive)
		old.wantGone()
		now.stays(store.Admitted)
		now.withdraw()
	})

	fencing.test("withdrawing a broken entry says ErrGone and spares the session's next entry", func(t *testing.T, w *world) {
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

	s.test("withdrawing an entry whose session has ended says ErrGone", func(t *testing.T, w *world) {
		_, p, now := w.doomed()
		p.goneInTime()
		now.admittedWithin(p.client.Terms().TTL + 2*w.h.Grace)
		p.wantGone()
		now.stays(store.Admitted)
		now.withdraw()
	})

	fair.test("those behind a waiter that is withdrawn move up", func(t *testing.T, w *world) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b, c := w.openKept().enqueue(name, line.Exclusive), w.openKept().enqueue(name, line.Exclusive)
		c.waiting(2)
		b.withdraw()
		c.waiting(1)
		w.lineOf(name, a, c)
		a.withdraw()
		c.admitted()
		b.neverAdmitted()
	})

	shared.test("withdrawing one of a session's entries leaves the other", func(t *testing.T, w *world) {
		c, name := w.openKept(), w.name("lock")
		a, b := c.hold(name, line.Shared), c.hold(name, line.Shared)
		a.withdraw()
		b.stays(store.Admitted)
		w.lineOf(name, b)
		a.wantGone()
		w.openKept().enqueue(name, line.Exclusive).stays(store.Waiting)
		b.withdraw()
	})

	s.test("a withdrawal whose context has ended is carried out all the same", func(t *testing.T, w *world) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		err := p.withdrawWith(ended) // may say anything
		next.admitted()
		if err != nil {
			_ = p.tryWithdraw() // may be what finds out that the first call has done it, and says so
		}
		p.wantGone()
		next.stays(store.Admitted)
	})
}
