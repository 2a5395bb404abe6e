package verdict

import (
	"fmt"
	"testing"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
)

// holds adds a hold in a mode, and its release.
func (s *scenario) holds(mode history.Mode, worker string, token uint64, call, got, released int64) {
	s.hold(worker, token, call, got, released)
	for _, e := range s.Events[len(s.Events)-3:] {
		switch {
		case e.Asked != nil:
			e.Asked.Mode = mode
		case e.Acquire != nil:
			e.Acquire.Mode = mode
		}
	}
}

// downgrades adds a downgrade; if it failed, outcome says how.
func (s *scenario) downgrades(worker string, token uint64, at int64, outcome history.Outcome) {
	d := history.Downgrade{Grant: grantName(worker, token), Call: at * ms}
	s.add(at, worker, history.Event{Downgrade: &d})
	after := d
	after.Return, after.Outcome = (at+1)*ms, outcome
	s.add(at+1, worker, history.Event{Downgrade: &after})
}

func TestReadWrite(t *testing.T) {
	const x, r = history.Exclusive, history.Shared
	for name, c := range map[string]struct {
		build  func(*scenario)
		broken []string
	}{
		"readers together": {func(s *scenario) {
			s.holds(r, "w1", 20, 300, 301, 400)
			s.holds(r, "w2", 21, 310, 311, 450)
			s.holds(x, "w3", 22, 320, 451, 500)
			s.holds(r, "w1", 23, 330, 501, 550)
		}, nil},
		"readers of one client with one token": {func(s *scenario) {
			s.holds(r, "w1", 20, 300, 301, 400)
			s.holds(r, "w1", 20, 310, 311, 450)
		}, nil},
		"readers of two clients with one token": {func(s *scenario) {
			s.holds(r, "w1", 20, 300, 301, 400)
			s.holds(r, "w2", 20, 310, 311, 450)
		}, []string{RuleTokenTwice}},
		"a reader during a writer": {func(s *scenario) {
			s.holds(x, "w1", 20, 300, 301, 400)
			s.holds(r, "w2", 21, 310, 350, 450)
		}, []string{RuleReaderBesideWriter, RuleGrantedTwice, RuleValidity}},
		"a writer during a reader": {func(s *scenario) {
			s.holds(r, "w1", 20, 300, 301, 400)
			s.holds(x, "w2", 21, 310, 350, 450)
		}, []string{RuleReaderBesideWriter, RuleGrantedTwice, RuleValidity}},
		"a writer during the second of two readers": {func(s *scenario) {
			s.holds(r, "w1", 20, 300, 301, 400)
			s.holds(r, "w2", 21, 302, 303, 350)
			s.holds(x, "w3", 22, 310, 360, 450)
		}, []string{RuleReaderBesideWriter, RuleGrantedTwice, RuleValidity}},
		"a reader passed a waiting writer": {func(s *scenario) {
			s.holds(r, "w1", 20, 300, 301, 400)
			s.holds(r, "w3", 22, 320, 330, 390)
			s.holds(x, "w2", 21, 310, 401, 450)
		}, []string{RuleGrantedTwice, RuleValidity}},
		"a reader after a downgrade": {func(s *scenario) {
			s.holds(x, "w1", 20, 300, 301, 400)
			s.downgrades("w1", 20, 340, history.OK)
			s.holds(r, "w2", 21, 310, 350, 450)
			s.holds(x, "w3", 22, 320, 451, 500)
		}, nil},
		"a reader before a downgrade": {func(s *scenario) {
			s.holds(x, "w1", 20, 300, 301, 400)
			s.holds(r, "w2", 21, 310, 330, 450)
			s.downgrades("w1", 20, 340, history.OK)
		}, []string{RuleReaderBesideWriter, RuleGrantedTwice, RuleValidity}},
		"a writer after a downgrade": {func(s *scenario) {
			s.holds(x, "w1", 20, 300, 301, 400)
			s.downgrades("w1", 20, 340, history.OK)
			s.holds(x, "w2", 21, 310, 350, 450)
		}, []string{RuleReaderBesideWriter, RuleGrantedTwice, RuleValidity}},
		"a downgrade whose outcome is not known": {func(s *scenario) {
			s.holds(x, "w1", 20, 300, 301, 400)
			s.downgrades("w1", 20, 340, history.Unknown)
			s.holds(r, "w2", 21, 310, 350, 450)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScenario(t)
			c.build(s)
			s.judge(c.broken...)
		})
	}
}

