package store

import (
	"errors"
	"fmt"
)

// The errors that callers of a store tell apart. Stores wrap them with what happened and where. Who has called
// the store knows which lock it is about, and says so once.
var (
	// ErrSessionLost means that the session has ended: not confirmed for its TTL, ended by somebody else, or
	// closed.
	ErrSessionLost = errors.New("session lost")
	// ErrGone means that the entry is not in its line: withdrawn, removed by somebody else, or never there.
	ErrGone = errors.New("entry gone")
	// ErrNotKnown means that the entry is not in its line, and that it is not known when it left: an earlier request to take it
	// out was not answered, and this one found nothing. That request may have been carried out, or the entry was gone before.
	ErrNotKnown = errors.New("not known whether the entry was still there")
	// ErrUnsupported means that the store cannot do what was asked, ever.
	ErrUnsupported = errors.New("not supported by this store")
	// ErrBadName means that a lock cannot have this name.
	ErrBadName = errors.New("invalid lock name")
)

// HeldError is what trying for a lock that is not free returns.
type HeldError struct {
	// Name is the lock's name.
	Name string
	// Holder is an entry that stands in the way, as far as the store could tell; nil if it could not.
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
