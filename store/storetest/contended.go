package storetest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
)

func contended(s suite) {
	shared := s.needs(SharedModes)

	s.test("a holder is notified once when others wait", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		calls := countContended(w.openKept().hold(name, line.Exclusive))
		time.Sleep(settleTime)
		calls.wantNone(t)
		w.openKept().enqueue(name, line.Exclusive)
		calls.awaitCall(t)
		w.openKept().enqueue(name, line.Exclusive)
		time.Sleep(settleTime)
		calls.wantExactlyOne(t)
	})

	s.test("a holder is notified at once if others already wait", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		w.openKept().enqueue(name, line.Exclusive).waiting(1)
		calls := countContended(p)
		calls.awaitCall(t)
		w.openKept().enqueue(name, line.Exclusive)
		time.Sleep(settleTime)
		calls.wantExactlyOne(t)
	})

	s.test("a holder is not notified of waiters for other names", func(t *testing.T, w *testEnv) {
		name, below := w.name("lock"), w.name("lock/below")
		calls := countContended(w.openKept().hold(name, line.Exclusive))
		w.openKept().hold(below, line.Exclusive)
		w.openKept().enqueue(below, line.Exclusive).waiting(1)
		time.Sleep(settleTime)
		calls.wantNone(t)
	})

	s.test("a holder is not notified after its withdrawal", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		calls := countContended(p)
		p.withdraw()
		w.openKept().hold(name, line.Exclusive)
		w.openKept().enqueue(name, line.Exclusive).waiting(1)
		time.Sleep(settleTime)
		calls.wantNone(t)
	})

	s.test("the next holder is notified of its own waiters", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b := w.openKept().enqueue(name, line.Exclusive)
		a.withdraw()
		b.admitted()
		calls := countContended(b)
		time.Sleep(settleTime)
		calls.wantNone(t)
		w.openKept().enqueue(name, line.Exclusive)
		calls.awaitCall(t)
	})

	shared.test("an entry admitted beside the holder is not a waiter", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		first := countContended(w.openKept().hold(name, line.Shared))
		second := countContended(w.openKept().hold(name, line.Shared))
		time.Sleep(settleTime)
		first.wantNone(t)
		second.wantNone(t)
		w.openKept().enqueue(name, line.Exclusive)
		first.awaitCall(t)
		second.awaitCall(t)
	})
}

// contentionCalls counts the calls of a function given to [store.Extensions.NotifyContended].
type contentionCalls struct {
	p     *entry
	rung  chan struct{}
	times atomic.Int32
}

func countContended(p *entry) *contentionCalls {
	b := &contentionCalls{p: p, rung: make(chan struct{})}
	p.ticket.Extensions().NotifyContended(func() {
		if b.times.Add(1) == 1 {
			close(b.rung)
		}
	})
	return b
}

func (b *contentionCalls) awaitCall(t *testing.T) {
	t.Helper()
	select {
	case <-b.rung:
	case <-time.After(b.p.client.w.h.Grace):
		t.Fatalf("lock %q: NotifyContended has not called its function within %v though others wait", b.p.name, b.p.client.w.h.Grace)
	}
}

func (b *contentionCalls) wantNone(t *testing.T) {
	t.Helper()
	if n := b.times.Load(); n != 0 {
		t.Fatalf("lock %q: NotifyContended has called its function %d times, want 0 because no entry waits", b.p.name, n)
	}
}

func (b *contentionCalls) wantExactlyOne(t *testing.T) {
	t.Helper()
	if n := b.times.Load(); n != 1 {
		t.Fatalf("lock %q: NotifyContended has called its function %d times, want 1", b.p.name, n)
	}
}
