package verdict

import (
	"fmt"
	"testing"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
)

// refused adds a call that did not acquire the lock: one that waited and failed, or one that only
// tried.
func (s *scenario) refused(worker string, n int, call, back int64, waited bool) {
	g := fmt.Sprintf("%s.%d", worker, n)
	if waited {
		s.add(call, worker, history.Event{Asked: &history.Asked{Lock: "demo", Grant: g}})
	}
	s.add(back, worker, history.Event{Acquire: &history.Acquire{
		Lock: "demo", Grant: g, Call: call * ms, Return: back * ms, Outcome: history.Failed, GaveUp: !waited, Err: "no",
	}})
}

func TestWaiterStranded_refusedCalls(t *testing.T) {
	for name, waited := range map[string]bool{"waiting": true, "only trying": false} {
		for interval, stranded := range map[int64]bool{50: true, 1001: true, 1002: false} { // a call takes 1 ms
			t.Run(fmt.Sprintf("%s, every %d ms", name, interval), func(t *testing.T) {
				s := newScenario(t)
				for i := range 40_000 / interval {
					at := 1000 + interval*i
					s.refused(fmt.Sprintf("w%d", 1+i%3), int(i), at, at+1, waited)
				}
				if !stranded {
					s.judge()
					return
				}
				v := s.judge(RuleStranded)
				if v.Figures.LongestGap < 38*time.Second {
					t.Errorf("got longest gap %v, want at least 38s", v.Figures.LongestGap)
				}
			})
		}
	}
}

func TestWaiterStranded_heldLock(t *testing.T) {
	s := newScenario(t)
	s.acquires("w1", 20, 300, 301)
	for i := range int64(20) {
		s.add(500+1000*i, "w1", history.Event{Extend: &history.Extend{Grant: "w1/20", Until: (500 + 1000*i + 1800) * ms}})
		s.refused("w2", int(i), 600+1000*i, 601+1000*i, false)
	}
	s.releases("w1", 20, 20_000)
	s.judge()
}

// The longest delay without a fault is two TTLs and five seconds.
func TestWaiterStranded_servedLate(t *testing.T) {
	for served, stranded := range map[int64]bool{9400: false, 9402: true} {
		s := newScenario(t)
		s.hold("w1", 20, 300, 301, 400)
		s.hold("w2", 21, 310, served, served+50)
		if stranded {
			s.judge(RuleStranded)
		} else {
			s.judge()
		}
	}
}

// strandedUnderFaults has a waiter that is not served for duration, and a short fault after each
// interval, both in milliseconds.
func strandedUnderFaults(t *testing.T, duration, interval int64) *scenario {
	s := newScenario(t)
	const asked = 3000
	s.refused("w1", 99, asked, asked+duration, true)
	for i := range duration / interval {
		s.fault(int(i)+1, "holder-pause", "w5", "", asked+interval*(i+1)-10, asked+interval*(i+1))
	}
	return s
}

func TestWaiterStranded_underFaults(t *testing.T) {
	strandedUnderFaults(t, 60_000, 9020).judge(RuleStranded) // long enough between two faults
	strandedUnderFaults(t, 60_000, 8990).judge()
	strandedUnderFaults(t, 90_001, 5000).judge(RuleStranded) // longer than any fault excuses
	strandedUnderFaults(t, 90_000, 5000).judge()
}

// overtakenWaiter has a waiter, and other clients that ask later and are served that many times, at
// the given interval, while a fault is active all the time. The waiter's call ends after the last
// of them has been served.
func overtakenWaiter(t *testing.T, times, interval int64) *scenario {
	s := newScenario(t)
	const asked = 3000
	for i := range times {
		at := asked + 1 + interval*i
		s.hold(fmt.Sprintf("w%d", 2+i%2), uint64(100+i), at, at+1, at+10)
	}
	last := asked + 2 + interval*(times-1)
	s.refused("w1", 99, asked, last+1, true)
	s.fault(1, "reset", "all", "", asked, last)
	return s
}

func TestWaiterForgotten(t *testing.T) {
	v := overtakenWaiter(t, 10, 3001).judge(RuleForgotten) // more than three times two TTLs and five seconds
	if what := v.Violations[0].What; what != "w1.99 waited for 27.011s while 10 were served that had asked later, the last of them w3/109" {
		t.Errorf("got text %q", what)
	}
	overtakenWaiter(t, 10, 2999).judge()
	overtakenWaiter(t, 9, 3400).judge() // a few clients may have had sessions while the waiter had none
	s := overtakenWaiter(t, 10, 3001)
	s.Run.Offers = history.Offers{Deadlines: true, Loss: true}
	s.judge(RuleForgotten) // also if the lock is not fair: no waiter waits forever
}

func TestWaiterForgotten_killedWaiter(t *testing.T) {
	s := newScenario(t)
	s.add(3000, "w1", history.Event{Asked: &history.Asked{Lock: "demo", Grant: "w1.99"}})
	s.add(9000, "w1", history.Event{Exited: &history.Exited{How: "signal: killed"}})
	for i := range int64(40) {
		s.hold("w2", uint64(100+i), 3001+1000*i, 3002+1000*i, 3010+1000*i)
	}
	s.fault(1, "reset", "all", "", 3000, 44_000)
	s.judge()
}

func TestWorkers_exitStatus(t *testing.T) {
	for how, rule := range map[string]string{"exit status 2": RuleCrashed, history.ExitHung: RuleHung} {
		s := newScenario(t)
		s.add(900, "w8", history.Event{Exited: &history.Exited{How: how}})
		s.judge(rule)
	}
	for _, how := range []string{"ended", "exit status 0", "exit status 1", "signal: killed"} {
		s := newScenario(t)
		s.add(900, "w8", history.Event{Exited: &history.Exited{How: how}})
		s.judge()
	}
}

func TestTooLittle_requestedFaults(t *testing.T) {
	failing := func(s *scenario, id int, name string) {
		s.fault(id, name, "", "", 300, 301)
		s.Events[len(s.Events)-1].Heal.Err = "the lock is not held"
	}
	t.Run("all failed", func(t *testing.T) {
		s := newScenario(t)
		failing(s, 1, history.Evict)
		failing(s, 2, history.Evict)
		s.judge(RuleTooLittle)
	})
	t.Run("one struck", func(t *testing.T) {
		s := newScenario(t)
		failing(s, 1, history.Evict)
		s.fault(2, history.Evict, "w1", "holder", 310, 311)
		s.judge()
	})
	t.Run("one not tried", func(t *testing.T) {
		s := newScenario(t)
		s.fault(1, "compact", "all", "", 300, 301)
		s.Run.Faults = "compact,leader-pause"
		v := s.judge(RuleTooLittle)
		if what := v.Violations[0].What; what != "leader-pause was requested but never tried" {
			t.Errorf("got text %q", what)
		}
	})
	t.Run("all tried", func(t *testing.T) {
		s := newScenario(t)
		s.fault(1, "compact", "all", "", 300, 301)
		s.fault(2, "leader-pause", "m1", "leader", 310, 311)
		s.Run.Faults = "compact, leader-pause"
		s.judge()
	})
}
