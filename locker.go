package stile

import (
	"context"
	"errors"
	"fmt"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// A locker takes the lock called name in one mode. It is what [Mutex] is made of.
type locker struct {
	client *Client
	name   string
	mode   line.Mode
}

// lock is [Mutex.Lock] or, with try, [Mutex.TryLock]. It runs in the caller's goroutine all the way, so that a hand-over
// wakes the caller and nobody else.
func (l locker) lock(ctx context.Context, try bool) (*Hold, error) {
	p, call, err := l.arrive(ctx, try)
	if err != nil {
		return nil, err
	}
	p.obtain(ctx, call)
	return p.hold, p.err
}

// join is [Mutex.Join].
func (l locker) join(ctx context.Context) (*Place, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	p, call, err := l.arrive(ctx, false)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	p.cancel = cancel
	go func() {
		defer cancel(nil)
		p.obtain(ctx, call)
	}()
	return p, nil
}

// do is [Mutex.Do].
func (l locker) do(ctx context.Context, f func(ctx context.Context, h *Hold) error) error {
	hold, err := l.lock(ctx, false)
	if err != nil {
		return err
	}
	inner, cancel := context.WithCancelCause(ctx) // ends with the hold; the release must not
	defer cancel(nil)
	defer context.AfterFunc(hold.Context(), func() { cancel(context.Cause(hold.Context())) })()

	returned := false
	defer func() {
		if !returned { // f has panicked, or ended the goroutine
			_ = hold.Release(ctx)
		}
	}()
	err = f(inner, hold)
	returned = true
	return errors.Join(err, hold.Release(ctx))
}

// arrive puts a place at the end of the queue of its process. The call is for the place to end.
func (l locker) arrive(ctx context.Context, try bool) (*Place, call, error) {
	if err := store.CheckName(l.name); err != nil {
		return nil, call{}, fmt.Errorf("stile: %w", err)
	}
	counted, err := l.client.begin(ctx)
	if err != nil {
		return nil, call{}, lockError(l.name, err)
	}
	p := &Place{
		mode:   l.mode,
		try:    try,
		began:  bootclock.Now(),
		values: context.WithoutCancel(ctx),
		turn:   make(chan struct{}),
		ready:  make(chan struct{}),
	}
	if inTheWay := l.client.join(l.name, p); inTheWay != nil {
		counted.done()
		return nil, call{}, inTheWay.heldHere()
	}
	return p, counted, nil
}

// A call is one that [Client.Close] waits for.
type call struct {
	ctx  context.Context // ends with the caller's and with the client
	done func()
}

// begin begins a call. It fails, with [ErrClosed], if the client is closed.
func (c *Client) begin(ctx context.Context) (call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return call{}, ErrClosed
	}
	c.work.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { cancel(ErrClosed) })
	return call{ctx, func() {
		stop()
		cancel(nil)
		c.work.Done()
	}}, nil
}

// ended puts into err what ended the call's context, if that is what happened.
func (c call) ended(err error) error {
	cause := context.Cause(c.ctx)
	switch {
	case c.ctx.Err() == nil:
		return err
	case cause == ErrClosed, cause == ErrLeft:
		return cause
	case err == errLeaving:
		err = c.ctx.Err()
	}
	for _, e := range []error{cause, c.ctx.Err()} {
		if !errors.Is(err, e) {
			err = fmt.Errorf("%w: %w", e, err)
		}
	}
	return err
}
