package verdict

import (
	"slices"
	"strings"
	"testing"

	"github.com/stilelock/stile/lab/torture/history"
)

// Each thing that can be reached is reached by the events here, and not without their essential part.
func TestReached(t *testing.T) {
	const x, r = history.Exclusive, history.Shared
	two := history.Slot(2)
	for name, c := range map[string]struct{ reached, not func(*scenario) }{
		ReachReader:  {func(s *scenario) { s.holds(r, "w1", 20, 300, 301, 400) }, func(*scenario) {}},
		ReachReaders: {func(s *scenario) { s.holds(r, "w1", 20, 300, 301, 400); s.holds(r, "w2", 21, 300, 301, 400) }, func(s *scenario) { s.holds(r, "w1", 20, 300, 301, 400); s.holds(r, "w2", 21, 400, 401, 450) }},
		ReachWriterWaited: {
			func(s *scenario) { s.holds(r, "w1", 20, 300, 301, 400); s.holds(x, "w2", 21, 310, 401, 450) },
			func(s *scenario) { s.holds(r, "w1", 20, 300, 301, 400); s.holds(x, "w2", 21, 402, 403, 450) },
		},
		ReachDowngrade: {
			func(s *scenario) {
				s.holds(x, "w1", 20, 300, 301, 400)
				s.downgrades("w1", 20, 340, history.OK)
				s.holds(r, "w2", 21, 310, 350, 450)
			},
			func(s *scenario) {
				s.holds(x, "w1", 20, 300, 301, 400)
				s.downgrades("w1", 20, 340, history.OK)
				s.holds(r, "w2", 21, 341, 350, 450) // asked later
			},
		},
		ReachSlot:   {func(s *scenario) { s.holds(two, "w1", 20, 300, 301, 400) }, func(s *scenario) { s.numbered(0, 1, "w1", 20, 300, 301, 400) }},
		ReachNumber: {func(s *scenario) { s.numbered(0, 1, "w1", 20, 300, 301, 400) }, func(s *scenario) { s.holds(two, "w1", 20, 300, 301, 400) }},
		ReachFull: {
			func(s *scenario) {
				s.holds(two, "w1", 20, 300, 301, 400)
				s.holds(two, "w2", 21, 302, 320, 400)
				s.holds(two, "w3", 22, 310, 401, 450)
			},
			func(s *scenario) { s.holds(two, "w1", 20, 300, 301, 400); s.holds(two, "w2", 21, 302, 320, 400) },
		},
		ReachObserved: {
			func(s *scenario) { s.hold("w1", 20, 300, 301, 400); s.observes(350, 20, "w1#1") },
			func(s *scenario) {
				s.hold("w1", 20, 300, 301, 400)
				s.observes(450, 20, "w1#1")
				s.observes(460, 0, "")
			},
		},
		ReachYield: {
			func(s *scenario) { s.hold("w2", 21, 310, 402, 410); s.yields("w1", 20, 22, 420) },
			func(s *scenario) { s.yields("w1", 20, 22, 420) },
		},
		ReachTwoLocks:   {func(s *scenario) { s.set("w1.1", 300, 310, true, "a", "b") }, func(s *scenario) { s.set("w1.1", 300, 310, false, "a", "b") }},
		ReachThreeLocks: {func(s *scenario) { s.set("w1.1", 300, 310, true, "a", "b", "c") }, func(s *scenario) { s.set("w1.1", 300, 310, true, "a", "b") }},
		ReachSetWaited: {
			func(s *scenario) { s.hold("w2", 21, 300, 301, 350); s.set("w1.1", 310, 360, true, "demo", "b") },
			func(s *scenario) { s.hold("w2", 21, 300, 301, 350); s.set("w1.1", 310, 360, true, "a", "b") },
		},
		ReachSetLost: {
			func(s *scenario) { s.set("w1.1", 300, 600, true, "demo", "b"); s.evicts(450, 451, 21, 22) },
			func(s *scenario) { s.set("w1.1", 300, 600, true, "demo", "b"); s.evicts(450, 451, 21) },
		},
		ReachRecorded: {func(s *scenario) { s.runsOnce(300, 350, history.Once{Ran: true, Recorded: true}) }, func(s *scenario) { s.runsOnce(300, 350, history.Once{Ran: true}) }},
		ReachSkipped:  {func(s *scenario) { s.runsOnce(300, 350, history.Once{Skipped: true}) }, func(s *scenario) { s.runsOnce(300, 350, history.Once{}) }},
		ReachLongLine: {
			func(s *scenario) { s.add(300, "", history.Event{Line: &history.Line{Lock: "demo", Length: 400}}) },
			func(s *scenario) { s.add(300, "", history.Event{Line: &history.Line{Lock: "demo", Length: 399}}) },
		},
		ReachMiddle: {
			func(s *scenario) { s.line("w1", 50, 300); s.waits("w2#1", "w2.1", 400, 900); s.line("w3", 50, 500) },
			func(s *scenario) { s.line("w1", 50, 300); s.waits("w2#1", "w2.1", 400, 900); s.line("w3", 49, 500) },
		},
		ReachFaultHandOver: {
			func(s *scenario) {
				s.fault(1, "holder-cut", "w3", "", 300, 400)
				s.hold("w1", 20, 290, 320, 330)
				s.hold("w2", 21, 290, 340, 350)
			},
			func(s *scenario) {
				s.fault(1, "holder-cut", "w3", "", 335, 339)
				s.hold("w1", 20, 290, 320, 330)
				s.hold("w2", 21, 290, 340, 350)
			},
		},
		ReachCrowdBehind: {
			func(s *scenario) {
				s.line("w2", 300, 300)
				s.acquires("w1", 20, 300, 301)
				s.fault(1, "holder-kill", "w1", "holder", 700, 700)
			},
			func(s *scenario) {
				s.line("w2", 299, 300)
				s.acquires("w1", 20, 300, 301)
				s.fault(1, "holder-kill", "w1", "holder", 700, 700)
			},
		},
		ReachServed: {
			func(s *scenario) {
				s.hold("w1", 20, 300, 370, 371)
				s.add(350, "", history.Event{Stopping: &history.Stopping{}})
			},
			func(s *scenario) {
				s.hold("w1", 20, 300, 370, 371)
				s.add(371, "", history.Event{Stopping: &history.Stopping{}})
			},
		},
		ReachPaused: {
			func(s *scenario) {
				s.acquires("w1", 20, 300, 301)
				s.fault(1, "holder-pause", "w1", "holder", 350, 2400)
			},
			func(s *scenario) {
				s.acquires("w1", 20, 300, 301)
				s.fault(1, "holder-pause", "w1", "holder", 350, 2300)
			},
		},
		ReachKilled: {
			func(s *scenario) { s.acquires("w1", 20, 300, 301); s.fault(1, "holder-kill", "w1", "holder", 350, 350) },
			func(s *scenario) {
				s.hold("w1", 20, 300, 301, 340)
				s.fault(1, "holder-kill", "w1", "holder", 350, 350)
			},
		},
		ReachEvicted: {func(s *scenario) { s.evicts(340, 341, 20) }, func(s *scenario) { s.fault(1, "reset", "all", "", 340, 341) }},
		ReachLeaderChanged: {
			func(s *scenario) {
				s.fault(1, "leader-kill", "s1", "leader", 340, 400)
				s.hold("w1", 20, 330, 420, 430)
			},
			func(s *scenario) {
				s.fault(1, "server-kill", "s1", "follower", 340, 400)
				s.hold("w1", 20, 330, 420, 430)
			},
		},
	} {
		for _, want := range []bool{true, false} {
			s := newScenario(t)
			if want {
				c.reached(s)
			} else {
				c.not(s)
			}
			s.Run.Promised = []string{name}
			v := Judge(s.withFinals())
			missed := slices.ContainsFunc(v.Violations, func(v Violation) bool { return v.Rule == RuleTooLittle && strings.Contains(v.What, name) })
			if missed == want {
				t.Errorf("%q: got reached: %v, want %v", name, !missed, want)
			}
		}
	}
}

// yields adds a hold that a worker yields at 400, and the one that it gets for it.
func (s *scenario) yields(worker string, token, next uint64, got int64) {
	s.hold(worker, token, 300, 301, 400)
	s.hold(worker, next, 400, got, got+10)
	s.Events[len(s.Events)-2].Acquire.Yielded = grantName(worker, token)
}

// The End of a command that was killed with `stile run` is recorded as of its last request.
func TestReached_killedCommand(t *testing.T) {
	for exit, reached := range map[int64]bool{360: true, 349: false} {
		s := newScenario(t)
		s.acquires("w1-7", 20, 300, 301)
		s.fault(1, "holder-kill", "w1", "holder", 350, 350)
		s.add(exit, "w1-7", history.Event{End: &history.End{Grant: "w1-7/20", Call: 340 * ms, Outcome: history.Unknown, Why: "its process was killed"}})
		s.add(exit, "w1-7", history.Event{Exited: &history.Exited{How: "signal: killed"}})
		s.Run.Promised = []string{ReachKilled}
		if got := Judge(s.withFinals()).Broken()[RuleTooLittle] == 0; got != reached {
			t.Errorf("exit at %d: got reached: %v, want %v", exit, got, reached)
		}
	}
}
