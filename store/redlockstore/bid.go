package redlockstore

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/bootclock"
)

// fenceTTL is how long after the end of a hold a master remembers the last order. After that the
// master's time takes its place: see takeScript.
const fenceTTL = 7 * 24 * time.Hour

// bid is one attempt at a lock, with its state at each master. Its id is unique, so its requests
// cannot affect another attempt, however late they are carried out.
//
// Only the request to put it in must not be carried out late: that would leave an entry that no
// client knows of. A master is therefore asked to remove the bid only once the request to put it
// in is known to have ended; or, if that cannot become known because the connection has broken,
// together with voiding the attempt.
type bid struct {
	store *Store
	name  string
	id    string
	info  value
	value string
	ttl   time.Duration

	mu             sync.Mutex
	placements     []placement
	order          uint64
	renewed        bootclock.Instant // before the requests were sent that put it in, or last renewed it, at a majority
	publishRemoval bool              // it may have kept other clients waiting, so its removal is published
	leaving        *removal          // set when the bid is dropped
}

// placement is the state of a bid at one master.
type placement struct {
	master      *master
	state       placementState
	everPresent bool // it was put in, or may have been
	doubt       bool // a request to put it in may yet be carried out
	orderSent   bool
}

type placementState uint8

const (
	absent     placementState = iota // not there
	unanswered                       // a request to put it in is unanswered
	present                          // there, as far as is known
)

// newBid returns a bid that is at no master yet.
func (s *Store) newBid(name string, v value, ttl time.Duration) (*bid, error) {
	b := &bid{store: s, name: name, id: newID(), info: v, ttl: ttl, placements: make([]placement, len(s.masters))}
	for i, m := range s.masters {
		b.placements[i].master = m
	}
	var err error
	b.value, err = v.encode(b.id)
	return b, err
}

// existingLock is the lock that a master has instead of the bid.
type existingLock struct {
	value string
	ttl   time.Duration // negative if it never expires
}

// result is the outcome of an attempt to take a lock.
type result struct {
	won        bool
	obstacles  []existingLock // the existing locks, one for each master that has refused because of one
	free       int            // masters without an existingLock
	incomplete bool           // some masters had not answered in time
	err        error          // set if too few masters have answered
}

// vote is the answer of one master to one request for a bid.
type vote struct {
	master  *master
	granted bool   // the master has recorded the order
	order   uint64 // the master has put the bid in, and this is its smallest possible order
	refused *existingLock
	err     error
}

// take tries to put the bid in at a majority of the masters, all of which are asked at once, and
// to record its order at a majority. It returns as soon as the outcome is known or ctx ends;
// without success the bid is removed in the background. If a majority has answered and the
// outcome depends on the other masters, it waits for them only as long as they usually take: the
// obstacles may disappear sooner.
//
// The order is larger than that of every earlier hold: the majority that has put the bid in and
// returned its smallest orders shares a master with the majority that recorded the order of the
// earlier hold while that was there.
func (b *bid) take(ctx context.Context) result {
	votes := make(chan vote, 2*len(b.placements))
	b.mu.Lock()
	for i := range b.placements {
		b.placements[i].state = unanswered
	}
	b.mu.Unlock()
	for i := range b.placements {
		if m := b.placements[i].master; !b.store.work.Start(func() { b.takeAt(ctx, m, votes) }) {
			b.recordTake(m, unsentError{errClosed}, false)
			votes <- vote{master: m, err: errClosed}
		}
	}
	r := b.count(ctx, votes)
	if !r.won {
		b.drop()
	}
	return r
}

// count processes votes until the outcome is known.
func (b *bid) count(ctx context.Context, votes chan vote) result {
	var r result
	var orders []uint64
	replies := b.store.newTally()
	granted, lost, quorum := 0, 0, b.store.quorum
	var timeout <-chan time.Time
	for granted < quorum {
		// A master that has refused or failed, at either step, cannot contribute any more.
		if len(b.placements)-lost < quorum {
			if replies.failed() > len(b.placements)-quorum {
				r.err = replies.err()
			}
			return r
		}
		var v vote
		select {
		case v = <-votes:
		case <-timeout:
			r.incomplete = true
			return r
		case <-ctx.Done():
			r.err = replies.err()
			return r
		}
		replies.record(v.master, v.err)
		switch {
		case v.granted:
			granted++
		case v.order != 0:
			r.free++
			if orders = append(orders, v.order); len(orders) == quorum {
				b.decide(slices.Max(orders), votes)
			}
		case v.refused != nil:
			lost++
			if !b.sameEntry(v.refused.value) {
				r.obstacles = append(r.obstacles, *v.refused)
			}
		default:
			lost++
		}
		switch {
		case b.decided(): // the masters that have the bid must record its order, however long that takes
			timeout = nil
		case timeout == nil && replies.answered() >= quorum:
			timeout = time.After(b.store.outcomeWait())
		}
	}
	r.won = true
	return r
}

