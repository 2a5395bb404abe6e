package stile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// A Place is a position in the line for a lock. When it is ready, it has a hold or an error. The Join
// methods return one. It is safe for concurrent use.
//
// A ready place with a hold keeps the lock until the hold is released or the place is left.
type Place struct {
	queue    *queue
	mode     line.Mode // changed only by a downgrade, under the queue's mutex, after the hold was delivered
	numbered bool      // its hold gets a slot number
	try      bool

	owner Owner // as others see it, without the times
	// The place needs an entry of its own: owner is not the client's, or it has yielded, or it is a candidate
	// of an election, whose observers must see every change of the leader.
	ownEntry bool

	attempt attempt

	turn    chan struct{} // closed when the place is admitted in its queue; set when it joins the queue
	tenure  *tenure       // set when turn is closed, or after; guarded by the queue's mutex
	entered *tenure       // its entry is in the line, and obtainOnce has not used it yet; nil if there is none; set before turn is closed, under the queue's mutex, or by the place itself
	ready   chan struct{} // closed when hold and err are set; nil if nobody but the caller of obtain waits for that
	cancel  context.CancelCauseFunc
	hold    *Hold
	err     error
}

// Ready returns a channel that is closed when there is an outcome: a hold or an error. [Place.Wait]
// returns it.
func (p *Place) Ready() <-chan struct{} { return p.ready }

