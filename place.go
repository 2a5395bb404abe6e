package stile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/keeper"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// Place is a place in the line for a lock; [Mutex.Join] returns one. It is safe for concurrent use.
//
// A place that is ready and has a hold holds the lock until the hold is released or the place is left.
type Place struct {
	client *Client
	name   string
	mode   line.Mode
	try    bool
	began  bootclock.Instant
	values context.Context // what the hold's context has of its caller's

	turn   chan struct{} // closed when the place has come to the head of its process's queue
	ahead  atomic.Int64  // how many stand ahead of its entry in the store
	ready  chan struct{} // closed when hold and err are set
	cancel context.CancelCauseFunc
	hold   *Hold
	err    error
}

// Ready is closed when there is an outcome: the lock is held, or it will not be. [Place.Hold] tells which.
func (p *Place) Ready() <-chan struct{} { return p.ready }

// Hold waits until the place is ready and returns the hold, or the error that Lock would have returned. If the place was
// left before it was ready the error matches [ErrLeft].
func (p *Place) Hold() (*Hold, error) {
	<-p.ready
	return p.hold, p.err
}

// Ahead says how many must leave before it is this place's turn, as far as is known: the ones in the line in the store,
// and those of this process who wait to join it. Those who will have joined the line before them are not known yet. It is
// zero if the place is ready, and may be before its entry has reached the store and during [Options.LockDelay].
func (p *Place) Ahead() int {
	select {
	case <-p.ready:
		return 0
	default:
	}
	here, head := p.client.aheadHere(p)
	return here + int(head.ahead.Load())
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

// run takes the place from the end of the line to the hold. It runs in the caller's goroutine, for Lock, so that whoever
// hands the lock over wakes the caller and nobody else.
func (p *Place) run(ctx context.Context) (*Hold, error) {
	counted, done, err := p.start(ctx)
	if err != nil {
		return nil, err
	}
	p.finish(ctx, counted, done)
	return p.hold, p.err
}

// start puts the place into the queue of its process. If it could, finish must be called with what it returns.
func (p *Place) start(ctx context.Context) (counted context.Context, done func(), err error) {
	if err := store.CheckName(p.name); err != nil {
		return nil, nil, fmt.Errorf("stile: %w", err)
	}
	counted, done, err = p.client.begin(ctx)
	if err != nil {
		return nil, nil, p.failed(err)
	}
	p.began = bootclock.Now()
	if head := p.client.join(p); head != nil {
		done()
		return nil, nil, head.heldHere()
	}
	return counted, done, nil
}

// finish waits for the place's turn and makes the place ready. A hold that is lost before it is handed over is not handed
// over: the place, which is still at the head of its queue, joins the line again.
//
// Close waits for the call until done is called; so long the context of the call is counted. The hook of the hold is called
// after done, so that it may close the client.
func (p *Place) finish(ctx, counted context.Context, done func()) {
	p.err = errUnfinished
	defer close(p.ready)
	hold, err := p.seek(counted, done)
	for err == nil && !hold.handOver() {
		if counted, done, err = p.client.begin(ctx); err != nil {
			p.client.leave(p)
			err = p.failed(err)
			break
		}
		hold, err = p.seek(counted, done)
	}
	if err != nil {
		hold = nil
	}
	p.hold, p.err = hold, err
}

// errUnfinished is the error of a place whose goroutine was ended by a callback.
var errUnfinished = errors.New("stile: a hook or the logger has ended the goroutine that was to take the lock")

// seek waits for the place's turn, in the process and then in the store. On success the place is at the head of its queue;
// otherwise it has left it, or will have when its entry is out.
func (p *Place) seek(ctx context.Context, done func()) (*Hold, error) {
	c := p.client
	panicked := true
	defer func() {
		if panicked { // the logger has, while no entry was in the line
			c.leave(p)
		}
		done()
	}()
	hold, err := p.await(ctx)
	panicked = false
	return hold, err
}

// await waits for the place's turn as seek says, if no callback panics.
func (p *Place) await(ctx context.Context) (*Hold, error) {
	c := p.client
	select {
	case <-p.turn:
	case <-ctx.Done():
		c.leave(p)
		return nil, p.failed(ended(ctx, ctx.Err()))
	}
	for {
		hold, err := p.enter(ctx)
		switch {
		case err == nil:
			return hold, nil
		case errors.Is(err, errJoinAgain):
			c.log(slog.LevelDebug, "joining the line again", slog.String("lock", p.name), slog.Any("error", err))
			continue
		case !errors.Is(err, errLeaving):
			c.leave(p)
		}
		return nil, p.failed(ended(ctx, err))
	}
}

var (
	// errJoinAgain: the entry is gone, and the caller still wants the lock.
	errJoinAgain = errors.New("the entry was lost while it waited")
	// errLeaving: the caller has given up, and the entry is being taken out in the background.
	errLeaving = errors.New("given up")
)

// enter puts an entry into the store's line and waits for its turn.
func (p *Place) enter(ctx context.Context) (*Hold, error) {
	session, err := p.client.session(ctx)
	if err != nil {
		return nil, err
	}
	e := newEntry(p)
	ticket, err := session.Store().Enqueue(ctx, store.Request{
		Name: p.name, Mode: p.mode, Owner: e.owner, Try: p.try, Notify: e.notify,
	})
	var held *store.HeldError
	switch {
	case errors.Is(err, store.ErrSessionLost):
		return nil, sessionEnded(session, err)
	case errors.As(err, &held):
		return nil, heldError(held)
	case err != nil:
		return nil, err
	}

	err = e.wait(ctx, session, e.admitted)
	if err == nil && p.client.opts.LockDelay > 0 {
		err = p.mark(ctx, session, ticket, e)
	}
	switch {
	case err == nil && session.Valid():
		return newHold(p, session, ticket, e), nil
	case err == nil:
		<-session.Context().Done() // it is on its way: the deadline has passed
		return nil, fmt.Errorf("%w: %w", errJoinAgain, context.Cause(session.Context()))
	case errors.Is(err, errJoinAgain):
		return nil, err
	case ctx.Err() != nil:
		p.abandon(ticket)
		return nil, errLeaving
	default:
		p.withdraw(ticket)
		return nil, err
	}
}

// sessionEnded returns the error of an entry whose session the store says has ended.
func sessionEnded(session *keeper.Session, err error) error {
	session.Ended(err)
	<-session.Context().Done() // until then it would be used again
	return fmt.Errorf("%w: %w", errJoinAgain, err)
}

// farewell is how long an abandoned entry is waited for before the next of this process joins the line.
const farewell = time.Second

// abandon takes an entry out that nobody wants any more, without making its owner wait.
func (p *Place) abandon(ticket store.Ticket) {
	p.client.work.Go(func() {
		p.withdraw(ticket)
		p.client.leave(p)
	})
}

func (p *Place) withdraw(ticket store.Ticket) {
	ctx, cancel := context.WithTimeout(p.client.life, farewell)
	defer cancel()
	_ = ticket.Withdraw(ctx) // the store goes on until the entry is out
}

// failed says which lock an error is about.
func (p *Place) failed(err error) error {
	if held, ok := errors.AsType[*HeldError](err); ok {
		return held
	}
	return fmt.Errorf("stile: lock %q: %w", p.name, err)
}

// heldHere is the error of trying for a lock that somebody in this process holds or seeks.
func (p *Place) heldHere() error {
	return heldError(&store.HeldError{Name: p.name, Holder: &store.Entry{Mode: p.mode, Owner: p.client.opts.Owner}})
}

func heldError(inner *store.HeldError) *HeldError {
	e := &HeldError{Name: inner.Name, inner: inner}
	if inner.Holder != nil {
		holder := entryOf(*inner.Holder)
		e.Holder = &holder
	}
	return e
}

// begin counts a call in: Close waits for it. The context it returns ends with ctx and with the client.
func (c *Client) begin(ctx context.Context) (_ context.Context, done func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return nil, nil, ErrClosed
	}
	c.work.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		c.work.Done()
	}, nil
}

