package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func requeue(s suite) {
	fencing, shared := s.needs(Fencing), s.needs(SharedModes)

	s.test("a requeued entry is behind all waiters", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b, c := w.openKept().enqueue(name, line.Exclusive), w.openKept().enqueue(name, line.Exclusive)
		c.waiting(2)
		again := a.requeue()
		b.admitted()
		again.waiting(2)
		w.wantLine(name, b, c, again)
		b.withdraw()
		c.admitted()
		again.stays(store.Waiting)
		c.withdraw()
		again.admitted()
		again.withdraw()
		w.wantLine(name)
	})

	fencing.test("a requeued entry alone is admitted at once, with a larger order", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		last := p.order()
		for range 3 {
			p = p.requeue()
			order := p.admitted()
			if order <= last {
				t.Errorf("a requeued entry was admitted with order %d, want more than %d", order, last)
			}
			last = order
		}
		l := w.wantLine(name, p)
		if got := l.Entries[0].Order; got != last {
			t.Errorf("Line returned order %d for the entry, want %d", got, last)
		}
	})

	s.test("the old entry is gone after a requeue", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		again := p.requeue()
		w.wantLine(name, again)
		p.wantGone()
		w.wantLine(name, again)
		again.stays(store.Admitted)
	})

	s.test("nobody finds the line empty during a requeue", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p, other := w.openKept().hold(name, line.Exclusive), w.openKept()
		var stop atomic.Bool
		var trier sync.WaitGroup
		defer trier.Wait()
		defer stop.Store(true)
		trier.Go(func() {
			for !stop.Load() {
				_, err := other.try(name, line.Exclusive)
				if _, held := errors.AsType[*store.HeldError](err); !held {
					w.brokenf("a try during requeues of the holder returned %v, want a HeldError", err)
					return
				}
				time.Sleep(time.Millisecond) // a fake clock moves only now
			}
		})
		for range 30 {
			p = p.requeue()
			p.admitted()
		}
	})

	s.test("a waiter can be requeued", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b, c := w.openKept().enqueue(name, line.Exclusive), w.openKept().enqueue(name, line.Exclusive)
		c.waiting(2)
		again := b.requeue()
		c.waiting(1)
		again.waiting(2)
		w.wantLine(name, a, c, again)
		a.withdraw()
		c.admitted()
		again.waiting(1)
	})

	fencing.test("a requeue of a broken entry returns an error and adds nothing", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		if _, err := w.breakEntry(name, p.admitted()); err != nil {
			t.Fatalf("Break: %v", err)
		}
		ctx, cancel := w.call()
		defer cancel()
		if _, err := p.requeueWith(ctx); !saysGone(err) {
			t.Errorf("Requeue of an entry that is gone returned %v, want an error matching ErrGone or ErrNotKnown", err)
		}
		w.wantLine(name)
	})

	s.test("a requeued entry has its own owner", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		p.client.owner.Reason = "another"
		again := p.requeue()
		l := w.wantLine(name, again)
		if got := l.Entries[0].Owner.Reason; got != "another" {
			t.Errorf("Line returned an owner with the reason %q, want %q, which was given to Requeue", got, "another")
		}
	})

	s.test("a requeued entry ends with its session", func(t *testing.T, w *testEnv) {
		c, name := w.openKept(), w.name("lock")
		again := c.hold(name, line.Exclusive).requeue()
		again.admitted()
		c.close()
		w.openKept().hold(name, line.Exclusive)
	})

	for _, mode := range []line.Mode{line.Exclusive, line.Shared, line.Slot(2)} {
		in := s
		if mode != line.Exclusive {
			in = shared
		}
		in.test(fmt.Sprintf("a requeue in mode %v hands over to a waiter", mode), func(t *testing.T, w *testEnv) {
			name, next := w.name("lock"), line.Exclusive
			if mode.Slots() > 0 {
				next = mode
			}
			var beside []*entry
			if mode.Slots() > 0 {
				beside = append(beside, w.openKept().hold(name, mode))
			}
			p := w.openKept().hold(name, mode)
			waiter := w.openKept().enqueue(name, next)
			waiter.waiting(1)
			again := p.requeue()
			waiter.admitted()
			again.waiting(1)
			w.wantLine(name, append(beside, waiter, again)...)
			for _, other := range beside {
				other.stays(store.Admitted)
			}
			waiter.withdraw()
			again.admitted()
		})
	}

	s.needs(Markers).test("a requeue removes the marker", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		p.mark()
		next := w.openKept().enqueue(name, line.Exclusive)
		again := p.requeue()
		next.admitted()
		next.mark()
		next.withdraw()
		again.admitted()
		again.mark()
		again.withdraw()
		w.openKept().hold(name, line.Exclusive).mark()
	})

	s.needs(SlotNumbers).test("a requeue frees the number", func(t *testing.T, w *testEnv) {
		name, mode := w.name("lock"), line.Slot(1)
		p := w.openKept().hold(name, mode)
		_, last := p.claim()
		other := w.openKept()
		for range 3 {
			next := other.enqueue(name, mode)
			next.waiting(1)
			again := p.requeue()
			for _, holder := range []*entry{next, again} {
				holder.admitted()
				number, order := holder.claim()
				if number != 0 || order <= last {
					t.Errorf("a claim after a requeue returned number %d and order %d, want 0, the only number, and more than %d", number, order, last)
				}
				last = order
				if holder == next {
					next.withdraw()
				}
			}
			p = again
		}
	})

	s.needs(SlotNumbers).test("an entry that was requeued cannot claim a number", func(t *testing.T, w *testEnv) {
		name, mode := w.name("lock"), line.Slot(2)
		p := w.openKept().hold(name, mode)
		again := p.requeue()
		again.admitted()
		ctx, cancel := w.call()
		defer cancel()
		if _, _, err := p.tryClaim(ctx); !errors.Is(err, store.ErrGone) {
			t.Errorf("ClaimNumber of an entry that was requeued returned %v, want an error matching ErrGone", err)
		}
		w.wantNumbers(2, again, w.openKept().hold(name, mode))
	})

	s.needs(Limits).test("the limit counts for requeued entries", func(t *testing.T, w *testEnv) {
		name, mode := w.name("lock"), line.Slot(2)
		w.setLimit(name, 1)
		p := w.openKept().hold(name, mode)
		next := w.openKept().enqueue(name, mode)
		next.waiting(1)
		again := p.requeue()
		next.admitted()
		again.stays(store.Waiting)
		w.setLimit(name, 2)
		again.admitted()
		next.stays(store.Admitted)
	})

	s.needs(Contention).test("the next holder is notified of the requeued entry", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		next.waiting(1)
		calls := countContended(next)
		time.Sleep(settleTime)
		calls.wantNone(t)
		p.requeue()
		next.admitted()
		calls.awaitCall(t)
	})

	// Bug: CURATOR-462
	s.test("a requeue canceled at any moment leaves no entry", func(t *testing.T, w *testEnv) {
		c, other, name := w.openKept(), w.openKept(), w.name("lock")
		w.stagger(30, func(ctx context.Context) {
			p := c.hold(name, line.Exclusive)
			next := other.enqueue(name, line.Exclusive)
			again, err := p.requeueWith(ctx)
			wantDoneOrCanceled(ctx, again, err)
			next.admitted()
			w.wantLine(name, next)
			next.withdraw()
		})
	})

	s.needs(Cut).test("an unanswered requeue leaves no entry", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.open()
		p := c.hold(name, line.Exclusive)
		next := w.openKept().enqueue(name, line.Exclusive)
		heal := w.cut(c)
		defer heal()
		ctx, cancel := context.WithTimeout(t.Context(), w.h.Brief/8)
		defer cancel()
		again, err := p.requeueWith(ctx)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Requeue during an outage returned %v, want an error matching %v", err, context.DeadlineExceeded)
		}
		heal()
		c.keep() // otherwise the entries would go with their session
		next.admitted()
		time.Sleep(settleTime) // gives a late request time to arrive
		w.wantLine(name, next)
		next.withdraw()
		w.wantLine(name)
		again.neverAdmitted()
	})
}

// requeue requeues the entry and fails the test if that fails.
func (p *entry) requeue() *entry {
	p.client.w.t.Helper()
	ctx, cancel := p.client.w.call()
	defer cancel()
	again, err := p.requeueWith(ctx)
	if err != nil {
		p.client.w.t.Fatal(err)
	}
	return again
}

// requeueWith requeues the entry. It returns the new entry also if there is an error, so that its
// standings can be checked.
func (p *entry) requeueWith(ctx context.Context) (*entry, error) {
	c := p.client
	again := &entry{client: c, name: p.name, mode: p.mode, owner: c.owner, changed: make(chan struct{})}
	ticket, err := p.ticket.Extensions().Requeue(ctx, c.owner, again.onNotify)
	p.withdrawn.Store(true) // see withdrawWith
	if err != nil {
		return again, fmt.Errorf("session %s, Requeue for %q, %v: %w", c.ID(), p.name, p.mode, err)
	}
	again.ticket = ticket
	return again, nil
}
