package verdict

import (
	"fmt"
	"testing"

	"github.com/stilelock/stile/lab/torture/history"
)

// calls adds a call with a client, which is not over before the history ends.
func (s *scenario) calls(client, grant string, call int64) {
	worker := publisher(client)
	s.add(call, worker, history.Event{Asked: &history.Asked{Lock: "demo", Grant: grant, Client: client}})
}

// givesUp adds the end of such a call.
func (s *scenario) givesUp(client, grant string, call, back int64) {
	s.add(back, publisher(client), history.Event{Acquire: &history.Acquire{
		Lock: "demo", Grant: grant, Call: call * ms, Return: back * ms, Outcome: history.Failed, GaveUp: true, Client: client,
	}})
}

// waits adds a call with a client that gives up.
func (s *scenario) waits(client, grant string, call, back int64) {
	s.calls(client, grant, call)
	s.givesUp(client, grant, call, back)
}

// line adds n calls, each of a client of its own, one every millisecond. They give up 800 ms later.
func (s *scenario) line(prefix string, n int, from int64) {
	for i := range int64(n) {
		s.waits(fmt.Sprintf("%s#%d", prefix, i), fmt.Sprintf("%s.%d", prefix, i), from+i, from+i+800)
	}
}

// A caller whose client is used by another caller has no entry in the line before that one has released.
func TestArrival_queueOfClient(t *testing.T) {
	for second, overtaken := range map[string]bool{"w1#1": false, "w1#2": true} {
		s := newScenario(t)
		s.acquires("w1", 20, 1000, 1001)
		s.Events[len(s.Events)-2].Asked.Client = "w1#1"
		s.releases("w1", 20, 6000)
		s.waits(second, "w1.2", 1100, 9500)
		s.hold("w2", 21, 3200, 6002, 6010) // asked more than a TTL after the second caller
		if overtaken {
			s.judge(RuleOvertaken)
		} else {
			s.judge()
		}
	}
}

// A client that opens a session while it waits joins the line at its end, and so do all that wait when a
// whole line is deleted.
func TestArrival_lostPosition(t *testing.T) {
	for name, c := range map[string]struct {
		add       func(*scenario)
		overtaken bool
	}{
		"none":                       {func(*scenario) {}, true},
		"session opened":             {func(s *scenario) { s.opens("w1#1", 3000) }, false},
		"session opened before":      {func(s *scenario) { s.opens("w1#1", 900) }, true},
		"other's session":            {func(s *scenario) { s.opens("w1#2", 3000) }, true},
		"session opened afterwards":  {func(s *scenario) { s.opens("w1#1", 9600) }, true},
		"session opened, long since": {func(s *scenario) { s.opens("w1#1", 1100) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScenario(t)
			s.waits("w1#1", "w1.1", 1000, 9500)
			c.add(s)
			s.hold("w2", 21, 3200, 6002, 6010)
			if c.overtaken {
				s.judge(RuleOvertaken)
			} else {
				s.judge()
			}
		})
	}
}

func (s *scenario) opens(client string, at int64) {
	s.add(at, publisher(client), history.Event{Opened: &history.Opened{Client: client}})
}

// forgottenInCrowd has a waiter with so many others that ask after it, each of which is served, one after
// another, while a fault is active all the time.
func forgottenInCrowd(t *testing.T, crowd, served int) *scenario {
	s := newScenario(t)
	s.calls("w1#0", "w1.0", 3000)
	s.line("w3", crowd-1, 3001)
	at := int64(4000)
	for i := range served {
		s.hold("w2", uint64(100+i), at, at+1, at+40)
		s.Events[len(s.Events)-3].Asked.Client = "w2#0"
		at += 30_000 / int64(served)
	}
	s.givesUp("w1#0", "w1.0", 3000, at+1)
	s.fault(1, "reset", "all", "", 3000, at)
	return s
}

// In a crowd as many as were in it must be served before a waiter counts as forgotten.
func TestWaiterForgotten_crowd(t *testing.T) {
	forgottenInCrowd(t, 100, 100).judge(RuleForgotten)
	forgottenInCrowd(t, 100, 99).judge()
	forgottenInCrowd(t, 5, 9).judge() // and at least ten
	s := forgottenInCrowd(t, 100, 100)
	s.opens("w1#0", 8000) // it joined the line again: too few have been served since then
	s.judge()
	s = forgottenInCrowd(t, 100, 100)
	s.evicts(8000, 8001, 20, 21) // the whole line
	s.judge()
	s = forgottenInCrowd(t, 100, 100)
	s.evicts(8000, 8001, 20) // only the holder's entry
	s.judge(RuleForgotten)
	s = forgottenInCrowd(t, 100, 100)
	s.evicts(35_000, 35_001, 20, 21) // too late
	s.judge(RuleForgotten)
}

