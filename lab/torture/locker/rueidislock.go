package locker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/stilelock/stile/lab/torture/history"
)

// rueidislockLocker is rueidislock on one Redis server, and so with a majority of one key. It has
// the defaults except for the TTL. A hold is a context, which ends when the hold is lost; there is
// nothing else.
type rueidislockLocker struct {
	locker   rueidislock.Locker
	askAgain time.Duration // ask again after each such time of waiting; 0: never
}

func openRueidislock(ctx context.Context, c Config, _ string) (Locker, error) {
	if len(c.Addresses) != 1 {
		return nil, fmt.Errorf("got %d addresses, want one server", len(c.Addresses))
	}
	option := rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: c.Addresses, ForceSingleClient: true},
		KeyMajority:  1,
		KeyValidity:  c.TTL,
	}
	if c.Patient {
		option.TryNextAfter = c.TTL
	}
	l, err := rueidislock.NewLocker(option)
	if err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	return &rueidislockLocker{l, option.TryNextAfter}, nil
}

func (l *rueidislockLocker) Offers() history.Offers { return history.Offers{Loss: true} }

func (l *rueidislockLocker) Lock(ctx context.Context, name string) (Hold, error) {
	if l.askAgain == 0 {
		return l.lock(ctx, name, l.locker.WithContext)
	}
	for {
		once, cancel := context.WithTimeout(ctx, l.askAgain)
		h, err := l.lock(once, name, l.locker.WithContext)
		timedOut := once.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !timedOut {
			return h, err
		}
	}
}

func (l *rueidislockLocker) TryLock(ctx context.Context, name string) (Hold, error) {
	return l.lock(ctx, name, l.locker.TryWithContext)
}

// lock gives the library a context that ends with ctx only while the call waits. The library ends a
// hold with the context that it was acquired with, and at the latest at that context's deadline.
func (l *rueidislockLocker) lock(
	ctx context.Context, name string,
	acquire func(context.Context, string) (context.Context, context.CancelFunc, error),
) (Hold, error) {
	wait, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stopAfterFunc := context.AfterFunc(ctx, cancel)
	held, release, err := acquire(wait, name)
	switch {
	case err != nil:
		stopAfterFunc()
		cancel()
		if ctx.Err() == nil && errors.Is(err, rueidislock.ErrNotLocked) {
			return nil, fmt.Errorf("%w: %w", ErrTaken, err)
		}
		return nil, unknownOutcome(err)
	case !stopAfterFunc():
		release()
		cancel()
		return nil, unknownOutcome(ctx.Err())
	}
	return &rueidislockHold{held, func() { release(); cancel() }}, nil
}

// closeTimeout bounds rueidis's Close, which waits for calls in progress.
const closeTimeout = 5 * time.Second

func (l *rueidislockLocker) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		l.locker.Close()
	}()
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type rueidislockHold struct {
	ctx     context.Context
	release func() // returns after the server has replied, or the TTL has passed
}

func (h *rueidislockHold) Token() uint64         { return 0 }
func (h *rueidislockHold) Until() int64          { return 0 }
func (h *rueidislockHold) Valid() bool           { return h.ctx.Err() == nil }
func (h *rueidislockHold) Lost() <-chan struct{} { return h.ctx.Done() }
func (h *rueidislockHold) Why() string           { return "the context of the hold has ended" }

// Release cannot report an error: the library returns none.
func (h *rueidislockHold) Release(context.Context) error {
	lost := !h.Valid()
	h.release()
	if lost {
		return fmt.Errorf("%w: %s", ErrLost, h.Why())
	}
	return nil
}