func TestReadWrite_evictedReaders(t *testing.T) {
	s := newScenario(t)
	s.acquires("w1", 20, 300, 301)
	s.acquires("w2", 21, 302, 303)
	for _, e := range s.Events[len(s.Events)-4:] {
		if e.Acquire != nil {
			e.Acquire.Mode = history.Shared
		}
	}
	s.evicts(340, 341, 20, 21)
	s.acquires("w3", 22, 310, 342)
	s.loses("w1", 20, 341)
	s.loses("w2", 21, 345)
	s.releases("w3", 22, 400)
	if v := s.judge(); v.Conceded() != 2 {
		t.Errorf("got violations %+v, want 2 conceded", v.Violations)
	}
}

func TestSemaphore(t *testing.T) {
	two := history.Slot(2)
	for name, c := range map[string]struct {
		build  func(*scenario)
		broken []string
	}{
		"two of two": {func(s *scenario) {
			s.holds(two, "w1", 20, 300, 301, 400)
			s.holds(two, "w2", 21, 310, 311, 350)
			s.holds(two, "w3", 22, 320, 351, 500)
			s.holds(two, "w1", 23, 401, 402, 500)
		}, nil},
		"three of two": {func(s *scenario) {
			s.holds(two, "w1", 20, 300, 301, 400)
			s.holds(two, "w2", 21, 310, 311, 350)
			s.holds(two, "w3", 22, 320, 340, 500)
		}, []string{RuleTooMany, RuleGrantedTwice, RuleValidity}},
		"a later one got the slot first": {func(s *scenario) {
			s.holds(two, "w1", 20, 300, 301, 400)
			s.holds(two, "w2", 22, 310, 311, 350)
			s.holds(two, "w3", 21, 320, 340, 350)
		}, []string{RuleTooMany, RuleGrantedTwice, RuleValidity}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScenario(t)
			c.build(s)
			s.judge(c.broken...)
		})
	}
}

// numbered adds a hold of a slot of three with a number.
func (s *scenario) numbered(number int, numberToken uint64, worker string, token uint64, call, got, released int64) {
	s.holds(history.Slot(3), worker, token, call, got, released)
	for _, e := range s.Events[len(s.Events)-3:] {
		if e.Acquire != nil {
			e.Acquire.Number, e.Acquire.NumberToken = number+1, numberToken
		}
	}
}

func TestSlotNumbers(t *testing.T) {
	s := newScenario(t)
	s.numbered(0, 30, "w1", 20, 300, 301, 400)
	s.numbered(1, 31, "w2", 21, 300, 301, 400)
	s.numbered(0, 33, "w3", 22, 310, 401, 500)
	s.judge()
	s.numbered(0, 34, "w1", 23, 310, 450, 550)
	s.judge(RuleNumberTwice)

	s = newScenario(t)
	s.numbered(0, 34, "w1", 20, 300, 301, 400)
	s.numbered(0, 33, "w2", 21, 410, 411, 500) // the tokens of the number went back
	s.judge(RuleNumberTwice)
}

func (s *scenario) observes(at int64, token uint64, value string) {
	s.add(at, "w9", history.Event{Observed: &history.Observed{Lock: "demo", Token: token, Value: value}})
}

func TestElection(t *testing.T) {
	leaders := func() *scenario {
		s := newScenario(t)
		s.hold("w1", 20, 300, 301, 400)
		s.hold("w2", 21, 310, 405, 500)
		s.observes(350, 20, "w1#3")
		s.observes(402, 21, "w2#4") // before its Campaign returned
		s.observes(450, 0, "")
		return s
	}
	leaders().judge()
	s := leaders()
	s.observes(399, 21, "w2#4")
	s.judge(RuleNotLeader)
	s = leaders()
	s.observes(350, 20, "w2#4")
	s.judge(RuleNotLeader)
	s = leaders()
	s.observes(470, 20, "w1#3") // told late
	s.judge()
	s = leaders()
	s.Run.Target = "stile@redis" // the store may have lost the larger token's entry
	s.fault(1, "restart-empty", "m1", "", 300, 302)
	s.observes(399, 99, "w3#1")
	if v := s.judge(); v.Conceded() != 1 {
		t.Errorf("got violations %+v, want 1 conceded", v.Violations)
	}
}

// set adds a call for several locks, which waits until back, and is granted all or none.
func (s *scenario) set(name string, call, back int64, granted bool, locks ...string) {
	for i, lock := range locks {
		g := fmt.Sprintf("%s/%d", name, i)
		worker := name[:2]
		s.add(call, worker, history.Event{Asked: &history.Asked{Lock: lock, Grant: g, Set: name}})
		a := &history.Acquire{Lock: lock, Grant: g, Set: name, Call: call * ms, Return: back * ms, Outcome: history.Failed, GaveUp: true, Err: "no"}
		if granted {
			a.Outcome, a.GaveUp, a.Err, a.Token, a.Until = history.OK, false, "", uint64(100+call), (back+1800)*ms
		}
		s.add(back, worker, history.Event{Acquire: a})
		if granted {
			s.add(back+10, worker, history.Event{End: &history.End{Grant: g, Call: (back + 10) * ms, Return: (back + 11) * ms, Outcome: history.OK}})
		}
	}
}

