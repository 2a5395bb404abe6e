package stile

import (
	"context"
	"fmt"

	"github.com/stilelock/stile/line"
)

// MaxSlots is the largest number of slots of a [Semaphore].
const MaxSlots = line.MaxSlots

// A Semaphore is a lock that a fixed number of callers can hold at the same time. Each hold takes one
// slot. Callers get slots in order of arrival at the store. Callers of one client queue in the
// client first, but as many of them as there are slots join the line in the store at the same time,
// and these may arrive there in any order.
//
// How many slots are taken is never stored. Each hold has an entry in the store, which ends with its
// session like that of any lock, so a holder that crashes cannot lose a slot for good.
//
// All clients must agree on the number of slots: while one of them holds or waits for a slot, a
// request with another number returns a [*KindError]. To change the number, stop the clients with the
// old one first, or use a new name. The entries of a client that crashed stay for up to its TTL.
//
// A Semaphore has no state, and making one costs nothing. It is safe for concurrent use.
type Semaphore struct{ locker locker }

// Semaphore returns the semaphore called name, with the given number of slots. Every locking method
// returns an error if slots is less than 1 or more than [MaxSlots], one matching [ErrBadName] if the name
// is invalid, and one matching [ErrUnsupported] if the store has only exclusive locks, as Redlock does.
func (c *Client) Semaphore(name string, slots int) *Semaphore {
	l := locker{client: c, name: name}
	switch {
	case slots < 1 || slots > MaxSlots:
		l.invalid = fmt.Errorf("a semaphore of %d slots: there must be between 1 and %d", slots, MaxSlots)
	case !c.caps.SharedModes:
		l.invalid = fmt.Errorf("semaphores: %w by the %s store", ErrUnsupported, c.caps.Kind)
	default:
		l.mode = line.Slot(slots)
	}
	return &Semaphore{l}
}

// Numbered returns the same semaphore, whose holds get slot numbers: [Hold.Slot] returns one from 0 to
// slots − 1 that no other numbered hold of the name has at that time. Use it if each slot stands for
// something of its own: a GPU, a port, a license.
//
// A number is claimed in the store when the lock is acquired, which is at least one more request for
// each hold, and more if several holders claim numbers at the same time. If the claim fails, the locking
// method returns an error and the slot is free again; the error matches [ErrNoNumber] if all numbers
// are taken.
//
// Holds of the same name that are not numbered take slots but no numbers. If the store has no slot
// numbers, every locking method returns an error that matches [ErrUnsupported].
func (s *Semaphore) Numbered() *Semaphore {
	l := s.locker
	l.numbered = true
	if l.invalid == nil && !l.client.caps.SlotNumbers {
		l.invalid = fmt.Errorf("slot numbers: %w by the %s store", ErrUnsupported, l.client.caps.Kind)
	}
	return &Semaphore{l}
}

// With returns the same semaphore with additional options, like [Mutex.With].
func (s *Semaphore) With(opts LockOptions) *Semaphore { return &Semaphore{s.locker.with(opts)} }

// Name returns the semaphore's name.
func (s *Semaphore) Name() string { return s.locker.name }

// Slots returns the number of slots. It is zero if the number is invalid, and on a store without
// semaphores, as Redlock is.
func (s *Semaphore) Slots() int { return s.locker.mode.Slots() }

// Acquire waits in line for a slot and takes it. It behaves like [Mutex.Lock]. The token is different
// from those of the other current holds. It does not protect a resource that all holders write to:
// with more than one slot, an older holder, with a smaller token, may still be valid.
func (s *Semaphore) Acquire(ctx context.Context) (*Hold, error) { return s.locker.lock(ctx, false) }

// TryAcquire takes a slot if one is free and nobody waits. It behaves like [Mutex.TryLock].
func (s *Semaphore) TryAcquire(ctx context.Context) (*Hold, error) { return s.locker.lock(ctx, true) }

// Join gets in line for a slot and returns at once. It behaves like [Mutex.Join].
func (s *Semaphore) Join(ctx context.Context) (*Place, error) { return s.locker.join(ctx) }

// Do runs f while holding a slot. It behaves like [Mutex.Do].
func (s *Semaphore) Do(ctx context.Context, f func(ctx context.Context, h *Hold) error) error {
	return s.locker.do(ctx, f)
}
