package stile

import (
	"context"
	"fmt"

	"github.com/stilelock/stile/line"
)

// An RWMutex is a lock that either one writer or any number of readers hold. Lock, TryLock, Join and
// Do take it for writing; RLock, TryRLock, RJoin and RDo take it for reading.
//
// Writers and readers get the lock in order of arrival, so neither can keep the other out: a reader that
// arrives while a writer waits gets the lock after that writer, even if other readers hold it. There is one
// exception besides those of every [Mutex]. The readers of one client share an entry in the store, except
// those that have options of their own ([RWMutex.With]). Further readers of the client join that entry,
// without a request to the store, until the store reports that another client waits behind the entry, and
// at most for a second after the entry was admitted. So if the report is late, a reader may overtake a
// writer of another client.
//
// A writer can become a reader without leaving the line: see [Hold.Downgrade]. A read lock cannot be
// upgraded: RLock and then Lock in the same goroutine waits for itself. With the context of the first
// hold, Lock returns [ErrReentrant] at once instead.
//
// A Mutex and an RWMutex of the same name exclude each other: the Mutex is a writer. An RWMutex has
// no state, and making one costs nothing. It is safe for concurrent use.
type RWMutex struct{ locker locker }

// RWMutex returns the read-write lock called name. Every locking method returns an error matching
// [ErrBadName] if the name is invalid, and one matching [ErrUnsupported] if the store has only
// exclusive locks, as Redlock does.
func (c *Client) RWMutex(name string) *RWMutex {
	l := locker{client: c, name: name, mode: line.Exclusive}
	if !c.caps.SharedModes {
		l.invalid = fmt.Errorf("read-write locks: %w by the %s store", ErrUnsupported, c.caps.Kind)
	}
	return &RWMutex{l}
}

// With returns the same lock with additional options, like [Mutex.With].
func (m *RWMutex) With(opts LockOptions) *RWMutex { return &RWMutex{m.locker.with(opts)} }

// Name returns the lock's name.
func (m *RWMutex) Name() string { return m.locker.name }

// Lock waits in line for the lock and takes it for writing. It behaves like [Mutex.Lock]. The token
// is larger than those of all earlier holds of the name, of readers and writers.
func (m *RWMutex) Lock(ctx context.Context) (*Hold, error) { return m.locker.lock(ctx, false) }

// TryLock takes the lock for writing if nobody holds it or waits for it. It behaves like
// [Mutex.TryLock].
func (m *RWMutex) TryLock(ctx context.Context) (*Hold, error) { return m.locker.lock(ctx, true) }

// Join gets in line to take the lock for writing, and returns at once. It behaves like [Mutex.Join].
func (m *RWMutex) Join(ctx context.Context) (*Place, error) { return m.locker.join(ctx) }

// Do runs f while holding the lock for writing. It behaves like [Mutex.Do].
func (m *RWMutex) Do(ctx context.Context, f func(ctx context.Context, h *Hold) error) error {
	return m.locker.do(ctx, f)
}

// RLock waits in line for the lock and takes it for reading. It behaves like [Mutex.Lock], except that
// other readers may hold the lock too. The token is larger than those of all earlier writers. Readers
// that share an entry have the same token, and are lost together.
//
// A reader with options of its own (see [RWMutex.With]) has an entry of its own, so that others see its
// reason and labels.
func (m *RWMutex) RLock(ctx context.Context) (*Hold, error) { return m.reader().lock(ctx, false) }

// TryRLock takes the lock for reading if nobody holds it for writing or waits for it. If a writer
// waits, it fails even though readers hold the lock: it would overtake that writer. The exception
// that [RWMutex] describes applies: for up to a second TryRLock may join the entry of a reader of its
// client although a writer of another client waits. It behaves like [Mutex.TryLock].
func (m *RWMutex) TryRLock(ctx context.Context) (*Hold, error) { return m.reader().lock(ctx, true) }

// RJoin gets in line to take the lock for reading, and returns at once. It behaves like
// [Mutex.Join].
func (m *RWMutex) RJoin(ctx context.Context) (*Place, error) { return m.reader().join(ctx) }

// RDo runs f while holding the lock for reading. It behaves like [Mutex.Do].
func (m *RWMutex) RDo(ctx context.Context, f func(ctx context.Context, h *Hold) error) error {
	return m.reader().do(ctx, f)
}

func (m *RWMutex) reader() locker {
	l := m.locker
	l.mode = line.Shared
	return l
}
