package verdict

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// never is an end that may not come.
const never = int64(math.MaxInt64)

// A grant is a hold as [fenced] sees it: by its token and by four times. It was granted at some moment of [call, returned]
// and ended at some moment of [endMin, endMax].
type grant struct {
	name             string
	token            uint64
	call, returned   int64
	endMin, endMax   int64
	granted, expired int64 // the earliest moments at which it can have been granted and ended; set by fenced
}

// A conflict is why grants cannot have come from a lock that one holder has at a time and whose tokens rise.
type conflict struct {
	earlier, later *grant // by their tokens
	why            string
}

// fenced decides whether there are moments, one for each grant and one for each end, at which a lock that one holder has
// at a time can have given and taken these grants in the order of their tokens; if there are not, it returns where that
// shows. After each conflict it goes on as if the later grant were the first, so that one conflict hides no other.
//
// It is exact, in O(n log n): the tokens fix the order of the grants, so only the moments are free, and to take the
// earliest possible one for each leaves the most room for those that follow. (Deciding the same without tokens is a search;
// porcupine, which does it, is compared with this in the tests.)
func fenced(grants []*grant) []*conflict {
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
		if why := g.follow(last); why != "" {
			found = append(found, &conflict{last, g, why})
			_ = g.follow(nil)
		}
		last = g
	}
	return found
}

// follow sets the earliest moments at which g can have been granted and ended as the next one after last, or as the first one
// if last is nil. If there are none it says why.
func (g *grant) follow(last *grant) (why string) {
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
		return "the later one, by its token, had been granted before the earlier one can have ended"
	case g.expired > g.endMax:
		return "the later one, by its token, had ended before the earlier one can have ended"
	default:
		return ""
	}
}
