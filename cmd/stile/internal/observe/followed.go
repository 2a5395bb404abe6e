package observe

import (
	"slices"
	"time"

	"github.com/stilelock/stile"
)

// followed is a line with entries.
type followed struct {
	line    stile.Line
	entries []followedEntry // in the order of the line: first the holders
}

// followedEntry is what the observer knows about an entry beside its last reading.
type followedEntry struct {
	id               identity
	joined, admitted time.Time // when that was seen; zero if it was so before
}

// follow replaces the line by l, and returns the events for the steps from the old line to l.
func (f *followed) follow(l stile.Line, steps []Step, now time.Time) []Event {
	known := make(map[identity]followedEntry, len(f.entries))
	for _, e := range f.entries {
		known[e.id] = e
	}
	find := func(p place) (e followedEntry, found bool) {
		e, found = known[p.identity()]
		if !found { // a store may assign tokens late
			early := p.identityWithoutToken()
			e, found = known[early]
			delete(known, early)
		}
		return e, found
	}
	events := slices.Grow([]Event(nil), len(steps))
	for _, s := range steps {
		p := place{&s.Entry, s.What == Holds || s.What == Ended}
		e, found := find(p)
		ev := Event{Time: now, Step: s, known: found}
		switch s.What {
		case Waits:
			e.joined = now
		case Holds:
			e.admitted = now
			if found {
				ev.Waited = since(e.joined, now)
			}
			ev.Measured = !found || !e.joined.IsZero()
		case Ended:
			ev.Held = since(e.admitted, now)
			ev.Measured = !e.admitted.IsZero()
		case Left:
			ev.Waited = since(e.joined, now)
			ev.Measured = !e.joined.IsZero()
		}
		known[p.identity()] = e
		events = append(events, ev)
	}
	f.line, f.entries = l, f.entries[:0]
	for _, p := range places(l) {
		e, _ := find(p)
		e.id = p.identity()
		f.entries = append(f.entries, e)
	}
	return events
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
