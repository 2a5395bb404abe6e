package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
)

const ms = int64(time.Millisecond)

// A scenario builds a history with times in milliseconds.
type scenario struct {
	t *testing.T
	history.History
}

// newScenario returns a scenario of a lock with tokens and deadlines, whose sessions have a TTL of
// two seconds. It begins with a dozen holds of two workers, so that RuleTooLittle is not broken.
func newScenario(t *testing.T) *scenario {
	s := &scenario{t: t}
	s.Run = history.Run{
		Target: "stile@test", TTL: 2000 * ms, Faults: "none",
		Offers: history.Offers{Tokens: true, Deadlines: true, Loss: true, Proof: true, Fair: true},
	}
	for i := range 12 {
		at := int64(100 + 10*i)
		s.hold(fmt.Sprintf("w%d", 8+i%2), uint64(i+1), at, at+1, at+5)
	}
	return s
}

func (s *scenario) add(at int64, worker string, e history.Event) {
	e.At, e.Worker = at*ms, worker
	s.Events = append(s.Events, e)
}

// hold adds a hold and its release. The name of its grant consists of worker and token.
func (s *scenario) hold(worker string, token uint64, call, got, released int64) {
	s.acquires(worker, token, call, got)
	s.releases(worker, token, released)
}

func grantName(worker string, token uint64) string { return fmt.Sprintf("%s/%d", worker, token) }

func (s *scenario) acquires(worker string, token uint64, call, got int64) {
	g := grantName(worker, token)
	s.add(call, worker, history.Event{Asked: &history.Asked{Lock: "demo", Grant: g}})
	s.add(got, worker, history.Event{Acquire: &history.Acquire{
		Lock: "demo", Grant: g, Call: call * ms, Return: got * ms, Outcome: history.OK, Token: token, Until: (got + 1800) * ms,
	}})
}

func (s *scenario) releases(worker string, token uint64, at int64) {
	s.add(at, worker, history.Event{End: &history.End{
		Grant: grantName(worker, token), Call: at * ms, Return: (at + 1) * ms, Outcome: history.OK,
	}})
}

func (s *scenario) writes(worker string, token uint64, at int64, mode string, read, version uint64, refused bool) {
	s.add(at, worker, history.Event{Write: &history.Write{
		Lock: "demo", Grant: grantName(worker, token), Token: token, Mode: mode, Read: read, Version: version, Refused: refused,
	}})
}

func (s *scenario) fault(id int, what, on, role string, from, to int64) {
	s.add(from, "", history.Event{Fault: &history.Fault{ID: id, Name: what, On: on, Role: role}})
	s.add(to, "", history.Event{Heal: &history.Heal{ID: id}})
	s.Run.Faults = "all"
}

// withFinals returns the history with the last attempts that every run ends with.
func (s *scenario) withFinals() *history.History {
	h := s.History
	h.Events = slices.Clone(h.Events)
	last := slices.MaxFunc(h.Events, func(a, b history.Event) int { return cmp.Compare(a.At, b.At) })
	for _, lock := range []string{"demo", "other"} {
		h.Events = append(h.Events, history.Event{At: last.At, Final: &history.Final{Lock: lock, Outcome: history.OK}})
	}
	return &h
}

// judge judges the history and checks that exactly these rules were broken.
func (s *scenario) judge(broken ...string) *Verdict {
	s.t.Helper()
	v := Judge(s.withFinals())
	want := map[string]bool{}
	for _, rule := range broken {
		want[rule] = true
		if v.Broken()[rule] == 0 {
			s.t.Errorf("rule %q: got no violation, want at least one", rule)
		}
	}
	for _, violation := range v.Violations {
		if !want[violation.Rule] && violation.Conceded == "" {
			s.t.Errorf("unexpected violation %+v", violation)
		}
	}
	return v
}

func TestJudge_noViolations(t *testing.T) {
	s := newScenario(t)
	s.hold("w1", 20, 300, 301, 400)
	s.hold("w2", 21, 305, 402, 500)
	v := s.judge()
	if v.Figures.Acquisitions != 14 || v.Figures.HandOvers != 13 || v.Figures.LongestGap > 200*time.Millisecond {
		t.Errorf("got figures %+v, want 14 acquisitions, 13 hand-overs and a short gap", v.Figures)
	}
}

func TestOverlap_twoHolders(t *testing.T) {
	s := newScenario(t)
	s.acquires("w1", 20, 300, 301)
	s.acquires("w2", 21, 310, 350)
	s.releases("w1", 20, 400)
	s.releases("w2", 21, 500)
	v := s.judge(RuleOverlap, RuleValidity, RuleGrantedTwice)
	if v.Figures.Overlaps != 1 || v.Violations[0].For != 50*time.Millisecond {
		t.Errorf("got %+v and %+v, want 1 overlap of 50 ms", v.Figures, v.Violations[0])
	}
}

