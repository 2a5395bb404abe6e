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

func outlast(s suite) {
	fair, fencing := s.needs(Fair), s.needs(Fencing)

	s.test("an entry outlasts its closed session for the given time", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.open()
		p := c.hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		called := p.withdrawAfter(w.h.Brief)
		c.close()
		w.wantOutAfter(w.h.Brief, called, next)
	})

	s.test("an entry outlasts its expired session for the given time", func(t *testing.T, w *testEnv) {
		var p, other, next, behind *entry
		var called time.Time
		var d time.Duration
		c := w.expiring(func(c *client, name string) (err error) {
			if p, err = c.tryHold(name, line.Exclusive); err != nil {
				return err
			}
			if other, err = c.tryHold(name+"/other", line.Exclusive); err != nil {
				return err
			}
			next, behind = w.openKept().enqueue(name, line.Exclusive), w.openKept().enqueue(other.name, line.Exclusive)
			d = 3 * c.Terms().TTL
			called, err = p.tryWithdrawAfter(d)
			return err
		})
		behind.admittedWithin(c.Terms().TTL + 2*w.h.Grace)
		if after := time.Since(called); after < d {
			t.Logf("the session ended %v after WithdrawAfter(%v)", after, d)
		}
		w.wantOutAfter(d, called, next)
		wantLost(t, c, p.name)
	})

	s.test("an entry goes after the given time though its session lives", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		p, other := c.hold(name, line.Exclusive), c.hold(w.name("other"), line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		d := w.h.Brief / 2
		w.wantOutAfter(d, p.withdrawAfter(d), next)
		w.wantLine(name, next)
		other.stays(store.Admitted)
	})

	fair.test("a waiter withdrawn with a delay keeps its place until then", func(t *testing.T, w *testEnv) {
		w.retryLonger(func(brief time.Duration) bool {
			name := w.newName()
			a := w.openKept().hold(name, line.Exclusive)
			b, c := w.openKept().enqueue(name, line.Exclusive), w.openKept().enqueue(name, line.Exclusive)
			c.waiting(2)
			called := b.withdrawAfter(brief)
			a.withdraw()
			switch err := c.tryWaiting(1); {
			case time.Since(called) >= brief:
				return false
			case err != nil:
				t.Fatal(err)
			}
			w.wantOutAfter(brief, called, c)
			b.neverAdmitted()
			return true
		})
	})

	// onNotify reports every call after WithdrawAfter.
	fair.test("Notify is not called after WithdrawAfter", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b := w.openKept().enqueue(name, line.Exclusive)
		last := w.openKept().enqueue(name, line.Exclusive)
		called := b.withdrawAfter(w.h.Brief)
		a.withdrawAfter(w.h.Brief / 4)
		w.wantOutAfter(w.h.Brief, called, last)
		time.Sleep(settleTime)
	})

	s.test("a line returns an outlasting entry unchanged", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		modes := []line.Mode{line.Exclusive}
		if w.caps.Fair && w.caps.SharedModes {
			modes = []line.Mode{line.Shared, line.Shared, line.Exclusive, line.Shared}
		}
		var entries []*entry
		for _, mode := range modes {
			entries = append(entries, w.open().enqueue(name, mode))
		}
		before := w.line(name).Entries
		for _, p := range entries {
			p.withdrawAfter(w.longDelay())
			p.client.close()
		}
		after := w.line(name).Entries
		if len(before) != len(entries) || len(after) != len(entries) {
			t.Fatalf("the line changed from\n%+v to\n%+v", before, after)
		}
		for i := range after {
			b, a := before[i], after[i]
			if a.Order != b.Order || a.Mode != b.Mode || a.Admitted != b.Admitted || a.Foreign ||
				a.Owner.Command != b.Owner.Command || a.Owner.PID != b.Owner.PID || !a.Owner.Since.Equal(b.Owner.Since) {
				t.Errorf("an entry changed from\n%+v to\n%+v", b, a)
			}
			if a.Remaining < 0 || a.Remaining > w.longDelay()+w.h.Grace {
				t.Errorf("after WithdrawAfter(%v) Remaining is %v", w.longDelay(), a.Remaining)
			}
		}
	})

	s.test("WithdrawAfter of an entry that has gone returns ErrGone", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c, dead := w.openKept(), w.open()
		withdrawn := c.hold(name, line.Exclusive)
		withdrawn.withdraw()
		lost := dead.hold(w.name("other"), line.Exclusive)
		dead.close()
		now := c.hold(name, line.Exclusive)
		for _, p := range []*entry{withdrawn, lost} {
			ctx, cancel := w.call()
			defer cancel()
			if err := p.ticket.Extensions().WithdrawAfter(ctx, w.h.Brief); !errors.Is(err, store.ErrGone) {
				t.Errorf("session %s, lock %q: WithdrawAfter of an entry that is gone returned %v, want an error matching ErrGone",
					p.client.ID(), p.name, err)
			}
		}
		now.stays(store.Admitted)
		w.wantLine(w.name("other"))
	})

	s.test("WithdrawAfter of a broken entry returns ErrGone", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		for _, e := range w.line(name).Entries {
			if _, err := w.breakEntry(name, e.Order); err != nil {
				t.Fatalf("Break: %v", err)
			}
		}
		ctx, cancel := w.call()
		defer cancel()
		if err := p.withdrawAfterWith(ctx, w.h.Brief); !saysGone(err) {
			t.Errorf("WithdrawAfter of an entry that was broken returned %v, want an error matching ErrGone or ErrNotKnown", err)
		}
		w.wantLine(name)
	})

	s.test("WithdrawAfter with zero or less is a withdrawal", func(t *testing.T, w *testEnv) {
		for _, d := range []time.Duration{0, -1, -w.h.Brief} {
			name := w.name("lock")
			p := w.openKept().hold(name, line.Exclusive)
			p.withdrawAfter(d)
			w.wantLine(name)
			p.wantGone()
		}
	})

	fair.test("the session waits behind its own outlasting entry", func(t *testing.T, w *testEnv) {
		w.retryLonger(func(brief time.Duration) bool {
			name := w.newName()
			c := w.openKept()
			p := c.hold(name, line.Exclusive)
			called := p.withdrawAfter(brief)
			over := func() bool { return time.Since(called) >= brief }
			switch _, err := c.try(name, line.Exclusive); {
			case isHeld(err):
			case over():
				return false
			default:
				t.Fatalf("a try behind the session's own entry returned %v, want a HeldError", err)
			}
			given := c.enqueue(name, line.Exclusive)
			switch err := given.tryWaiting(1); {
			case over():
				return false
			case err != nil:
				t.Fatal(err)
			}
			given.withdraw() // must not affect the entry ahead
			again := c.enqueue(name, line.Exclusive)
			next := w.openKept().enqueue(name, line.Exclusive)
			switch err := next.tryWaiting(2); {
			case over():
				return false
			case err != nil:
				t.Fatal(err)
			}
			w.wantOutAfter(brief, called, again)
			next.waiting(1)
			w.wantLine(name, again, next)
			again.withdraw()
			next.admitted()
			return true
		})
	})

	fencing.test("an outlasting entry can be broken", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.open()
		p := c.hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		p.withdrawAfter(w.longDelay())
		c.close()
		broken, err := w.breakEntry(name, p.admitted())
		if err != nil {
			t.Fatalf("Break: %v", err)
		}
		if broken.Owner.Command != c.owner.Command || broken.Mode != line.Exclusive {
			t.Errorf("Break returned %+v, want the entry of %+v", broken, c.owner)
		}
		next.admitted()
		w.wantLine(name, next)
	})

	s.test("an outlasting entry can be withdrawn early", func(t *testing.T, w *testEnv) {
		for _, closed := range []bool{false, true} {
			name := w.name("lock")
			c := w.open()
			p := c.hold(name, line.Exclusive)
			next := w.openKept().enqueue(name, line.Exclusive)
			p.withdrawAfter(w.longDelay())
			if closed {
				c.close()
			}
			p.withdraw()
			next.admitted()
			p.wantGone()
			next.withdraw()
		}
	})

	s.test("a withdrawal after the given time returns ErrGone and keeps the session's next entry", func(t *testing.T, w *testEnv) {
		c, name := w.openKept(), w.name("lock")
		p := c.hold(name, line.Exclusive)
		called := p.withdrawAfter(w.h.Brief / 2)
		now := c.enqueue(name, line.Exclusive)
		w.wantOutAfter(w.h.Brief/2, called, now)
		p.wantGone()
		now.stays(store.Admitted)
		w.wantLine(name, now)
	})

	s.test("the time of an outlasting entry can be changed", func(t *testing.T, w *testEnv) {
		w.retryLonger(func(brief time.Duration) bool {
			name := w.newName()
			p := w.openKept().hold(name, line.Exclusive)
			next := w.openKept().enqueue(name, line.Exclusive)
			p.withdrawAfter(w.longDelay())
			second := p.withdrawAfter(brief)
			d := 2 * brief
			switch called, err := p.tryWithdrawAfter(d); {
			case time.Since(second) >= brief:
				return false
			case err != nil:
				t.Fatal(err)
			default:
				w.wantOutAfter(d, called, next)
			}
			return true
		})
	})

	s.test("WithdrawAfter is carried out though its context has ended", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		called := time.Now()
		_ = p.withdrawAfterWith(ended, w.h.Brief) // may succeed or fail
		w.wantOutAfter(w.h.Brief, called, next)
	})

	s.needs(Cut).test("an unanswered WithdrawAfter is carried out after the outage", func(t *testing.T, w *testEnv) {
		for _, d := range []time.Duration{w.h.Brief, w.h.Brief / 4} { // the second ends during the outage
			name := w.name("lock")
			c := w.open()
			p := c.hold(name, line.Exclusive)
			next := w.openKept().enqueue(name, line.Exclusive)
			heal := w.cut(c)
			defer heal()
			called := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), w.h.Brief/8)
			defer cancel()
			if err := p.withdrawAfterWith(ctx, d); err == nil || errors.Is(err, store.ErrGone) {
				t.Errorf("WithdrawAfter during an outage returned %v, want an error not matching ErrGone", err)
			}
			time.Sleep(w.h.Brief / 4)
			d = max(d, time.Since(called))
			heal()
			c.keep() // otherwise the entry might go with its session
			w.wantOutAfter(d, called, next)
			next.withdraw()
		}
	})
}

