package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func outage(s suite) {
	fencing := s.needs(Fencing)

	s.test("an unanswered confirmation proves nothing and does no harm", func(t *testing.T, w *testEnv) {
		c := w.open()
		p := c.hold(w.name("lock"), line.Exclusive)
		if err := c.confirmNow(); err != nil {
			t.Fatalf("Confirm: %v", err)
		}
		heal := w.cut(c)
		defer heal()
		if err := c.confirm(t.Context(), w.h.Brief/8); err == nil || errors.Is(err, store.ErrSessionLost) {
			t.Errorf("Confirm during an outage returned %v, want an error not matching ErrSessionLost", err)
		}
		heal()
		if err := c.confirmAfterOutage(); err != nil {
			t.Fatalf("Confirm after the outage: %v", err)
		}
		p.stays(store.Admitted)
	})

	// Bug: RedissonMultiLock
	s.test("an unanswered enqueue leaves no entry", func(t *testing.T, w *testEnv) {
		for _, try := range []bool{false, true} {
			name := w.name("lock")
			c := w.open()
			heal := w.cut(c)
			defer heal()
			ctx, cancel := context.WithTimeout(t.Context(), w.h.Brief/8)
			p, err := c.enqueueWith(ctx, name, line.Exclusive, try)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Enqueue (try %v) during an outage returned %v, want an error matching %v",
					try, err, context.DeadlineExceeded)
			}
			cancel()
			heal()
			if err := c.confirmAfterOutage(); err != nil {
				t.Fatalf("Confirm after the outage: %v", err)
			}
			time.Sleep(settleTime) // gives a late request time to arrive
			next := w.openKept().hold(name, line.Exclusive)
			w.wantLine(name, next)
			p.neverAdmitted()
			next.withdraw()
		}
	})

	// Bug: etcd #22123
	s.test("an unanswered withdrawal is carried out after the outage", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.open()
		p := c.hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		heal := w.cut(c)
		defer heal()
		ctx, cancel := context.WithTimeout(t.Context(), w.h.Brief/8)
		defer cancel()
		if err := p.withdrawWith(ctx); err == nil || errors.Is(err, store.ErrGone) {
			t.Errorf("Withdraw during an outage returned %v, want an error not matching ErrGone", err)
		}
		heal()
		c.keep() // otherwise the entry would go with its session
		next.admitted()
		w.wantLine(name, next)
	})

	fencing.test("an unanswered withdrawal does not report success after a break", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c, other := w.open(), w.openKept()
		p := c.hold(name, line.Exclusive)
		order := p.admitted()
		heal := w.cut(c)
		defer heal()
		ctx, cancel := context.WithTimeout(t.Context(), w.h.Brief/8)
		defer cancel()
		if err := p.withdrawWith(ctx); err == nil {
			t.Error("Withdraw during an outage returned nil, want an error")
		}
		within, done := w.call()
		defer done()
		if _, err := other.store.Break(within, name, order); err != nil {
			t.Fatalf("Break: %v", err)
		}
		next := other.hold(name, line.Exclusive)
		heal()
		c.keep()
		if err := p.tryWithdraw(); !saysGone(err) {
			t.Errorf("Withdraw of an entry broken during the outage returned %v, want an error matching ErrGone or ErrNotKnown", err)
		}
		w.wantLine(name, next)
	})

	// Bug: etcd #16223
	s.test("a waiter admitted during an outage is notified after it", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		other := w.openKept()
		a := other.hold(name, line.Exclusive)
		c := w.open()
		p := c.enqueue(name, line.Exclusive)
		p.waiting(1)
		heal := w.cut(c)
		defer heal()
		a.withdraw()
		time.Sleep(w.h.Brief / 8)
		heal()
		c.keep()
		p.admitted()
		p.stays(store.Admitted)
	})

	s.test("an outage longer than the TTL ends the session and admits others", func(t *testing.T, w *testEnv) {
		c, p, next := w.expiringHold(confirmed)
		heal := w.cut(c)
		defer heal()
		w.wantTakenOver(c, next)
		heal()
		if err := c.confirmAfterOutage(); !errors.Is(err, store.ErrSessionLost) {
			t.Errorf("Confirm after an outage longer than the TTL returned %v, want an error matching ErrSessionLost", err)
		}
		p.gone()
		next.stays(store.Admitted)
	})
}

// cut disconnects a session. The returned function may be called more than once.
func (w *testEnv) cut(c *client) (heal func()) {
	w.t.Helper()
	undo := w.h.Cut(w.t, c.store, c.ID())
	healed := false
	return func() {
		if !healed {
			undo()
		}
		healed = true
	}
}

// confirmAfterOutage confirms the session after a reconnect, repeating the request until it is
// answered.
func (c *client) confirmAfterOutage() error {
	within := c.w.h.Brief / 8 // doubled on each attempt, because the machine may be busy
	for end := time.Now().Add(c.w.h.Grace); ; within *= 2 {
		err := c.confirm(c.w.t.Context(), within)
		if err == nil || errors.Is(err, store.ErrSessionLost) || time.Now().After(end) {
			return err
		}
		time.Sleep(pollInterval)
	}
}
