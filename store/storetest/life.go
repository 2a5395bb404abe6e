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
	s.test("the terms grant at least the requested TTL and a smaller slack", func(t *testing.T, w *testEnv) {
		c := w.open()
		terms := c.Terms()
		if terms.TTL < w.h.TTL || terms.Slack < 0 || terms.Slack >= terms.TTL {
			t.Fatalf("the requested TTL is %v, got terms %+v", w.h.TTL, terms)
		}
		if err := c.confirmNow(); err != nil {
			t.Fatalf("Confirm: %v", err)
		}
		if again := c.Terms(); again != terms {
			t.Errorf("the terms changed from %+v to %+v after a confirmation", terms, again)
		}
	})

	s.test("a session that is never confirmed ends one TTL after Open", func(_ *testing.T, w *testEnv) {
		c, p, next := w.expiringHold()
		w.wantTakenOver(c, next)
		p.gone()
	})

	// Bug: redisson #1604
	s.test("a confirmation keeps a hold for another TTL", func(_ *testing.T, w *testEnv) {
		c, p, next := w.expiringHold(func(c *client, _, next *entry) error {
			// The last one follows so soon that a faulty store might reply from a cache.
			for _, tenths := range []time.Duration{3, 5, 3, 1} {
				time.Sleep(c.guaranteed() * tenths / 10)
				if err := c.confirmNow(); err != nil {
					return fmt.Errorf("confirming %v after the previous confirmation: %w", time.Since(c.lastSent()), err)
				}
				next.neverAdmitted()
			}
			return nil
		})
		w.wantTakenOver(c, next)
		p.gone()
	})

	// Bug: RedissonWriteLock
	s.test("a confirmation just before the end counts in full", func(_ *testing.T, w *testEnv) {
		c, _, next := w.expiringHold(func(c *client, _, _ *entry) error {
			time.Sleep(c.guaranteed() * 4 / 5)
			return c.confirmNow()
		})
		w.wantTakenOver(c, next)
	})

	// Bug: redisson #7098
	s.needs(Fair).test("all entries of an expired session go, holds and waiters", func(_ *testing.T, w *testEnv) {
		var a, held, waits, c *entry
		w.expiring(func(dead *client, name string) (err error) {
			a = w.openKept().hold(name, line.Exclusive)
			if held, err = dead.tryHold(name+"/other", line.Exclusive); err != nil {
				return err
			}
			if waits, err = dead.tryEnqueue(name, line.Exclusive, false); err != nil {
				return err
			}
			c = w.openKept().enqueue(name, line.Exclusive)
			return c.tryWaiting(2)
		})
		waits.goneInTime()
		held.gone()
		c.waiting(1)
		w.wantLine(a.name, a, c)
		w.wantLine(held.name)
		a.withdraw()
		c.admitted()
	})

	s.test("an expired session cannot be confirmed or used", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.expiring(func(*client, string) error { return nil })
		w.waitExpired()
		wantLost(t, c, name)
		wantLost(t, c, name) // it must not come back either
	})

	// Bug: openobserve #12544
	s.test("an expired session that was confirmed before cannot be confirmed again", func(t *testing.T, w *testEnv) {
		c, p, next := w.expiringHold(confirmed)
		w.wantTakenOver(c, next)
		// If a session and its entry are on two servers, their ends are as far apart as the
		// arrivals of the last confirmation. The session may then be confirmed once more, but the
		// entry must still be reported gone.
		ctx, cancel := w.call()
		if err := c.Confirm(ctx); err != nil && !errors.Is(err, store.ErrSessionLost) {
			t.Errorf("Confirm returned %v, want nil or an error matching ErrSessionLost", err)
		}
		cancel()
		p.gone()
		next.stays(store.Admitted)
		w.waitExpired()
		wantLost(t, c, p.name)
	})

	s.test("an abandoned confirmation does not end the session", func(t *testing.T, w *testEnv) {
		c := w.open() // not kept, because Confirm must not be called concurrently
		p := c.hold(w.name("lock"), line.Exclusive)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range 5 {
			if err := c.Confirm(ended); errors.Is(err, store.ErrSessionLost) {
				t.Fatalf("Confirm with an ended context reported that the session was lost: %v", err)
			}
		}
		if err := c.confirmNow(); err != nil {
			t.Fatalf("Confirm after abandoned confirmations: %v", err)
		}
		p.stays(store.Admitted)
	})

	s.test("a session without entries stays alive", func(_ *testing.T, w *testEnv) {
		w.expiring(func(c *client, name string) error {
			for _, quarters := range []int{6, 5} { // both are longer than the TTL
				for range quarters {
					time.Sleep(c.Terms().TTL / 4)
					if err := c.confirmNow(); err != nil {
						return fmt.Errorf("confirming %v after the previous confirmation: %w", time.Since(c.lastSent()), err)
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

// wantTakenOver waits until next is admitted in place of c, which is no longer confirmed. It checks
// that next was admitted neither before the time guaranteed to c was over nor more than Grace after
// its TTL.
func (w *testEnv) wantTakenOver(c *client, next *entry) {
	w.t.Helper()
	sent, terms := c.lastSent(), c.Terms()
	latest := sent.Add(terms.TTL + w.h.Grace)
	// Wait longer than allowed, to report how late it was.
	_, at := next.admittedWithin(time.Until(latest) + terms.TTL + w.h.Grace)
	if after := at.Sub(sent); after < c.guaranteed()-clockRounding {
		w.t.Errorf("the next waiter was admitted %v after the last confirmation was sent; the terms %+v guarantee %v",
			after, terms, c.guaranteed())
	}
	if at.After(latest) {
		w.t.Errorf("the next waiter was admitted %v after the last confirmation was sent, want at most TTL %v + Grace %v",
			at.Sub(sent), terms.TTL, w.h.Grace)
	}
}

// wantLost checks that Confirm and Enqueue fail with ErrSessionLost for a session that has ended.
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