// longDelay returns a delay that does not end within the test's timeouts.
func (w *testEnv) longDelay() time.Duration { return 10 * (w.h.Brief + w.h.Grace) }

func isHeld(err error) bool {
	_, held := errors.AsType[*store.HeldError](err)
	return held
}

// withdrawAfter withdraws the entry after d, and returns when the call began.
func (p *entry) withdrawAfter(d time.Duration) (called time.Time) {
	p.client.w.t.Helper()
	called, err := p.tryWithdrawAfter(d)
	// On a busy machine the entry may have gone before the reply.
	late := errors.Is(err, store.ErrNotKnown) && p.client.w.h.Run == nil && d > 0 && time.Since(called) >= d
	if err != nil && !late {
		p.client.w.t.Fatal(err)
	}
	return called
}

// tryWithdrawAfter is withdrawAfter for an entry that an earlier call may already have withdrawn.
func (p *entry) tryWithdrawAfter(d time.Duration) (called time.Time, err error) {
	ctx, cancel := p.client.w.call()
	defer cancel()
	called = time.Now()
	if err = p.withdrawAfterWith(ctx, d); err != nil {
		err = fmt.Errorf("session %s, lock %q: WithdrawAfter(%v): %w", p.client.ID(), p.name, d, err)
	}
	return called, err
}

func (p *entry) withdrawAfterWith(ctx context.Context, d time.Duration) error {
	err := p.ticket.Extensions().WithdrawAfter(ctx, d)
	p.withdrawn.Store(true) // see withdrawWith
	return err
}

// wantOutAfter waits until next is admitted, and checks that this was between d and d + Grace after
// the call.
func (w *testEnv) wantOutAfter(d time.Duration, called time.Time, next *entry) {
	w.t.Helper()
	// Wait longer than allowed, to report how late it was.
	_, at := next.admittedWithin(time.Until(called.Add(d)) + w.h.Brief + 2*w.h.Grace)
	switch after := at.Sub(called); {
	case after < d-clockRounding:
		w.t.Errorf("the next waiter was admitted %v after WithdrawAfter(%v)", after, d)
	case after > d+w.h.Grace:
		w.t.Errorf("the next waiter was admitted %v after WithdrawAfter(%v), later than the Grace of %v allows",
			after, d, w.h.Grace)
	}
}
