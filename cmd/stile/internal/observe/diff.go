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
	var all []Step
	for _, p := range pairs(before, now) {
		if p.what != "" {
			all = append(all, p.step())
		}
	}
	return all
}

// pair is an entry of one or both of two readings of a line.
type pair struct {
	entry  *stile.Entry // as it is in the later reading, if it is there
	what   string       // what happened to it between them; empty if nothing
	before int          // its place in the earlier reading, -1 if it is not there
	stays  bool         // it is in the later reading
}

func (p pair) step() Step { return Step{p.what, *p.entry} }

// pairs returns first the entries that left, then those of the later reading, each in order.
func pairs(before, now stile.Line) []pair {
	had, has := places(before), places(now)
	find := finder(had)
	was := make([]int, len(has)) // where each was
	stays := make([]bool, len(had))
	for i, p := range has {
		was[i] = find(p.identity())
		if was[i] < 0 {
			was[i] = find(p.identityWithoutToken()) // a store may assign tokens late
		}
		if was[i] >= 0 {
			stays[was[i]] = true
		}
	}
	all := make([]pair, 0, len(had)+len(has))
	for i, p := range had {
		if !stays[i] {
			what := Left
			if p.holds {
				what = Ended
			}
			all = append(all, pair{p.entry, what, i, false})
		}
	}
	for i, p := range has {
		what := Waits
		switch {
		case was[i] >= 0 && had[was[i]].holds == p.holds:
			what = ""
		case p.holds:
			what = Holds
		}
		all = append(all, pair{p.entry, what, was[i], true})
	}
	return all
}

// finder returns a function that returns the place of an entry, -1 if it is not among the places.
func finder(all []place) func(identity) int {
	const few = 16 // looking at so many is faster than to make a map
	if len(all) <= few {
		return func(id identity) int {
			return slices.IndexFunc(all, func(p place) bool { return p.identity() == id })
		}
	}
	index := make(map[identity]int, len(all))
	for i, p := range all {
		index[p.identity()] = i
	}
	return func(id identity) int {
		if i, ok := index[id]; ok {
			return i
		}
		return -1
	}
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
