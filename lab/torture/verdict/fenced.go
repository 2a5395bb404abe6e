package verdict

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// never is the end of an interval that is not bounded.
const never = int64(math.MaxInt64)

// A grant is what [findConflicts] knows of a hold: its token and four times. It was granted at some
// time in [call, returned], and ended at some time in [endMin, endMax].
type grant struct {
	name             string
	token            uint64
	call, returned   int64
	endMin, endMax   int64
	granted, expired int64 // the earliest times at which it can have been granted and ended; set by findConflicts
}

// A conflict says why grants cannot come from a lock that has one holder at a time and whose tokens
// increase.
type conflict struct {
	earlier, later *grant // by their tokens
	why            string
}

// findConflicts decides whether a lock that has one holder at a time can have granted and ended
// these grants in the order of their tokens: whether there is a time for each grant and each end,
// within their intervals. It returns the grants for which there is none. After each conflict it
// continues as if the later grant were the first, so that one conflict hides no other.
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
	var last *grant
	for _, g := range grants {
		if why := g.placeAfter(last); why != "" {
			found = append(found, &conflict{last, g, why})
			_ = g.placeAfter(nil)
		}
		last = g
	}
	return found
}

// placeAfter sets the earliest times at which g can have been granted and ended, if it was granted
// after last, or first of all if last is nil. If there are no such times it returns the reason.
func (g *grant) placeAfter(last *grant) (why string) {
	now := int64(math.MinInt64)
	if last != nil {
		now = last.expired
	}
	g.granted = max(now, g.call)
	g.expired = max(g.granted, g.endMin)
	switch {
	case last != nil && g.token == last.token:
		return fmt.Sprintf("both have the token %d", g.token)
	case g.granted > g.returned:
		return "the hold with the larger token was granted before the one with the smaller token can have ended"
	case g.expired > g.endMax:
		return "the hold with the larger token had ended before the one with the smaller token can have ended"
	default:
		return ""
	}
}
