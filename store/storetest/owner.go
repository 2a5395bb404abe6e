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

	s.test("SetOwner changes the owner and nothing else", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		before := w.wantLine(name, p).Entries[0]
		log := p.log()
		for range 3 {
			p.setOwner()
			after := w.wantLine(name, p).Entries[0]
			wantEntry(t, after, p, true)
			if after.Order != before.Order {
				t.Errorf("the order changed from %d to %d", before.Order, after.Order)
			}
		}
		time.Sleep(settleTime)
		if now := p.log(); now != log {
			t.Errorf("the standings changed from %s to %s", log, now)
		}
		p.withdraw()
		w.wantLine(name)
	})

	fair.test("a waiter keeps its place when its owner is changed", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b, c := w.openKept().enqueue(name, line.Exclusive), w.openKept().enqueue(name, line.Exclusive)
		b.setOwner()
		a.setOwner()
		for i, e := range w.wantLine(name, a, b, c).Entries {
			wantEntry(t, e, []*entry{a, b, c}[i], i == 0)
		}
		b.stays(store.Waiting)
		c.stays(store.Waiting)
		a.withdraw()
		b.admitted()
		c.neverAdmitted()
		b.withdraw()
		c.admitted()
	})

	s.needs(OwnerEvents).test("a watch reports a changed owner", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		watch := w.watch(name)
		p.setOwner()
		watch.showsOwner(p)
	})

	// Bug: openobserve #12544
	s.test("SetOwner does not restore a withdrawn entry", func(t *testing.T, w *testEnv) {
		c, name := w.openKept(), w.name("lock")
		withdrawn := c.hold(name, line.Exclusive)
		withdrawn.withdraw()
		withdrawn.cannotSetOwner()
		w.wantLine(name)
		now := c.hold(name, line.Exclusive)
		withdrawn.cannotSetOwner()
		wantEntry(t, w.wantLine(name, now).Entries[0], now, true)
	})

	s.test("SetOwner does not restore an entry of a closed session", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		dead := w.open()
		closed := dead.hold(name, line.Exclusive)
		dead.close()
		closed.cannotSetOwner()
		w.wantLine(name)
	})

	fencing.test("SetOwner does not restore a broken entry", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		if _, err := w.breakEntry(name, p.admitted()); err != nil {
			t.Fatalf("Break: %v", err)
		}
		p.cannotSetOwner()
		w.wantLine(name)
	})

	s.test("an abandoned SetOwner does no harm", func(_ *testing.T, w *testEnv) {
		c, name := w.openKept(), w.name("lock")
		w.stagger(20, func(ctx context.Context) {
			p := c.hold(name, line.Exclusive)
			_ = p.setOwnerWith(ctx) // may succeed or fail
			p.withdraw()
		})
		p := c.hold(name, line.Exclusive)
		p.stays(store.Admitted)
		w.wantLine(name, p)
	})

	s.needs(ReleaseAfter).
		test("SetOwner does not change an entry after WithdrawAfter", func(t *testing.T, w *testEnv) {
			w.retryLonger(func(brief time.Duration) bool {
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
					t.Errorf("the line has %+v, want the entry of %+v first", l.Entries, owner)
				}
				w.wantOutAfter(brief, called, next)
				return true
			})
		})

	s.needs(Markers).test("a marker has the owner at the time of Mark", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.open()
		p := c.hold(name, line.Exclusive)
		p.setOwner()
		order := p.mark()
		c.close()
		if e := w.openKept().hold(name, line.Exclusive).markFinds(order)[0]; e.Owner.Reason != p.owner.Reason {
			t.Errorf("the marker of the entry of %+v has the owner %+v", p.owner, e.Owner)
		}
	})

	s.needs(Cut).test("an unanswered SetOwner does not prevent the release", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		p := c.hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		heal := w.cut(c)
		defer heal()
		ctx, cancel := context.WithTimeout(t.Context(), w.h.Brief/8)
		defer cancel()
		if err := p.setOwnerWith(ctx); err == nil || errors.Is(err, store.ErrGone) {
			t.Errorf("SetOwner during an outage returned %v, want an error not matching ErrGone", err)
		}
		heal()
		p.withdraw()
		next.admitted()
		w.wantLine(name, next)
	})
}

// setOwner gives the entry a new unique owner.
func (p *entry) setOwner() {
	p.client.w.t.Helper()
	ctx, cancel := p.client.w.call()
	defer cancel()
	if err := p.setOwnerWith(ctx); err != nil {
		p.client.w.t.Fatalf("session %s, lock %q: SetOwner: %v", p.client.ID(), p.name, err)
	}
}

func (p *entry) setOwnerWith(ctx context.Context) error {
	p.changes++
	owner := p.client.owner
	owner.Reason = fmt.Sprintf("reason %d", p.changes)
	owner.Obtained = time.Now().Round(0)
	err := p.ticket.Extensions().SetOwner(ctx, owner)
	if err == nil {
		p.owner = owner
	}
	return err
}

// cannotSetOwner checks that changing the owner of an entry that has gone fails.
func (p *entry) cannotSetOwner() {
	p.client.w.t.Helper()
	ctx, cancel := p.client.w.call()
	defer cancel()
	if err := p.setOwnerWith(ctx); !errors.Is(err, store.ErrGone) && !errors.Is(err, store.ErrSessionLost) {
		p.client.w.t.Errorf("session %s, lock %q: SetOwner of an entry that is gone returned %v, "+
			"want an error matching ErrGone or ErrSessionLost", p.client.ID(), p.name, err)
	}
}

// showsOwner waits for calls until a read after one returns the entry with its current owner.
func (watch *watch) showsOwner(p *entry) {
	watch.w.t.Helper()
	calls, last := 0, "there was no call"
	for end := time.Now().Add(watch.w.h.Grace); watch.next(time.Until(end)); {
		calls++
		entries := watch.w.line(p.name).Entries
		for _, e := range entries {
			if e.Owner.Reason == p.owner.Reason {
				return
			}
		}
		last = fmt.Sprintf("the last read returned the entries %+v", entries)
	}
	watch.w.t.Fatalf("Watch(%q) made %d calls within %v, but the line of %q never had the reason %q: %s",
		watch.prefix, calls, watch.w.h.Grace, p.name, p.owner.Reason, last)
}
