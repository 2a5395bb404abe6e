package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// place is one entry of the suite's, with everything its owner was told. Whatever a test is about, each call of
// Notify is checked against what the contract says of all of them.
type place struct {
	client *client
	name   string
	mode   line.Mode
	ticket store.Ticket
	owner  store.Owner // as others should see it

	changes int // how often SetOwner has been called

	withdrawn atomic.Bool

	mu      sync.Mutex
	changed chan struct{} // closed and replaced by each call of Notify
	heard   []store.Standing
	at      time.Time // of the last call
	calling bool
}

// hear is the entry's Notify function.
func (p *place) hear(now store.Standing) {
	late := p.withdrawn.Load() // first of all, so as not to blame a call that came before
	p.mu.Lock()
	p.check(now, late)
	p.calling = true
	p.heard = append(p.heard, now)
	p.at = time.Now()
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()

	runtime.Gosched() // makes room for a second call, which there must not be

	p.mu.Lock()
	p.calling = false
	p.mu.Unlock()
}

func (p *place) check(now store.Standing, late bool) {
	wrong := func(what string) {
		p.client.w.brokenf("session %s, lock %q: Notify was called with %s after %s: %s",
			p.client.ID(), p.name, standings([]store.Standing{now}), standings(p.heard), what)
	}
	if p.calling {
		wrong("another call was still under way")
	}
	if late {
		wrong("the entry had been withdrawn")
	}
	caps := p.client.w.caps
	switch {
	case now.State == store.Waiting && now.Ahead < 1:
		wrong("somebody is ahead of one who waits")
	case now.State == store.Admitted && caps.Fencing && (now.Order < 1 || now.Order > store.MaxOrder):
		wrong("the order must be positive and at most MaxOrder")
	case now.State == store.Admitted && !caps.Fencing && now.Order != 0:
		wrong("a store without fencing has no order")
	case now.State == store.Gone && !errors.Is(now.Cause, store.ErrGone) && !errors.Is(now.Cause, store.ErrSessionLost):
		wrong("the cause matches neither ErrGone nor ErrSessionLost")
	}
	if len(p.heard) == 0 {
		return
	}
	switch last := p.heard[len(p.heard)-1]; {
	case last.State == store.Gone:
		wrong("the entry had gone")
	case last.State == store.Admitted && now.State == store.Waiting:
		wrong("an admitted entry stays admitted")
	case last.State == store.Waiting && now.State == store.Waiting && now.Ahead > last.Ahead && caps.Fair:
		wrong("entries join at the end, not in front")
	case last.Order != 0 && now.State == store.Admitted && now.Order != last.Order:
		wrong("the order of an entry does not change")
	}
}

// latest returns the last standing heard, and a channel that is closed with the next one.
func (p *place) latest() (st store.Standing, at time.Time, told bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.heard) > 0 {
		st, told = p.heard[len(p.heard)-1], true
	}
	return st, p.at, told, p.changed
}

// await waits until the last standing heard is as wanted, and returns it and when it was heard.
func (p *place) await(
	within time.Duration, what string, want func(store.Standing) bool,
) (store.Standing, time.Time, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		st, at, told, changed := p.latest()
		if told && want(st) {
			return st, at, nil
		}
		if told && st.State == store.Gone {
			return st, at, fmt.Errorf("session %s, lock %q: want the entry %s; it has gone: %w",
				p.client.ID(), p.name, what, st.Cause)
		}
		select {
		case <-changed:
		case <-timer.C:
			return st, at, fmt.Errorf("session %s, lock %q: want the entry %s; nothing of the kind was told within %v, only %s",
				p.client.ID(), p.name, what, within, p.log())
		}
	}
}

func (p *place) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return standings(p.heard)
}

func isAdmitted(st store.Standing) bool { return st.State == store.Admitted }

// admitted waits until it is the entry's turn, and returns its order.
func (p *place) admitted() uint64 {
	p.client.w.t.Helper()
	st, _ := p.admittedWithin(p.client.w.h.Grace)
	return st.Order
}

