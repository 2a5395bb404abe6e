package stile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// Place is a place in the line for a lock; [Mutex.Join] returns one. It is safe for concurrent use.
//
// A place that is ready and has a hold holds the lock until the hold is released or the place is left.
type Place struct {
	queue *queue
	mode  line.Mode
	try   bool

	owner    Owner // as others see it, but for the times
	ownOwner bool  // it is not the client's: so the place has an entry of its own, in shared mode too

	attempt attempt

	turn   chan struct{} // closed when the place's turn has come in its queue
	tenure *tenure       // what the place waits for or holds the lock with, once it has its turn; guarded by the queue's mutex
	ready  chan struct{} // closed when hold and err are set
	cancel context.CancelCauseFunc
	hold   *Hold
	err    error
}

// Ready is closed when there is an outcome: the lock is held, or it will not be. [Place.Wait] tells which.
func (p *Place) Ready() <-chan struct{} { return p.ready }

// Wait waits until the place is ready and returns the hold, or the error that Lock would have returned. If the place was
// left before it was ready the error matches [ErrLeft]. It may be called more than once, and returns the same hold.
//
// The end of ctx ends this call only, with ctx.Err(): the place stays in line and may have the lock later. [Place.Leave]
// gives it up. If the place is ready when Wait is called, the outcome is returned even if ctx has ended.
func (p *Place) Wait(ctx context.Context) (*Hold, error) {
	select {
	case <-p.ready:
		return p.hold, p.err
	default:
	}
	select {
	case <-p.ready:
		return p.hold, p.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Ahead says how many must leave before it is this place's turn, as far as is known: the ones in the line in the store,
// and those of this process who wait to join it. Those who will have joined the line before them are not known yet. It is
// zero if the place is ready, and may be before its entry has reached the store and during [Options.LockDelay].
func (p *Place) Ahead() int {
	select {
	case <-p.ready:
		return 0
	default:
		return p.queue.ahead(p)
	}
}

// Leave gives the place up. If it has a hold already, that is released, and the error is that of the release. Otherwise the
// error is nil: what could not be taken out of the line at once is taken out in the background. Leaving again does nothing.
func (p *Place) Leave(ctx context.Context) error {
	p.cancel(ErrLeft)
	<-p.ready
	if p.hold == nil {
		return nil
	}
	return p.hold.Release(ctx)
}

// obtain takes a place that is in its queue to its hold, and makes it ready. A hold that is lost before its holder has it
// is not handed over: the place, which is in its queue as before, goes for another.
//
// Close waits for the call until it is done. The hooks are called after that, so that they may close the client.
func (p *Place) obtain(call call) {
	p.err = errUnfinished // if a hook or the logger panics
	defer close(p.ready)
	defer func() { p.attempt.end(p.err) }()
	hold, err := p.seek(call)
	for err == nil && !hold.handOver() {
		if call, err = p.again(); err == nil {
			hold, err = p.seek(call)
		}
	}
	if err != nil {
		hold, err = nil, lockError(p.queue.name, err)
	}
	p.hold, p.err = hold, err
}

// again begins a call to go for another hold, and an attempt if there is none under way. On failure the place has left its
// queue.
func (p *Place) again() (call call, err error) {
	leaves := true // also if the hook panics
	defer func() {
		if leaves {
			p.queue.leave(p)
		}
	}()
	if !p.attempt.open {
		p.attempt.start()
	}
	call, err = p.queue.client.begin(p.attempt.ctx)
	leaves = err != nil
	return call, err
}

// seek waits for a hold. On failure the place has left its queue, or leaves it when its entry is out.
func (p *Place) seek(call call) (hold *Hold, err error) {
	leaves := true // also if the logger panics
	defer func() {
		if leaves {
			p.queue.leave(p)
		}
		call.done()
	}()
	select {
	case <-p.turn:
	case <-call.ctx.Done():
		return nil, call.ended(call.ctx.Err())
	}
	for {
		t, err := p.use(call.ctx)
		if err == nil {
			hold, err = t.lend(p)
		}
		switch {
		case err == nil:
			leaves = false
			return hold, nil
		case errors.Is(err, errJoinAgain):
			p.queue.client.log(slog.LevelDebug, "joining the line again", slog.String("lock", p.queue.name), slog.Any("error", err))
			continue
		case errors.Is(err, errLeaving) && t != nil && t.ticket != nil:
			// The next of this process joins the line when this entry is out of it.
			leaves = false
			p.queue.client.work.Go(func() {
				t.withdraw()
				p.queue.leave(p)
			})
		}
		return nil, call.ended(err)
	}
}

// use returns a tenure to lend a hold from. If the error is errLeaving, a tenure that is returned with it is to be withdrawn.
func (p *Place) use(ctx context.Context) (*tenure, error) {
	if p.mode == line.Shared && !p.try && !p.ownOwner {
		return p.share(ctx)
	}
	if p.mode == line.Shared && !p.ownOwner {
		if t := p.shareNow(); t != nil {
			return t, nil
		}
	}
	t := newTenure(p.queue, p.mode, p.owner)
	p.queue.mu.Lock()
	p.tenure = t
	p.queue.mu.Unlock()
	return t, t.acquire(ctx, p.try)
}

// heldHere is the error of trying for a lock that this place, of the same process, holds or goes for.
func (p *Place) heldHere() error {
	return heldError(&store.HeldError{Name: p.queue.name, Holder: &store.Entry{Mode: p.mode, Owner: p.owner}})
}

func heldError(inner *store.HeldError) *HeldError {
	e := &HeldError{Name: inner.Name, inner: inner}
	if inner.Holder != nil {
		holder := entryOf(*inner.Holder)
		e.Holder = &holder
	}
	return e
}

// lockError says which lock an error is about.
func lockError(name string, err error) error {
	if held, ok := errors.AsType[*HeldError](err); ok {
		return held
	}
	return fmt.Errorf("stile: lock %q: %w", name, err)
}
