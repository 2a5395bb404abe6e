package observe

import (
	"maps"
	"time"

	"github.com/stilelock/stile"
)

// A lease is what is known about how long a session lives. All entries of a session share it, in all lines.
type lease struct {
	// The session ends at deadline unless it is renewed. longest is the longest time that it ever had left:
	// about the TTL. Both are zero if the lease has not been read, or the store does not know it.
	deadline time.Time
	longest  time.Duration

	read time.Time     // when the latest reading began
	left time.Duration // how long the session had left then

	seen  time.Time // when the session was first seen
	asked time.Time // when a line was last read for the lease alone

	line  string // the name of a line with an entry of the session; empty if none is known
	holds bool   // it is a holder there
}

// leases are the leases of sessions, by session. The store does not know those of all sessions.
type leases map[string]*lease

// confirm records how long sessions have left, from a reading of a line that began at the given time. It may
// end after a reading that began later.
func (ls leases) confirm(l stile.Line, at time.Time) {
	for _, p := range places(l) {
		left := p.entry.Remaining
		if left <= 0 {
			continue
		}
		s := ls.see(p, l.Name, at)
		if deadline := at.Add(left); deadline.After(s.deadline) {
			s.deadline = deadline
		}
		s.longest = max(s.longest, left)
		if !at.Before(s.read) {
			s.read, s.left = at, left
		}
	}
}

// see records where a session has an entry.
func (ls leases) see(p place, name string, at time.Time) *lease {
	s := ls[p.entry.Session]
	if s == nil {
		s = &lease{seen: at}
		ls[p.entry.Session] = s
	}
	if p.holds || s.line == "" {
		s.line, s.holds = name, p.holds
	}
	return s
}

// seeAll records where the sessions of a line have entries. It returns whether the lease of one of them must be
// read, because a change that the store has reported does not show it.
func (ls leases) seeAll(l stile.Line, at time.Time) (unread bool) {
	for _, p := range places(l) {
		s := ls.see(p, l.Name, at)
		unread = unread || s.deadline.IsZero() && s.asked.IsZero()
	}
	return unread
}

// leaseMemory is how long a lease is kept after its end, for entries that the watch has yet to miss.
const leaseMemory = time.Minute

// forget forgets the leases of sessions that have had no entry for a while, as far as has says.
func (ls leases) forget(now time.Time, has func(session, name string) bool) {
	maps.DeleteFunc(ls, func(session string, s *lease) bool {
		return now.Sub(s.deadline) > leaseMemory && now.Sub(s.seen) > leaseMemory && !has(session, s.line)
	})
}

// remaining returns how long a session will live unless it was renewed since the last reading: zero if that is
// not known, and at least a nanosecond otherwise.
func (ls leases) remaining(session string, now time.Time) time.Duration {
	s := ls[session]
	if s == nil || s.deadline.IsZero() {
		return 0
	}
	return max(s.deadline.Sub(now), time.Nanosecond)
}

// cause returns why an entry that is gone has left its line, if that is known. Before the deadline the
// store does not end a session, so somebody removed the entry. At the deadline the session has ended
// unless it was renewed. That it was not renewed is known if more than half of the TTL had passed without
// a renewal when the lease was last read: a client that lives renews earlier.
func (ls leases) cause(session string, now time.Time) string {
	switch s := ls[session]; {
	case s == nil:
		return ""
	case now.Before(s.deadline):
		return Released
	case s.left < s.longest/2:
		return Lost
	default:
		return ""
	}
}

// due returns when the lease must be read again so that a loss can be told from a release.
func (s *lease) due() time.Time {
	switch {
	case !s.deadline.IsZero():
		return s.deadline.Add(-s.longest * 2 / 5)
	case s.asked.IsZero():
		return s.seen
	default: // the store does not know it, or its reply was lost
		return s.asked.Add(unknownLeaseInterval)
	}
}

// unknownLeaseInterval is the time between two readings of a lease that the store does not know.
const unknownLeaseInterval = 10 * time.Second
