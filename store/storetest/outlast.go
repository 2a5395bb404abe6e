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

	s.test("an entry stands for its time though its session is closed", func(t *testing.T, w *world) {
		name := w.name("lock")
		c := w.open()
		p := c.hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		called := p.withdrawAfter(w.h.Brief)
		c.close()
		w.wantOutAfter(w.h.Brief, called, next)
	})

	s.test("an entry stands for its time though its session expires", func(t *testing.T, w *world) {
		var p, other, next, behind *place
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
			t.Logf("the session has ended %v after the entry was to stand %v more", after, d)
		}
		w.wantOutAfter(d, called, next)
		wantLost(t, c, p.name)
	})

	s.test("an entry goes when its time is over though its session lives", func(t *testing.T, w *world) {
		name := w.name("lock")
		c := w.openKept()
		p, other := c.hold(name, line.Exclusive), c.hold(w.name("other"), line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		d := w.h.Brief / 2
		w.wantOutAfter(d, p.withdrawAfter(d), next)
		w.lineOf(name, next)
		other.stays(store.Admitted)
	})

	fair.test("a waiter that is to go later keeps its place until then", func(t *testing.T, w *world) {
		w.inTime(func(brief time.Duration) bool {
			name := w.newName()
			a := w.openKept().hold(name, line.Exclusive)
			b, c := w.openKept().enqueue(name, line.Exclusive), w.openKept().enqueue(name, line.Exclusive)
			c.waiting(2)
			called := b.withdrawAfter(brief)
			a.withdraw()
			switch err := c.isWaiting(1); {
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

	// The check is in place.hear: every change from here on is one too many.
	fair.test("who has let an entry go later is told no more", func(t *testing.T, w *world) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b := w.openKept().enqueue(name, line.Exclusive)
		last := w.openKept().enqueue(name, line.Exclusive)
		called := b.withdrawAfter(w.h.Brief)
		a.withdrawAfter(w.h.Brief / 4)
		w.wantOutAfter(w.h.Brief, called, last)
		time.Sleep(settle)
	})

	s.test("a line shows what it did of an entry that outlasts its session", func(t *testing.T, w *world) {
		name := w.name("lock")
		modes := []line.Mode{line.Exclusive}
		if w.caps.Fair && w.caps.SharedModes {
			modes = []line.Mode{line.Shared, line.Shared, line.Slot(3), line.Exclusive}
		}
		var places []*place
		for _, mode := range modes {
			places = append(places, w.open().enqueue(name, mode))
		}
		before := w.line(name).Entries
		for _, p := range places {
			p.withdrawAfter(w.long())
			p.client.close()
		}
		after := w.line(name).Entries
		if len(before) != len(places) || len(after) != len(places) {
			t.Fatalf("in the line stood\n%+v, and now\n%+v", before, after)
		}
		for i := range after {
			b, a := before[i], after[i]
			if a.Order != b.Order || a.Mode != b.Mode || a.Admitted != b.Admitted || a.Foreign ||
				a.Owner.Command != b.Owner.Command || a.Owner.PID != b.Owner.PID || !a.Owner.Since.Equal(b.Owner.Since) {
				t.Errorf("an entry was\n%+v, and is\n%+v", b, a)
			}
			if a.Remaining < 0 || a.Remaining > w.long()+w.h.Grace {
				t.Errorf("an entry that was to stand for %v longer has %v left", w.long(), a.Remaining)
			}
		}
	})

	s.test("an entry that has gone cannot be let go later", func(t *testing.T, w *world) {
		name := w.name("lock")
		c, dead := w.openKept(), w.open()
		withdrawn := c.hold(name, line.Exclusive)
		withdrawn.withdraw()
		lost := dead.hold(w.name("other"), line.Exclusive)
		dead.close()
		now := c.hold(name, line.Exclusive)
		for _, p := range []*place{withdrawn, lost} {
			ctx, cancel := w.call()
			defer cancel()
			if err := p.ticket.Extensions().WithdrawAfter(ctx, w.h.Brief); !errors.Is(err, store.ErrGone) {
				t.Errorf("session %s, lock %q: WithdrawAfter of an entry that is gone returned %v, want an error matching ErrGone",
					p.client.ID(), p.name, err)
			}
		}
		now.stays(store.Admitted)
		w.lineOf(w.name("other"))
	})

	s.test("an entry that was broken cannot be let go later", func(t *testing.T, w *world) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		for _, e := range w.line(name).Entries {
			if _, err := w.breakEntry(name, e.Order); err != nil {
				t.Fatalf("Break: %v", err)
			}
		}
		ctx, cancel := w.call()
		defer cancel()
		if err := p.withdrawAfterWith(ctx, w.h.Brief); !errors.Is(err, store.ErrGone) {
			t.Errorf("WithdrawAfter of an entry that was broken returned %v, want an error matching ErrGone", err)
		}
		w.lineOf(name)
	})

	s.test("a time of zero or less is a withdrawal", func(t *testing.T, w *world) {
		for _, d := range []time.Duration{0, -1, -w.h.Brief} {
			name := w.name("lock")
			p := w.openKept().hold(name, line.Exclusive)
			p.withdrawAfter(d)
			w.lineOf(name)
			p.wantGone()
		}
	})

	fair.test("the session stands behind an entry that it lets go later", func(t *testing.T, w *world) {
		w.inTime(func(brief time.Duration) bool {
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
				t.Fatalf("the session's try behind its own entry returned %v, want a HeldError", err)
			}
			given := c.enqueue(name, line.Exclusive)
			switch err := given.isWaiting(1); {
			case over():
				return false
			case err != nil:
				t.Fatal(err)
			}
			given.withdraw() // and leaves the one ahead where it is
			again := c.enqueue(name, line.Exclusive)
			next := w.openKept().enqueue(name, line.Exclusive)
			switch err := next.isWaiting(2); {
			case over():
				return false
			case err != nil:
				t.Fatal(err)
			}
			w.wantOutAfter(brief, called, again)
			next.waiting(1)
			w.lineOf(name, again, next)
			again.withdraw()
			next.admitted()
			return true
		})
	})

	fencing.test("an entry that outlasts its session can be broken", func(t *testing.T, w *world) {
		name := w.name("lock")
		c := w.open()
		p := c.hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		p.withdrawAfter(w.long())
		c.close()
		broken, err := w.breakEntry(name, p.admitted())
		if err != nil {
			t.Fatalf("Break: %v", err)
		}
		if broken.Owner.Command != c.owner.Command || broken.Mode != line.Exclusive {
			t.Errorf("Break returned %+v, want the entry of %+v", broken, c.owner)
		}
		next.admitted()
		w.lineOf(name, next)
	})

	s.test("an entry can be withdrawn before its time", func(t *testing.T, w *world) {
		for _, closed := range []bool{false, true} {
			name := w.name("lock")
			c := w.open()
			p := c.hold(name, line.Exclusive)
			next := w.openKept().enqueue(name, line.Exclusive)
			p.withdrawAfter(w.long())
			if closed {
				c.close()
			}
			p.withdraw()
			next.admitted()
			p.wantGone()
			next.withdraw()
		}
	})

	s.test("a withdrawal after its time says ErrGone and spares the session's next entry", func(t *testing.T, w *world) {
		c, name := w.openKept(), w.name("lock")
		p := c.hold(name, line.Exclusive)
		called := p.withdrawAfter(w.h.Brief / 2)
		now := c.enqueue(name, line.Exclusive)
		w.wantOutAfter(w.h.Brief/2, called, now)
		p.wantGone()
		now.stays(store.Admitted)
		w.lineOf(name, now)
	})

	s.test("the time of an entry can be set anew", func(t *testing.T, w *world) {
		w.inTime(func(brief time.Duration) bool {
			name := w.newName()
			p := w.openKept().hold(name, line.Exclusive)
			next := w.openKept().enqueue(name, line.Exclusive)
			p.withdrawAfter(w.long())
			soon := p.withdrawAfter(brief)
			d := 2 * brief
			switch called, err := p.tryWithdrawAfter(d); {
			case time.Since(soon) >= brief:
				return false
			case err != nil:
				t.Fatal(err)
			default:
				w.wantOutAfter(d, called, next)
			}
			return true
		})
	})

	s.test("an entry is let go later though the context of the call has ended", func(t *testing.T, w *world) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		called := time.Now()
		_ = p.withdrawAfterWith(ended, w.h.Brief) // may say anything
		w.wantOutAfter(w.h.Brief, called, next)
	})

	s.needs(Cut).test("what could not be told during an outage is done after it", func(t *testing.T, w *world) {
		for _, d := range []time.Duration{w.h.Brief, w.h.Brief / 4} { // the second is over during the outage
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
				t.Errorf("WithdrawAfter out of the store's reach returned %v; it cannot know of the entry", err)
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

// long is a time so long that what happens when it is over is not seen to happen in time.
func (w *world) long() time.Duration { return 10 * (w.h.Brief + w.h.Grace) }

func isHeld(err error) bool {
	_, held := errors.AsType[*store.HeldError](err)
	return held
}

// withdrawAfter lets the entry go later, and returns when that was called.
func (p *place) withdrawAfter(d time.Duration) (called time.Time) {
	p.client.w.t.Helper()
	called, err := p.tryWithdrawAfter(d)
	if err != nil {
		p.client.w.t.Fatal(err)
	}
	return called
}

// tryWithdrawAfter is withdrawAfter for an entry whose time may be over.
func (p *place) tryWithdrawAfter(d time.Duration) (called time.Time, err error) {
	ctx, cancel := p.client.w.call()
	defer cancel()
	called = time.Now()
	if err = p.withdrawAfterWith(ctx, d); err != nil {
		err = fmt.Errorf("session %s, lock %q: WithdrawAfter(%v): %w", p.client.ID(), p.name, d, err)
	}
	return called, err
}

func (p *place) withdrawAfterWith(ctx context.Context, d time.Duration) error {
	err := p.ticket.Extensions().WithdrawAfter(ctx, d)
	p.withdrawn.Store(true) // see withdrawWith
	return err
}

// wantOutAfter waits until next is admitted, and checks that this came neither before d had passed since the call nor
// long after.
func (w *world) wantOutAfter(d time.Duration, called time.Time, next *place) {
	w.t.Helper()
	// Some more, to tell how late it is.
	_, at := next.admittedWithin(time.Until(called.Add(d)) + w.h.Brief + 2*w.h.Grace)
	switch after := at.Sub(called); {
	case after < d-tick:
		w.t.Errorf("the next was admitted %v after the entry was to stand %v more", after, d)
	case after > d+w.h.Grace:
		w.t.Errorf("the next was admitted %v after the entry was to stand %v more: later than Grace %v allows",
			after, d, w.h.Grace)
	}
}
