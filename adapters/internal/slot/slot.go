// Package slot carries a hold from a Lock to its Unlock, for interfaces in which Lock does not return it.
package slot

import (
	"context"
	"errors"
	"sync"

	"github.com/stilelock/stile"
)

// ErrEmpty means that the slot has no hold: Unlock was called without a Lock.
var ErrEmpty = errors.New("unlock of a lock that is not held")

// A Slot has the hold between Lock and Unlock. The zero Slot is empty. It is safe for concurrent use.
//
// An Unlock that names no hold must not release that of somebody else. So a slot stays occupied until
// Unlock, also if its hold is lost meanwhile and the store would admit another user of the same process:
// that one waits for the Unlock.
type Slot struct {
	mu      sync.Mutex
	hold    *stile.Hold
	emptied chan struct{} // closed when the slot is next empty; nil if nobody waits for that
}

// Lock acquires a lock with lock, and keeps its hold. It returns lock's error, or the cause of ctx.
func (s *Slot) Lock(ctx context.Context, lock func(context.Context) (*stile.Hold, error)) error {
	for {
		hold, err := lock(ctx)
		if err != nil {
			return err
		}
		emptied := s.put(hold)
		if emptied == nil {
			return nil
		}
		_ = hold.Release(ctx) // keep nobody else waiting for the user of the lost hold
		select {
		case <-emptied:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// TryLock is Lock, but returns [stile.ErrHeld] if the slot is occupied.
func (s *Slot) TryLock(ctx context.Context, lock func(context.Context) (*stile.Hold, error)) error {
	hold, err := lock(ctx)
	if err != nil {
		return err
	}
	if s.put(hold) != nil {
		_ = hold.Release(ctx)
		return stile.ErrHeld
	}
	return nil
}

// put occupies the slot. If it is occupied, put returns a channel that is closed when it is empty.
func (s *Slot) put(hold *stile.Hold) (emptied <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold != nil {
		if s.emptied == nil {
			s.emptied = make(chan struct{})
		}
		return s.emptied
	}
	s.hold = hold
	return nil
}

// Hold returns the hold of the slot, which may be lost, and nil if the slot is empty.
func (s *Slot) Hold() *stile.Hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hold
}

// Relock replaces a lost hold by a new one that lock acquires. If the slot does not have the lost hold any more,
// because Unlock was called meanwhile, Relock releases the new one and returns [ErrEmpty].
func (s *Slot) Relock(ctx context.Context, lost *stile.Hold, lock func(context.Context) (*stile.Hold, error)) error {
	hold, err := lock(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	replaced := s.hold == lost
	if replaced {
		s.hold = hold
	}
	s.mu.Unlock()
	if !replaced {
		return errors.Join(ErrEmpty, hold.Release(ctx))
	}
	return nil
}

// Unlock empties the slot and releases its hold. The slot is empty whatever it returns: [ErrEmpty], or
// the error of [stile.Hold.Release].
func (s *Slot) Unlock(ctx context.Context) error {
	s.mu.Lock()
	hold := s.hold
	s.hold = nil
	if s.emptied != nil { // before the release, which may pass the lock to one of the waiters
		close(s.emptied)
		s.emptied = nil
	}
	s.mu.Unlock()
	if hold == nil {
		return ErrEmpty
	}
	return hold.Release(ctx)
}
