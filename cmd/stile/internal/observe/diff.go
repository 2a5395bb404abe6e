package observe

import (
	"reflect"
	"slices"

	"github.com/stilelock/stile"
)

// What happened to an entry, as in the output of stile watch.
const (
	Waits = "waits" // it joined the line
	Holds = "holds" // it was admitted
	Ended = "ended" // its hold ended
	Left  = "left"  // it left without having been admitted
)

// A Step is something that happened to an entry.
type Step struct {
	What  string
	Entry stile.Entry
}

// Steps returns the steps that explain how a line changed between two readings: first the entries that
// left, then those that were admitted or joined, each in order. A step that was undone between the
// readings is not seen.
func Steps(before, now stile.Line) []Step {
	had := places(before)
	was := make(map[identity]bool, len(had)) // whether it held
	for _, p := range had {
		was[p.identity()] = p.holds
	}
	var came []Step
	for _, p := range places(now) {
		id := p.identity()
		if _, ok := was[id]; !ok {
			id = p.identityWithoutToken() // a store may assign tokens late
		}
		held, ok := was[id]
		delete(was, id)
		switch {
		case ok && held == p.holds:
		case p.holds:
			came = append(came, Step{Holds, *p.entry})
		default:
			came = append(came, Step{Waits, *p.entry})
		}
	}
	var all []Step
	for _, p := range had {
		if _, gone := was[p.identity()]; !gone {
			continue
		}
		if p.holds {
			all = append(all, Step{Ended, *p.entry})
		} else {
			all = append(all, Step{Left, *p.entry})
		}
	}
	return append(all, came...)
}

// Same reports whether two readings of a line differ at most in what changes all the time: how long the
// sessions will live.
func Same(a, b stile.Line) bool {
	return a.Name == b.Name && a.Limit == b.Limit && slices.Equal(a.Remarks, b.Remarks) &&
		slices.EqualFunc(a.Holders, b.Holders, sameEntry) && slices.EqualFunc(a.Waiters, b.Waiters, sameEntry)
}

func sameEntry(a, b stile.Entry) bool {
	// What differs most often comes first: reflection is slow.
	if a.Token != b.Token || a.Session != b.Session {
		return false
	}
	a.Remaining, b.Remaining = 0, 0
	return reflect.DeepEqual(a, b)
}

// clone returns a copy whose entries can be changed.
func clone(l stile.Line) stile.Line {
	l.Holders, l.Waiters = slices.Clone(l.Holders), slices.Clone(l.Waiters)
	return l
}

// Empty reports whether the line has neither holders nor waiters. Then it is not in a reading of all
// lines, and its limit is not known.
func Empty(l stile.Line) bool { return len(l.Holders)+len(l.Waiters) == 0 }

// NoEntries returns the line of a name without entries.
func NoEntries(name string) stile.Line {
	return stile.Line{Name: name, Holders: []stile.Entry{}, Waiters: []stile.Entry{}}
}

// place is an entry of a line, and whether it holds the lock.
type place struct {
	entry *stile.Entry
	holds bool
}

func places(l stile.Line) []place {
	all := make([]place, 0, len(l.Holders)+len(l.Waiters))
	for i := range l.Holders {
		all = append(all, place{&l.Holders[i], true})
	}
	for i := range l.Waiters {
		all = append(all, place{&l.Waiters[i], false})
	}
	return all
}

// identity identifies an entry across two readings.
type identity struct {
	token   uint64
	session string
	since   int64
}

// identity is the token alone if there is one, because the session of an entry may change.
func (p place) identity() identity {
	if p.entry.Token != 0 {
		return identity{token: p.entry.Token}
	}
	return p.identityWithoutToken()
}

func (p place) identityWithoutToken() identity {
	return identity{session: p.entry.Session, since: p.entry.Owner.Since.UnixNano()}
}
