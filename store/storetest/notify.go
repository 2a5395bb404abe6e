package storetest

import (
	"errors"
	"sync"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func notify(s suite) {
	fair := s.needs(Fair)

	// In every test, onNotify checks that calls do not overlap and that there is none after Gone or
	// after Withdraw.

	s.test("the first standing is delivered: admitted", func(t *testing.T, w *testEnv) {
		w.openKept().enqueue(w.name("lock"), line.Exclusive).admitted()
	})

	s.test("the first standing is delivered: waiting", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		w.openKept().hold(name, line.Exclusive)
		w.openKept().enqueue(name, line.Exclusive).waiting(1)
	})

	fair.needs(ExactAhead).test("waiters are notified of each change of Ahead", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		var entries []*entry
		for i := range 5 {
			p := w.openKept().enqueue(name, line.Exclusive)
			if i > 0 {
				p.waiting(i)
			}
			entries = append(entries, p)
		}
		for len(entries) > 0 {
			entries[0].admitted()
			for i, p := range entries[1:] {
				p.waiting(i + 1)
			}
			entries[0].withdraw()
			entries = entries[1:]
		}
	})

	// Bug: CURATOR-171
	s.needs(Fencing).test("a holder is notified when its entry is broken", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		if _, err := w.breakEntry(name, p.admitted()); err != nil {
			t.Fatalf("Break: %v", err)
		}
		if cause := p.gone(); !errors.Is(cause, store.ErrGone) || errors.Is(cause, store.ErrSessionLost) {
			t.Errorf("the entry of a live session was broken with cause %v, want an error matching only ErrGone", cause)
		}
		p.stays(store.Gone)
	})

	s.test("a holder is notified when its session expires", func(_ *testing.T, w *testEnv) {
		var p *entry
		w.expiring(func(c *client, name string) (err error) {
			p, err = c.tryHold(name, line.Exclusive)
			return err
		})
		p.goneInTime()
		p.stays(store.Gone)
	})

	s.test("a waiter is notified when its session expires", func(_ *testing.T, w *testEnv) {
		var p *entry
		w.expiring(func(c *client, name string) (err error) {
			w.openKept().hold(name, line.Exclusive)
			p, err = c.tryEnqueue(name, line.Exclusive, false)
			return err
		})
		p.goneInTime()
		p.stays(store.Gone)
		p.neverAdmitted()
	})

	s.test("Notify is not called after a hold is withdrawn", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b := w.openKept().enqueue(name, line.Exclusive)
		a.withdraw()
		b.admitted()
		a.stays(store.Admitted) // the last standing delivered
	})

	fair.test("Notify is not called after a waiter is withdrawn", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b, c := w.openKept().enqueue(name, line.Exclusive), w.openKept().enqueue(name, line.Exclusive)
		b.waiting(1)
		b.withdraw()
		a.withdraw()
		c.admitted()
		b.stays(store.Waiting) // the last standing delivered
	})

	s.test("every waiter of a long line is admitted in turn", func(t *testing.T, w *testEnv) {
		const clients = 24
		name := w.name("lock")
		first := w.openKept().hold(name, line.Exclusive)
		var all sync.WaitGroup
		for range clients {
			c := w.openKept()
			all.Go(func() {
				p, err := c.tryEnqueue(name, line.Exclusive, false)
				if err != nil {
					w.brokenf("%v", err)
					return
				}
				// It is admitted after all others, each of which may take Grace.
				if _, _, err := p.await((clients+1)*w.h.Grace, "admitted", isAdmitted); err != nil {
					w.brokenf("%v", err)
				}
				if err := p.tryWithdraw(); err != nil {
					w.brokenf("session %s, lock %q: Withdraw: %v", c.ID(), name, err)
				}
			})
		}
		first.stays(store.Admitted)
		first.withdraw()
		all.Wait()
		w.wantLine(name)
	})

	// Bug: solid_queue #456
	s.test("no notification is lost when a release races with an arrival", func(t *testing.T, w *testEnv) {
		const rounds = 100
		a, b, name := w.openKept(), w.openKept(), w.name("lock")
		holder := a.hold(name, line.Exclusive)
		for range rounds {
			var released sync.WaitGroup
			released.Go(func() {
				if err := holder.tryWithdraw(); err != nil {
					w.brokenf("session %s, lock %q: Withdraw: %v", a.ID(), name, err)
				}
			})
			arrived := b.enqueue(name, line.Exclusive)
			arrived.admitted()
			released.Wait()
			holder, a, b = arrived, b, a
		}
	})

	s.test("no notification is lost when a waiter leaves during a release", func(t *testing.T, w *testEnv) {
		const rounds = 100
		a, b, c, name := w.openKept(), w.openKept(), w.openKept(), w.name("lock")
		for range rounds {
			holder := a.hold(name, line.Exclusive)
			waiter, last := b.enqueue(name, line.Exclusive), c.enqueue(name, line.Exclusive)
			var left sync.WaitGroup
			for _, p := range []*entry{holder, waiter} {
				left.Go(func() {
					if err := p.tryWithdraw(); err != nil {
						w.brokenf("session %s, lock %q: Withdraw: %v", p.client.ID(), name, err)
					}
				})
			}
			last.admitted()
			left.Wait()
			last.withdraw()
		}
	})
}
