//go:build !race

// As in package keeper: a walk has one goroutine, and would take minutes under the race detector. make test runs it by itself.

package redlockstore_test

import (
	"slices"
	"testing"
)

// state is what is left of three masters and of package redlockstore if only orders count. Two claimants try for the lock
// once each. What they ask of the masters is on its way as soon as it can be, and arrives at any time or never; so do the
// answers. The clocks of the masters stand still, and are of no help.
type state struct {
	entry    [3]int8 // whose it is: claimants count from 1, and 0 is nobody
	fence    [3]int8 // the largest order that a master was told
	by       [2]claimant
	last     int8 // the largest order with which anybody was admitted
	losses   int8 // how many entries may yet end too early, because a master's clock is set forward
	restarts int8 // how often a master may yet forget everything
	wrong    bool // who was admitted has an order that is not larger than those before
}

const majorityID = 2

type claimant struct {
	does     int8
	at       [3]int8
	proposed [3]int8 // by the masters, until the order is chosen
	order    int8
}

const ( // what a claimant does
	minTries int8 = iota
	holds
	gone // it has given up, released or crashed: its entries end at any time, each by itself
)

const ( // how far it is with a master
	taking  int8 = iota // the request to put the entry in is on its way
	taken               // the answer is
	telling             // the order is, once it is chosen
	told                // the master has it
)

// rules are those of package redlockstore, or others.
type rules struct {
	oneRound bool // whom a majority has put in is admitted
	obeys    bool // a master takes an order although it knows of a larger one
}

// next returns all states that may be next.
func (r rules) next(s state) (all []state) {
	for m, owner := range s.entry {
		if n := s; s.restarts > 0 {
			n.entry[m], n.fence[m], n.restarts = 0, 0, s.restarts-1
			all = append(all, n)
		}
		if n := s; owner != 0 && (s.by[owner-1].does == gone || s.losses > 0) {
			if n.entry[m] = 0; s.by[owner-1].does != gone {
				n.losses--
			}
			all = append(all, n)
		}
		for i := range s.by {
			if n := s; r.goesOn(&n, i, m) {
				all = append(all, n)
			}
		}
	}
	for i := range s.by {
		if n := s; s.by[i].does != gone {
			n.by[i].does, n.by[i].proposed = gone, [3]int8{}
			all = append(all, n)
		}
	}
	return all
}

// goesOn does what is next between a claimant and a master, if anything is.
func (r rules) goesOn(s *state, i, m int) bool {
	c := &s.by[i]
	switch at := &c.at[m]; {
	case *at == taking && s.entry[m] == 0:
		*at, s.entry[m], c.proposed[m] = taken, int8(i+1), max(s.fence[m]+1, [3]int8{1, 3, 5}[m])
	case *at == taken && c.does == minTries:
		*at = telling
		if n, _ := s.count(i, telling); n == majorityID && c.order == 0 {
			for m, at := range c.at {
				if at == telling {
					c.order = max(c.order, c.proposed[m])
				}
			}
			c.proposed = [3]int8{}
			s.admit(i, telling, r.oneRound)
		}
	case *at == telling && c.order != 0 && s.entry[m] == int8(i+1) && (c.order > s.fence[m] || r.obeys):
		*at, s.fence[m] = told, max(s.fence[m], c.order)
		n, _ := s.count(i, told)
		s.admit(i, told, n == majorityID)
	default:
		return false
	}
	return true
}

// count returns with how many masters a claimant is so far, and how many of those have its entry.
func (s *state) count(i int, far int8) (n, have int) {
	for m, at := range s.by[i].at {
		if at == far {
			if n++; s.entry[m] == int8(i+1) {
				have++
			}
		}
	}
	return n, have
}

// admit admits a claimant who tries, if there is enough for that. Who has lost an entry by then may be admitted after
// another, as one whom that has followed: then the order is the smaller one, and should be.
func (s *state) admit(i int, far int8, enough bool) {
	if c := &s.by[i]; enough && c.does == minTries {
		_, have := s.count(i, far)
		s.wrong = have >= majorityID && c.order <= s.last
		c.does, s.last = holds, max(s.last, c.order)
	}
}

// search returns how it may come to a wrong order, nil if it cannot.
func (r rules) search(s state, seen map[state]bool) (way []state) {
	if s.wrong {
		return []state{s}
	}
	seen[s] = true
	for _, n := range r.next(s) {
		if !seen[n] {
			if way := r.search(n, seen); way != nil {
				return append(way, s)
			}
		}
	}
	return nil
}

// Everything that can happen is looked at. That this would show a mistake is shown by rules that are mistaken.
// Promise: P2
func TestExploreOrdersRiseWhateverHappensWhen(t *testing.T) {
	for what, c := range map[string]struct {
		rules rules
		from  state
		wrong bool
	}{
		"an entry ends too early":    {rules{}, state{losses: 1}, false},
		"without the second round":   {rules{oneRound: true}, state{}, true},
		"masters that do not refuse": {rules{obeys: true}, state{losses: 1}, true},
		"a master forgets":           {rules{}, state{restarts: 1}, true}, // and no clock helps: see docs/stores.md
	} {
		seen := make(map[state]bool)
		way := c.rules.search(c.from, seen)
		t.Logf("%s: %d states", what, len(seen))
		if slices.Reverse(way); (way != nil) != c.wrong {
			t.Errorf("%s: the way to a wrong order: %+v", what, way)
		}
	}
}
