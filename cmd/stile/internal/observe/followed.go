package observe

import (
	"time"

	"github.com/stilelock/stile"
)

// followed is a line with entries.
type followed struct {
	line    stile.Line
	entries map[identity]*followedEntry
	placed  []*followedEntry // in the order of the line: first the holders
}

// followedEntry is what the observer knows about an entry beside its last reading.
type followedEntry struct {
	joined, admitted time.Time // when that was seen; zero if it was so before
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
	p := place{&s.Entry, s.What == Holds || s.What == Ended}
	_, known := f.entries[p.identity()]
	if !known {
		_, known = f.entries[p.identityWithoutToken()]
	}
	e := f.entry(p)
	ev := Event{Time: now, Step: s, known: known}
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

// follow sets the line, and follows its entries.
func (f *followed) follow(l stile.Line) {
	f.line, f.placed = l, f.placed[:0]
	for _, p := range places(l) {
		f.placed = append(f.placed, f.entry(p))
	}
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
