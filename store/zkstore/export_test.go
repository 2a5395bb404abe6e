package zkstore

import (
	"time"

	"github.com/stilelock/stile/store"
)

// SetPatience makes calls without a session wait that long for servers, and makes the store look for changes of which it has
// heard nothing that rarely. It must be called before the store is used.
func (s *Store) SetPatience(patience, rarely time.Duration) {
	s.patience, s.recheck, s.lookAgain = patience, rarely, rarely
}

// Server returns the server that a session is connected to.
func Server(se store.Session) string { return se.(*session).client.Server() }
