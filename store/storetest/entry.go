package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// entry is one entry of the suite, with all standings delivered to it. In every test, each call of
// Notify is checked against the contract.
type entry struct {
	client *client
	name   string
	mode   line.Mode
	ticket store.Ticket
	owner  store.Owner // as Line should return it

	changes int // number of calls of SetOwner

	withdrawn atomic.Bool

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced by each call of Notify
	received []store.Standing
	at       time.Time // of the last call
	calling  bool
}

// onNotify is the entry's Notify function.
func (p *entry) onNotify(now store.Standing) {
	afterWithdraw := p.withdrawn.Load() // read first, so that a call from before the withdrawal is not reported
	p.mu.Lock()
	p.check(now, afterWithdraw)
	p.calling = true
	p.received = append(p.received, now)
	p.at = time.Now()
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()

	runtime.Gosched() // give an erroneous concurrent call a chance to run

	p.mu.Lock()
	p.calling = false
	p.mu.Unlock()
}

func (p *entry) check(now store.Standing, afterWithdraw bool) {
	wrong := func(what string) {
		p.client.w.brokenf("session %s, lock %q: Notify was called with %s after %s, but %s",
			p.client.ID(), p.name, standings([]store.Standing{now}), standings(p.received), what)
	}
	if p.calling {
		wrong("another call was in progress")
	}
	if afterWithdraw {
		wrong("the entry had been withdrawn")
	}
	caps := p.client.w.caps
	switch {
	case now.State == store.Waiting && now.Ahead < 1:
		wrong("a waiter has at least one entry ahead")
	case now.State == store.Admitted && caps.Fencing && (now.Order < 1 || now.Order > store.MaxOrder):
		wrong("the order must be positive and at most MaxOrder")
	case now.State == store.Admitted && !caps.Fencing && now.Order != 0:
		wrong("a store without fencing has no order")
	case now.State == store.Gone && !errors.Is(now.Cause, store.ErrGone) && !errors.Is(now.Cause, store.ErrSessionLost):
		wrong("the cause matches neither ErrGone nor ErrSessionLost")
	}
	if len(p.received) == 0 {
		return
	}
	switch last := p.received[len(p.received)-1]; {
	case last.State == store.Gone:
		wrong("the entry had gone")
	case last.State == store.Admitted && now.State == store.Waiting:
		wrong("an admitted entry stays admitted")
	case last.State == store.Waiting && now.State == store.Waiting && now.Ahead > last.Ahead && caps.Fair && !p.client.w.limited.Load():
		wrong("entries join at the end, not in front")
	case last.Order != 0 && now.State == store.Admitted && now.Order != last.Order:
		wrong("the order of an entry does not change")
	}
}

// latest returns the last standing received and when, and a channel that is closed by the next
// call. ok is false if there was none.
func (p *entry) latest() (st store.Standing, at time.Time, ok bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.received) > 0 {
		st, ok = p.received[len(p.received)-1], true
	}
	return st, p.at, ok, p.changed
}

// await waits until the last standing received satisfies want, and returns it and when it was
// received.
func (p *entry) await(
	within time.Duration, state string, want func(store.Standing) bool,
) (store.Standing, time.Time, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		st, at, ok, changed := p.latest()
		if ok && want(st) {
			return st, at, nil
		}
		if ok && st.State == store.Gone {
			return st, at, fmt.Errorf("session %s, lock %q: the entry has gone, want it %s: %w",
				p.client.ID(), p.name, state, st.Cause)
		}
		select {
		case <-changed:
		case <-timer.C:
			return st, at, fmt.Errorf("session %s, lock %q: the entry was not %s within %v; Notify was called with %s",
				p.client.ID(), p.name, state, within, p.log())
		}
	}
}

func (p *entry) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return standings(p.received)
}

func isAdmitted(st store.Standing) bool { return st.State == store.Admitted }

// admitted waits until the entry is admitted, and returns its order.
func (p *entry) admitted() uint64 {
	p.client.w.t.Helper()
	st, _ := p.admittedWithin(p.client.w.h.Grace)
	return st.Order
}

// admittedWithin waits until the entry is admitted, and returns when it was.
func (p *entry) admittedWithin(d time.Duration) (store.Standing, time.Time) {
	p.client.w.t.Helper()
	st, at, err := p.await(d, "admitted", isAdmitted)
	if err != nil {
		p.client.w.t.Fatal(err)
	}
	return st, at
}