func TestGrantedTwice_releaseWithoutProof(t *testing.T) {
	s := newScenario(t)
	s.Run.Offers = history.Offers{Tokens: true}
	s.acquires("w1", 20, 300, 301)
	s.hold("w2", 21, 310, 2500, 2600)
	s.releases("w1", 20, 2550)
	for _, e := range s.Events {
		if e.Acquire != nil {
			e.Acquire.Until = 0
		}
	}
	s.judge(RuleOverlap, RuleValidity) // w1 believed in its hold, but the store did nothing wrong
}

func TestOverlap_endOfBelief(t *testing.T) {
	for end, addEnd := range map[string]func(*scenario){
		"deadline": func(*scenario) {}, // at 301 + 1800
		"notification": func(s *scenario) {
			s.add(2200, "w1", history.Event{End: &history.End{Grant: "w1/20", LostAt: 2050 * ms, Why: "evicted"}})
		},
		"process": func(s *scenario) { s.add(2080, "w1", history.Event{Exited: &history.Exited{How: "signal: killed"}}) },
	} {
		t.Run(end, func(t *testing.T) {
			s := newScenario(t)
			s.acquires("w1", 20, 300, 301)
			addEnd(s)
			s.hold("w2", 21, 310, 2110, 2200)
			s.judge()
		})
		t.Run(end+", granted before", func(t *testing.T) {
			s := newScenario(t)
			s.acquires("w1", 20, 300, 301)
			addEnd(s)
			s.hold("w2", 21, 310, 2020, 2200)
			s.judge(RuleOverlap, RuleValidity)
		})
	}
}

func TestOverlap_extendedHold(t *testing.T) {
	s := newScenario(t)
	s.acquires("w1", 20, 300, 301)
	s.add(900, "w1", history.Event{Extend: &history.Extend{Grant: "w1/20", Until: 2700 * ms}})
	s.hold("w2", 21, 310, 2110, 2200)
	s.judge(RuleOverlap, RuleValidity)
}

func TestTokens_rules(t *testing.T) {
	t.Run("twice", func(t *testing.T) {
		s := newScenario(t)
		s.hold("w1", 20, 300, 301, 400)
		s.hold("w2", 20, 410, 411, 500)
		s.judge(RuleTokenTwice)
	})
	t.Run("decreasing", func(t *testing.T) {
		s := newScenario(t)
		s.hold("w1", 21, 300, 301, 400)
		s.hold("w2", 20, 410, 411, 500)
		s.judge(RuleGrantedTwice, RuleValidity)
	})
	t.Run("not offered", func(t *testing.T) {
		s := newScenario(t)
		s.Run.Offers.Tokens = false
		s.hold("w1", 21, 300, 301, 400)
		s.hold("w2", 20, 410, 411, 500)
		s.judge()
	})
}

func TestResource_figures(t *testing.T) {
	s := newScenario(t)
	s.hold("w1", 20, 300, 301, 400)
	s.hold("w2", 21, 310, 401, 600)
	s.writes("w1", 20, 350, "unfenced", 0, 0, false)
	s.writes("w2", 21, 450, "unfenced", 1, 1, false)
	s.writes("w2", 21, 455, "fenced", 0, 0, false)
	s.writes("w1", 20, 460, "unfenced", 1, 2, false)
	s.writes("w1", 20, 465, "fenced", 0, 0, true)
	v := s.judge()
	if want := (Damage{Stale: 1, LostUpdates: 1, Refused: 1}); v.Figures.Damage != want {
		t.Errorf("got damage %+v, want %+v", v.Figures.Damage, want)
	}
	s.writes("w1", 20, 470, "fenced", 0, 0, false)
	if v := s.judge(RuleStaleWrite); v.Figures.StaleAccepted != 1 {
		t.Errorf("got damage %+v, want 1 stale write accepted", v.Figures.Damage)
	}
}

func TestConcessions_eviction(t *testing.T) {
	s := newScenario(t)
	s.acquires("w1", 20, 300, 301)
	s.acquires("w2", 21, 310, 350)
	s.add(353, "w1", history.Event{End: &history.End{Grant: "w1/20", LostAt: 352 * ms, Why: "evicted"}})
	s.releases("w2", 21, 500)
	s.judge(RuleOverlap, RuleValidity)
	s.fault(1, history.Evict, "w1", "holder", 345, 346)
	if v := s.judge(); v.Conceded() != 2 || v.Violations[0].Conceded != history.Evict {
		t.Errorf("got violations %+v, want 2 conceded under evict", v.Violations)
	}
	s.writes("w2", 21, 351, "fenced", 0, 0, false)
	s.writes("w1", 20, 352, "fenced", 0, 0, false)
	s.judge(RuleStaleWrite) // never conceded
}

