package verdict

import (
	"testing"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
)

// Each rule is told here of what just breaks it, and of what only nearly does.

func (s *story) judgeIf(broken bool, rules ...string) *Verdict {
	s.t.Helper()
	if broken {
		return s.judge(rules...)
	}
	return s.judge()
}

func TestTwoTTLsAreTimeEnoughToTellAHolder(t *testing.T) {
	for told, late := range map[int64]bool{4400: false, 4401: true} {
		s := tell(t)
		s.takes("w1", 20, 300, 301)
		s.add(400, "", history.Event{Entry: &history.Entry{Lock: "demo", Key: "demo/1", Token: 20, Gone: true}})
		s.add(3000, "w1", history.Event{Extend: &history.Extend{Grant: "w1/20", Until: 4800 * ms}})
		s.add(told, "w1", history.Event{End: &history.End{Grant: "w1/20", LostAt: told * ms, Why: "evicted"}})
		s.judgeIf(late, RuleNotNotified)
	}
	t.Run("who believes no more need not be told", func(t *testing.T) {
		s := tell(t)
		s.takes("w1", 20, 300, 301) // until 2101
		s.add(400, "", history.Event{Entry: &history.Entry{Lock: "demo", Key: "demo/1", Token: 20, Gone: true}})
		s.add(9000, "w1", history.Event{End: &history.End{Grant: "w1/20", LostAt: 9000 * ms, Why: "expired"}})
		s.judge()
	})
}

