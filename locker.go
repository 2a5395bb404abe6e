package stile

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// A locker takes the lock called name in one mode. The kinds of locks are built on it.
type locker struct {
	client  *Client
	name    string
	mode    line.Mode
	opts    LockOptions
	value   string // what a candidate of an election publishes
	invalid error  // if not nil, all attempts fail with it

	numbered bool // holds get slot numbers
	ownEntry bool // places need entries of their own: see [Place]
}

// with implements [Mutex.With].
func (l locker) with(opts LockOptions) locker {
	l.opts = LockOptions{Reason: opts.Reason, Labels: maps.Clone(opts.Labels)}
	return l
}

// lock implements [Mutex.Lock] and, if try is set, [Mutex.TryLock]. All of it runs in the caller's
// goroutine, so that a hand-over wakes only that one.
func (l locker) lock(ctx context.Context, try bool) (*Hold, error) {
	p, call, err := l.start(ctx, try)
	if err != nil {
		return nil, err
	}
	defer announceWait(ctx, l.name)()
	p.obtain(call)
	return p.hold, p.err
}

// join implements [Mutex.Join].
func (l locker) join(ctx context.Context) (*Place, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	joined := false
	defer func() {
		if !joined { // also if a hook panicked
			cancel(nil)
		}
	}()
	p, call, err := l.start(ctx, false)
	if err != nil {
		return nil, err
	}
	joined = true
	p.ready, p.cancel = make(chan struct{}), cancel
	go func() {
		defer cancel(nil)
		p.obtain(call)
	}()
	return p, nil
}

// do implements [Mutex.Do].
func (l locker) do(ctx context.Context, f func(ctx context.Context, h *Hold) error) error {
	hold, err := l.lock(ctx, false)
	if err != nil {
		return err
	}
	_, err = runWith(ctx, hold, func(ctx context.Context) error { return f(ctx, hold) })
	return err
}

// runWith runs f with a context that ends with ctx and with the hold, and releases the hold. It
// reports whether the hold was lost before its release.
func runWith(ctx context.Context, hold *Hold, f func(ctx context.Context) error) (lost bool, err error) {
	withHold := valuesContext{ctx, context.WithoutCancel(hold.Context())}
	inner, cancel := context.WithCancelCause(withHold) // ends with the hold, unlike the context for the release
	defer cancel(nil)
	defer context.AfterFunc(hold.Context(), func() { cancel(context.Cause(hold.Context())) })()

	returned := false
	defer func() {
		if !returned { // f panicked or called runtime.Goexit
			_ = hold.Release(ctx)
		}
	}()
	err = f(inner)
	returned = true
	released := hold.Release(ctx) // may be the first to find the loss
	return errors.Is(released, ErrLost), errors.Join(err, released)
}

// A valuesContext ends with its Context and has the values of another context.
type valuesContext struct {
	context.Context
	values context.Context
}

// Value falls back to the Context, where package context keeps values for its own use.
func (c valuesContext) Value(key any) any {
	if v := c.values.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

// start starts an attempt and appends its place to the local queue. The place must end the
// returned call. On failure the attempt has ended.
func (l locker) start(ctx context.Context, try bool) (*Place, *call, error) {
	p := newPlace(ctx, l, try)
	call, err := l.enqueue(p)
	if err != nil {
		p.attempt.end(err)
		return nil, call, err
	}
	return p, call, nil
}

// newPlace starts an attempt and returns a place for it, which is in no queue yet.
func newPlace(ctx context.Context, l locker, try bool) *Place {
	p := &Place{
		mode:     l.mode,
		numbered: l.numbered,
		try:      try,
		owner:    l.owner(),
		ownEntry: l.ownEntry || !l.opts.isZero() || l.value != "",
		attempt: attempt{
			hooks:  &l.client.opts.Hooks,
			event:  AttemptStartEvent{Name: l.name, Mode: l.mode, Try: try},
			caller: ctx,
		},
	}
	p.attempt.start() // before the call is tracked: the hook may close the client
	return p
}

// enqueue appends a place to the local queue.
func (l locker) enqueue(p *Place) (*call, error) {
	if err := store.CheckName(l.name); err != nil {
		return nil, fmt.Errorf("stile: %w", err)
	}
	if l.invalid != nil {
		return nil, lockError(l.name, l.invalid)
	}
	if p.ownEntry {
		if err := checkOwner(p.owner); err != nil {
			return nil, lockError(l.name, err)
		}
	}
	if outer := outerHold(p.attempt.ctx, l.client, l.name); outer != nil && !p.try {
		return nil, reentrantError(l.name, outer)
	}
	counted, err := l.client.track(p.attempt.ctx)
	if err != nil {
		return nil, lockError(l.name, err)
	}
	if err := l.client.join(l.name, p); err != nil {
		counted.done()
		return nil, lockError(l.name, err)
	}
	return counted, nil
}

func reentrantError(name string, outer *Hold) error {
	return fmt.Errorf("stile: lock %q (token %d): %w: release that hold first", name, outer.token, ErrReentrant)
}

// owner returns the owner that others see.
func (l locker) owner() Owner {
	owner := l.client.opts.Owner
	owner.Value = l.value
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

// A call is tracked so that [Client.Close] can end it and wait for it.
type call struct {
	client *Client
	ctx    context.Context // ends with the caller's context and with the client
	cancel context.CancelCauseFunc
}

// track starts a call. It returns [ErrClosed] if the client is closed.
func (c *Client) track(ctx context.Context) (*call, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	started := &call{c, ctx, cancel}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		cancel(ErrClosed)
		return nil, ErrClosed
	}
	c.work.Add(1)
	c.calls[started] = struct{}{}
	return started, nil
}

// done ends the call.
func (c *call) done() {
	c.client.mu.Lock()
	delete(c.client.calls, c)
	c.client.mu.Unlock()
	c.cancel(nil)
	c.client.work.Done()
}

// withCause adds to err the cause that withCause the call's context, if it has withCause.
func (c *call) withCause(err error) error {
	cause := context.Cause(c.ctx)
	switch {
	case c.ctx.Err() == nil:
		return err
	case cause == ErrClosed, cause == ErrLeft:
		return cause
	case err == errGaveUp:
		err = c.ctx.Err()
	}
	for _, e := range []error{cause, c.ctx.Err()} {
		if !errors.Is(err, e) {
			err = fmt.Errorf("%w: %w", e, err)
		}
	}
	return err
}
