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

func ownership(s suite) {
	fair, fencing := s.needs(Fair), s.needs(Fencing)

	s.test("an owner that was changed is shown and nothing else has changed", func(t *testing.T, w *world) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		before := w.lineOf(name, p).Entries[0]
		log := p.log()
		for range 3 {
			p.setOwner()
			after := w.lineOf(name, p).Entries[0]
			wantEntry(t, after, p, true)
			if after.Order != before.Order {
				t.Errorf("the order was %d, and is %d", before.Order, after.Order)
			}
		}
		time.Sleep(settle)
		if now := p.log(); now != log {
			t.Errorf("Notify was called with %s, and later also: %s", log, now)
		}
		p.withdraw()
		w.lineOf(name)
	})

	fair.test("a waiter keeps its place when its owner is changed", func(t *testing.T, w *world) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b, c := w.openKept().enqueue(name, line.Exclusive), w.openKept().enqueue(name, line.Exclusive)
		b.setOwner()
		a.setOwner()
		for i, e := range w.lineOf(name, a, b, c).Entries {
			wantEntry(t, e, []*place{a, b, c}[i], i == 0)
		}
		b.stays(store.Waiting)
		c.stays(store.Waiting)
		a.withdraw()
		b.admitted()
		c.neverAdmitted()
		b.withdraw()
		c.admitted()
	})

	s.test("a watch tells that an owner was changed", func(_ *testing.T, w *world) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		watch := w.watch(name)
		p.setOwner()
		watch.showsOwner(p)
	})

	s.test("an entry that has left does not come back when its owner is changed", func(t *testing.T, w *world) {
		c, name := w.openKept(), w.name("lock")
		withdrawn := c.hold(name, line.Exclusive)
		withdrawn.withdraw()
		withdrawn.cannotSetOwner()
		w.lineOf(name)
		now := c.hold(name, line.Exclusive)
		withdrawn.cannotSetOwner()
		wantEntry(t, w.lineOf(name, now).Entries[0], now, true)
	})

	s.test("an entry whose session has ended does not come back when its owner is changed", func(_ *testing.T, w *world) {
		name := w.name("lock")
		dead := w.open()
		closed := dead.hold(name, line.Exclusive)
		dead.close()
		closed.cannotSetOwner()
		w.lineOf(name)
	})

	fencing.test("an entry that was broken does not come back when its owner is changed", func(t *testing.T, w *world) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		if _, err := w.breakEntry(name, p.admitted()); err != nil {
			t.Fatalf("Break: %v", err)
		}
		p.cannotSetOwner()
		w.lineOf(name)
	})

	s.test("a change that is given up harms nothing", func(_ *testing.T, w *world) {
		c, name := w.openKept(), w.name("lock")
		w.stagger(20, func(ctx context.Context) {
			p := c.hold(name, line.Exclusive)
			_ = p.setOwnerWith(ctx) // may say anything
			p.withdraw()
		})
		p := c.hold(name, line.Exclusive)
		p.stays(store.Admitted)
		w.lineOf(name, p)
	})

	s.needs(ReleaseAfter).
		test("an entry that was let go later is not changed", func(t *testing.T, w *world) {
			w.inTime(func(brief time.Duration) bool {
				name := w.newName()
				c := w.open()
				p := c.hold(name, line.Exclusive)
				p.setOwner()
				owner := p.owner
				next := w.openKept().enqueue(name, line.Exclusive)
				called := p.withdrawAfter(brief)
				p.cannotSetOwner()
				c.close()
				l := w.line(name)
				if time.Since(called) >= brief {
					return false
				}
				if len(l.Entries) == 0 || l.Entries[0].Owner.Reason != owner.Reason {
					t.Errorf("in the line stand %+v, want the entry of %+v first", l.Entries, owner)
				}
				w.wantOutAfter(brief, called, next)
				return true
			})
		})

	s.needs(Markers).test("a marker tells of the owner that was there when it was left", func(t *testing.T, w *world) {
		name := w.name("lock")
		c := w.open()
		p := c.hold(name, line.Exclusive)
		p.setOwner()
		order := p.mark()
		c.close()
		if e := w.openKept().hold(name, line.Exclusive).finds(order)[0]; e.Owner.Reason != p.owner.Reason {
			t.Errorf("the marker of the entry of %+v tells of %+v", p.owner, e.Owner)
		}
	})

	s.needs(Cut).test("an owner is not changed out of the store's reach and the lock can be released after it", func(t *testing.T, w *world) {
		name := w.name("lock")
		c := w.openKept()
		p := c.hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		heal := w.cut(c)
		defer heal()
		ctx, cancel := context.WithTimeout(t.Context(), w.h.Brief/8)
		defer cancel()
		if err := p.setOwnerWith(ctx); err == nil || errors.Is(err, store.ErrGone) {
			t.Errorf("SetOwner out of the store's reach returned %v; it cannot know", err)
		}
		heal()
		p.withdraw()
		next.admitted()
		w.lineOf(name, next)
	})
}

// setOwner gives the entry another owner, unlike all before, which the place expects from then on.
func (p *place) setOwner() {
	p.client.w.t.Helper()
	ctx, cancel := p.client.w.call()
	defer cancel()
	if err := p.setOwnerWith(ctx); err != nil {
		p.client.w.t.Fatalf("session %s, lock %q: SetOwner: %v", p.client.ID(), p.name, err)
	}
}

func (p *place) setOwnerWith(ctx context.Context) error {
	p.changes++
	owner := p.client.owner
	owner.Reason = fmt.Sprintf("for the %d. reason", p.changes)
	owner.Obtained = time.Now().Round(0)
	err := p.ticket.Extensions().SetOwner(ctx, owner)
	if err == nil {
		p.owner = owner
	}
	return err
}

// cannotSetOwner checks that the entry, which has gone, is not changed.
func (p *place) cannotSetOwner() {
	p.client.w.t.Helper()
	ctx, cancel := p.client.w.call()
	defer cancel()
	if err := p.setOwnerWith(ctx); !errors.Is(err, store.ErrGone) && !errors.Is(err, store.ErrSessionLost) {
		p.client.w.t.Errorf("session %s, lock %q: SetOwner of an entry that is gone returned %v, "+
			"want an error matching ErrGone or ErrSessionLost", p.client.ID(), p.name, err)
	}
}

// showsOwner waits for calls until a reading made after one shows the place with the owner that it has.
func (watch *watch) showsOwner(p *place) {
	watch.w.t.Helper()
	for end := time.Now().Add(watch.w.h.Grace); watch.next(time.Until(end)); {
		for _, e := range watch.w.line(p.name).Entries {
			if e.Owner.Reason == p.owner.Reason {
				return
			}
		}
	}
	watch.w.t.Fatalf("Watch(%q) did not tell within %v that lock %q has another owner", watch.prefix, watch.w.h.Grace, p.name)
}