func TestCycles(t *testing.T) {
	t.Run("two calls", func(t *testing.T) {
		s := newScenario(t)
		s.set("w1.1", 300, 12_000, false, "demo", "other")
		s.set("w2.1", 310, 12_000, false, "other", "demo")
		v := s.judge(RuleCycle, RuleStranded)
		for _, violation := range v.Violations {
			if violation.Rule == RuleCycle && (len(violation.Grants) != 4 || violation.For < 11*time.Second) {
				t.Errorf("got %+v, want one about both calls", violation)
			}
		}
	})
	t.Run("no circle", func(t *testing.T) {
		s := newScenario(t)
		s.set("w1.1", 300, 12_000, false, "demo", "x")
		s.set("w2.1", 310, 12_000, false, "demo", "y")
		v := Judge(s.withFinals())
		if v.Broken()[RuleCycle] != 0 || v.Broken()[RuleStranded] == 0 {
			t.Errorf("got %+v, want stranded calls and no circle", v.Violations)
		}
	})
	t.Run("one is held", func(t *testing.T) {
		s := newScenario(t)
		s.hold("w3", 90, 290, 299, 12_010)
		s.add(300, "w3", history.Event{Extend: &history.Extend{Grant: "w3/90", Until: 13_000 * ms}})
		s.set("w1.1", 300, 12_000, false, "demo", "other")
		s.set("w2.1", 310, 12_000, false, "other", "demo")
		if v := Judge(s.withFinals()); v.Broken()[RuleCycle] != 0 {
			t.Errorf("got %+v, want no circle", v.Violations)
		}
	})
	t.Run("not for long", func(t *testing.T) {
		s := newScenario(t)
		s.set("w1.1", 300, 9000, true, "demo", "other")
		s.set("w2.1", 310, 9020, true, "other", "demo")
		s.judge()
	})
}

func TestOvertaken_set(t *testing.T) {
	s := newScenario(t)
	s.hold("w3", 90, 299, 2699, 3600)
	s.set("w1.1", 300, 4000, true, "demo", "other")
	s.hold("w4", 95, 2500, 3650, 3700) // asked 2.2 s later, and served first
	for _, e := range s.Events {
		if e.Acquire != nil && e.Acquire.Set != "" {
			e.Acquire.Token += 1000 // so that the tokens agree with the grants
		}
	}
	s.judge()
	s.Run.Offers.Sets = true
	s.judge(RuleOvertaken)
}

func TestFindGaps_semaphore(t *testing.T) {
	slot := history.Slot(2)
	calls := []*Wait{{Call: 10, Return: 100, Mode: slot}}
	holds := []*Hold{{Return: 1, End: 50}, {Return: 2, End: 30}, {Return: 80, End: 90}}
	gaps := findGaps(calls, holds, 100)
	if len(gaps) != 2 || gaps[0] != (gap{30, 80}) || gaps[1] != (gap{80, 100}) {
		t.Errorf("got gaps %v, want one from the end of the second hold, and one after the third", gaps)
	}
}

// runsOnce adds a call of `stile once` for the key k.
func (s *scenario) runsOnce(call, ended int64, o history.Once) {
	o.Lock, o.Key, o.Call = "demo", "k", call*ms
	o.Grant = fmt.Sprintf("w1-%d.1", call)
	s.add(ended, "w1", history.Event{Once: &o})
}

func TestSucceededTwice(t *testing.T) {
	recorded, ran, skipped := history.Once{Ran: true, Recorded: true}, history.Once{Ran: true}, history.Once{Skipped: true}
	for name, c := range map[string]struct {
		first, second history.Once
		secondCall    int64
		broken        bool
	}{
		"skipped after a success":                        {recorded, skipped, 360, false},
		"ran again after an unrecorded success":          {ran, recorded, 360, false},
		"began before the success was known, and failed": {recorded, ran, 340, false},
		"began after the success":                        {recorded, ran, 360, true},
		"began after another was skipped":                {skipped, ran, 360, true},
		"recorded twice":                                 {recorded, recorded, 340, true},
		"the record came after a call had found it":      {skipped, recorded, 340, false},
	} {
		s := newScenario(t)
		s.runsOnce(300, 350, c.first)
		s.runsOnce(c.secondCall, 400, c.second)
		s.judgeIf(c.broken, RuleSucceededTwice)
		if s.Run.Target = "stile@redis"; c.broken {
			s.fault(1, "restart-empty", "m1", "", 351, 352)
			if v := s.judge(); v.Conceded() != 1 {
				t.Errorf("%s: got %+v, want 1 conceded", name, v.Violations)
			}
		}
	}
}
