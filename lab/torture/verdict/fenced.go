package verdict

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/stilelock/stile/lab/torture/history"
)

// never is the end of an interval that is not bounded.
const never = int64(math.MaxInt64)

// A grant is what [findConflicts] knows of a hold: its token, its mode, and the intervals of up to
// three times. It was granted at some time in [call, returned], and ended at some time in [endMin,
// endMax]. If downMin is not zero, it was exclusive, and became shared at some time in [downMin,
// downMax].
type grant struct {
	name, worker     string
	token            uint64
	mode             history.Mode
	call, returned   int64
	downMin, downMax int64
	endMin, endMax   int64

	// The earliest times at which it can have been granted and ended, and shared with others, which
	// an exclusive one never is before its end. Set by findConflicts.
	granted, shared, expired int64
}

// A conflict says why grants cannot come from a lock that admits its line by the rules of Stile's
// package line.
type conflict struct {
	ahead []*grant // those that are in the way, with smaller tokens
	later *grant
	why   string
}

// findConflicts decides whether a lock can have granted and ended these grants in the order of their
// tokens: whether there is a time for each grant, each downgrade and each end, within their
// intervals, at which
//
//   - an exclusive grant has no grant ahead of it, that is, with a smaller token;
//   - a shared grant has no exclusive one ahead of it;
//   - a grant of one of n slots has fewer than n ahead of it, and none ahead is granted later.
//
// It returns the grants for which there is none. After each conflict it continues as if the later
// grant were the first, so that one conflict hides no other.
//
// It is exact, in O(n log n): the tokens fix the order of the grants, so only the times are free,
// and the earliest possible time for each leaves the most room for the next ones. (Without tokens
// the decision is a search. Porcupine does that search; the tests compare it with this function.)
func findConflicts(grants []*grant) []*conflict {
	grants = slices.Clone(grants)
	slices.SortStableFunc(grants, func(a, b *grant) int {
		if c := cmp.Compare(a.token, b.token); c != 0 {
			return c
		}
		return cmp.Compare(a.call, b.call)
	})
	var found []*conflict
	var ahead front
	for _, g := range grants {
		if why, in := g.placeBehind(&ahead); why != "" {
			found = append(found, &conflict{in, g, why})
			ahead = front{}
			_, _ = g.placeBehind(&ahead)
		}
		ahead.add(g)
	}
	return found
}

// A front is what counts of the grants ahead of one.
type front struct {
	last      *grant   // the one with the largest token
	exclusive *grant   // the one that is shared last: no reader is granted before that
	any       *grant   // the one that expires last: no writer is granted before that
	slots     []*grant // as many as there are slots, of those that expire last, the last first
}

func (f *front) add(g *grant) {
	f.last = g
	if g.mode == history.Exclusive && (f.exclusive == nil || g.shared >= f.exclusive.shared) {
		f.exclusive = g
	}
	if f.any == nil || g.expired >= f.any.expired {
		f.any = g
	}
	if n := g.mode.Slots(); n > 0 {
		at, _ := slices.BinarySearchFunc(f.slots, g, func(a, b *grant) int { return -cmp.Compare(a.expired, b.expired) })
		f.slots = slices.Insert(f.slots, at, g)
		f.slots = f.slots[:min(n, len(f.slots))]
	}
}

// blocking returns from when on a grant of that mode is possible, and the grants that prevent it
// before.
func (f *front) blocking(m history.Mode) (from int64, in []*grant) {
	from = math.MinInt64
	switch n := m.Slots(); {
	case f.last == nil:
	case n > 0:
		if from = f.last.granted; len(f.slots) < n {
			return from, []*grant{f.last}
		}
		return max(from, f.slots[n-1].expired), f.slots[:n:n]
	case m == history.Shared:
		if f.exclusive != nil {
			return f.exclusive.shared, []*grant{f.exclusive}
		}
	default:
		return f.any.expired, []*grant{f.any}
	}
	return from, nil
}

// placeBehind sets the earliest times at which g can have been granted, shared and ended behind the
// grants of a front. If there are no such times it returns the reason, and the grants in the way.
func (g *grant) placeBehind(f *front) (why string, in []*grant) {
	from, in := f.blocking(g.mode)
	g.granted = max(from, g.call)
	g.shared = g.granted
	if g.downMin != 0 {
		g.shared = max(g.granted, g.downMin)
	}
	g.expired = max(g.shared, g.endMin)
	if g.mode == history.Exclusive && g.downMin == 0 {
		g.shared = g.expired
	}
	switch {
	case f.last != nil && g.token == f.last.token && !g.sharesEntry(f.last):
		return fmt.Sprintf("both have the token %d", g.token), []*grant{f.last}
	case g.granted > g.returned:
		return "the hold with the larger token was granted before the one with the smaller token can have ended", in
	case g.expired > g.endMax || g.downMin != 0 && g.shared > g.downMax:
		return "the hold with the larger token had ended before the one with the smaller token can have ended", in
	default:
		return "", nil
	}
}

// sharesEntry reports whether two grants with the same token may be readers of one client, which
// share an entry in the store.
func (g *grant) sharesEntry(other *grant) bool {
	return g.mode == history.Shared && other.mode == history.Shared && g.worker == other.worker
}
