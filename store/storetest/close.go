package storetest

import (
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func closing(s suite) {
	s.test("closing a session removes its holds at once", func(t *testing.T, w *testEnv) {
		c := w.open()
		var next []*entry
		for _, n := range []string{"one", "two", "three"} {
			name := w.name(n)
			c.hold(name, line.Exclusive)
			next = append(next, w.openKept().enqueue(name, line.Exclusive))
		}
		if err := c.confirmNow(); err != nil {
			t.Fatalf("Confirm: %v", err)
		}
		c.close()
		for _, p := range next {
			p.admittedWithin(min(w.h.Grace, c.guaranteed()/2)) // before it could have expired
		}
	})

	s.needs(Fair).test("closing a session removes its waiters", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		c := w.openKept()
		b := c.enqueue(name, line.Exclusive)
		last := w.openKept().enqueue(name, line.Exclusive)
		last.waiting(2)
		c.close()
		last.waiting(1)
		w.wantLine(name, a, last)
		a.withdraw()
		last.admitted()
		b.neverAdmitted()
	})

	s.test("closing a session leaves other sessions alone", func(t *testing.T, w *testEnv) {
		p := w.openKept().hold(w.name("lock"), line.Exclusive)
		c := w.openKept()
		c.hold(w.name("other"), line.Exclusive)
		c.close()
		p.stays(store.Admitted)
		p.withdraw()
	})

	s.test("a closed session cannot be confirmed or used", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		p := c.hold(name, line.Exclusive)
		c.close()
		wantLost(t, c, name)
		w.wantLine(name)
		p.wantGone()
	})

	s.test("closing a closed session does nothing", func(t *testing.T, w *testEnv) {
		c := w.openKept()
		for range 3 {
			c.close()
		}
	})

	s.test("closing a session that has expired does nothing", func(t *testing.T, w *testEnv) {
		c, p, next := w.expiringHold()
		p.goneInTime()
		next.admittedWithin(c.Terms().TTL + 2*w.h.Grace)
		c.close()
		next.stays(store.Admitted)
		next.withdraw()
	})

	// onLost checks that Lost is not called after Close.
	s.test("Lost is not called for a closed session", func(t *testing.T, w *testEnv) {
		c := w.expiring(func(*client, string) error { return nil })
		c.close()
		w.waitExpired()
	})
}
