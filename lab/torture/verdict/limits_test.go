package verdict

import (
	"testing"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
)

// These tests check the limits of each rule: the smallest case that breaks it, and the largest that
// does not.

// judgeIf judges the scenario and expects the rules to be broken, or no rule if broken is false.
func (s *scenario) judgeIf(broken bool, rules ...string) *Verdict {
	s.t.Helper()
	if broken {
		return s.judge(rules...)
	}
	return s.judge()
}

func TestHolderNotTold_afterTwoTTLs(t *testing.T) {
	for lostAt, broken := range map[int64]bool{4400: false, 4401: true} {
		s := newScenario(t)
		s.acquires("w1", 20, 300, 301)
		s.add(400, "", history.Event{Entry: &history.Entry{Lock: "demo", Key: "demo/1", Token: 20, Gone: true}})
		s.add(3000, "w1", history.Event{Extend: &history.Extend{Grant: "w1/20", Until: 4800 * ms}})
		s.add(lostAt, "w1", history.Event{End: &history.End{Grant: "w1/20", LostAt: lostAt * ms, Why: "evicted"}})
		s.judgeIf(broken, RuleNotTold)
	}
	t.Run("after the deadline", func(t *testing.T) {
		s := newScenario(t)
		s.acquires("w1", 20, 300, 301) // until 2101
		s.add(400, "", history.Event{Entry: &history.Entry{Lock: "demo", Key: "demo/1", Token: 20, Gone: true}})
		s.add(9000, "w1", history.Event{End: &history.End{Grant: "w1/20", LostAt: 9000 * ms, Why: "expired"}})
		s.judge()
	})
}

func TestOvertaken_limits(t *testing.T) {
	// w2 asks at 400, and is served at 3000 or as given in its call; w3 asks at asked and is served
	// at 2700.
	serve := func(t *testing.T, asked int64, w2 history.Acquire) *scenario {
		s := newScenario(t)
		s.add(400, "w2", history.Event{Asked: &history.Asked{Lock: "demo", Grant: "w2/23"}})
		s.hold("w3", 22, asked, 2700, 2800)
		w2.Lock, w2.Grant, w2.Call, w2.Token = "demo", "w2/23", 400*ms, 23
		if w2.Return == 0 {
			w2.Return = 3000 * ms
		}
		s.add(w2.Return/ms, "w2", history.Event{Acquire: &w2})
		return s
	}
	ok := history.Acquire{Outcome: history.OK, Until: 4000 * ms}
	t.Run("asks more than a TTL later", func(t *testing.T) { serve(t, 2401, ok).judge(RuleOvertaken) })
	t.Run("asks a TTL later", func(t *testing.T) { serve(t, 2400, ok).judge() })
	t.Run("asks later and is served later", func(t *testing.T) {
		before := ok
		before.Return = 2600 * ms
		s := serve(t, 2401, before)
		s.releases("w2", 23, 2650)
		for _, e := range s.Events {
			if e.Acquire != nil && e.Acquire.Grant == "w3/22" {
				e.Acquire.Token = 24
			}
		}
		s.judge()
	})
	t.Run("a waiter that gave up counts until a TTL before", func(t *testing.T) {
		serve(t, 2401, history.Acquire{Outcome: history.Failed, GaveUp: true, Return: 4701 * ms}).judge(RuleOvertaken)
		serve(t, 2401, history.Acquire{Outcome: history.Failed, GaveUp: true, Return: 4700 * ms}).judge()
	})
	t.Run("failed call", func(t *testing.T) {
		serve(t, 2401, history.Acquire{Outcome: history.Failed, Return: 9000 * ms}).judge()
	})
	t.Run("killed waiter", func(t *testing.T) {
		s := newScenario(t)
		s.add(400, "w2", history.Event{Asked: &history.Asked{Lock: "demo", Grant: "w2/23"}})
		s.hold("w3", 22, 2401, 2700, 2800)
		s.add(2700, "w2", history.Event{Exited: &history.Exited{How: "signal: killed"}})
		s.judge()
	})
}

