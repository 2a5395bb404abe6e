package etcdstore

import (
	"time"

	"github.com/stilelock/stile/store"
)

// Times is what a store does by the clock; see times.
type Times struct{ LateWatch, Linger, Recheck, Overdue, LookAgain, Again, LastWord time.Duration }

// Ordinary returns the times of a store as it is made.
func Ordinary() Times {
	t := ordinary
	return Times{t.heldWatchDelay, t.idleTimeout, t.recheckInterval, t.watchTimeout, t.resyncInterval, t.retryDelay, t.answerTimeout}
}

// SetTimes makes the store go by other times. It must be called before the store is used.
func (s *Store) SetTimes(t Times) {
	s.times = times{t.LateWatch, t.Linger, t.Recheck, t.Overdue, t.LookAgain, t.Again, t.LastWord}
}

// Watches reports whether a session has a complete watch of a line.
func Watches(s store.Session, name string) (watches bool) {
	look(s, name, func(w *follower) { watches = w.open != 0 })
	return watches
}

// WatchesHeld reports whether a session has a complete watch of the key of an entry in a line.
func WatchesHeld(s store.Session, name string) (watches bool) {
	look(s, name, func(w *follower) {
		for e := range w.mine {
			watches = watches || e.keyWatched
		}
	})
	return watches
}

// look calls f with what a session knows of a line, if it knows anything.
func look(s store.Session, name string, f func(*follower)) {
	se := s.(*session)
	se.mu.Lock()
	w := se.lines[name]
	se.mu.Unlock()
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w)
}

// Lose ends a session as if the store had found out that its lease is gone.
func Lose(s store.Session) { _ = s.(*session).gone() }
