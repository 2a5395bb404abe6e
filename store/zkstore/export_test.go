package zkstore

import (
	"time"

	"github.com/stilelock/stile/store"
)

// SetRecheck makes the store read lines with waiters that often. It must be called before the store is used.
func (s *Store) SetRecheck(d time.Duration) { s.recheck = d }

// KeepUnconfirmed makes a session live on although it is not confirmed, for as long as the server lets it.
func KeepUnconfirmed(se store.Session) { se.(*session).expiry.Stop() }

// Server returns the server that a session is connected to.
func Server(se store.Session) string { return se.(*session).client.Server() }
