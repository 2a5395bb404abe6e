package observe

import (
	"time"

	"github.com/stilelock/stile"
)

// followed is a line with entries.
type followed struct {
	line         stile.Line
	read         time.Time // when the sessions' leases were last read
	watchedUntil time.Time // until then somebody looks at it
	entries      map[identity]*followedEntry
}

// followedEntry is what the observer knows about an entry beside its last reading.
type followedEntry struct {
	joined, admitted time.Time // when that was seen; zero if it was so before

	// The lease of the entry's session, as last read. It ends at deadline unless it is renewed. longest is
	// the longest time that was ever left: about the TTL.
	deadline           time.Time
	remaining, longest time.Duration
}

func newFollowed(name string) *followed {
	return &followed{line: NoEntries(name), entries: make(map[identity]*followedEntry)}
}

// entry returns the entry at a place; a new one if it is not followed yet.
func (f *followed) entry(p place) *followedEntry {
	id, early := p.identity(), p.identityWithoutToken()
	e := f.entries[id]
	if e == nil {
		if e = f.entries[early]; e == nil { // a store may assign tokens late
			e = new(followedEntry)
		}
		delete(f.entries, early)
		f.entries[id] = e
	}
	return e
}

// event follows the entry of a step, and returns what is kept of the step.
func (f *followed) event(s Step, now time.Time) Event {
	p := place{s.Entry, s.What == Holds || s.What == Ended}
	_, known := f.entries[p.identity()]
	if !known {
		_, known = f.entries[p.identityWithoutToken()]
	}
	e := f.entry(p)
	ev := Event{Time: now, Step: s}
	switch s.What {
	case Waits:
		e.joined = now
	case Holds:
		e.admitted = now
		if known {
			ev.Waited = since(e.joined, now)
		}
		ev.Measured = !known || !e.joined.IsZero()
	case Ended, Left:
		if s.What == Ended {
			ev.Held = since(e.admitted, now)
			ev.Measured = !e.admitted.IsZero()
		} else {
			ev.Waited = since(e.joined, now)
			ev.Measured = !e.joined.IsZero()
		}
		ev.Cause = e.cause(now)
		delete(f.entries, p.identity())
	}
	return ev
}

// since returns the time since a moment; zero if that is not known.
func since(t, now time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return now.Sub(t)
}

// cause returns why an entry that is gone has left its line, if that is known. Before the deadline the
// store does not end a session, so somebody removed the entry. At the deadline the session has ended
// unless it was renewed. That it was not renewed is known if more than half of the TTL had passed without
// a renewal when the lease was last read: a client that lives renews earlier.
func (e *followedEntry) cause(now time.Time) string {
	switch {
	case e.deadline.IsZero():
		return ""
	case now.Before(e.deadline):
		return Released
	case e.remaining < e.longest/2:
		return Lost
	default:
		return ""
	}
}

// confirm records how long the sessions have left, from a reading of the line that began at the given time.
func (f *followed) confirm(l stile.Line, at time.Time) {
	f.read = at
	for _, p := range places(l) {
		if p.entry.Remaining <= 0 {
			continue
		}
		e := f.entry(p)
		if d := at.Add(p.entry.Remaining); d.After(e.deadline) {
			e.deadline = d
		}
		e.remaining, e.longest = p.entry.Remaining, max(e.longest, p.entry.Remaining)
	}
}

// due returns when the lease of a holder must be read again so that its loss can be told from a release;
// zero if no holder has a known lease.
func (f *followed) due() time.Time {
	var first time.Time
	for _, h := range f.line.Holders {
		e := f.entry(place{h, true})
		if e.deadline.IsZero() {
			continue
		}
		if due := e.deadline.Add(-e.longest * 2 / 5); first.IsZero() || due.Before(first) {
			first = due
		}
	}
	return first
}

// present returns the line with the times that its sessions have left now.
func (f *followed) present(now time.Time) stile.Line {
	l := clone(f.line)
	for i := range l.Holders {
		f.setRemaining(&l.Holders[i], true, now)
	}
	for i := range l.Waiters {
		f.setRemaining(&l.Waiters[i], false, now)
	}
	return l
}

func (f *followed) setRemaining(entry *stile.Entry, holds bool, now time.Time) {
	entry.Remaining = f.entry(place{*entry, holds}).left(now)
}

// left returns how long the entry's session has left; zero if that is not known.
func (e *followedEntry) left(now time.Time) time.Duration {
	if e.deadline.IsZero() {
		return 0
	}
	return max(e.deadline.Sub(now), time.Nanosecond)
}
