package redlockstore

import (
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// wait marks the entry as waiting and starts to contend for the lock. It fails if the session has
// ended.
func (e *entry) wait() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == over {
		return e.gone
	}
	e.state = waiting
	e.delivery.Begin()
	e.delivery.Deliver(store.Standing{State: store.Waiting, Ahead: 1})
	if !e.session.life.Start(e.contend) {
		close(e.stopped)
	}
	return nil
}

// contend tries to take the lock until the entry has it. Between attempts it waits until the
// masters publish that the lock was freed, until the existing hold expires or, if other clients
// contend too, for a random time: clients that try at the same moment get a minority each, and none
// gets the lock.
func (e *entry) contend() {
	var c *bid
	defer func() { e.endContention(c) }()
	s := e.session.store
	freed := newQuorumSignal(s.quorum)
	defer s.subscriptions.listen(topic{channel: s.keys.channel(e.req.Name)}, freed.received)()
	var b backoff
	for e.life.Err() == nil {
		freed.Clear()
		start := time.Now()
		var r result
		c, r = e.attempt(e.life)
		if r.won {
			if ok, err := e.admit(e.life, c); ok || err != nil {
				return
			}
			continue
		}
		if freed.wait(e.life, b.pause(s, r, time.Since(start))) {
			attempts.Sleep(e.life, b.jitter())
		}
	}
}

// endContention records that the entry no longer tries to take the lock. If it was not admitted,
// its last bid is removed.
func (e *entry) endContention(last *bid) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.bid == nil && last != nil {
		e.leaving = last.drop()
	}
	close(e.stopped)
}

// backoff computes the pauses between attempts.
type backoff struct {
	level  int           // level of contention
	silent int           // consecutive attempts without a majority of answers
	window time.Duration // upper bound of the last random pause
}

// pause returns how long to wait after a failed attempt that took the given time, if nothing is
// published meanwhile.
func (b *backoff) pause(s *Store, r result, took time.Duration) time.Duration {
	switch {
	case r.err != nil:
		b.silent = min(b.silent+1, 4)
		return mathrand.N(firstRedial << b.silent)
	case r.held(s):
		b.silent, b.level = 0, max(0, b.level-1)
		return min(r.freeAfter(s)+mathrand.N(2*time.Millisecond), pollInterval/2+mathrand.N(pollInterval))
	default:
		b.silent, b.level = 0, min(b.level+1, 6)
		took = max(took, time.Millisecond)
		b.window = min(took<<b.level, max(maxBackoff, 4*took))
		return mathrand.N(b.window)
	}
}

// jitter returns how long to wait after the lock was freed, so that not all waiters try at the
// same moment. Without contention it is zero.
func (b *backoff) jitter() time.Duration {
	if b.level == 0 {
		return 0
	}
	return mathrand.N(b.window)
}

// held reports whether another client certainly holds the lock.
func (r result) held(s *Store) bool {
	for _, o := range r.obstacles {
		same := 0
		for _, other := range r.obstacles {
			if other.value == o.value {
				same++
			}
		}
		if same >= s.quorum {
			return true
		}
	}
	return false
}

// freeAfter returns when the lock is free at a majority of the masters at the latest, if nothing is
// renewed.
func (r result) freeAfter(s *Store) time.Duration {
	var left []time.Duration
	for _, o := range r.obstacles {
		if o.ttl >= 0 {
			left = append(left, o.ttl+time.Millisecond)
		}
	}
	slices.Sort(left)
	if n := s.quorum - r.free; n <= 0 {
		return 0
	} else if n <= len(left) {
		return left[n-1]
	}
	return 2 * pollInterval
}

// holder returns the entry that is the existingLock at most masters; nil if there is none.
func (r result) holder() *store.Entry {
	best, times := existingLock{}, 0
	for _, o := range r.obstacles {
		n := 0
		for _, other := range r.obstacles {
			if other.value == o.value {
				n++
			}
		}
		if n > times {
			best, times = o, n
		}
	}
	if times == 0 {
		return nil
	}
	_, v, ours := decode(best.value)
	return &store.Entry{
		Mode: line.Exclusive, Admitted: true, Session: v.Session, Foreign: !ours, Owner: v.Owner, Remaining: max(0, best.ttl),
	}
}