// sameEntry reports whether a value is that of another attempt of the same entry. That attempt is
// being removed.
func (b *bid) sameEntry(text string) bool {
	_, v, ours := decode(text)
	return ours && v.Session == b.info.Session && v.Entry == b.info.Entry
}

// takeAt puts the bid in at one master.
func (b *bid) takeAt(ctx context.Context, m *master, votes chan<- vote) {
	k := b.store.keys
	reply, err := m.take(ctx,
		[]string{k.lock(b.name), k.fence(b.name), k.void(b.name, b.id)},
		[]string{b.id, b.value, millis(b.ttl)})
	v := vote{master: m, err: err}
	if err == nil {
		v.order, v.refused, v.err = parseTake(reply)
	}
	taken := v.order != 0
	grant := b.recordTake(m, err, taken)
	votes <- v
	if grant {
		b.recordOrder(m, votes)
	}
}

// parseTake parses the reply of takeScript.
func parseTake(reply rueidis.RedisMessage) (order uint64, refused *existingLock, err error) {
	parts, err := reply.ToArray()
	if err != nil || len(parts) == 0 {
		return 0, nil, cmp.Or(err, errUnexpectedReply)
	}
	switch code, _ := parts[0].AsInt64(); {
	case code == 1 && len(parts) == 2:
		text, _ := parts[1].ToString()
		order, err = strconv.ParseUint(text, 10, 64)
		return order, nil, err
	case code == 0 && len(parts) == 3:
		value, err := parts[1].ToString()
		left, _ := parts[2].AsInt64()
		return 0, &existingLock{value: value, ttl: time.Duration(left) * time.Millisecond}, err
	default:
		return 0, nil, errUnexpectedReply
	}
}

// recordTake records the end of a request to put the bid in. It reports whether the order is to be
// sent now. If the bid was dropped it is removed at this master.
func (b *bid) recordTake(m *master, err error, taken bool) (grant bool) {
	b.mu.Lock()
	at := &b.placements[m.number]
	at.state = absent
	if taken {
		at.state = present
	}
	at.doubt = at.doubt || inDoubt(err)
	at.everPresent = at.everPresent || taken || at.doubt
	grant = taken && b.order != 0 && !at.orderSent && b.leaving == nil
	at.orderSent = at.orderSent || grant
	leaving := b.leaving
	b.mu.Unlock()
	if leaving != nil {
		b.leaveAt(m, leaving)
	}
	return grant
}

// decide sets the bid's order and sends it to the masters that have the bid. Masters that put
// the bid in later get it then.
func (b *bid) decide(order uint64, votes chan<- vote) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.order, b.renewed, b.publishRemoval = order, bootclock.Now(), true
	for i := range b.placements {
		at := &b.placements[i]
		if at.state != present {
			continue
		}
		at.orderSent = true
		if !b.store.work.Start(func() { b.recordOrder(at.master, votes) }) {
			votes <- vote{master: at.master, err: errClosed}
		}
	}
}

func (b *bid) decided() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.order != 0
}

// recordOrder sends the order to a master that has the bid.
func (b *bid) recordOrder(m *master, votes chan<- vote) {
	k := b.store.keys
	reply, err := m.ask(b.store.life, recordOrderScript,
		[]string{k.lock(b.name), k.fence(b.name), k.index()},
		[]string{b.id, strconv.FormatUint(b.order, 10), millis(b.ttl), millis(fenceTTL), b.name, k.channel(b.name)})
	mine := false
	if err == nil {
		mine, err = parseBool(reply)
	}
	votes <- vote{master: m, granted: mine, err: err}
}

// recordRenewal records a master's answer to a renewal. It reports whether the bid should be
// restored there, because the lock is free at that master.
func (b *bid) recordRenewal(m *master, answer int64) (free bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := &b.placements[m.number]
	if at.state != unanswered {
		at.state = absent
		if answer == 1 {
			at.state = present
		}
	}
	return answer == 0 && at.state == absent
}

// restore puts the bid in at a master that does not have it, while a majority has.
func (b *bid) restore(m *master) {
	b.mu.Lock()
	at := &b.placements[m.number]
	if b.leaving != nil || at.state != absent {
		b.mu.Unlock()
		return
	}
	at.state = unanswered
	b.mu.Unlock()

	k := b.store.keys
	reply, err := m.ask(b.store.life, restoreScript,
		[]string{k.lock(b.name), k.fence(b.name), k.void(b.name, b.id), k.index()},
		[]string{b.id, b.value, strconv.FormatUint(b.order, 10), millis(b.ttl), millis(fenceTTL), b.name})
	mine := false
	if err == nil {
		mine, err = parseBool(reply)
	}
	b.recordTake(m, err, mine)
}