func TestLockStuck_outcomes(t *testing.T) {
	for outcome, stuck := range map[history.Outcome]bool{history.OK: false, history.Failed: true, history.Unknown: true} {
		s := newScenario(t)
		s.add(900, "", history.Event{Final: &history.Final{Lock: "demo", Outcome: outcome, Err: "some error"}})
		s.judgeIf(stuck, RuleStuck)
	}
}

func TestEntryLeftBehind_noKeys(t *testing.T) {
	s := newScenario(t)
	s.add(900, "", history.Event{Leftovers: &history.Leftovers{Lock: "demo"}})
	s.judge()
}

func TestLeak_limits(t *testing.T) {
	for _, c := range []struct {
		goroutines, descriptors int
		leak                    bool
	}{{10, 8, false}, {9, 7, false}, {11, 8, true}, {10, 9, true}, {11, 7, true}} {
		s := newScenario(t)
		s.add(50, "w8", history.Event{Census: &history.Census{Phase: "begin", Goroutines: 10, Descriptors: 8}})
		s.add(50, "w9", history.Event{Census: &history.Census{Phase: "begin", Goroutines: 1, Descriptors: 1}})
		s.add(900, "w8", history.Event{Census: &history.Census{Phase: "end", Goroutines: c.goroutines, Descriptors: c.descriptors}})
		s.judgeIf(c.leak, RuleLeak)
	}
}

func TestTokenGivenTwice_twoLocks(t *testing.T) {
	s := newScenario(t)
	s.hold("w1", 20, 300, 301, 400)
	s.hold("w2", 21, 410, 411, 500)
	s.hold("w3", 20, 310, 311, 400)
	for _, e := range s.Events {
		switch {
		case e.Acquire != nil && e.Acquire.Grant == "w3/20":
			e.Acquire.Lock = "other"
		case e.Asked != nil && e.Asked.Grant == "w3/20":
			e.Asked.Lock = "other"
		}
	}
	s.judge()
}

// The tokens of two holds are in the wrong order, as a store gives them after it has lost its data.
// A fault may excuse that, but not the stale write: the resource was not protected.
func TestStaleWriteAccepted(t *testing.T) {
	overtaken := func(t *testing.T, first, second uint64) *scenario {
		s := newScenario(t)
		s.Run.Target = "stile@redis"
		s.acquires("w1", first, 300, 301)
		s.fault(1, "restart-empty", "m1", "", 310, 311)
		s.hold("w2", second, 347, 350, 500)
		s.writes("w2", second, 460, "fenced", 0, 0, false)
		return s
	}
	lose := func(s *scenario, token uint64) {
		s.add(472, "w1", history.Event{End: &history.End{Grant: grantName("w1", token), LostAt: 471 * ms, Why: "it is gone"}})
	}
	for name, tokens := range map[string][2]uint64{"larger": {21, 20}, "the same": {20, 20}, "smaller": {20, 21}} {
		t.Run("the token of the older hold is "+name, func(t *testing.T) {
			s := overtaken(t, tokens[0], tokens[1])
			s.writes("w1", tokens[0], 470, "fenced", 0, 0, false)
			lose(s, tokens[0])
			for i := range s.Events { // another token, so that RuleTokenTwice is not broken
				if e := s.Events[i].Acquire; e != nil && tokens[0] == tokens[1] && e.Grant == "w2/20" {
					e.Token = 22
				}
			}
			if v := s.judge(RuleStaleWrite); v.Figures.StaleAccepted != 1 {
				t.Errorf("got figures %+v, want 1 stale write accepted", v.Figures.Damage)
			}
		})
	}
	t.Run("unknown hold with a smaller token", func(t *testing.T) {
		s := overtaken(t, 21, 22)
		s.writes("w7", 20, 470, "fenced", 0, 0, false) // w7 was killed before it could record its hold
		lose(s, 21)
		s.judge(RuleStaleWrite)
	})
	// Both calls were active at the same time. The order of their returns is chance: only the
	// tokens order the two grants.
	t.Run("unknown order of grants", func(t *testing.T) {
		s := newScenario(t)
		s.acquires("w1", 26, 305, 350)
		s.acquires("w2", 25, 310, 352)
		s.writes("w2", 25, 353, "fenced", 0, 0, false)
		s.add(354, "w2", history.Event{End: &history.End{Grant: grantName("w2", 25), LostAt: 354 * ms, Why: "it is gone"}})
		s.writes("w1", 26, 355, "fenced", 0, 0, false)
		s.releases("w1", 26, 360)
		s.judge(RuleOverlap, RuleValidity)
	})
	t.Run("refused write", func(t *testing.T) {
		s := overtaken(t, 20, 21)
		s.writes("w1", 20, 470, "fenced", 0, 0, true)
		lose(s, 20)
		s.judge()
	})
	t.Run("the write of the older hold came first", func(t *testing.T) {
		s := overtaken(t, 21, 20)
		s.Events = s.Events[:len(s.Events)-1]
		s.writes("w1", 21, 455, "fenced", 0, 0, false)
		s.writes("w2", 20, 460, "fenced", 0, 0, true)
		s.writes("w1", 21, 465, "fenced", 0, 0, false) // a refused write does not count as newer
		lose(s, 21)
		v := s.judge()
		if len(v.Writes) != 0 {
			t.Errorf("got stale writes %+v, want none", v.Writes)
		}
	})
}

