package zkstore

import (
	"time"

	"github.com/stilelock/stile/store"
)

// SetPatience makes calls without a session wait that long for servers, and makes the store look for changes of which it has
// heard nothing that rarely. It must be called before the store is used.
func (s *Store) SetPatience(patience, rarely time.Duration) {
	s.patience, s.recheckInterval, s.resyncInterval = patience, rarely, rarely
}

// SetSessionBytes sets the bound of what the end of one session may write. It must be called before the store is used.
func (s *Store) SetSessionBytes(n int64) { s.sessionBytes = n }

// MaxSessionBytes is as the constant.
const MaxSessionBytes = maxSessionBytes

// A Part is what is counted in one of the sessions that are one to their user.
type Part struct {
	ID    string
	Bytes int64
}

// Parts returns the sessions that are one.
func Parts(se store.Session) (parts []Part) {
	g := se.(*group)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, se := range g.sessions {
		parts = append(parts, Part{se.ID(), se.bytes.Load()})
	}
	return parts
}

// Server returns the server that a session is connected to.
func Server(se store.Session) string { return se.(*group).first.client.Server() }