// ended puts into err what ended ctx, if that is what happened.
func ended(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case ctx.Err() == nil:
		return err
	case cause == ErrClosed, cause == ErrLeft:
		return cause
	case err == errLeaving:
		err = ctx.Err()
	}
	for _, e := range []error{cause, ctx.Err()} {
		if !errors.Is(err, e) {
			err = fmt.Errorf("%w: %w", e, err)
		}
	}
	return err
}

// entry follows one entry of a place through what the store tells of it.
type entry struct {
	place    *Place
	owner    Owner         // as others see it
	admitted chan struct{} // closed when it is the entry's turn; order is set
	gone     chan struct{} // closed when the entry is gone; cause is set
	order    uint64
	cause    error

	mu     sync.Mutex
	turn   bool        // admitted is closed
	over   bool        // gone is closed
	onGone func(error) // is called when the entry goes
}

func newEntry(p *Place) *entry {
	owner := p.client.opts.Owner
	owner.Since = time.Now()
	return &entry{place: p, owner: owner, admitted: make(chan struct{}), gone: make(chan struct{})}
}

// wait waits for the end of ch, for as long as the entry is good for anything and the caller wants it.
func (e *entry) wait(ctx context.Context, session *keeper.Session, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-e.gone:
		return fmt.Errorf("%w: %w", errJoinAgain, e.cause)
	case <-session.Context().Done():
		return fmt.Errorf("%w: %w", errJoinAgain, context.Cause(session.Context()))
	case <-ctx.Done():
		return errLeaving
	}
}

// stillThere returns the error of an entry that is known to have gone.
func (e *entry) stillThere() error {
	select {
	case <-e.gone:
		return fmt.Errorf("%w: %w", errJoinAgain, e.cause)
	default:
		return nil
	}
}

// notify is called by the store.
func (e *entry) notify(st store.Standing) {
	e.place.ahead.Store(int64(st.Ahead))
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.over:
	case st.State == store.Gone:
		e.over, e.cause = true, st.Cause
		close(e.gone)
		if e.onGone != nil {
			e.onGone(st.Cause)
		}
	case st.State == store.Admitted && !e.turn:
		e.turn, e.order = true, st.Order
		close(e.admitted)
	}
}

// whenGone has f called when the entry goes: at once if it is gone.
func (e *entry) whenGone(f func(error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		f(e.cause)
		return
	}
	e.onGone = f
}
