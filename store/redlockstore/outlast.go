package redlockstore

import (
	"context"
	"fmt"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// maxDetached is the longest time for which an entry can outlast its session: a century.
const maxDetached = 100 * 365 * 24 * time.Hour

// detachment is the time for which withdrawAfter lets an entry outlast its session.
type detachment struct {
	until time.Time
	done  chan struct{} // closed when err is set
	err   error
}

// withdrawAfter is [store.Extensions.WithdrawAfter]. It sets the TTL of the keys at a majority of
// the masters. The session stops renewing the entry first: a renewal could extend a key after a
// master has shortened it.
//
// The allowance for clock drift is added, so that the entry does not end early. A waiting entry is
// withdrawn at once, because the masters have nothing of it.
func (e *entry) withdrawAfter(ctx context.Context, d time.Duration) error {
	e.mu.Lock()
	if d <= 0 || e.state == waiting {
		e.mu.Unlock()
		return e.Withdraw(ctx)
	}
	op := "detach the entry from its session"
	if e.state == over {
		defer e.mu.Unlock()
		return e.goneErr(op, e.gone)
	}
	k := &detachment{until: time.Now().Add(min(d, maxDetached)), done: make(chan struct{})}
	e.state, e.detachment = detached, k
	e.delivery.Silence()
	e.stop()
	e.mu.Unlock()
	e.session.remove(e)

	if !e.session.store.work.Start(func() { e.applyDetachment(k) }) {
		return e.session.store.wrapErr(op, errClosed)
	}
	select {
	case <-k.done:
	case <-ctx.Done():
		return e.session.store.wrapErr(op, ctx.Err())
	}
	if k.err != nil {
		return e.session.store.wrapErr(op, k.err)
	}
	return nil
}

// applyDetachment repeats the request until a majority of the masters has set the time, the time is
// over or the session has ended. A later call of withdrawAfter replaces it.
func (e *entry) applyDetachment(k *detachment) {
	defer close(k.done)
	s, c := e.session.store, e.bid
	for {
		left := time.Until(k.until)
		if left <= 0 {
			e.mu.Lock()
			current := e.detachment == k && e.state == detached
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
			e.evict()
			return
		case s.life.Err() != nil || e.session.checkAlive() != nil || !e.isCurrent(k):
			return
		}
		attempts.Sleep(s.life, min(left, e.session.ttl/20))
	}
}

// isCurrent reports whether k is still the entry's detachment: no later call has replaced it.
func (e *entry) isCurrent(k *detachment) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.detachment == k && e.state == detached
}

// keep sets how long the bid stands. kept reports whether a majority of the masters has done so,
// lost whether none can because the bid is gone.
func (b *bid) keep(ctx context.Context, d time.Duration) (kept, lost bool, err error) {
	s := b.store
	within, cancel := context.WithTimeout(ctx, min(b.ttl/2, maxAttemptTime))
	defer cancel()
	answers := s.askAll(within, keepScript,
		[]string{s.keys.lock(b.name), s.keys.fence(b.name), s.keys.index()},
		[]string{b.id, millis(d + slack(d)), millis(d + fenceTTL), b.name})
	replies := s.newTally()
	have, lack := 0, 0
	for !replies.all() {
		select {
		case a := <-answers:
			mine := false
			if a.err == nil {
				mine, a.err = parseBool(a.reply)
			}
			replies.record(a.master, a.err)
			switch {
			case a.err != nil:
			case mine:
				have++
			default:
				lack++
			}
		case <-within.Done():
			return false, false, replies.err()
		}
		switch {
		case have >= s.quorum:
			return true, false, nil
		case lack > len(s.masters)-s.quorum:
			return false, true, nil
		}
	}
	return false, false, replies.err()
}