func TestWhoMayBeServedFirst(t *testing.T) {
	// w2 asks at 400 and is served at 3000, or what is said; w3 asks at asked and is served at 2700.
	serve := func(t *testing.T, asked int64, w2 history.Acquire) *story {
		s := tell(t)
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
	t.Run("who asks more than a TTL later may not", func(t *testing.T) { serve(t, 2401, ok).judge(RuleOvertaken) })
	t.Run("who asks a TTL later may", func(t *testing.T) { serve(t, 2400, ok).judge() })
	t.Run("who is not served first may ask when it will", func(t *testing.T) {
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
	t.Run("who gives up is overtaken until a TTL before", func(t *testing.T) {
		serve(t, 2401, history.Acquire{Outcome: history.Failed, GaveUp: true, Return: 4701 * ms}).judge(RuleOvertaken)
		serve(t, 2401, history.Acquire{Outcome: history.Failed, GaveUp: true, Return: 4700 * ms}).judge()
	})
	t.Run("who fails is not overtaken", func(t *testing.T) {
		serve(t, 2401, history.Acquire{Outcome: history.Failed, Return: 9000 * ms}).judge()
	})
	t.Run("who has died is not overtaken", func(t *testing.T) {
		s := tell(t)
		s.add(400, "w2", history.Event{Asked: &history.Asked{Lock: "demo", Grant: "w2/23"}})
		s.hold("w3", 22, 2401, 2700, 2800)
		s.add(2700, "w2", history.Event{Exited: &history.Exited{How: "signal: killed"}})
		s.judge()
	})
}

func TestALastAttempt(t *testing.T) {
	for outcome, stuck := range map[history.Outcome]bool{history.OK: false, history.Failed: true, history.Unknown: true} {
		s := tell(t)
		s.add(900, "", history.Event{Final: &history.Final{Lock: "demo", Outcome: outcome, Err: "what it said"}})
		s.judgeIf(stuck, RuleStuck)
	}
}

func TestNothingLeftBehind(t *testing.T) {
	s := tell(t)
	s.add(900, "", history.Event{Leftovers: &history.Leftovers{Lock: "demo"}})
	s.judge()
}

func TestWhatAWorkerHasOpen(t *testing.T) {
	for _, c := range []struct {
		goroutines, descriptors int
		leak                    bool
	}{{10, 8, false}, {9, 7, false}, {11, 8, true}, {10, 9, true}, {11, 7, true}} {
		s := tell(t)
		s.add(50, "w8", history.Event{Census: &history.Census{Phase: "begin", Goroutines: 10, Descriptors: 8}})
		s.add(50, "w9", history.Event{Census: &history.Census{Phase: "begin", Goroutines: 1, Descriptors: 1}})
		s.add(900, "w8", history.Event{Census: &history.Census{Phase: "end", Goroutines: c.goroutines, Descriptors: c.descriptors}})
		s.judgeIf(c.leak, RuleLeak)
	}
}

func TestTheSameTokenInTwoLocks(t *testing.T) {
	s := tell(t)
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

// The tokens of two holds are the wrong way round, as a store gives them that has forgotten what it gave. Whatever excuses that,
// the resource is not protected.
func TestAFenceThatDoesNotFence(t *testing.T) {
	overtaken := func(t *testing.T, first, second uint64) *story {
		s := tell(t)
		s.Run.Target = "stile@redis"
		s.takes("w1", first, 300, 301)
		s.fault(1, "restart-empty", "m1", "", 310, 311)
		s.hold("w2", second, 347, 350, 500)
		s.writes("w2", second, 460, "fenced", 0, 0, false)
		return s
	}
	lose := func(s *story, token uint64) {
		s.add(472, "w1", history.Event{End: &history.End{Grant: name("w1", token), LostAt: 471 * ms, Why: "forgotten"}})
	}
	for name, tokens := range map[string][2]uint64{"larger": {21, 20}, "the same": {20, 20}, "smaller": {20, 21}} {
		t.Run("the token of the older hold is "+name, func(t *testing.T) {
			s := overtaken(t, tokens[0], tokens[1])
			s.writes("w1", tokens[0], 470, "fenced", 0, 0, false)
			lose(s, tokens[0])
			for i := range s.Events { // that the same token was given twice is another matter
				if e := s.Events[i].Acquire; e != nil && tokens[0] == tokens[1] && e.Grant == "w2/20" {
					e.Token = 22
				}
			}
			if v := s.judge(RuleStaleWrite); v.Figures.StaleAccepted != 1 {
				t.Errorf("%+v", v.Figures.Damage)
			}
		})
	}
	t.Run("nothing is known of its holder but its token, which is smaller", func(t *testing.T) {
		s := overtaken(t, 21, 22)
		s.writes("w7", 20, 470, "fenced", 0, 0, false) // it was killed before it could tell that it held
		lose(s, 21)
		s.judge(RuleStaleWrite)
	})
	// The calls of both were under way. Which of them returns first is chance: only the tokens order the two grants.
	t.Run("nobody knows which was granted first", func(t *testing.T) {
		s := tell(t)
		s.takes("w1", 26, 305, 350)
		s.takes("w2", 25, 310, 352)
		s.writes("w2", 25, 353, "fenced", 0, 0, false)
		s.add(354, "w2", history.Event{End: &history.End{Grant: name("w2", 25), LostAt: 354 * ms, Why: "it is gone"}})
		s.writes("w1", 26, 355, "fenced", 0, 0, false)
		s.releases("w1", 26, 360)
		s.judge(RuleOverlap, RuleValidity)
	})
	t.Run("its write was refused", func(t *testing.T) {
		s := overtaken(t, 20, 21)
		s.writes("w1", 20, 470, "fenced", 0, 0, true)
		lose(s, 20)
		s.judge()
	})
	t.Run("its write came first", func(t *testing.T) {
		s := overtaken(t, 21, 20)
		s.Events = s.Events[:len(s.Events)-1]
		s.writes("w1", 21, 455, "fenced", 0, 0, false)
		s.writes("w2", 20, 460, "fenced", 0, 0, true)
		s.writes("w1", 21, 465, "fenced", 0, 0, false) // what was refused is not newer
		lose(s, 21)
		v := s.judge()
		if len(v.Writes) != 0 {
			t.Errorf("shown as stale: %+v", v.Writes)
		}
	})
}

func TestOfTwoEndsTheEarlierCounts(t *testing.T) {
	s := tell(t)
	s.Run.Offers = history.Offers{Tokens: true, Fair: true}
	s.takes("w1", 20, 300, 301)
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
			t.Errorf("%+v", *h)
		}
	}
	t.Run("of two losses too", func(t *testing.T) {
		h := &Hold{}
		for _, e := range []history.End{{LostAt: 20, Call: 30, Why: "expired"}, {LostAt: 25, Call: 25}, {Call: 40, Return: 50, Outcome: history.Failed}} {
			h.ended(&e)
		}
		want := Hold{LostAt: 20, Why: "expired", Release: 25, Released: 50, Outcome: history.Failed}
		if *h != want {
			t.Errorf("%+v, want %+v", *h, want)
		}
	})
}

func TestTheLongestCalm(t *testing.T) {
	j := &judge{Verdict: &Verdict{Strikes: []Strike{{From: 10, To: 20}, {From: 12, To: 40}, {From: 45, To: 46}}}}
	for _, c := range []struct{ from, to, begin, end int64 }{
		{0, 100, 46, 100}, {0, 55, 0, 10}, {15, 44, 40, 44}, {11, 40, 0, 0}, {50, 60, 50, 60}, {0, 5, 0, 5},
	} {
		if begin, end := j.calm(c.from, c.to); begin != c.begin || end != c.end {
			t.Errorf("of %d to %d: %v to %v, want %d to %d", c.from, c.to, time.Duration(begin), time.Duration(end), c.begin, c.end)
		}
	}
}
