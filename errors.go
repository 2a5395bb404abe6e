package stile

import (
	"errors"
	"fmt"
	"time"

	"github.com/stilelock/stile/internal/keeper"
	"github.com/stilelock/stile/store"
)

// The errors to tell apart with [errors.Is]. Whatever the error, the lock is not held.
var (
	// ErrHeld: trying for the lock found it held. See [HeldError].
	ErrHeld = errors.New("lock is held")
	// ErrLost: a hold ended before it was released. See [LostError].
	ErrLost = errors.New("lock lost")
	// ErrClosed: the client is closed.
	ErrClosed = errors.New("client is closed")
	// ErrReleased is the cause with which the context of a released hold ended.
	ErrReleased = errors.New("lock released")
	// ErrLeft: the place was given up with [Place.Leave].
	ErrLeft = errors.New("left the line")
	// ErrGone: there is no entry with that token to break.
	ErrGone = store.ErrGone
	// ErrNotKnown: the lock was released, but it is not known whether it was held until then. See [Hold.Release].
	ErrNotKnown = store.ErrNotKnown
	// ErrUnsupported: the store cannot do it, ever.
	ErrUnsupported = store.ErrUnsupported
	// ErrBadName: a lock cannot have that name.
	ErrBadName = store.ErrBadName
)

// HeldError is what [Mutex.TryLock] returns when somebody else has the lock, or stands in line for it, or when it is closed
// because its last holder has not released it. It matches [ErrHeld].
type HeldError struct {
	// Name is the lock's name.
	Name string
	// Holder is who is in the way; nil if the store could not tell.
	Holder *Entry
	// ClosedFor is how much longer the lock stays closed because Holder, who does not hold it any more, has not released it.
	// See [Options.LockDelay]. Zero if that is not why.
	ClosedFor time.Duration

	inner error
}

// Error says who holds the lock, as far as that is known, or why it is closed.
func (e *HeldError) Error() string { return "stile: " + e.inner.Error() }

// Is reports whether target is [ErrHeld].
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Reason is why a hold was lost.
type Reason uint8

// The reasons for which a hold is lost.
const (
	// LostDeadline: the session was not confirmed in time, so it cannot be known here whether the store still has it.
	LostDeadline Reason = iota + 1
	// LostExpired: the store said that the session has ended.
	LostExpired
	// LostEvicted: the entry was taken out of the store: by somebody, or because the session ended there.
	LostEvicted
	// LostClosed: the client was closed.
	LostClosed
)

// String returns the reason as a clause, such as "the client was closed".
func (r Reason) String() string {
	return keeper.Reason(r).String() // they are numbered alike
}

// LostError is the cause with which the context of a lost hold ended. It matches [ErrLost] and what Err matches.
type LostError struct {
	// Name is the lock's name, Token the lost hold's token.
	Name  string
	Token uint64
	// Reason is why.
	Reason Reason
	// Err is what was last heard from the store; nil if that says no more than Reason.
	Err error
}

// Error says which lock was lost, and why.
func (e *LostError) Error() string {
	s := fmt.Sprintf("stile: lock %q (token %d) lost: %v", e.Name, e.Token, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns ErrLost and Err.
func (e *LostError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrLost}
	}
	return []error{ErrLost, e.Err}
}
