package storetest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
)

func contended(s suite) {
	shared := s.needs(SharedModes)

	s.test("a holder is told once when others wait", func(t *testing.T, w *world) {
		name := w.name("lock")
		bell := listen(w.openKept().hold(name, line.Exclusive))
		time.Sleep(settle)
		bell.silent(t)
		w.openKept().enqueue(name, line.Exclusive)
		bell.rings(t)
		w.openKept().enqueue(name, line.Exclusive)
		time.Sleep(settle)
		bell.rangOnce(t)
	})

	s.test("a holder is told at once if others wait already", func(t *testing.T, w *world) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		w.openKept().enqueue(name, line.Exclusive).waiting(1)
		bell := listen(p)
		bell.rings(t)
		w.openKept().enqueue(name, line.Exclusive)
		time.Sleep(settle)
		bell.rangOnce(t)
	})

	s.test("a holder is not told of those who wait for other names", func(t *testing.T, w *world) {
		name, below := w.name("lock"), w.name("lock/below")
		bell := listen(w.openKept().hold(name, line.Exclusive))
		w.openKept().hold(below, line.Exclusive)
		w.openKept().enqueue(below, line.Exclusive).waiting(1)
		time.Sleep(settle)
		bell.silent(t)
	})

	s.test("who was told of nobody before is told of nobody after the withdrawal", func(t *testing.T, w *world) {
		name := w.name("lock")
		p := w.openKept().hold(name, line.Exclusive)
		bell := listen(p)
		p.withdraw()
		w.openKept().hold(name, line.Exclusive)
		w.openKept().enqueue(name, line.Exclusive).waiting(1)
		time.Sleep(settle)
		bell.silent(t)
	})

	s.test("the next holder is told of those behind it", func(t *testing.T, w *world) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b := w.openKept().enqueue(name, line.Exclusive)
		a.withdraw()
		b.admitted()
		bell := listen(b)
		time.Sleep(settle)
		bell.silent(t)
		w.openKept().enqueue(name, line.Exclusive)
		bell.rings(t)
	})

	shared.test("one who is admitted beside the holder does not wait", func(t *testing.T, w *world) {
		name := w.name("lock")
		first := listen(w.openKept().hold(name, line.Shared))
		second := listen(w.openKept().hold(name, line.Shared))
		time.Sleep(settle)
		first.silent(t)
		second.silent(t)
		w.openKept().enqueue(name, line.Exclusive)
		first.rings(t)
		second.rings(t)
	})
}

// bell counts the calls of a function given to [store.Extensions.NotifyContended].
type bell struct {
	p     *place
	rung  chan struct{}
	times atomic.Int32
}

func listen(p *place) *bell {
	b := &bell{p: p, rung: make(chan struct{})}
	p.ticket.Extensions().NotifyContended(func() {
		if b.times.Add(1) == 1 {
			close(b.rung)
		}
	})
	return b
}

func (b *bell) rings(t *testing.T) {
	t.Helper()
	select {
	case <-b.rung:
	case <-time.After(b.p.client.w.h.Grace):
		t.Fatalf("lock %q: others wait, and NotifyContended has not called within %v", b.p.name, b.p.client.w.h.Grace)
	}
}

func (b *bell) silent(t *testing.T) {
	t.Helper()
	if n := b.times.Load(); n != 0 {
		t.Fatalf("lock %q: nobody waits, and NotifyContended has called %d times", b.p.name, n)
	}
}

func (b *bell) rangOnce(t *testing.T) {
	t.Helper()
	if n := b.times.Load(); n != 1 {
		t.Fatalf("lock %q: NotifyContended has called %d times, want once", b.p.name, n)
	}
}
