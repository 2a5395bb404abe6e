package locker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"

	"github.com/stilelock/stile/lab/torture/history"
)

// redsyncLocker is redsync, over one Redis server or several. It has redsync's defaults except for
// the TTL, and except that Lock retries until ctx ends. The Mutex has a deadline, Until. Most users
// of redsync do not extend their locks. This locker does, because otherwise a lock could not be
// held for longer than a TTL, and because a refused extension notifies the holder of a loss.
type redsyncLocker struct {
	*redisClients
	redsync *redsync.Redsync
	ttl     time.Duration
}

func openRedsync(ctx context.Context, c Config, _ string) (Locker, error) {
	clients, err := dialRedis(ctx, c.Addresses)
	if err != nil {
		return nil, err
	}
	var pools []redsyncredis.Pool
	for _, cli := range clients.all {
		pools = append(pools, goredis.NewPool(cli))
	}
	return &redsyncLocker{clients, redsync.New(pools...), c.TTL}, nil
}

func (l *redsyncLocker) Offers() history.Offers {
	return history.Offers{Deadlines: true, Loss: true, Proof: true}
}

func (l *redsyncLocker) Lock(ctx context.Context, name string) (Hold, error) {
	m := l.redsync.NewMutex(name, redsync.WithExpiry(l.ttl), redsync.WithTries(math.MaxInt))
	if err := m.LockContext(ctx); err != nil {
		// Each attempt deletes the keys it has set, if the servers reply in time. The error
		// does not show whether they did.
		return nil, unknownOutcome(errors.Join(err, ctx.Err()))
	}
	return l.hold(m), nil
}

func (l *redsyncLocker) TryLock(ctx context.Context, name string) (Hold, error) {
	m := l.redsync.NewMutex(name, redsync.WithExpiry(l.ttl))
	switch err := m.TryLockContext(ctx); {
	case isTaken(err):
		return nil, fmt.Errorf("%w: %w", ErrTaken, err)
	case err != nil:
		return nil, unknownOutcome(err)
	}
	return l.hold(m), nil
}

// isTaken reports whether a majority of the servers replied that another client holds the lock.
func isTaken(err error) bool {
	var taken *redsync.ErrTaken
	return errors.As(err, &taken)
}

type redsyncHold struct {
	mutex   *redsync.Mutex
	until   atomic.Int64
	renewer *renewer // only it uses mutex until it is stopped
}

func (l *redsyncLocker) hold(m *redsync.Mutex) *redsyncHold {
	h := &redsyncHold{mutex: m}
	h.readDeadline()
	h.renewer = startRenewer(l.renewCtx, l.ttl, func(ctx context.Context) error {
		ok, err := m.ExtendContext(ctx)
		switch {
		case ok:
			h.readDeadline()
		case isTaken(err):
			return err
		}
		return nil // the next attempt may succeed; otherwise the deadline passes
	})
	return h
}

// readDeadline reads the mutex's deadline. It reads the clock first, so that the result is too
// early, never too late, by the time that passes in between.
func (h *redsyncHold) readDeadline() {
	now := history.Now()
	h.until.Store(now + int64(time.Until(h.mutex.Until())))
}

func (h *redsyncHold) Token() uint64         { return 0 }
func (h *redsyncHold) Until() int64          { return h.until.Load() }
func (h *redsyncHold) Valid() bool           { return history.Now() < h.Until() && !isClosed(h.Lost()) }
func (h *redsyncHold) Lost() <-chan struct{} { return h.renewer.lost }

func (h *redsyncHold) Why() string {
	if isClosed(h.Lost()) {
		return h.renewer.why
	}
	return "the deadline has passed"
}

func (h *redsyncHold) Release(ctx context.Context) error {
	h.renewer.stop()
	ok, err := h.mutex.UnlockContext(ctx)
	switch {
	case ok:
		return nil
	case isTaken(err), errors.Is(err, redsync.ErrLockAlreadyExpired):
		return fmt.Errorf("%w: %w", ErrLost, err)
	default:
		return fmt.Errorf("not unlocked on a majority of the servers: %w", err)
	}
}
