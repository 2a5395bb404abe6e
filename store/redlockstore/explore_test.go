//go:build !race

// As in package keeper: a search has one goroutine and would take minutes under the race detector.
// make test runs it separately.

package redlockstore_test

import (
	"slices"
	"testing"
)

// state is an abstract state of three masters and two bidders, as far as orders are concerned.
// Each bidder tries to take the lock once. Its requests are sent as soon as possible, and arrive
// at any time or never; so do the replies. The masters' clocks stand still, so they do not help.
type state struct {
	entry    [3]int8 // owner at each master: a bidder, counted from 1, or 0
	fence    [3]int8 // the largest order that the master has recorded
	by       [2]bidder
	last     int8 // the largest order of an admission so far
	losses   int8 // how many entries may still end too early, because a master's clock is set forward
	restarts int8 // how often a master may still lose its data
	wrong    bool // a bidder was admitted with an order that is not larger than those before
}

const majority = 2

type bidder struct {
	does     int8
	at       [3]int8
	proposed [3]int8 // by each master, until the order is chosen
	order    int8
}

const ( // state of a bidder
	trying int8 = iota
	holds
	gone // it has given up, released or crashed; its entries end at any time, each by itself
)

const ( // progress of a bidder at a master
	taking   int8 = iota // the request to put the entry in is in flight
	taken                // the reply is in flight
	granting             // the order is in flight, once it is chosen
	granted              // the master has recorded the order
)

// rules are the rules of package redlockstore, or wrong variants.
type rules struct {
	oneRound       bool // a bidder is admitted when a majority has put it in
	acceptsSmaller bool // a master accepts an order although it has recorded a larger one
}

// next returns all possible successor states.
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
			if n := s; r.step(&n, i, m) {
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

// step performs the next step between a bidder and a master, and reports whether there is one.
func (r rules) step(s *state, i, m int) bool {
	c := &s.by[i]
	switch at := &c.at[m]; {
	case *at == taking && s.entry[m] == 0:
		*at, s.entry[m], c.proposed[m] = taken, int8(i+1), max(s.fence[m]+1, [3]int8{1, 3, 5}[m])
	case *at == taken && c.does == trying:
		*at = granting
		if n, _ := s.count(i, granting); n == majority && c.order == 0 {
			for m, at := range c.at {
				if at == granting {
					c.order = max(c.order, c.proposed[m])
				}
			}
			c.proposed = [3]int8{}
			s.admit(i, granting, r.oneRound)
		}
	case *at == granting && c.order != 0 && s.entry[m] == int8(i+1) && (c.order > s.fence[m] || r.acceptsSmaller):
		*at, s.fence[m] = granted, max(s.fence[m], c.order)
		n, _ := s.count(i, granted)
		s.admit(i, granted, n == majority)
	default:
		return false
	}
	return true
}

// count returns at how many masters a bidder has the given progress, and how many of those have
// its entry.
func (s *state) count(i int, progress int8) (n, have int) {
	for m, at := range s.by[i].at {
		if at == progress {
			if n++; s.entry[m] == int8(i+1) {
				have++
			}
		}
	}
	return n, have
}

// admit admits a bidder that tries, if enough is true. A bidder that has lost an entry by then
// may be admitted after its successor: then its order is the smaller one, and should be.
func (s *state) admit(i int, progress int8, enough bool) {
	if c := &s.by[i]; enough && c.does == trying {
		_, have := s.count(i, progress)
		s.wrong = have >= majority && c.order <= s.last
		c.does, s.last = holds, max(s.last, c.order)
	}
}

// search returns the states that lead to a wrong order, last first; nil if there are none.
func (r rules) search(s state, seen map[state]bool) (path []state) {
	if s.wrong {
		return []state{s}
	}
	seen[s] = true
	for _, n := range r.next(s) {
		if !seen[n] {
			if path := r.search(n, seen); path != nil {
				return append(path, s)
			}
		}
	}
	return nil
}

// The search covers all interleavings. Wrong variants of the rules show that it would find a
// mistake.
// Promise: P2
func TestExploreOrders_allInterleavings(t *testing.T) {
	for what, c := range map[string]struct {
		rules rules
		from  state
		wrong bool
	}{
		"an entry ends too early":    {rules{}, state{losses: 1}, false},
		"without the second round":   {rules{oneRound: true}, state{}, true},
		"masters that do not refuse": {rules{acceptsSmaller: true}, state{losses: 1}, true},
		"a master loses data":        {rules{}, state{restarts: 1}, true}, // because no clock helps here: see docs/stores.md
	} {
		seen := make(map[state]bool)
		path := c.rules.search(c.from, seen)
		t.Logf("%s: %d states", what, len(seen))
		if slices.Reverse(path); (path != nil) != c.wrong {
			t.Errorf("%s: states that lead to a wrong order: %+v", what, path)
		}
	}
}