// Wait waits until the place is ready, and returns the hold or the error that Lock would have
// returned. If the place was left before it was ready, the error matches [ErrLeft]. Calling Wait
// again returns the same result.
//
// The ctx of Wait ends only the call. If it ends first, Wait returns ctx.Err(), and the place stays
// in line and may still get the lock. To give it up, call [Place.Leave]. If the place is ready when
// Wait is called, Wait returns the outcome even if ctx has ended.
func (p *Place) Wait(ctx context.Context) (*Hold, error) {
	select {
	case <-p.ready:
		return p.hold, p.err
	default:
	}
	defer announceWait(ctx, p.queue.name)()
	select {
	case <-p.ready:
		return p.hold, p.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Ahead returns how many entries and places must leave before this place gets the lock, as far as
// is known: entries ahead of it in the store, and places of this client that wait to join the
// line. Entries that other clients add before those places join are not known yet. Ahead returns
// zero if the place is ready. It may also return zero before the place's entry has reached the
// store, and during [Options.LockDelay].
func (p *Place) Ahead() int {
	select {
	case <-p.ready:
		return 0
	default:
		return p.queue.ahead(p)
	}
}

// Leave gives the place up. If it has a hold, the hold is released, and Leave returns the error of
// the release. Otherwise it returns nil; if the entry cannot be removed at once, that continues in
// the background. Leaving again does nothing.
func (p *Place) Leave(ctx context.Context) error {
	p.cancel(ErrLeft)
	<-p.ready
	if p.hold == nil {
		return nil
	}
	return p.hold.Release(ctx)
}

// obtain gets the hold of a place that is in its queue, and makes the place ready. If a hold is
// lost before it can be delivered, the place keeps its position in the queue and obtain tries
// again.
//
// Client.Close waits for the call. The attempt's end is reported after that, so that the hook may
// close the client.
func (p *Place) obtain(call *call) {
	p.err = errUnfinished // if a hook or the logger panics
	if p.ready != nil {
		defer close(p.ready)
	}
	defer func() { p.attempt.end(p.err) }()
	hold, err := p.obtainOnce(call)
	for err == nil && !hold.deliver() {
		if call, err = p.retry(); err == nil {
			hold, err = p.obtainOnce(call)
		}
	}
	if err != nil {
		hold, err = nil, lockError(p.queue.name, err)
	}
	p.hold, p.err = hold, err
}

// retry starts a call for another hold, and an attempt if none is open. On failure the place has
// left its queue.
func (p *Place) retry() (call *call, err error) {
	leaves := true // also if the hook panics
	defer func() {
		if leaves {
			p.queue.leave(p)
		}
	}()
	if !p.attempt.open {
		p.attempt.start()
	}
	call, err = p.queue.client.track(p.attempt.ctx)
	leaves = err != nil
	return call, err
}

// obtainOnce waits for a hold. On failure the place has left its queue, or leaves it once its entry
// is withdrawn.
func (p *Place) obtainOnce(call *call) (hold *Hold, err error) {
	leaves := true // also if the logger panics
	defer func() {
		if leaves {
			p.abandon()
		}
		call.done()
	}()
	select {
	case <-p.turn:
	case <-call.ctx.Done():
		return nil, call.withCause(call.ctx.Err())
	}
	for {
		t, err := p.acquireEntry(call.ctx)
		if err == nil {
			hold, err = t.lend(p)
		}
		switch {
		case err == nil:
			leaves = false
			return hold, nil
		case errors.Is(err, errRejoin):
			p.queue.logRejoin(err)
			continue
		case errors.Is(err, errGaveUp) && t != nil && t.ticket != nil:
			// The next place joins the line when this entry is out of it.
			leaves = false
			p.queue.client.work.Go(func() {
				t.withdraw()
				p.queue.leave(p)
			})
		}
		return nil, call.withCause(err)
	}
}

func (q *queue) logRejoin(err error) {
	q.client.log(slog.LevelDebug, "joining the line again", slog.String("lock", q.name), slog.Any("error", err))
}

// abandon removes the place from its queue. If it has an entry that it has not used, the next place gets that,
// or it is withdrawn first.
func (p *Place) abandon() {
	q := p.queue
	q.mu.Lock()
	t := p.entered
	left := t == nil && q.leaveLocked(p) || t != nil && t.prepared && t.passLocked()
	q.mu.Unlock()
	switch {
	case left:
		q.client.unref(q)
	case t != nil:
		q.client.work.Go(func() {
			t.withdraw()
			q.leave(p)
		})
	}
}

// acquireEntry returns a tenure to lend a hold from. A tenure returned with errGaveUp must be withdrawn.
func (p *Place) acquireEntry(ctx context.Context) (*tenure, error) {
	if t := p.entered; t != nil {
		p.entered = nil
		if t.prepared {
			return t, nil
		}
		return t, t.await(ctx, false)
	}
	if t := p.takeKept(); t != nil {
		return t, nil
	}
	if p.mode == line.Shared && !p.try && !p.ownEntry {
		if err := p.queue.awaitRemovals(ctx, p.mode, false); err != nil {
			return nil, err
		}
		return p.share(ctx)
	}
	if p.mode == line.Shared && !p.ownEntry {
		if t := p.tryShare(); t != nil {
			return t, nil
		}
	}
	if err := p.queue.awaitRemovals(ctx, p.mode, p.try); err != nil {
		return nil, err
	}
	t := p.newTenure()
	err := t.acquire(ctx, p.try)
	if held, ok := errors.AsType[*HeldError](err); ok && held.Holder != nil && held.Holder.Owner.Lingers {
		t = p.newTenure()
		err = t.outwait(ctx, err)
	}
	return t, err
}

func (p *Place) newTenure() *tenure {
	t := newTenure(p.queue, p.mode, p.owner)
	t.numbered, t.ownEntry = p.numbered, p.ownEntry
	p.queue.mu.Lock()
	p.tenure = t
	p.queue.mu.Unlock()
	return t
}

// entry describes the place to others in this client.
func (p *Place) entry() store.Entry { return store.Entry{Mode: p.mode, Owner: p.owner} }

func heldError(inner *store.HeldError) *HeldError {
	e := &HeldError{Name: inner.Name, inner: inner}
	if inner.Holder != nil {
		holder := entryOf(*inner.Holder)
		e.Holder = &holder
	}
	return e
}

// lockError adds the lock's name to an error.
func lockError(name string, err error) error {
	if held, ok := errors.AsType[*HeldError](err); ok {
		return held
	}
	return fmt.Errorf("stile: lock %q: %w", name, err)
}