func TestHold_severalEnds(t *testing.T) {
	s := newScenario(t)
	s.Run.Offers = history.Offers{Tokens: true, Fair: true}
	s.acquires("w1", 20, 300, 301)
	s.add(400, "w1", history.Event{End: &history.End{Grant: "w1/20", Call: 400 * ms}})
	s.hold("w2", 21, 310, 405, 500)
	s.add(410, "", history.Event{End: &history.End{Grant: "w1/20", Call: 410 * ms, Outcome: history.Unknown, Why: "its process was killed"}})
	for _, e := range s.Events {
		if e.Acquire != nil {
			e.Acquire.Until = 0
		}
	}
	v := s.judge()
	for _, h := range v.Holds {
		if h.Grant == "w1/20" && (h.End != 400*ms || h.Outcome != history.Unknown) {
			t.Errorf("got hold %+v, want end at 400 ms and outcome unknown", *h)
		}
	}
	t.Run("two losses and a release", func(t *testing.T) {
		h := &Hold{}
		for _, e := range []history.End{{LostAt: 20, Call: 30, Why: "expired"}, {LostAt: 25, Call: 25}, {Call: 40, Return: 50, Outcome: history.Failed}} {
			h.addEnd(&e)
		}
		want := Hold{LostAt: 20, Why: "expired", Release: 25, Released: 50, Outcome: history.Failed}
		if *h != want {
			t.Errorf("got %+v, want %+v", *h, want)
		}
	})
}

func TestLongestQuiet(t *testing.T) {
	j := &judge{Verdict: &Verdict{Strikes: []Strike{{From: 10, To: 20}, {From: 12, To: 40}, {From: 45, To: 46}}}}
	for _, c := range []struct{ from, to, begin, end int64 }{
		{0, 100, 46, 100}, {0, 55, 0, 10}, {15, 44, 40, 44}, {11, 40, 0, 0}, {50, 60, 50, 60}, {0, 5, 0, 5},
	} {
		if begin, end := j.longestQuiet(c.from, c.to); begin != c.begin || end != c.end {
			t.Errorf("%d to %d: got %v to %v, want %d to %d", c.from, c.to, time.Duration(begin), time.Duration(end), c.begin, c.end)
		}
	}
}
