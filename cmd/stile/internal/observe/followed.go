package observe

import (
	"time"

	"github.com/stilelock/stile"
)

// followed is a line with entries.
type followed struct {
	line    stile.Line
	entries []followedEntry // in the order of the line: first the holders
}

// followedEntry is what the observer knows about an entry beside its last reading: when it was seen to join and to be
// admitted. A time is zero if it was so before.
type followedEntry struct{ joined, admitted time.Time }

// follow replaces the line by l. It returns the events that explain the change if explain is true.
func (f *followed) follow(l stile.Line, explain bool, now time.Time) (events []Event) {
	var entries []followedEntry
	for _, p := range pairs(f.line, l) {
		var e followedEntry
		if p.before >= 0 {
			e = f.entries[p.before]
		}
		if explain && p.what != "" {
			events = append(events, e.event(p, now))
			switch p.what {
			case Waits:
				e.joined = now
			case Holds:
				e.admitted = now
			}
		}
		if p.stays {
			entries = append(entries, e)
		}
	}
	f.line, f.entries = l, entries
	return events
}

// event returns the event of the step that the entry makes now.
func (e followedEntry) event(p pair, now time.Time) Event {
	ev := Event{Time: now, Step: p.step(), known: p.before >= 0}
	switch p.what {
	case Holds:
		ev.Waited = since(e.joined, now)
		ev.Measured = !ev.known || !e.joined.IsZero()
	case Ended:
		ev.Held = since(e.admitted, now)
		ev.Measured = !e.admitted.IsZero()
	case Left:
		ev.Waited = since(e.joined, now)
		ev.Measured = !e.joined.IsZero()
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

// present returns the line with the times that its sessions have left now.
func (f *followed) present(ls leases, now time.Time) stile.Line {
	l := clone(f.line)
	for _, entries := range [][]stile.Entry{l.Holders, l.Waiters} {
		for i := range entries {
			entries[i].Remaining = ls.remaining(entries[i].Session, now)
		}
	}
	return l
}
