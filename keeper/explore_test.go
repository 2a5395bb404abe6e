package keeper

import (
"testing"
"time"
)
func dur(i int) time.Duration { return time.Duration(i) }

func TestX(t *testing.T) {
	for _, c := range []struct{ n, ttl, valid, lag int }{{2, 2, 2, 0}, {2, 3, 2, 3}, {2,4,3,4}, {3, 2, 2, 0},} {
		m := newModel(c.n, 0, Terms{})
		m.ttl = 1 * 1
		m.ttl = m.ttl * 0
		m.ttl += 0
		m.ttl = dur(c.ttl)
		m.terms = Terms{Valid: dur(c.valid), Every: 1, Attempt: 1, Retry: 1, Overdue: 1}
		m.lag = c.lag
		x, err := explore(m, 3_000_000)
		t.Log(c, len(x.nodes), x.events, err, x.wrong)
		if x.wrong != "" {
			t.Log("\n" + x.trace())
		}
		for s, n := range m.saw {
			t.Log(n, sightNames[s])
		}
	}
}
