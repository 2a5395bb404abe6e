package redlockstore

import (
	"context"
	"fmt"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// maxKept is the longest time that an entry is kept: a century.
const maxKept = 100 * 365 * 24 * time.Hour

// keeping is the time that an entry stands after it was withdrawn.
type keeping struct {
	until time.Time
	done  chan struct{} // closed when err is set
	err   error
}

// withdrawAfter is [store.Extensions.WithdrawAfter]: the keys are given the time that is asked for, at a majority of the masters. The
// session renews them no more from the call on: it might do so after a master has given the key a shorter time.
//
// The drift of the masters' clocks is added, so that the entry does not go early. An entry that waits is withdrawn: there
// is nothing of it in the store that could stand.
func (e *entry) withdrawAfter(ctx context.Context, d time.Duration) error {
	e.mu.Lock()
	if d <= 0 || e.state == waiting {
		e.mu.Unlock()
		return e.Withdraw(ctx)
	}
	doing := "keep the entry"
	if e.state == over {
		defer e.mu.Unlock()
		return e.hasGone(doing, e.gone)
	}
	k := &keeping{until: time.Now().Add(min(d, maxKept)), done: make(chan struct{})}
	e.state, e.until = outlives, k
	e.delivery.Silence()
	e.stop()
	e.mu.Unlock()
	e.session.release(e)

	if !e.session.store.work.Start(func() { e.keep(k) }) {
		return e.session.store.explain(doing, errClosed)
	}
	select {
	case <-k.done:
	case <-ctx.Done():
		return e.session.store.explain(doing, ctx.Err())
	}
	if k.err != nil {
		return e.session.store.explain(doing, k.err)
	}
	return nil
}

// keep asks the masters until a majority has given the entry its time, or it is over, or the session has ended. A later
// call of withdrawAfter takes its place.
func (e *entry) keep(k *keeping) {
	defer close(k.done)
	s, c := e.session.store, e.claim
	for {
		left := time.Until(k.until)
		if left <= 0 {
			e.mu.Lock()
			current := e.until == k && e.state == outlives
			if current {
				e.state = over
				e.leaving = c.drop()
			}
			e.mu.Unlock()
			return
		}
		kept, lost, err := c.keep(s.life, left)
		k.err = err
		switch {
		case kept:
			return
		case lost:
			k.err = fmt.Errorf("%w: no majority of the masters has it any more", store.ErrGone)
			e.goneAlone()
			return
		case s.life.Err() != nil || e.session.alive() != nil || !e.keeps(k):
			return
		}
		attempts.Rest(s.life, min(left, e.session.ttl/20))
	}
}

// keeps reports whether k is the time that the entry is to have.
func (e *entry) keeps(k *keeping) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.until == k && e.state == outlives
}

// keep gives the claim a time to stand. It reports whether a majority of the masters has done so, or none can because
// the claim is gone.
func (c *claim) keep(ctx context.Context, d time.Duration) (kept, lost bool, err error) {
	s := c.store
	within, cancel := context.WithTimeout(ctx, min(c.ttl/2, mostAttempt))
	defer cancel()
	answers := s.poll(within, keepScript,
		[]string{s.keys.lock(c.name), s.keys.fence(c.name), s.keys.index()},
		[]string{c.id, millis(d + slack(d)), millis(d + fenceTTL), c.name})
	heard := s.newTally()
	have, lack := 0, 0
	for !heard.all() {
		select {
		case a := <-answers:
			mine := false
			if a.err == nil {
				mine, a.err = isOne(a.reply)
			}
			heard.note(a.master, a.err)
			switch {
			case a.err != nil:
			case mine:
				have++
			default:
				lack++
			}
		case <-within.Done():
			return false, false, heard.err()
		}
		switch {
		case have >= s.quorum:
			return true, false, nil
		case lack > len(s.masters)-s.quorum:
			return false, true, nil
		}
	}
	return false, false, heard.err()
}