// waiting waits until the entry is reported waiting with the given number ahead. In a store that is
// not fair any number will do.
func (p *entry) waiting(ahead int) {
	p.client.w.t.Helper()
	if err := p.tryWaiting(ahead); err != nil {
		p.client.w.t.Fatal(err)
	}
}

// tryWaiting is waiting for the case that the session of the entry ahead may have expired.
func (p *entry) tryWaiting(ahead int) error {
	bound := slices.Contains(p.client.w.h.Without, ExactAhead)
	want := func(st store.Standing) bool {
		return st.State == store.Waiting && (st.Ahead == ahead || st.Ahead > ahead && bound || !p.client.w.caps.Fair)
	}
	_, _, err := p.await(p.client.w.h.Grace, fmt.Sprintf("waiting behind %d", ahead), want)
	return err
}

// gone waits until the entry is reported gone, and returns the cause.
func (p *entry) gone() error {
	p.client.w.t.Helper()
	return p.goneWithin(p.client.w.h.Grace)
}

// goneInTime waits until the entry is reported gone because its session has expired.
func (p *entry) goneInTime() {
	p.client.w.t.Helper()
	p.goneWithin(p.client.Terms().TTL + 2*p.client.w.h.Grace)
}

func (p *entry) goneWithin(d time.Duration) error {
	p.client.w.t.Helper()
	st, _, err := p.await(d, "gone", func(st store.Standing) bool { return st.State == store.Gone })
	if err != nil {
		p.client.w.t.Fatal(err)
	}
	return st.Cause
}

// stays waits until the entry has the given state, and checks that it keeps it for settleTime.
func (p *entry) stays(want store.State) {
	p.client.w.t.Helper()
	is := func(st store.Standing) bool { return st.State == want }
	if _, _, err := p.await(p.client.w.h.Grace, want.String(), is); err != nil {
		p.client.w.t.Fatal(err)
	}
	timer := time.NewTimer(settleTime)
	defer timer.Stop()
	for {
		st, _, _, changed := p.latest()
		if st.State != want {
			p.client.w.t.Fatalf("session %s, lock %q: want the entry to stay %v; Notify was called with %s",
				p.client.ID(), p.name, want, p.log())
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		}
	}
}

// order returns the order that the entry was admitted with, or zero.
func (p *entry) order() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, st := range p.received {
		if st.State == store.Admitted {
			return st.Order
		}
	}
	return 0
}

// neverAdmitted checks that the entry was never reported admitted.
func (p *entry) neverAdmitted() {
	p.client.w.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, st := range p.received {
		if st.State == store.Admitted {
			p.client.w.t.Fatalf("session %s, lock %q: the entry was admitted: %s",
				p.client.ID(), p.name, standings(p.received))
		}
	}
}

// withdraw withdraws the entry and checks that it was in the line until then.
func (p *entry) withdraw() {
	p.client.w.t.Helper()
	if err := p.tryLeave(); err != nil {
		p.client.w.t.Fatalf("session %s, lock %q: Withdraw: %v", p.client.ID(), p.name, err)
	}
}

// tryLeave withdraws the entry, which is in the line. A request that took long may have been
// repeated, so its result may be ErrNotKnown: see saysGone.
func (p *entry) tryLeave() error {
	called := time.Now()
	err := p.tryWithdraw()
	if errors.Is(err, store.ErrNotKnown) && p.client.w.h.Run == nil && time.Since(called) > time.Second/2 {
		return nil
	}
	return err
}

func (p *entry) tryWithdraw() error {
	ctx, cancel := p.client.w.call()
	defer cancel()
	return p.withdrawWith(ctx)
}

func (p *entry) withdrawWith(ctx context.Context) error {
	err := p.ticket.Withdraw(ctx)
	// Notify must not be called from the call of Withdraw on. But a call that was in progress then
	// may reach onNotify only now, so the flag is set after Withdraw.
	p.withdrawn.Store(true)
	return err
}

// saysGone reports whether an error says that the entry is not in its line. ErrNotKnown does: on a busy
// machine a request is repeated, and then the store cannot know whether the first one removed the entry.
func saysGone(err error) bool {
	return errors.Is(err, store.ErrGone) || errors.Is(err, store.ErrNotKnown)
}

// wantGone checks that withdrawing the entry fails because it is gone.
func (p *entry) wantGone() {
	p.client.w.t.Helper()
	if err := p.tryWithdraw(); !saysGone(err) {
		p.client.w.t.Fatalf("session %s, lock %q: Withdraw of an entry that is gone returned %v, want an error matching ErrGone or ErrNotKnown",
			p.client.ID(), p.name, err)
	}
}
