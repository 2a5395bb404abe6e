package zkstore

import (
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/examine"
)

// SetPatience sets how long calls without a session wait for servers, and the interval at which the
// store checks for changes without an event. It must be called before the store is used.
func (s *Store) SetPatience(patience, rarely time.Duration) {
	s.callTimeout, s.recheckInterval, s.resyncInterval, s.blockerCheckInterval = patience, rarely, rarely, rarely
	s.limits.word = patience
}

// SetResync sets how often a watch reports a possible change without an event. It must be called before the
// store is used.
func (s *Store) SetResync(d time.Duration) { s.resyncInterval = d }

// SetBlockerChecks sets the intervals at which waiters ask whether their line has changed, and at which they
// ask the leader for the entries ahead. It must be called before the store is used.
func (s *Store) SetBlockerChecks(recheck, check time.Duration) {
	s.recheckInterval, s.blockerCheckInterval = recheck, check
}

// SetSessionBytes sets the limit for what the end of one session may write. It must be called
// before the store is used.
func (s *Store) SetSessionBytes(n int64) { s.sessionBytes = n }

// MaxSessionBytes is maxSessionBytes.
const MaxSessionBytes = maxSessionBytes

// A Part is one ZooKeeper session of a group, with the bytes that its entries count.
type Part struct {
	ID    string
	Bytes int64
}

// Parts returns the ZooKeeper sessions of a group.
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

// SetExamineLimits sets the limits by which Examine judges.
func (s *Store) SetExamineLimits(fsync time.Duration, elections float64) {
	s.limits.fsync, s.limits.elections = fsync, elections
}

// JudgeVersion returns the finding about a version of ZooKeeper.
func JudgeVersion(version string) store.Finding {
	return examine.KnownBugs("zk-version", "ZooKeeper", version, oldestSupported, bugs)
}
