package locker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bsm/redislock"

	"github.com/stilelock/stile/lab/torture/history"
)

// redislockLocker is bsm's redislock on one Redis server, with the watchdog of its README: Refresh
// is called every third of the TTL, and the work stops when a call fails, with whatever error. It
// has no deadline. Its TTL method asks the server for the remaining time, and Valid uses that.
type redislockLocker struct {
	*redisClients
	client *redislock.Client
	ttl    time.Duration
}

// retryInterval is the interval of redislock's RetryStrategy.
const retryInterval = 50 * time.Millisecond

func openRedislock(ctx context.Context, c Config, _ string) (Locker, error) {
	if len(c.Addresses) != 1 {
		return nil, fmt.Errorf("got %d addresses, want one server", len(c.Addresses))
	}
	clients, err := dialRedis(ctx, c.Addresses)
	if err != nil {
		return nil, err
	}
	return &redislockLocker{clients, redislock.New(clients.all[0]), c.TTL}, nil
}

func (l *redislockLocker) Offers() history.Offers { return history.Offers{Loss: true, Proof: true} }

// Lock calls Obtain in a loop, since one Obtain gives up after a TTL.
func (l *redislockLocker) Lock(ctx context.Context, name string) (Hold, error) {
	for {
		lock, err := l.client.Obtain(ctx, name, l.ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(retryInterval)})
		switch {
		case err == nil:
			return l.hold(lock), nil
		case !errors.Is(err, redislock.ErrNotObtained):
			return nil, unknownOutcome(err)
		case ctx.Err() != nil:
			return nil, err // the server replied to every attempt, so the outcome is known
		}
	}
}

func (l *redislockLocker) TryLock(ctx context.Context, name string) (Hold, error) {
	lock, err := l.client.Obtain(ctx, name, l.ttl, nil)
	switch {
	case errors.Is(err, redislock.ErrNotObtained):
		return nil, fmt.Errorf("%w: %w", ErrTaken, err)
	case err != nil:
		return nil, unknownOutcome(err)
	}
	return l.hold(lock), nil
}

type redislockHold struct {
	lock    *redislock.Lock
	ttl     time.Duration
	renewer *renewer
}

func (l *redislockLocker) hold(lock *redislock.Lock) *redislockHold {
	refresh := func(ctx context.Context) error { return lock.Refresh(ctx, l.ttl, nil) }
	return &redislockHold{lock, l.ttl, startRenewer(l.renewCtx, l.ttl, refresh)}
}

func (h *redislockHold) Token() uint64 { return 0 }
func (h *redislockHold) Until() int64  { return 0 }

func (h *redislockHold) Valid() bool {
	if isClosed(h.Lost()) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.ttl/3)
	defer cancel()
	left, err := h.lock.TTL(ctx)
	return err == nil && left > 0
}

func (h *redislockHold) Lost() <-chan struct{} { return h.renewer.lost }

func (h *redislockHold) Why() string {
	if isClosed(h.Lost()) {
		return h.renewer.why
	}
	return "no remaining TTL, or no reply about it"
}

func (h *redislockHold) Release(ctx context.Context) error {
	h.renewer.stop()
	err := h.lock.Release(ctx)
	if errors.Is(err, redislock.ErrLockNotHeld) {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return err
}
