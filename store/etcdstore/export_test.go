package etcdstore

import (
	"time"

	"github.com/stilelock/stile/store"
)

// Times is what a store does by the clock; see times.
type Times struct{ LateWatch, Linger, Recheck, Overdue, LookAgain time.Duration }

// Ordinary returns the times of a store as it is made.
func Ordinary() Times {
	t := ordinary
	return Times{t.lateWatch, t.linger, t.recheck, t.overdue, t.lookAgain}
}

// SetTimes makes the store go by other times. It must be called before the store is used.
func (s *Store) SetTimes(t Times) {
	s.times = times{t.LateWatch, t.Linger, t.Recheck, t.Overdue, t.LookAgain}
}

// Watches reports whether a session has a complete watch of a line.
func Watches(s store.Session, name string) bool { return WatchOf(s, name) != 0 }

// WatchOf returns the number of the watch of a line that is open and complete; zero if there is none. The first one that
// the session has opened has number 1.
func WatchOf(s store.Session, name string) int {
	se := s.(*session)
	se.mu.Lock()
	w := se.lines[name]
	se.mu.Unlock()
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open
}
