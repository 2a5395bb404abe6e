package stile

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// A locker takes the lock called name in one mode. It is what [Mutex] is made of.
type locker struct {
	client *Client
	name   string
	mode   line.Mode
	opts   LockOptions
}

// lock is [Mutex.Lock] or, with try, [Mutex.TryLock]. It runs in the caller's goroutine all the way, so that a hand-over
// wakes the caller and nobody else.
func (l locker) lock(ctx context.Context, try bool) (*Hold, error) {
	p, call, err := l.arrive(ctx, try)
	if err != nil {
		return nil, err
	}
	p.obtain(call)
	return p.hold, p.err
}

// join is [Mutex.Join].
func (l locker) join(ctx context.Context) (*Place, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	joined := false
	defer func() {
		if !joined { // or a hook has panicked
			cancel(nil)
		}
	}()
	p, call, err := l.arrive(ctx, false)
	if err != nil {
		return nil, err
	}
	joined = true
	p.cancel = cancel
	go func() {
		defer cancel(nil)
		p.obtain(call)
	}()
	return p, nil
}

// do is [Mutex.Do].
func (l locker) do(ctx context.Context, f func(ctx context.Context, h *Hold) error) error {
	hold, err := l.lock(ctx, false)
	if err != nil {
		return err
	}
	withHold := valuesContext{ctx, context.WithoutCancel(hold.Context())}
	inner, cancel := context.WithCancelCause(withHold) // ends with the hold; the release must not
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

// A valuesContext ends with its Context and has the values of another, which does not end.
type valuesContext struct {
	context.Context
	values context.Context
}

// Value asks the Context too, for what package context keeps there about its end.
func (c valuesContext) Value(key any) any {
	if v := c.values.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

// arrive starts an attempt and puts its place at the end of the queue of its process. The call is for the place to end. On
// failure the attempt has ended.
func (l locker) arrive(ctx context.Context, try bool) (*Place, call, error) {
	p := &Place{
		mode:     l.mode,
		try:      try,
		owner:    l.owner(),
		ownOwner: !l.opts.isZero(),
		attempt: attempt{
			hooks:  &l.client.opts.Hooks,
			event:  AttemptStartEvent{Name: l.name, Mode: l.mode, Try: try},
			caller: ctx,
		},
		turn:  make(chan struct{}),
		ready: make(chan struct{}),
	}
	p.attempt.start() // not part of the call: the hook may close the client
	call, err := l.enqueue(p)
	if err != nil {
		p.attempt.end(err)
		return nil, call, err
	}
	return p, call, nil
}

// enqueue puts a place at the end of the queue of its process.
func (l locker) enqueue(p *Place) (call, error) {
	if err := store.CheckName(l.name); err != nil {
		return call{}, fmt.Errorf("stile: %w", err)
	}
	if p.ownOwner {
		if err := checkOwner(p.owner); err != nil {
			return call{}, lockError(l.name, err)
		}
	}
	counted, err := l.client.begin(p.attempt.ctx)
	if err != nil {
		return call{}, lockError(l.name, err)
	}
	if inTheWay := l.client.join(l.name, p); inTheWay != nil {
		counted.done()
		return call{}, inTheWay.heldHere()
	}
	return counted, nil
}

// owner returns who takes the lock, as others see it.
func (l locker) owner() Owner {
	owner := l.client.opts.Owner
	if l.opts.Reason != "" {
		owner.Reason = l.opts.Reason
	}
	if len(l.opts.Labels) > 0 {
		labels := maps.Clone(l.opts.Labels)
		for key, value := range owner.Labels {
			if _, ours := labels[key]; !ours {
				labels[key] = value
			}
		}
		owner.Labels = labels
	}
	return owner
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
