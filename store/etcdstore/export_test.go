package etcdstore

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/examine"
)

// Times has the fields of times.
type Times struct{ HeldWatchDelay, IdleTimeout, RecheckInterval, WatchTimeout, ResyncInterval, RetryDelay, AnswerTimeout time.Duration }

// DefaultTimes returns the times that New sets.
func DefaultTimes() Times {
	t := defaultTimes
	return Times{t.heldWatchDelay, t.idleTimeout, t.recheckInterval, t.watchTimeout, t.resyncInterval, t.retryDelay, t.answerTimeout}
}

// SetTimes replaces the store's times. Call it before the store is used.
func (s *Store) SetTimes(t Times) {
	s.times = times{t.HeldWatchDelay, t.IdleTimeout, t.RecheckInterval, t.WatchTimeout, t.ResyncInterval, t.RetryDelay, t.AnswerTimeout}
}

// SetSizes replaces the store's sizes. It must be called before the store is used.
func (s *Store) SetSizes(readAtJoin, watchLimit, keepWatchLimit int) {
	s.sizes = sizes{readAtJoin, watchLimit, keepWatchLimit}
}

// SetMaxCatchUp replaces how many revisions a watch catches up with. It must be called before the store is used.
func (s *Store) SetMaxCatchUp(n int64) { s.maxCatchUp = n }

// LineWatched reports whether a session has an open, complete watch of a line.
func LineWatched(s store.Session, name string) (watched bool) {
	withLineWatch(s, name, func(w *lineWatch) { watched = w.open != 0 })
	return watched
}

// Followed returns the key of the entry that a session follows in a long line; "" if it follows
// none, or has not verified yet that the entry is there.
func Followed(s store.Session, name string) (key string) {
	withLineWatch(s, name, func(w *lineWatch) {
		for e := range w.mine {
			if e.followed != nil && e.following {
				key = e.followed.ID
			}
		}
	})
	return key
}

// KeyWatched reports whether a session watches the key of any of its entries in a line.
func KeyWatched(s store.Session, name string) (watched bool) {
	withLineWatch(s, name, func(w *lineWatch) {
		for e := range w.mine {
			watched = watched || e.keyWatched
		}
	})
	return watched
}

// withLineWatch calls f with a session's lineWatch of a line, if it has one.
func withLineWatch(s store.Session, name string, f func(*lineWatch)) {
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

// LoseSession ends a session as if its lease were found to be gone.
func LoseSession(s store.Session) { _ = s.(*session).endExpired() }

// EntryRange returns the range of the keys of a line's entries, in a store without a prefix.
func EntryRange(name string) (from, end string) { return keys{}.entries(name) }

// EntryKey returns the key of an entry, in a store without a prefix.
func EntryKey(name string, lease clientv3.LeaseID, nonce string) string {
	return keys{}.entry(name, lease, nonce)
}

// SetExamineLimits sets the limits by which Examine judges.
func (s *Store) SetExamineLimits(fsync time.Duration, uncompacted, quotaPercent int64) {
	s.limits = examineLimits{fsync, uncompacted, quotaPercent}
}

// Quantile returns the bound of a quantile of a histogram in a page of metrics, and how many observations it
// has.
func Quantile(page []string, name string, q float64) (bound, n float64) {
	return samples(page).quantile(name, q)
}

// JudgeVersion returns the finding about a version of etcd.
func JudgeVersion(version string) store.Finding {
	return examine.KnownBugs("etcd-version", "etcd", version, oldestSupported, bugs)
}
