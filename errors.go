package stile

import (
	"errors"
	"fmt"
	"time"

	"github.com/stilelock/stile/internal/keeper"
	"github.com/stilelock/stile/store"
)

// Errors to test for with [errors.Is]. A locking method that returns an error has not acquired the lock.
var (
	// ErrHeld means that TryLock, or another Try method, found the lock held, or closed by
	// [Options.LockDelay], or others waiting for it. See [HeldError].
	ErrHeld = errors.New("lock is held")
	// ErrLost means that a hold ended before it was released. See [LostError].
	ErrLost = errors.New("lock lost")
	// ErrClosed means that the client is closed.
	ErrClosed = errors.New("client is closed")
	// ErrReleased means that the hold was released. It is the cause of a hold's context after a release.
	ErrReleased = errors.New("lock released")
	// ErrYielded is the cause of a hold's context after [Hold.Yield].
	ErrYielded = errors.New("lock yielded to the next waiter")
	// ErrLeft means that the place was given up with [Place.Leave], or that the hold was released while
	// [Hold.Yield] waited.
	ErrLeft = errors.New("left the line")
	// ErrGone means that no entry has the given token.
	ErrGone = store.ErrGone
	// ErrNotKnown means that a request got no reply, and that its repetition found no entry. After
	// [Hold.Release] and [Hold.Yield] it is then unknown whether that request removed the entry or the lock
	// had been lost before. After [Hold.SetRecord] it is unknown whether that request wrote the record.
	ErrNotKnown = store.ErrNotKnown
	// ErrNoNumber means that all slot numbers are taken. See [Semaphore.Numbered].
	ErrNoNumber = store.ErrNoNumber
	// ErrUnsupported means that the store, or this kind of hold, does not have the feature.
	ErrUnsupported = store.ErrUnsupported
	// ErrReentrant means that the context comes from a hold of the same name and client that has not
	// ended, so that the caller might wait for itself. All locking methods but the Try methods return
	// it: also a second RLock, an Acquire when another slot is free, and the Join methods.
	ErrReentrant = errors.New("requested again with the context of its own hold; locks are not re-entrant")
	// ErrKind means that the name is in use for another kind of lock. See [KindError].
	ErrKind = store.ErrKind
	// ErrBadName means that the name is not valid for a lock.
	ErrBadName = store.ErrBadName
)

// A KindError is returned if a name is in use for another kind of lock than the requested one: one of the
// two is a semaphore and the other is not, or both are semaphores with different numbers of slots. Mutexes
// and read-write locks are one kind. It matches [ErrKind].
//
// Its field Mode is the requested mode. Other is an entry in the line that shows the kind that the name
// has. If the conflict is with a goroutine of the same client, and was found without a request to the
// store, only the fields Mode and Owner of Other are set.
//
// A name has its kind as long as somebody holds the lock or waits for it. The entry of a client that
// gave up or was refused counts until it is removed: usually for a moment, and for up to a TTL if
// that client died. So retry a little later.
type KindError = store.KindError

// A HeldError is returned by [Mutex.TryLock] and the other Try methods if somebody holds the lock or waits
// for it, or if the lock is closed because the last hold ended without a release. It matches [ErrHeld].
type HeldError struct {
	// Name is the lock's name.
	Name string
	// Holder is an entry in front: usually a holder, sometimes a waiter. It is nil if the store does
	// not know it. If the client found the lock held by one of its own goroutines, without a request
	// to the store, only the fields Mode and Owner are set.
	Holder *Entry
	// ClosedFor is how much longer the lock stays closed because the hold of its last holder, Holder, ended
	// without a release. See [Options.LockDelay]. It is zero if the lock is held. An entry that stays in
	// the line after [Hold.ReleaseAfter] counts as a holder.
	ClosedFor time.Duration

	inner error
}

// Error names the lock and its holder, or says why the lock is closed.
func (e *HeldError) Error() string { return "stile: " + e.inner.Error() }

// Is reports whether target is [ErrHeld].
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Reason is why a hold was lost.
type Reason uint8

// The reasons for a loss.
const (
	// LostDeadline: no renewal was confirmed before the deadline. The store may or may not have
	// ended the session.
	LostDeadline Reason = iota + 1
	// LostExpired: the store reported that the session has ended.
	LostExpired
	// LostEvicted: the entry was removed from the store, by another client or because its session
	// ended there.
	LostEvicted
	// LostClosed: the client was closed.
	LostClosed
)

// String returns the reason as a clause, such as "the client was closed".
func (r Reason) String() string {
	return keeper.Reason(r).String() // both have the same numbers
}

// A LostError is the cause of a lost hold's context. It matches [ErrLost] and everything that Err
// matches.
type LostError struct {
	// Name is the lock's name, Token the token of the lost hold.
	Name  string
	Token uint64
	// Reason is why the hold was lost.
	Reason Reason
	// Err is the last error from the store; nil if it adds nothing to Reason.
	Err error
}

// Error names the lock, its token and the reason.
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
