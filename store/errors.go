package store

import (
	"errors"
	"fmt"
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
	// ErrNotKnown means that the entry is out of its line, but that it is unknown whether this caller
	// removed it: an earlier request to remove it got no reply, and the repeated request found no
	// entry.
	ErrNotKnown = errors.New("not known whether the entry was still there")
	// ErrUnsupported means that the store does not have this feature.
	ErrUnsupported = errors.New("not supported by this store")
	// ErrBadName means that the name is not valid for a lock.
	ErrBadName = errors.New("invalid lock name")
)

// A HeldError is returned if a try finds the lock held or waited for.
type HeldError struct {
	// Name is the lock's name.
	Name string
	// Holder is the entry in front; nil if the store does not know it.
	Holder *Entry
}

// Error names the lock and, if it is known, the holder.
func (e *HeldError) Error() string {
	switch {
	case e.Holder == nil:
		return fmt.Sprintf("lock %q is held", e.Name)
	case e.Holder.Foreign || e.Holder.Owner.IsZero():
		return fmt.Sprintf("lock %q is held by an unknown client (session %s)", e.Name, e.Holder.Session)
	default:
		return fmt.Sprintf("lock %q is held by %s", e.Name, e.Holder.Owner)
	}
}
