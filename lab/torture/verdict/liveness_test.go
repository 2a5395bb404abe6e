package verdict

import (
	"fmt"
	"testing"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
)

// refused tells of a call that came to nothing, after waiting if it waited.
func (s *story) refused(worker string, n int, call, back int64, waited bool) {
	g := fmt.Sprintf("%s.%d", worker, n)
	if waited {
		s.add(call, worker, history.Event{Asked: &history.Asked{Lock: "demo", Grant: g}})
	}
	s.add(back, worker, history.Event{Acquire: &history.Acquire{
		Lock: "demo", Grant: g, Call: call * ms, Return: back * ms, Outcome: history.Failed, GaveUp: !waited, Err: "no",
	}})
}

func TestALockThatRefusesEverybody(t *testing.T) {
	for name, waited := range map[string]bool{"who waits": true, "who tries": false} {
		for apart, stranded := range map[int64]bool{50: true, 1001: true, 1002: false} { // a call takes one of them
			t.Run(fmt.Sprintf("%s, asked every %d ms", name, apart), func(t *testing.T) {
				s := tell(t)
				for i := range 40_000 / apart {
					at := 1000 + apart*i
					s.refused(fmt.Sprintf("w%d", 1+i%3), int(i), at, at+1, waited)
				}
				if !stranded {
					s.judge()
					return
				}
				v := s.judge(RuleStranded)
				if v.Figures.LongestGap < 38*time.Second {
					t.Errorf("the longest gap is %v", v.Figures.LongestGap)
				}
			})
		}
	}
}

func TestALockThatIsTakenIsRefusedRightly(t *testing.T) {
	s := tell(t)
	s.takes("w1", 20, 300, 301)
	for i := range int64(20) {
		s.add(500+1000*i, "w1", history.Event{Extend: &history.Extend{Grant: "w1/20", Until: (500 + 1000*i + 1800) * ms}})
		s.refused("w2", int(i), 600+1000*i, 601+1000*i, false)
	}
	s.releases("w1", 20, 20_000)
	s.judge()
}

// The patience is two TTLs and five seconds.
func TestAWaiterThatIsServedInTheEnd(t *testing.T) {
	for served, stranded := range map[int64]bool{9400: false, 9402: true} {
		s := tell(t)
		s.hold("w1", 20, 300, 301, 400)
		s.hold("w2", 21, 310, served, served+50)
		if stranded {
			s.judge(RuleStranded)
		} else {
			s.judge()
		}
	}
}

// unserved tells of a waiter that nobody serves, and of faults of a moment each, so far apart.
func unserved(t *testing.T, lasts, apart int64) *story {
	s := tell(t)
	const asked = 3000
	s.refused("w1", 99, asked, asked+lasts, true)
	for i := range lasts / apart {
		s.fault(int(i)+1, "holder-pause", "w5", "", asked+apart*(i+1)-10, asked+apart*(i+1))
	}
	return s
}

func TestAWaiterThatIsStrandedWhileFaultsGoOn(t *testing.T) {
	unserved(t, 60_000, 9020).judge(RuleStranded) // between two of them there is time enough
	unserved(t, 60_000, 8990).judge()
	unserved(t, 90_001, 5000).judge(RuleStranded) // and this is too long, whatever is done
	unserved(t, 90_000, 5000).judge()
}

// passedBy tells of a waiter that asks, of others that come later and are served so many times, so far apart, while faults go on all
// the time, and of its own call, which ends when the last of them has been served.
func passedBy(t *testing.T, times, apart int64) *story {
	s := tell(t)
	const asked = 3000
	for i := range times {
		at := asked + 1 + apart*i
		s.hold(fmt.Sprintf("w%d", 2+i%2), uint64(100+i), at, at+1, at+10)
	}
	last := asked + 2 + apart*(times-1)
	s.refused("w1", 99, asked, last+1, true)
	s.fault(1, "reset", "all", "", asked, last)
	return s
}

func TestAWaiterThatIsForgottenAmongOthers(t *testing.T) {
	v := passedBy(t, 10, 3001).judge(RuleForgotten) // which is more than three times two TTLs and five seconds
	if what := v.Violations[0].What; what != "w1.99 waited for 27.011s while 10 were served who had asked later, the last of them w3/109" {
		t.Error(what)
	}
	passedBy(t, 10, 2999).judge()
	passedBy(t, 9, 3400).judge() // a few may have had their sessions while it had none
	s := passedBy(t, 10, 3001)
	s.Run.Offers = history.Offers{Deadlines: true, Loss: true}
	s.judge(RuleForgotten) // where nobody is promised a turn, nobody waits for ever
}

func TestAWaiterThatIsKilledIsNotForgotten(t *testing.T) {
	s := tell(t)
	s.add(3000, "w1", history.Event{Asked: &history.Asked{Lock: "demo", Grant: "w1.99"}})
	s.add(9000, "w1", history.Event{Exited: &history.Exited{How: "signal: killed"}})
	for i := range int64(40) {
		s.hold("w2", uint64(100+i), 3001+1000*i, 3002+1000*i, 3010+1000*i)
	}
	s.fault(1, "reset", "all", "", 3000, 44_000)
	s.judge()
}

func TestAWorkerThatPanics(t *testing.T) {
	for how, rule := range map[string]string{"exit status 2": RuleCrashed, history.ExitHung: RuleHung} {
		s := tell(t)
		s.add(900, "w8", history.Event{Exited: &history.Exited{How: how}})
		s.judge(rule)
	}
	for _, how := range []string{"ended", "exit status 0", "exit status 1", "signal: killed"} {
		s := tell(t)
		s.add(900, "w8", history.Event{Exited: &history.Exited{How: how}})
		s.judge()
	}
}

func TestFaultsThatWereAskedForAndDidNotStrike(t *testing.T) {
	failing := func(s *story, id int, name string) {
		s.fault(id, name, "", "", 300, 301)
		s.Events[len(s.Events)-1].Heal.Err = "nobody held a lock at this moment"
	}
	t.Run("they failed", func(t *testing.T) {
		s := tell(t)
		failing(s, 1, history.Evict)
		failing(s, 2, history.Evict)
		s.judge(RuleTooLittle)
	})
	t.Run("one struck", func(t *testing.T) {
		s := tell(t)
		failing(s, 1, history.Evict)
		s.fault(2, history.Evict, "w1", "holder", 310, 311)
		s.judge()
	})
	t.Run("one was never tried", func(t *testing.T) {
		s := tell(t)
		s.fault(1, "compact", "all", "", 300, 301)
		s.Run.Faults = "compact,leader-pause"
		v := s.judge(RuleTooLittle)
		if what := v.Violations[0].What; what != "leader-pause was asked for and never tried" {
			t.Error(what)
		}
	})
	t.Run("all were tried", func(t *testing.T) {
		s := tell(t)
		s.fault(1, "compact", "all", "", 300, 301)
		s.fault(2, "leader-pause", "m1", "leader", 310, 311)
		s.Run.Faults = "compact, leader-pause"
		s.judge()
	})
}
