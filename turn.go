package stile

import (
	"context"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// DefaultTurns is how many holds in a row the goroutines of a client may get with one entry, unless
// [Options.Turns] says otherwise.
const DefaultTurns = 64

// maxTurns is how many tokens an entry has.
const maxTurns = 1 << store.TurnBits

// turnTime is how long after the first hold of a tenure another one may begin. So a client that takes turns
// keeps the others waiting for that long and for one hold more. It is shorter than publishAfter. So what others
// see of an entry is not about an earlier turn, unless the entry was kept between two turns.
const turnTime = 10 * time.Millisecond

// Turns: an exclusive tenure lends one hold after another to the places of this client, in their order. Each
// has the token of the entry, plus the number of its turn. The store hears nothing of it. When the turns or
// their time are used up, the last holder replaces the entry by one at the end of the line, in one step of the
// store, for the next place. So clients that compete for a lock get it by turns too.
//
// An entry that says something of its own hold has no second turn: one with an owner of its own, one of a
// [set], and one whose hold has used the entry itself ([tenure.pin]).

// successorLocked returns the place that is next after the place that uses the tenure, if it may have the lock
// with the same entry or one that replaces it; otherwise nil.
func (t *tenure) successorLocked() *Place {
	q := t.queue
	if t.mode != line.Exclusive || t.ownEntry || t.pinned || len(q.line) < 2 {
		return nil
	}
	if p := q.line[1]; p.mode == line.Exclusive && !p.ownEntry {
		return p
	}
	return nil
}

// passLocked lends the tenure to the next place, if it may have another turn, and removes the first place from
// the queue. The caller must call unref. If the deadline has passed, only the store knows whether the lock was
// held until now, so there is no turn.
func (t *tenure) passLocked() bool {
	q := t.queue
	next := t.successorLocked()
	if next == nil || t.turn+1 >= q.client.opts.Turns || time.Since(t.acquiredAt) >= turnTime || !t.session.Valid() {
		return false
	}
	t.holds = nil
	t.nextTurnLocked()
	next.tenure, next.entered = t, t
	q.leaveLocked(q.line[0])
	return true
}

// nextTurnLocked begins the next turn of the tenure.
func (t *tenure) nextTurnLocked() {
	t.turn++
	t.contended, t.onContended, t.hookAdded = t.waitersBehind, nil, false
}

// pin makes the current hold the last one of its tenure, because the store or a resource is asked whether the
// entry is there: the answer must not depend on a later turn.
func (t *tenure) pin() {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	t.pinned = true
}

// replacementLocked returns a tenure whose entry is to replace that of t, for the next place. It returns nil if
// there is no such place, or the store cannot replace entries.
func (t *tenure) replacementLocked() *tenure {
	if !t.queue.client.caps.Requeue || t.successorLocked() == nil {
		return nil
	}
	return newTenure(t.queue, t.mode, t.queue.client.opts.Owner)
}

// handOn replaces the entry of a hold that is being released, and removes the hold's place from the queue. It
// returns the store's answer to the release.
func (h *Hold) handOn(ctx context.Context, replacement *tenure) error {
	q := h.tenure.queue
	err := replacement.requeueFrom(ctx, h.tenure)
	if err != nil {
		q.leave(h.place)
		return err
	}
	q.mu.Lock()
	next := replacement.successorLocked()
	if next != nil {
		next.tenure, next.entered = replacement, replacement
		q.leaveLocked(h.place)
	}
	q.mu.Unlock()
	if next == nil { // the place that was next has given up, or the new entry is gone already
		replacement.withdraw()
		q.leave(h.place)
		return nil
	}
	q.client.unref(q)
	return nil
}