// admittedWithin waits until it is the entry's turn, and returns when it was.
func (p *place) admittedWithin(d time.Duration) (store.Standing, time.Time) {
	p.client.w.t.Helper()
	st, at, err := p.await(d, "admitted", isAdmitted)
	if err != nil {
		p.client.w.t.Fatal(err)
	}
	return st, at
}

// waiting waits until the entry is told that it stands behind so many. Stores without a line need not know how many.
func (p *place) waiting(ahead int) {
	p.client.w.t.Helper()
	if err := p.isWaiting(ahead); err != nil {
		p.client.w.t.Fatal(err)
	}
}

// isWaiting is waiting for an entry that stands behind one whose session may be over.
func (p *place) isWaiting(ahead int) error {
	want := func(st store.Standing) bool {
		return st.State == store.Waiting && (st.Ahead == ahead || !p.client.w.caps.Fair)
	}
	_, _, err := p.await(p.client.w.h.Grace, fmt.Sprintf("waiting behind %d", ahead), want)
	return err
}

// gone waits until the entry is told that it has gone, and returns the cause.
func (p *place) gone() error {
	p.client.w.t.Helper()
	return p.goneWithin(p.client.w.h.Grace)
}

// goneInTime waits until the entry is told that it has gone with its session, which nobody confirms.
func (p *place) goneInTime() {
	p.client.w.t.Helper()
	p.goneWithin(p.client.Terms().TTL + 2*p.client.w.h.Grace)
}

func (p *place) goneWithin(d time.Duration) error {
	p.client.w.t.Helper()
	st, _, err := p.await(d, "gone", func(st store.Standing) bool { return st.State == store.Gone })
	if err != nil {
		p.client.w.t.Fatal(err)
	}
	return st.Cause
}

// stays checks that the entry stands as wanted, and goes on to.
func (p *place) stays(want store.State) {
	p.client.w.t.Helper()
	is := func(st store.Standing) bool { return st.State == want }
	if _, _, err := p.await(p.client.w.h.Grace, want.String(), is); err != nil {
		p.client.w.t.Fatal(err)
	}
	timer := time.NewTimer(settle)
	defer timer.Stop()
	for {
		st, _, _, changed := p.latest()
		if st.State != want {
			p.client.w.t.Fatalf("session %s, lock %q: want the entry to stay %v, it was told %s",
				p.client.ID(), p.name, want, p.log())
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		}
	}
}

// order returns the order that the entry was told it had, when it was admitted.
func (p *place) order() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, st := range p.heard {
		if st.State == store.Admitted {
			return st.Order
		}
	}
	return 0
}

// neverAdmitted checks that the entry was never told that it was its turn.
func (p *place) neverAdmitted() {
	p.client.w.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, st := range p.heard {
		if st.State == store.Admitted {
			p.client.w.t.Fatalf("session %s, lock %q: the entry was admitted: %s",
				p.client.ID(), p.name, standings(p.heard))
		}
	}
}

// withdraw takes the entry out and checks that it was in.
func (p *place) withdraw() {
	p.client.w.t.Helper()
	if err := p.tryWithdraw(); err != nil {
		p.client.w.t.Fatalf("session %s, lock %q: Withdraw: %v", p.client.ID(), p.name, err)
	}
}

func (p *place) tryWithdraw() error {
	ctx, cancel := p.client.w.call()
	defer cancel()
	return p.withdrawWith(ctx)
}

func (p *place) withdrawWith(ctx context.Context) error {
	err := p.ticket.Withdraw(ctx)
	// From here on Notify is not called. It was not from the call of Withdraw on, but a call that was under way then
	// could have come to us only now.
	p.withdrawn.Store(true)
	return err
}

// wantGone checks that the entry cannot be withdrawn, because it is gone.
func (p *place) wantGone() {
	p.client.w.t.Helper()
	if err := p.tryWithdraw(); !errors.Is(err, store.ErrGone) {
		p.client.w.t.Fatalf("session %s, lock %q: Withdraw of an entry that is gone returned %v, want an error matching ErrGone",
			p.client.ID(), p.name, err)
	}
}