// Calls that were made before a waiter's last arrival may be ahead of it.
func TestWaiterForgotten_aheadAfterArrival(t *testing.T) {
	for opened, forgotten := range map[int64]bool{2900: true, 3800: false} {
		s := newScenario(t)
		s.calls("w1#0", "w1.0", 3000)
		s.opens("w1#0", opened)
		const ahead, served = 60, 100
		at := int64(4000)
		for i := range int64(served) {
			call := at
			if i < ahead {
				call = 3001 + i
			}
			s.hold("w2", uint64(100+i), call, at+1, at+40)
			s.Events[len(s.Events)-3].Asked.Client = "w2#0"
			at += 300
		}
		s.givesUp("w1#0", "w1.0", 3000, at+1)
		s.fault(1, "reset", "all", "", 3000, at)
		if forgotten {
			s.judge(RuleForgotten)
		} else {
			s.judge()
		}
	}
}

// Only a holder that is stopped or killed leaves a crowd behind it.
func TestReached_crowdBehind(t *testing.T) {
	for name, c := range map[string]struct {
		fault, on string
		reached   bool
	}{
		"paused":          {"holder-pause", "w1", true},
		"killed":          {"holder-kill", "w1", true},
		"cut off":         {"holder-cut", "w1", false},
		"another, killed": {"holder-kill", "w3", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScenario(t)
			s.line("w2", crowdBehind, 300)
			s.acquires("w1", 20, 300, 301)
			s.fault(1, c.fault, c.on, "holder", 700, 701)
			if got := timesReached(s, ReachCrowdBehind) > 0; got != c.reached {
				t.Errorf("got reached: %v, want %v", got, c.reached)
			}
		})
	}
}

// crowdOf counts calls that wait at the same time, not one after another.
func TestCrowdOf(t *testing.T) {
	s := newScenario(t)
	s.waits("w1#1", "w1.1", 300, 400)
	s.waits("w1#2", "w1.2", 400, 500)
	s.waits("w1#3", "w1.3", 350, 450)
	s.hold("w2", 30, 300, 600, 601) // without a client
	l := newIndex(&s.History)
	if got := crowdOf(l.waits, l.end); got != 2 {
		t.Errorf("got a crowd of %d, want 2", got)
	}
}

// ReachServed counts those that waited at the end, and requires that none of them failed.
func TestReached_servedAtEnd(t *testing.T) {
	for name, c := range map[string]struct {
		add     func(*scenario)
		reached bool
	}{
		"served":             {func(*scenario) {}, true},
		"another gave up":    {func(s *scenario) { s.refusedAs("w3", 380, true) }, true},
		"another failed":     {func(s *scenario) { s.refusedAs("w3", 380, false) }, false},
		"failed before":      {func(s *scenario) { s.refusedAs("w3", 340, false) }, true},
		"never returned":     {func(s *scenario) { s.calls("w3#1", "w3.1", 320) }, false},
		"killed before":      {func(s *scenario) { s.calls("w3#1", "w3.1", 320); s.exits("w3", 340) }, true},
		"killed while ended": {func(s *scenario) { s.calls("w3#1", "w3.1", 320); s.exits("w3", 380) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScenario(t)
			s.hold("w1", 20, 300, 370, 371)
			c.add(s)
			s.add(350, "", history.Event{Stopping: &history.Stopping{}})
			if got := timesReached(s, ReachServed) > 0; got != c.reached {
				t.Errorf("got reached: %v, want %v", got, c.reached)
			}
		})
	}
}

func timesReached(s *scenario, name string) int {
	for _, r := range Reached(&s.History) {
		if r.Name == name {
			return r.Times
		}
	}
	s.t.Fatalf("%q is not looked for", name)
	return 0
}

// refusedAs adds a call that was made at 310 and failed.
func (s *scenario) refusedAs(worker string, back int64, gaveUp bool) {
	s.waits(worker+"#1", worker+".1", 310, back)
	s.Events[len(s.Events)-1].Acquire.GaveUp = gaveUp
}

func (s *scenario) exits(worker string, at int64) {
	s.add(at, worker, history.Event{Exited: &history.Exited{How: "signal: killed"}})
}
