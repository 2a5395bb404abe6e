package stile

import (
	"context"

	"github.com/stilelock/stile/line"
)

// A Mutex is a lock with one holder at a time. It has no state: two Mutexes of one client with the
// same name are the same lock, and making one costs nothing. It is safe for concurrent use.
type Mutex struct{ locker locker }

// Mutex returns the lock called name. If the name is invalid, as defined by [store.CheckName],
// every locking method of the Mutex returns an error matching [ErrBadName].
func (c *Client) Mutex(name string) *Mutex {
	return &Mutex{locker{client: c, name: name, mode: line.Exclusive}}
}

// With returns the same lock with additional options. It does not change m, and it replaces the
// options of an earlier With. If the owner becomes larger than [MaxOwnerBytes], the locking methods
// return an error.
func (m *Mutex) With(opts LockOptions) *Mutex { return &Mutex{m.locker.with(opts)} }

// Name returns the lock's name.
func (m *Mutex) Name() string { return m.locker.name }

// Lock waits in line for the lock and returns the hold.
//
// On success the hold is valid, and its token is larger than that of every earlier hold of the
// name. ctx bounds only the wait: the hold's context has the values of ctx but does not end with
// it.
//
// On failure the lock is not held and will not be. If the attempt had an entry in the line, its
// removal has started: it continues in the background, and ends with the session at the latest. If
// ctx ends first, the error matches ctx.Err(). While the store is unreachable, Lock waits as long as
// the session is alive. Then it tries to open another session, for a bounded time, at most ten seconds on
// etcd, and returns an error if that fails.
//
// Callers get the lock in order of arrival: first in their client, then in the store. On Redlock there is
// no order among clients; on Redis a waiter that cannot be reached at its turn is passed over. Locks are
// not re-entrant: a goroutine that already holds the lock waits for itself until ctx ends. If ctx is the
// context of a current hold of the same name, or derived from it, Lock returns [ErrReentrant] at once. If
// the name is in use as a semaphore, the error is a [*KindError].
func (m *Mutex) Lock(ctx context.Context) (*Hold, error) { return m.locker.lock(ctx, false) }

// TryLock takes the lock if nobody holds it or waits for it. It does not wait for the lock, only for the
// store. But it waits for up to a second if another client may only keep the lock ([Options.Linger]). If
// the lock is not free, or is closed because of [Options.LockDelay], the error is a [*HeldError]. Otherwise
// TryLock behaves like Lock, but it does not return [ErrReentrant]: a lock that the caller holds is not
// free.
func (m *Mutex) TryLock(ctx context.Context) (*Hold, error) { return m.locker.lock(ctx, true) }

// Join gets in line for the lock and returns at once. Use it instead of Lock to wait for several
// events:
//
//	place, err := m.Join(ctx)
//	…
//	select {
//	case <-place.Ready():
//		hold, err := place.Wait(ctx)
//	case <-other:
//		place.Leave(ctx)
//	}
//
// Join itself fails only if Lock would fail without a request to the store: because the name is
// invalid, the client is closed, or ctx comes from a hold of the same name, for example. [Place.Wait]
// returns all other errors. If ctx ends before the place is ready, the place is given up.
func (m *Mutex) Join(ctx context.Context) (*Place, error) { return m.locker.join(ctx) }

// Do runs f while holding the lock. f's context ends with ctx and with the hold; f should then
// return. It has the values of [Hold.Context].
//
// If the lock cannot be taken, Do returns that error and does not run f. Otherwise it returns f's
// error joined with the error of the release. A nil error means that f succeeded and the lock was
// held until f returned, with the exceptions of [Hold.Release].
func (m *Mutex) Do(ctx context.Context, f func(ctx context.Context, h *Hold) error) error {
	return m.locker.do(ctx, f)
}
