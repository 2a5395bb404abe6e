package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func life(s suite) {
	s.test("the terms are at least the TTL that was asked for less a slack below it", func(t *testing.T, w *world) {
		c := w.open()
		terms := c.Terms()
		if terms.TTL < w.h.TTL || terms.Slack < 0 || terms.Slack >= terms.TTL {
			t.Fatalf("asked for a TTL of %v, got the terms %+v", w.h.TTL, terms)
		}
		if err := c.confirmNow(); err != nil {
			t.Fatalf("Confirm: %v", err)
		}
		if again := c.Terms(); again != terms {
			t.Errorf("the terms were %+v and are %+v after a confirmation", terms, again)
		}
	})

	s.test("the hold of a session never confirmed stands for the TTL after Open and goes then", func(_ *testing.T, w *world) {
		c, p, next := w.doomed()
		w.wantTakenOver(c, next)
		p.gone()
	})

	s.test("a confirmation keeps a hold for another TTL", func(_ *testing.T, w *world) {
		c, p, next := w.doomed(func(c *client, _, next *place) error {
			// The last comes so soon after the one before that an answer from memory might seem good enough.
			for _, tenths := range []time.Duration{3, 5, 3, 1} {
				time.Sleep(c.guaranteed() * tenths / 10)
				if err := c.confirmNow(); err != nil {
					return fmt.Errorf("confirming %v after the time before: %w", time.Since(c.lastSent()), err)
				}
				next.neverAdmitted()
			}
			return nil
		})
		w.wantTakenOver(c, next)
		p.gone()
	})

	s.test("a confirmation just before the end counts in full", func(_ *testing.T, w *world) {
		c, _, next := w.doomed(func(c *client, _, _ *place) error {
			time.Sleep(c.guaranteed() * 4 / 5)
			return c.confirmNow()
		})
		w.wantTakenOver(c, next)
	})

	s.needs(Fair).test("the entries of a dead session go wherever they stand", func(_ *testing.T, w *world) {
		var a, held, waits, c *place
		w.expiring(func(dead *client, name string) (err error) {
			a = w.openKept().hold(name, line.Exclusive)
			if held, err = dead.tryHold(name+"/other", line.Exclusive); err != nil {
				return err
			}
			if waits, err = dead.tryEnqueue(name, line.Exclusive, false); err != nil {
				return err
			}
			c = w.openKept().enqueue(name, line.Exclusive)
			return c.isWaiting(2)
		})
		waits.goneInTime()
		held.gone()
		c.waiting(1)
		w.lineOf(a.name, a, c)
		w.lineOf(held.name)
		a.withdraw()
		c.admitted()
	})

	s.test("a session that has ended cannot be confirmed or used", func(t *testing.T, w *world) {
		name := w.name("lock")
		c := w.expiring(func(*client, string) error { return nil })
		w.wantOver()
		wantLost(t, c, name)
		wantLost(t, c, name) // it does not come back either
	})

	s.test("a session that has ended cannot be confirmed although it was confirmed before", func(t *testing.T, w *world) {
		c, p, next := w.doomed(confirmed)
		w.wantTakenOver(c, next)
		// Where a session and its entry are on two servers, they end as far apart as the last confirmation reached them. Then
		// the session may be confirmed once more; its owner is told all the same that the entry has gone.
		ctx, cancel := w.call()
		if err := c.Confirm(ctx); err != nil && !errors.Is(err, store.ErrSessionLost) {
			t.Errorf("Confirm returned %v, want nil or an error matching ErrSessionLost", err)
		}
		cancel()
		p.gone()
		next.stays(store.Admitted)
		w.wantOver()
		wantLost(t, c, p.name)
	})

	s.test("a confirmation given up at once does not end the session", func(t *testing.T, w *world) {
		c := w.open() // Confirm is for one goroutine at a time
		p := c.hold(w.name("lock"), line.Exclusive)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range 5 {
			if err := c.Confirm(ended); errors.Is(err, store.ErrSessionLost) {
				t.Fatalf("Confirm with a context that has ended said that the session has: %v", err)
			}
		}
		if err := c.confirmNow(); err != nil {
			t.Fatalf("Confirm after confirmations that were given up: %v", err)
		}
		p.stays(store.Admitted)
	})

	s.test("a session lives on while it stands in no line", func(_ *testing.T, w *world) {
		w.expiring(func(c *client, name string) error {
			for _, quarters := range []int{6, 5} { // both are longer than the TTL
				for range quarters {
					time.Sleep(c.Terms().TTL / 4)
					if err := c.confirmNow(); err != nil {
						return fmt.Errorf("confirming %v after the time before: %w", time.Since(c.lastSent()), err)
					}
				}
				p, err := c.tryHold(name, line.Exclusive)
				if err != nil {
					return err
				}
				if err := p.tryWithdraw(); err != nil {
					return fmt.Errorf("withdrawing: %w", err)
				}
			}
			return nil
		})
	})
}

// wantTakenOver waits until next is admitted in place of c, which is not confirmed any more, and checks that this
// came neither before nor long after the time that c was promised.
func (w *world) wantTakenOver(c *client, next *place) {
	w.t.Helper()
	sent, terms := c.lastSent(), c.Terms()
	latest := sent.Add(terms.TTL + w.h.Grace)
	// Some more, to tell how late it is.
	_, at := next.admittedWithin(time.Until(latest) + terms.TTL + w.h.Grace)
	if after := at.Sub(sent); after < c.guaranteed()-tick {
		w.t.Errorf("the next was admitted %v after the last confirmation was sent: the terms %+v promise %v",
			after, terms, c.guaranteed())
	}
	if at.After(latest) {
		w.t.Errorf("the next was admitted %v after the last confirmation was sent: later than TTL %v + Grace %v",
			at.Sub(sent), terms.TTL, w.h.Grace)
	}
}

// wantLost checks that nothing can be done with a session that has ended.
func wantLost(t *testing.T, c *client, name string) {
	t.Helper()
	ctx, cancel := c.w.call()
	defer cancel()
	if err := c.Confirm(ctx); !errors.Is(err, store.ErrSessionLost) {
		t.Errorf("Confirm of a session that has ended returned %v, want an error matching ErrSessionLost", err)
	}
	for _, try := range []bool{false, true} {
		p, err := c.tryEnqueue(name, line.Exclusive, try)
		if !errors.Is(err, store.ErrSessionLost) {
			t.Errorf("Enqueue (try %v) with a session that has ended returned %v, want an error matching ErrSessionLost", try, err)
		}
		p.neverAdmitted()
	}
}
