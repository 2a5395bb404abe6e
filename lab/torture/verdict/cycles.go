package verdict

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A setWait is a call that waited for several locks.
type setWait struct {
	name        string
	grants      []string
	locks       []string
	call, until int64
}

// setWaits returns the calls that waited for several locks, in the order of their starts. A call is
// over when it returned, for all of its locks at once.
func setWaits(waits []*Wait, end int64) []*setWait {
	byName := map[string]*setWait{}
	for _, w := range waits {
		if w.Set == "" {
			continue
		}
		s := byName[w.Set]
		if s == nil {
			s = &setWait{name: w.Set, call: w.Call, until: w.returnOr(end)}
			byName[w.Set] = s
		}
		s.call, s.until = max(s.call, w.Call), min(s.until, w.returnOr(end))
		s.grants, s.locks = append(s.grants, w.Grant), append(s.locks, w.Lock)
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b *setWait) int {
		return cmp.Or(cmp.Compare(a.call, b.call), cmp.Compare(a.name, b.name))
	})
}

// findCycles finds calls for several locks that waited for each other in a circle: each for longer
// than maxDelay while no fault was active, and all for locks that nobody held or was granted in that
// time. Two such calls are neighbors if they asked for the same lock. What each has of its locks
// already is not in the history; but locks in a circle that all stay free have no other explanation.
func findCycles(waits []*Wait, holds []*Hold, maxDelay, end int64, longestQuiet func(from, to int64) (int64, int64)) []Violation {
	var found []Violation
	sets := setWaits(waits, end)
	for i, last := range sets {
		from, to := longestQuiet(last.call, last.until)
		if to-from <= maxDelay {
			continue
		}
		idle := func(lock string) bool {
			return !slices.ContainsFunc(holds, func(h *Hold) bool { return h.Lock == lock && h.Return < to && h.End > from })
		}
		ring := newRing()
		for _, s := range sets[:i] {
			if s.until >= to {
				ring.add(s, idle)
			}
		}
		if !ring.add(last, idle) {
			continue
		}
		lasted := time.Duration(to - from)
		v := Violation{Rule: RuleCycle, Lock: last.locks[0], At: to, For: lasted}
		var names []string
		for _, s := range ring.connectedTo(last) {
			v.Grants = append(v.Grants, s.grants...)
			names = append(names, fmt.Sprintf("%s for %s", s.name, strings.Join(s.locks, " and ")))
		}
		v.What = fmt.Sprintf("for %v nobody held or got these locks: %s waited", lasted.Round(time.Millisecond), strings.Join(names, ", "))
		found = append(found, v)
	}
	return found
}

// A ring joins locks by the calls that wait for several of them.
type ring struct {
	group map[string]string // a lock of the same group, the lock itself if it stands for its group
	calls []*setWait
}

func newRing() *ring { return &ring{group: map[string]string{}} }

// find returns the lock that stands for the group of a lock.
func (r *ring) find(lock string) string {
	for r.group[lock] != "" && r.group[lock] != lock {
		lock = r.group[lock]
	}
	return lock
}

// add joins the idle ones of a call's locks, and reports whether two of them were joined already: then
// the call closes a circle.
func (r *ring) add(s *setWait, idle func(lock string) bool) (closed bool) {
	r.calls = append(r.calls, s)
	first := ""
	for _, lock := range s.locks {
		if !idle(lock) {
			continue
		}
		group := r.find(lock)
		switch {
		case first == "":
			first = group
		case first == group:
			closed = true
		default:
			r.group[group] = first
		}
	}
	return closed
}

// connectedTo returns the calls with a lock in the same group as one of a call's locks.
func (r *ring) connectedTo(s *setWait) []*setWait {
	groups := map[string]bool{}
	for _, lock := range s.locks {
		groups[r.find(lock)] = true
	}
	var all []*setWait
	for _, other := range r.calls {
		if slices.ContainsFunc(other.locks, func(lock string) bool { return groups[r.find(lock)] }) {
			all = append(all, other)
		}
	}
	return all
}
