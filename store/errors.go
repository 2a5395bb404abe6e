package store

import (
	"errors"
	"fmt"

	"github.com/stilelock/stile/line"
)

// Errors that the callers of a store test for with [errors.Is]. Stores wrap them with what happened
// and where, but without the lock's name, which the caller adds.
var (
	// ErrSessionLost means that the session has ended: it was closed, it expired, or another client
	// ended it.
	ErrSessionLost = errors.New("session lost")
	// ErrGone means that the entry is not in its line: it was withdrawn, it was removed by another
	// client, or it never existed.
	ErrGone = errors.New("entry gone")
	// ErrNotKnown means that the entry is out of its line, but that it is unknown whether it was there
	// until then: an earlier request to remove it got no reply, and the repeated request found no
	// entry. So this caller or another client may have removed it.
	ErrNotKnown = errors.New("not known whether the entry was still there")
	// ErrNoNumber means that all slot numbers are taken; see [Extensions.ClaimNumber].
	ErrNoNumber = errors.New("no slot number is free")
	// ErrUnsupported means that the store, or the mode, does not have this feature.
	ErrUnsupported = errors.New("not supported")
	// ErrKind means that the name is in use for another kind of lock. See [KindError].
	ErrKind = errors.New("in use for another kind of lock")
	// ErrBadName means that the name is not valid for a lock.
	ErrBadName = errors.New("invalid lock name")
)

// A KindError is returned if the first entry of the line is of another kind than the requested one;
// see [line.SameKind]. It matches [ErrKind].
type KindError struct {
	// Name is the lock's name.
	Name string
	// Mode is the requested mode.
	Mode line.Mode
	// Other is the entry that shows the line's kind: the first one, or the first of those that the
	// store has read. If the conflict was found within a client, without a request to the store, only
	// its Mode and Owner are set.
	Other Entry
}

// Error names both kinds and the owner of the other entry.
func (e *KindError) Error() string {
	who := e.Other.Owner.String()
	if e.Other.Foreign || e.Other.Owner.IsZero() {
		who = "an unknown client (session " + e.Other.Session + ")"
	}
	advice := "use another name"
	if e.Mode.Slots() > 0 && e.Other.Mode.Slots() > 0 {
		advice = "use the same number of slots in all clients, or another name"
	}
	return fmt.Sprintf("requested as %s, but in use as %s by %s: %s", kindText(e.Mode), kindText(e.Other.Mode), who, advice)
}

// Is reports whether target is [ErrKind].
func (e *KindError) Is(target error) bool { return target == ErrKind }

func kindText(m line.Mode) string {
	switch n := m.Slots(); n {
	case 0:
		return "a mutex or read-write lock"
	case 1:
		return "a semaphore of 1 slot"
	default:
		return fmt.Sprintf("a semaphore of %d slots", n)
	}
}

// A HeldError is returned if a try finds the lock held or waited for.
type HeldError struct {
	// Name is the lock's name.
	Name string
	// Holder is one of the entries ahead: a holder or, if no holder blocks the try, perhaps a waiter. It
	// is nil if the store does not know it.
	Holder *Entry
}

// Error names the lock and, if it is known, the holder.
func (e *HeldError) Error() string {
	switch {
	case e.Holder == nil:
		return fmt.Sprintf("lock %q is held", e.Name)
	case e.Holder.Foreign || e.Holder.Owner.IsZero():
		return fmt.Sprintf("lock %q is held by an unknown client (session %s)", e.Name, e.Holder.Session)
	case e.Holder.Owner.Lingers:
		return fmt.Sprintf("lock %q is held or kept by %s", e.Name, e.Holder.Owner)
	default:
		return fmt.Sprintf("lock %q is held by %s", e.Name, e.Holder.Owner)
	}
}
