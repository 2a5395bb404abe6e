package etcdstore

import (
	"time"

	"github.com/stilelock/stile/store"
)

// Times are the delays and timeouts of a store; see times.
type Times struct{ HeldWatchDelay, IdleTimeout, RecheckInterval, WatchTimeout, ResyncInterval, RetryDelay, AnswerTimeout time.Duration }

// DefaultTimes returns the times that New sets.
func DefaultTimes() Times {
	t := defaultTimes
	return Times{t.heldWatchDelay, t.idleTimeout, t.recheckInterval, t.watchTimeout, t.resyncInterval, t.retryDelay, t.answerTimeout}
}

// SetTimes replaces the store's times. It must be called before the store is used.
func (s *Store) SetTimes(t Times) {
	s.times = times{t.HeldWatchDelay, t.IdleTimeout, t.RecheckInterval, t.WatchTimeout, t.ResyncInterval, t.RetryDelay, t.AnswerTimeout}
}

// Watches reports whether a session has a complete watch of a line.
func Watches(s store.Session, name string) (watches bool) {
	look(s, name, func(w *lineWatch) { watches = w.open != 0 })
	return watches
}

// WatchesHeld reports whether a session has a complete watch of the key of an entry in a line.
func WatchesHeld(s store.Session, name string) (watches bool) {
	look(s, name, func(w *lineWatch) {
		for e := range w.mine {
			watches = watches || e.keyWatched
		}
	})
	return watches
}

// look calls f with what a session knows of a line, if it knows anything.
func look(s store.Session, name string, f func(*lineWatch)) {
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
func Lose(s store.Session) { _ = s.(*session).leaseGone() }
