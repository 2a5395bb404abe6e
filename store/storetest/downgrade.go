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

func downgrade(s suite) {
	fair, fencing := s.needs(Fair), s.needs(Fencing)

	// Bug: redisson #5349
	fair.test("a downgrade admits the readers directly behind and nobody else", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		near := []*entry{w.openKept().enqueue(name, line.Shared), w.openKept().enqueue(name, line.Shared)}
		writer := w.openKept().enqueue(name, line.Exclusive)
		far := w.openKept().enqueue(name, line.Shared)
		far.waiting(2)
		p.downgrade()
		for _, reader := range near {
			reader.admitted()
		}
		writer.stays(store.Waiting)
		far.stays(store.Waiting)
		for i, e := range w.wantLine(name, p, near[0], near[1], writer, far).Entries {
			wantEntry(t, e, []*entry{p, near[0], near[1], writer, far}[i], i < 3)
		}
		for _, holder := range []*entry{near[0], p, near[1]} {
			writer.neverAdmitted()
			holder.withdraw()
		}
		writer.admitted()
		far.neverAdmitted()
		writer.withdraw()
		far.admitted()
	})

	// Bug: CURATOR-276
	s.test("a downgraded entry keeps its order, session and owner", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		before, log := w.wantLine(name, p).Entries[0], p.log()
		p.downgrade()
		after := w.wantLine(name, p).Entries[0]
		wantEntry(t, after, p, true)
		if after.Order != before.Order {
			t.Errorf("the order changed from %d to %d", before.Order, after.Order)
		}
		time.Sleep(settleTime)
		if now := p.log(); now != log {
			t.Errorf("the standings changed from %s to %s", log, now)
		}
		p.withdraw()
		w.wantLine(name)
	})

	fair.test("a downgrade does not change the entries of others", func(t *testing.T, w *testEnv) {
		name, other := w.name("lock"), w.name("other")
		c := w.openKept()
		p, kept := c.hold(name, line.Exclusive), c.hold(other, line.Exclusive)
		writer, last := w.openKept().enqueue(name, line.Exclusive), w.openKept().enqueue(name, line.Exclusive)
		p.downgrade()
		for i, e := range w.wantLine(name, p, writer, last).Entries {
			wantEntry(t, e, []*entry{p, writer, last}[i], i == 0)
		}
		wantEntry(t, w.wantLine(other, kept).Entries[0], kept, true)
		p.withdraw()
		writer.admitted()
		last.stays(store.Waiting)
	})

	fair.test("an entry that joins after a downgrade finds a reader", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		p.downgrade()
		reader, err := w.openKept().try(name, line.Shared)
		if err != nil {
			t.Fatalf("a try of a reader: %v", err)
		}
		reader.stays(store.Admitted)
		joined := w.openKept().hold(name, line.Shared)
		_, err = w.openKept().try(name, line.Exclusive)
		held, ok := errors.AsType[*store.HeldError](err)
		switch {
		case !ok:
			t.Errorf("a try of a writer returned %v, want a HeldError", err)
		case held.Holder != nil && held.Holder.Mode != line.Shared:
			t.Errorf("a try of a writer was refused because of %+v, want a holder in mode shared", *held.Holder)
		}
		writer := w.openKept().enqueue(name, line.Exclusive)
		writer.waiting(3)
		if _, err := w.openKept().try(name, line.Shared); !errors.As(err, &held) {
			t.Errorf("a try of a reader behind a waiting writer returned %v, want a HeldError", err)
		}
		reader.withdraw()
		joined.withdraw()
		writer.stays(store.Waiting)
		p.withdraw()
		writer.admitted()
	})

	s.test("a watch reports a downgrade", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		watch := w.watch(name)
		p.downgrade()
		watch.showsMode(p)
	})

	fair.test("a downgrade can be repeated", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		p.downgrade()
		reader := w.openKept().hold(name, line.Shared)
		p.downgrade()
		wantEntry(t, w.wantLine(name, p, reader).Entries[0], p, true)
		reader.withdraw()
		p.downgrade()
		w.openKept().hold(name, line.Shared)
	})

	s.test("a change of the owner does not undo a downgrade", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		for range 5 {
			p := w.openKept().hold(name, line.Exclusive)
			p.setOwner()
			changed := make(chan error, 1)
			ctx, cancel := w.call()
			go func() {
				var err error
				for range 3 {
					err = errors.Join(err, p.setOwnerWith(ctx))
				}
				changed <- err
			}()
			p.downgrade()
			if err := <-changed; err != nil {
				t.Errorf("SetOwner during a downgrade: %v", err)
			}
			cancel()
			p.setOwner()
			wantEntry(t, w.wantLine(name, p).Entries[0], p, true)
			p.withdraw()
		}
	})

	s.test("a downgraded entry ends with its session", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.open()
		p := c.hold(name, line.Exclusive)
		writer := w.openKept().enqueue(name, line.Exclusive)
		p.downgrade()
		c.close()
		writer.admitted()
		w.wantLine(name, writer)
	})

	// Bug: openobserve #12544
	s.test("Downgrade does not restore a withdrawn entry", func(t *testing.T, w *testEnv) {
		c, name := w.openKept(), w.name("lock")
		withdrawn := c.hold(name, line.Exclusive)
		withdrawn.withdraw()
		withdrawn.cannotDowngrade()
		w.wantLine(name)
		now := c.hold(name, line.Exclusive)
		withdrawn.cannotDowngrade()
		wantEntry(t, w.wantLine(name, now).Entries[0], now, true)
	})

	s.test("Downgrade does not restore an entry of a closed session", func(_ *testing.T, w *testEnv) {
		name := w.name("lock")
		dead := w.open()
		closed := dead.hold(name, line.Exclusive)
		dead.close()
		closed.cannotDowngrade()
		w.wantLine(name)
	})

	fencing.test("Downgrade does not restore a broken entry", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		if _, err := w.breakEntry(name, p.admitted()); err != nil {
			t.Fatalf("Break: %v", err)
		}
		p.cannotDowngrade()
		w.wantLine(name)
	})

	s.needs(ReleaseAfter).
		test("Downgrade does not change an entry after WithdrawAfter", func(t *testing.T, w *testEnv) {
			w.retryLonger(func(brief time.Duration) bool {
				name := w.newName()
				p := w.openKept().hold(name, line.Exclusive)
				reader := w.openKept().enqueue(name, line.Shared)
				called := p.withdrawAfter(brief)
				p.cannotDowngrade()
				l := w.line(name)
				if time.Since(called) >= brief {
					return false
				}
				if len(l.Entries) == 0 || l.Entries[0].Mode != line.Exclusive {
					t.Errorf("the line has %+v, want an exclusive entry first", l.Entries)
				}
				w.wantOutAfter(brief, called, reader)
				return true
			})
		})

	s.test("an abandoned Downgrade does no harm", func(_ *testing.T, w *testEnv) {
		c, other, name := w.openKept(), w.openKept(), w.name("lock")
		w.stagger(20, func(ctx context.Context) {
			p := c.hold(name, line.Exclusive)
			reader := other.enqueue(name, line.Shared)
			_ = p.ticket.Extensions().Downgrade(ctx) // may succeed or fail
			p.withdraw()
			reader.admitted()
			reader.withdraw()
		})
		p := c.hold(name, line.Exclusive)
		p.stays(store.Admitted)
		w.wantLine(name, p)
	})

	s.needs(Cut).test("a Downgrade can be repeated after an outage", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		p := c.hold(name, line.Exclusive)
		reader := w.openKept().enqueue(name, line.Shared)
		heal := w.cut(c)
		defer heal()
		ctx, cancel := context.WithTimeout(t.Context(), w.h.Brief/8)
		defer cancel()
		if err := p.ticket.Extensions().Downgrade(ctx); err == nil || errors.Is(err, store.ErrGone) {
			t.Errorf("Downgrade during an outage returned %v, want an error not matching ErrGone", err)
		}
		heal()
		p.downgrade()
		reader.admitted()
		p.withdraw()
		w.wantLine(name, reader)
	})

	s.needs(Fair, Contention).test("a downgraded holder is notified when a writer waits", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		calls := countContended(p)
		p.downgrade()
		w.openKept().hold(name, line.Shared)
		time.Sleep(settleTime)
		calls.wantNone(t)
		w.openKept().enqueue(name, line.Exclusive)
		calls.awaitCall(t)
	})
}

