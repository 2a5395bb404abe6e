package etcdstore

import (
	"maps"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// leaseReadings are what has been read about leases in the last second. A line that changes often is read
// up to ten times a second, and each reading would otherwise query the lease of each session in it.
type leaseReadings struct {
	mu   sync.Mutex
	last map[clientv3.LeaseID]leaseReading
}

// leaseReading is what etcd has replied about a lease.
type leaseReading struct {
	at   time.Time     // when the request was sent
	left time.Duration // in whole seconds, rounded down
	ttl  time.Duration
}

// recent reports whether the reading may be used instead of another one. The lease may have been renewed
// since. So a reading is used for a second, and a twentieth of the TTL, at most. A live session renews its
// lease after a third of the TTL. A reading must not show one that is not renewed for half of it; with a
// TTL below ten seconds, the seconds by which etcd rounds are too large for that already.
func (r leaseReading) recent(now time.Time) bool {
	return r.ttl >= 10*time.Second && now.Sub(r.at) < min(time.Second, r.ttl/20)
}

// remaining returns how long a lease has left at least, if it was read recently.
func (l *leaseReadings) remaining(id clientv3.LeaseID, now time.Time) (left time.Duration, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, known := l.last[id]
	if !known || !r.recent(now) {
		return 0, false
	}
	return r.left - now.Sub(r.at), true
}

// add keeps a reading, and forgets those that are not recent.
func (l *leaseReadings) add(id clientv3.LeaseID, r leaseReading) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.last, func(_ clientv3.LeaseID, old leaseReading) bool { return !old.recent(r.at) })
	if l.last == nil {
		l.last = make(map[clientv3.LeaseID]leaseReading)
	}
	l.last[id] = r
}
