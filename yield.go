package stile

import (
	"context"
	"fmt"
	"time"
)

// Yield hands the lock over to the next waiter, joins the line again at its end, and waits until the
// lock is held again. It returns a new hold with a larger token. If nobody else waits, it
// returns as soon as the store has answered one request. Use Yield in a job that holds a lock for
// long, to let others in between: for example when the channel of [Hold.Contended] is closed.
//
// The old hold ends as soon as Yield is called, and its context ends with [ErrYielded] as the cause. So
// all work that depends on it must have stopped before. The new hold has the same mode and owner. Its
// context has the values of ctx. If the hold is a slot of a
// semaphore, Yield hands over that slot only.
//
// The store removes the old entry and adds the new one in one step. So the new entry is behind all
// waiters of that moment and ahead of all later ones, and no other client finds the lock free. In some
// cases Yield takes two steps, like Release and Lock, and a client that joins the line between them is
// ahead:
//   - The store is Redlock, which has no such step.
//   - Other goroutines of the same client wait for the lock. They join the line first.
//   - The hold was downgraded. It joins the line as a reader.
//   - The hold is a reader's and shares its entry with other readers of the client. It leaves that entry
//     and gets one of its own. A writer gets the lock when the other readers have left too.
//
// If ctx has already ended, Yield only releases the lock. After an error this
// hold is not held, except after [ErrReentrant]. A second Yield of a hold fails, and does not change the
// hold that the first one returned. The errors are:
//   - a [*LostError] if the hold had been lost before the hand-over; Yield has not waited
//   - one matching [ErrNotKnown] if that is unknown; Yield has not waited
//   - one matching ctx.Err() if ctx ended; the entry is removed as after a failed Lock
//   - one matching [ErrReleased] if the hold was released, or has yielded before: a hold yields once
//   - one matching [ErrLeft] if the hold was released while Yield waited
//   - one matching [ErrReentrant] if ctx is the context of this hold or of another one of the same name
//     ([Hold.Context], or the context of a function run by [Mutex.Do]), or derived from it: such a context
//     would end at the hand-over. Nothing has changed, and the lock is still held.
//   - the other errors of [Hold.Release] and [Mutex.Lock]
//
// Release of the old hold releases the new one. So one deferred Release of the first hold is enough, also
// in a function run by Do. If Yield is still waiting, that Release
// ends the wait.
func (h *Hold) Yield(ctx context.Context) (*Hold, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, name := h.tenure.queue.client, h.Name()
	p := &Place{
		queue: h.tenure.queue, mode: h.Mode(), ownEntry: true, numbered: h.tenure.numbered,
		attempt: attempt{hooks: &c.opts.Hooks, event: AttemptStartEvent{Name: name, Mode: h.Mode()}, caller: ctx},
		ready:   make(chan struct{}),
		cancel:  cancel,
	}
	p.attempt.start() // before the call is tracked: the hook may close the client
	call, handOver, err := h.rejoin(p)
	if err != nil {
		p.attempt.end(err)
		return nil, err
	}
	defer announceWait(ctx, name)()
	if err := p.handOver(call, handOver); err != nil {
		return nil, err
	}
	p.obtain(call)
	return p.hold, p.err
}

// rejoin ends the hold and appends p to the local queue, in one step. If no other place of the client
// waits, p takes the hold's place in the queue; then the entry can be requeued. The returned handOver
// does in the store what remains to be done, and reports the end of the hold.
func (h *Hold) rejoin(p *Place) (call *call, handOver func(context.Context) error, err error) {
	t, q := h.tenure, h.tenure.queue
	if outer := outerHold(p.attempt.ctx, q.client, q.name); outer != nil {
		return call, nil, fmt.Errorf("stile: lock %q (token %d): yield: %w: use the context that the lock was taken with",
			q.name, outer.token, ErrReentrant)
	}
	if call, err = q.client.track(p.attempt.ctx); err != nil {
		return call, nil, lockError(q.name, err)
	}
	lost := t.session.Reason()
	q.mu.Lock()
	switch {
	case h.loss != nil:
		err = h.loss
	case h.released:
		err = fmt.Errorf("stile: lock %q (token %d): yield: %w", q.name, h.token, ErrReleased)
	}
	if err != nil {
		q.mu.Unlock()
		call.done()
		return call, nil, err
	}
	p.owner = t.owner
	p.owner.Since, p.owner.Obtained, p.owner.Waits = time.Time{}, time.Time{}, nil
	h.released, h.next = true, p
	p.mode = t.mode
	last := h.giveBackLocked()
	// The entry of a downgraded hold would be requeued in the mode that it joined the line with.
	requeues := last && p.mode == h.acquiredMode && q.admittedCount == len(q.line) && call.ctx.Err() == nil && q.client.caps.Requeue
	q.line = append(q.line, p)
	if requeues {
		p.tenure = newTenure(q, p.mode, p.owner)
		p.tenure.ownEntry = true
		p.tenure.numbered = p.numbered
		q.leaveLocked(h.place)
	} else if q.admitLocked(); q.admittedCount < len(q.line) {
		p.turn = make(chan struct{})
	}
	q.mu.Unlock()
	if !requeues {
		q.client.ref(q)
	}

	h.end(ErrYielded)
	return call, func(ctx context.Context) (err error) {
		switch {
		case requeues:
			if err = p.tenure.requeueFrom(ctx, t); err == nil {
				p.entered = p.tenure
			}
		case last:
			ctx, cancel := withGrace(ctx)
			defer cancel()
			t.session.Unsubscribe(t)
			err = t.ticket.Withdraw(ctx)
		}
		if !requeues {
			q.leave(h.place)
		}
		return h.reportEnd(EndYielded, lost, err)
	}, nil
}

// handOver hands the lock over. On failure the place has left its queue.
func (p *Place) handOver(call *call, handOver func(context.Context) error) (err error) {
	err = errUnfinished // if a hook or the logger panics
	defer func() {
		if err == nil {
			return
		}
		p.abandon()
		call.done()
		p.err = err
		defer close(p.ready)
		p.attempt.end(err)
	}()
	if err = handOver(call.ctx); err != nil {
		switch cause := context.Cause(call.ctx); cause {
		case ErrClosed, ErrLeft:
			err = lockError(p.queue.name, cause)
		}
	}
	return err
}

// latest returns the hold that has come of h by calls of Yield; h itself if there were none. If Yield
// still waits, latest ends the wait. It returns nil if Yield has failed.
func (h *Hold) latest() *Hold {
	for {
		h.tenure.queue.mu.Lock()
		next := h.next
		h.tenure.queue.mu.Unlock()
		if next == nil {
			return h
		}
		next.cancel(ErrLeft)
		<-next.ready
		if next.hold == nil {
			return nil
		}
		h = next.hold
	}
}