// downgrade makes the entry shared.
func (p *entry) downgrade() {
	p.client.w.t.Helper()
	ctx, cancel := p.client.w.call()
	defer cancel()
	if err := p.ticket.Extensions().Downgrade(ctx); err != nil {
		p.client.w.t.Fatalf("session %s, lock %q: Downgrade: %v", p.client.ID(), p.name, err)
	}
	p.mode = line.Shared
}

// cannotDowngrade checks that downgrading an entry that has gone fails.
func (p *entry) cannotDowngrade() {
	p.client.w.t.Helper()
	ctx, cancel := p.client.w.call()
	defer cancel()
	err := p.ticket.Extensions().Downgrade(ctx)
	if !errors.Is(err, store.ErrGone) && !errors.Is(err, store.ErrSessionLost) {
		p.client.w.t.Errorf("session %s, lock %q: Downgrade of an entry that is gone returned %v, "+
			"want an error matching ErrGone or ErrSessionLost", p.client.ID(), p.name, err)
	}
}

// showsMode waits for calls until a read after one returns the entry with its current mode.
func (watch *watch) showsMode(p *entry) {
	watch.w.t.Helper()
	var last string
	for end := time.Now().Add(watch.w.h.Grace); watch.next(time.Until(end)); {
		l := watch.w.line(p.name)
		if len(l.Entries) == 1 && l.Entries[0].Mode == p.mode {
			return
		}
		last = fmt.Sprintf("%+v", l.Entries)
	}
	watch.w.t.Fatalf("Watch(%q) did not report within %v that lock %q is held in mode %v; the last reading was %s",
		watch.prefix, watch.w.h.Grace, p.name, p.mode, last)
}
