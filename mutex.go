package stile

import (
	"context"
	"maps"

	"github.com/stilelock/stile/line"
)

// Mutex is a lock that one holder has at a time. It has no state of its own: two Mutexes of one client with the same name
// are the same lock, and making one costs nothing. It is safe for concurrent use.
type Mutex struct{ locker locker }

// Mutex returns the lock called name. A name that cannot be, as package store's CheckName says, is an error from every
// method of the Mutex, matching [ErrBadName].
func (c *Client) Mutex(name string) *Mutex {
	return &Mutex{locker{client: c, name: name, mode: line.Exclusive}}
}

// With returns the same lock, taken with opts besides the options of the client. It changes nothing about m; what an earlier
// With has set is not kept. If the owner becomes larger than [MaxOwnerBytes], that is an error from every method that takes
// the lock.
func (m *Mutex) With(opts LockOptions) *Mutex {
	l := m.locker
	l.opts = LockOptions{Reason: opts.Reason, Labels: maps.Clone(opts.Labels)}
	return &Mutex{l}
}

// Name returns the lock's name.
func (m *Mutex) Name() string { return m.locker.name }

// Lock waits until it is the caller's turn, and returns the hold.
//
// On success the hold is valid, and its token is larger than that of every earlier hold of the name. Its context carries
// the values of ctx, but not its end: ctx bounds only the waiting.
//
// On failure the lock is not held, and nothing of the attempt stays in the line: what could not be taken out at once is
// taken out in the background, at the latest when the session ends. If ctx ends first the error matches ctx.Err(). A
// store that cannot be reached is waited for as long as the session is alive, and then for a bounded time, ten seconds at most
// on etcd; then that is the error.
//
// Callers are served in the order in which they arrived, in their process and then in the store. Lock does not know who
// calls it: a goroutine that holds the lock and calls Lock waits for itself until ctx ends.
func (m *Mutex) Lock(ctx context.Context) (*Hold, error) { return m.locker.lock(ctx, false) }

// TryLock takes the lock if nobody holds it or stands in line for it, in this process or elsewhere, and answers at once.
// If somebody does, or if the lock is closed because of [Options.LockDelay], the error is a [*HeldError] that says who or
// for how long, and nothing is left behind. In everything else it is as Lock.
func (m *Mutex) TryLock(ctx context.Context) (*Hold, error) { return m.locker.lock(ctx, true) }

// Join gets in line for the lock and returns at once. It is Lock for those who have other things to wait for:
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
// The error is about the name or a closed client; what else may go wrong is told by [Place.Wait]. If ctx ends before the
// place is ready, the place is given up.
func (m *Mutex) Join(ctx context.Context) (*Place, error) { return m.locker.join(ctx) }

// Do runs f while it holds the lock. f's context ends with ctx and with the hold; f should return when it does. It has the
// values of [Hold.Context].
//
// Do returns the error of taking the lock, in which case f was not run, or else f's error joined with that of losing or
// releasing the lock. A nil error therefore means that f succeeded and the lock was held until f returned.
func (m *Mutex) Do(ctx context.Context, f func(ctx context.Context, h *Hold) error) error {
	return m.locker.do(ctx, f)
}