func TestHolderNotTold(t *testing.T) {
	s := newScenario(t)
	s.acquires("w1", 20, 300, 301)
	s.add(400, "", history.Event{Entry: &history.Entry{Lock: "demo", Key: "demo/1", Token: 20, Gone: true}})
	s.add(3000, "w1", history.Event{Extend: &history.Extend{Grant: "w1/20", Until: 4800 * ms}})
	s.releases("w1", 20, 4450)
	s.judge(RuleNotTold)
}

func TestOvertaken(t *testing.T) {
	s := newScenario(t)
	s.acquires("w1", 20, 300, 301)
	s.releases("w1", 20, 1500)
	s.add(400, "w2", history.Event{Asked: &history.Asked{Lock: "demo", Grant: "w2/23"}})
	s.hold("w3", 21, 450, 1600, 2600)
	s.hold("w4", 22, 2500, 2700, 2800)
	s.add(3000, "w2", history.Event{Acquire: &history.Acquire{
		Lock: "demo", Grant: "w2/23", Call: 400 * ms, Return: 2900 * ms, Outcome: history.OK, Token: 23, Until: 4000 * ms,
	}})
	s.judge(RuleOvertaken)

	s.fault(1, "server-kill", "m1", "", 1000, 1100)
	s.judge() // the waiter may have had to join again
	s.Run.Offers.Fair = false
	s.judge()
}

func TestWaiterStranded(t *testing.T) {
	s := newScenario(t)
	s.hold("w1", 20, 300, 301, 400)
	s.hold("w2", 21, 310, 10_000, 10_100) // the lock was free from 400 on: longer than two TTLs and five seconds
	s.judge(RuleStranded)

	t.Run("during a fault", func(t *testing.T) {
		s.fault(1, "server-kill", "m1", "leader", 500, 3000)
		v := s.judge()
		if f := v.Faults[0]; f.Strikes != 1 || f.OnLeader != 1 || f.LongestGap < 9*time.Second {
			t.Errorf("got %+v, want 1 strike on a leader and a gap of 9s or more", f)
		}
	})
}

func TestFaultFigures_onHolder(t *testing.T) {
	s := newScenario(t)
	s.fault(1, "holder-pause", "w1", "holder", 350, 380)
	s.fault(2, "holder-pause", "w2", "", 360, 390)
	s.hold("w1", 20, 300, 301, 400)
	s.hold("w2", 21, 310, 401, 600)
	v := s.judge()
	if f := v.Faults[0]; f.Strikes != 2 || f.OnHolder != 1 {
		t.Errorf("got %+v, want 2 strikes, 1 of them on a holder", f)
	}
}

func TestFinalState(t *testing.T) {
	t.Run("lock stuck", func(t *testing.T) {
		s := newScenario(t)
		s.add(900, "", history.Event{Final: &history.Final{Lock: "demo", Outcome: history.Failed, Err: "held"}})
		s.judge(RuleStuck)
	})
	t.Run("entry left behind", func(t *testing.T) {
		s := newScenario(t)
		s.add(900, "", history.Event{Leftovers: &history.Leftovers{Lock: "demo", Keys: []string{"demo/1234"}}})
		s.judge(RuleLeftBehind)
	})
	t.Run("leak", func(t *testing.T) {
		s := newScenario(t)
		s.add(50, "w8", history.Event{Census: &history.Census{Phase: "begin", Goroutines: 10, Descriptors: 8}})
		s.add(900, "w8", history.Event{Census: &history.Census{Phase: "end", Goroutines: 11, Descriptors: 8}})
		s.judge(RuleLeak)
	})
	t.Run("hung worker", func(t *testing.T) {
		s := newScenario(t)
		s.add(900, "w8", history.Event{Exited: &history.Exited{How: history.ExitHung}})
		s.judge(RuleHung)
	})
}

func TestTooLittle_oneHold(t *testing.T) {
	s := &scenario{t: t}
	s.Run.Faults = "all"
	s.hold("w1", 20, 300, 301, 400)
	s.judge(RuleTooLittle)
}

func TestTooLittle_truncatedHistory(t *testing.T) {
	s := newScenario(t)
	v := Judge(&s.History)
	if len(v.Violations) != 1 || v.Violations[0].Rule != RuleTooLittle || !strings.Contains(v.Violations[0].What, "truncated") {
		t.Errorf("got violations %+v, want one for the missing end", v.Violations)
	}
}

func TestFigures_removedEntry(t *testing.T) {
	s := newScenario(t)
	s.acquires("w1", 20, 300, 301)
	s.add(400, "", history.Event{Entry: &history.Entry{Lock: "demo", Key: "demo/1", Token: 20, Gone: true}})
	s.add(410, "w1", history.Event{End: &history.End{Grant: "w1/20", LostAt: 405 * ms, Why: "evicted"}})
	s.hold("w2", 21, 310, 420, 500)
	v := s.judge()
	if f := v.Figures; f.RemovedEarly != 1 || f.Lost != 1 || f.NotifiedP99 != 5*time.Millisecond {
		t.Errorf("got %+v, want 1 hold lost and removed early, notified after 5 ms", f)
	}
}
