package verdict

import (
	"testing"

	"github.com/stilelock/stile/lab/torture/history"
)

// overlapping has w1, which believes in its hold until it is notified of the loss, and w2, which is
// granted the lock before that. The rest of the history is that of newScenario, on the given
// target.
func overlapping(t *testing.T, target string, granted, lost int64) *scenario {
	s := newScenario(t)
	s.Run.Target = target
	s.acquires("w1", 20, 300, 301)
	s.acquires("w2", 21, 310, granted)
	s.add(lost-1, "w1", history.Event{Extend: &history.Extend{Grant: "w1/20", Until: (lost + 100) * ms}})
	s.add(lost, "w1", history.Event{End: &history.End{Grant: "w1/20", LostAt: lost * ms, Why: "it is gone"}})
	s.add(lost+1, "w2", history.Event{Extend: &history.Extend{Grant: "w2/21", Until: (lost + 2000) * ms}})
	s.releases("w2", 21, lost+2)
	return s
}

func TestConcessions_byStore(t *testing.T) {
	for _, c := range []struct {
		fault, target string
		excused       bool
	}{
		{history.Evict, "stile@etcd", true},
		{history.Evict, "stile@redis", true},
		{history.Evict, "stile@zk3", true},
		{"leader-pause", "stile@etcd3", true},
		{"leader-pause", "stile@zk3", false},
		{"server-pause", "concurrency@etcd", true},
		{"server-pause", "stile@redis", false},
		{"restart-empty", "stile@redis", true},
		{"restart-empty", "stile@redlock5", true},
		{"clock-jump", "redsync@redlock3", true},
		{"server-kill", "stile@redis", true}, // the servers of the site save no data
		{"server-kill", "stile@redlock5", true},
		{"server-kill", "stile@etcd", false},
		{"server-kill", "stile@zk", false},
		{"leader-kill", "stile@etcd3", false},
		{"holder-pause", "stile@etcd", false},
		{"holder-cut", "stile@redis", false},
	} {
		t.Run(c.fault+" on "+c.target, func(t *testing.T) {
			s := overlapping(t, c.target, 400, 450)
			s.fault(1, c.fault, "x", "", 390, 395)
			if c.excused {
				s.judge()
			} else {
				s.judge(RuleOverlap, RuleValidity)
			}
		})
	}
}

// A concession is valid from the strike until a TTL after its healing, here at 1000, for overlaps
// of at most two TTLs.
func TestConcessions_timeLimits(t *testing.T) {
	for _, c := range []struct {
		name          string
		granted, lost int64
		excused       bool
	}{
		{"just before it struck", 899, 1500, false},
		{"as it struck", 900, 1500, true},
		{"a TTL after the healing", 3000, 3100, true},
		{"later than a TTL after the healing", 3001, 3100, false},
		{"for two TTLs", 1000, 5000, true},
		{"for longer", 1000, 5001, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := overlapping(t, "stile@redis", c.granted, c.lost)
			for at := int64(2000); at < c.lost; at += 1500 { // both holds are extended
				for _, grant := range []string{"w1/20", "w2/21"} {
					s.add(at, grant[:2], history.Event{Extend: &history.Extend{Grant: grant, Until: (at + 1800) * ms}})
				}
			}
			s.fault(1, "restart-empty", "m1", "", 900, 1000)
			if c.excused {
				s.judge()
			} else {
				s.judge(RuleOverlap, RuleValidity)
			}
		})
	}
}

func TestConcessions_evictionOfOtherLock(t *testing.T) {
	for lock, excused := range map[string]bool{"demo": true, "other": false, "": true} {
		s := overlapping(t, "stile@etcd", 400, 450)
		s.fault(1, history.Evict, "w1", "holder", 390, 395)
		for _, e := range s.Events {
			if e.Fault != nil {
				e.Fault.Lock = lock
			}
		}
		if excused {
			s.judge()
		} else {
			s.judge(RuleOverlap, RuleValidity)
		}
	}
}

// evicts adds an eviction that deleted the entries with these tokens.
func (s *scenario) evicts(from, to int64, tokens ...uint64) {
	s.fault(1, history.Evict, "w1", "holder", from, to)
	for _, e := range s.Events {
		if e.Fault != nil {
			e.Fault.Lock, e.Fault.Took = "demo", tokens
		}
	}
}

func (s *scenario) loses(worker string, token uint64, at int64) {
	s.add(at, worker, history.Event{End: &history.End{Grant: grantName(worker, token), LostAt: at * ms, Why: "it is gone"}})
}

func TestConcessions_evictedHolder(t *testing.T) {
	t.Run("until it is notified", func(t *testing.T) {
		s := newScenario(t)
		s.acquires("w1", 20, 300, 301)
		s.evicts(340, 341, 20)
		s.acquires("w2", 21, 310, 342)
		s.loses("w1", 20, 343)
		s.releases("w2", 21, 400)
		if v := s.judge(); v.Conceded() != 2 {
			t.Errorf("got violations %+v, want 2 conceded", v.Violations)
		}
	})
	t.Run("its call returns after the next one", func(t *testing.T) {
		s := newScenario(t)
		s.evicts(340, 341, 20)
		s.acquires("w2", 21, 310, 900)
		s.acquires("w1", 20, 300, 902)
		s.loses("w1", 20, 903)
		s.releases("w2", 21, 1000)
		if v := s.judge(); v.Conceded() != 2 {
			t.Errorf("got violations %+v, want 2 conceded", v.Violations)
		}
	})
	t.Run("not if its release proves that it lasted", func(t *testing.T) {
		s := newScenario(t)
		s.acquires("w1", 20, 300, 301)
		s.evicts(340, 341, 20)
		s.acquires("w2", 21, 310, 342)
		s.releases("w1", 20, 350)
		s.releases("w2", 21, 400)
		if v := s.judge(RuleOverlap, RuleValidity, RuleGrantedTwice); v.Conceded() != 0 {
			t.Errorf("got violations %+v, want 0 conceded", v.Violations)
		}
	})
}

func TestConcessions_twoGrantsAfterEviction(t *testing.T) {
	// w2 and w3 waited when w1 was evicted. Both are granted the lock, and w3 is notified that it
	// has lost it.
	both := func(t *testing.T, tokens ...uint64) *scenario {
		s := newScenario(t)
		s.acquires("w1", 20, 300, 301)
		s.evicts(340, 341, tokens...)
		s.loses("w1", 20, 341)
		s.acquires("w2", 21, 310, 342)
		s.acquires("w3", 22, 311, 343)
		s.loses("w3", 22, 345)
		s.loses("w2", 21, 346)
		return s
	}
	t.Run("only the holder evicted", func(t *testing.T) { both(t, 20).judge(RuleOverlap, RuleValidity) })
	t.Run("the whole line evicted", func(t *testing.T) {
		v := both(t, 20, 21, 22).judge(RuleOverlap, RuleValidity, RuleDeletedEntry)
		if n := v.Broken()[RuleDeletedEntry]; n != 2 {
			t.Errorf("got %d holds of deleted entries, want 2", n)
		}
	})
	t.Run("returned in the other order", func(t *testing.T) {
		s := newScenario(t)
		s.acquires("w1", 20, 300, 301)
		s.evicts(340, 341, 20)
		s.loses("w1", 20, 341)
		s.acquires("w3", 22, 311, 342)
		s.acquires("w2", 21, 310, 343)
		s.loses("w3", 22, 345)
		s.loses("w2", 21, 346)
		if v := s.judge(RuleOverlap, RuleValidity); v.Conceded() != 0 {
			t.Errorf("got violations %+v, want 0 conceded", v.Violations)
		}
	})
	t.Run("a resumed leader ends several leases", func(t *testing.T) {
		s := newScenario(t)
		s.Run.Target = "stile@etcd3"
		s.fault(1, "leader-pause", "m1", "leader", 340, 341)
		s.acquires("w1", 20, 300, 1341)
		s.acquires("w2", 21, 310, 1343)
		s.acquires("w3", 22, 311, 1345)
		s.loses("w1", 20, 1344)
		s.loses("w2", 21, 1346)
		s.releases("w3", 22, 1400)
		if v := s.judge(); v.Conceded() != 4 {
			t.Errorf("got violations %+v, want 4 conceded", v.Violations)
		}
	})
	t.Run("the client of the ended lease learns last that it was admitted", func(t *testing.T) {
		s := newScenario(t)
		s.Run.Target = "stile@etcd3"
		s.fault(1, "leader-pause", "m1", "leader", 340, 1341)
		s.acquires("w1", 20, 300, 1345)
		s.acquires("w2", 21, 310, 1343)
		s.loses("w1", 20, 1346)
		s.releases("w2", 21, 1400)
		if v := s.judge(); v.Conceded() != 2 {
			t.Errorf("got violations %+v, want 2 conceded", v.Violations)
		}
	})
	t.Run("unknown tokens: a quarter of a TTL", func(t *testing.T) {
		for granted, excused := range map[int64]bool{841: true, 842: false} {
			s := newScenario(t)
			s.evicts(340, 341)
			s.acquires("w1", 20, 300, granted)
			s.acquires("w2", 21, 310, granted+2)
			s.loses("w1", 20, granted+4)
			s.releases("w2", 21, granted+50)
			s.judgeIf(!excused, RuleOverlap, RuleValidity)
		}
	})
}

func TestGrantedToDeletedEntry(t *testing.T) {
	deleted := func(t *testing.T) *scenario {
		s := newScenario(t)
		s.acquires("w1", 20, 300, 301)
		s.evicts(340, 341, 20, 21)
		s.loses("w1", 20, 341)
		return s
	}
	t.Run("hold of no duration", func(t *testing.T) {
		s := deleted(t)
		s.acquires("w2", 21, 310, 342)
		s.loses("w2", 21, 342)
		s.judge(RuleDeletedEntry)
	})
	t.Run("its client joins again", func(t *testing.T) {
		s := deleted(t)
		s.hold("w2", 24, 310, 345, 400)
		s.judge()
	})
	t.Run("the eviction may have failed", func(t *testing.T) {
		s := deleted(t)
		s.hold("w2", 21, 310, 345, 400)
		for _, e := range s.Events {
			if e.Heal != nil {
				e.Heal.Err = "etcdserver: request timed out"
			}
		}
		s.fault(2, "reset", "all", "", 600, 601)
		s.judge()
	})
	t.Run("eviction of another lock", func(t *testing.T) {
		s := deleted(t)
		s.hold("w2", 21, 310, 345, 400)
		for _, e := range s.Events {
			if e.Fault != nil {
				e.Fault.Lock = "other"
			}
		}
		s.judge()
	})
}

// Two holds that overlap can break three rules. A fault that excuses one of them excuses all,
// unless the history proves that the store itself granted the lock twice.
func TestConcessions_rulesAgree(t *testing.T) {
	for _, fault := range []string{history.Evict, "leader-pause", "server-pause"} {
		for _, lasted := range []bool{false, true} {
			s := newScenario(t)
			s.Run.Target = "stile@etcd3"
			s.acquires("w1", 20, 300, 301)
			s.fault(1, fault, "x", "", 340, 341)
			s.acquires("w2", 21, 310, 342)
			if s.releases("w2", 21, 400); lasted {
				s.releases("w1", 20, 350)
			} else {
				s.loses("w1", 20, 350)
			}
			if v := s.judgeIf(lasted, RuleOverlap, RuleValidity, RuleGrantedTwice); lasted == (v.Conceded() > 0) {
				t.Errorf("%s, hold proven to its release: %v: got violations %+v", fault, lasted, v.Violations)
			}
		}
	}
}

func TestConcessions_failedFault(t *testing.T) {
	s := overlapping(t, "stile@etcd", 400, 450)
	s.fault(1, history.Evict, "w1", "holder", 390, 395)
	s.fault(2, "reset", "all", "", 600, 601)
	for _, e := range s.Events {
		if e.Heal != nil && e.Heal.ID == 1 {
			e.Heal.Err = "etcdserver: request timed out"
		}
	}
	if v := s.judge(); v.Conceded() != 2 {
		t.Errorf("got violations %+v, want 2 conceded", v.Violations)
	}
}

// The clock of a Redis server is ahead for a moment, and the tokens with it. Then the server loses
// its data, and the tokens go back. Earlier tokens are given again until the clock has caught up.
func TestConcessions_tokensGoBack(t *testing.T) {
	back := func() *scenario {
		s := newScenario(t)
		s.Run.Target = "stile@redis"
		for i := range int64(4) {
			s.hold("w1", uint64(100+10*i), 1000+10*i, 1001+10*i, 1005+10*i)
		}
		for i := range int64(4) {
			s.hold("w2", uint64(95+10*i), 2000+1000*i, 2001+1000*i, 2005+1000*i)
		}
		return s
	}
	s := back()
	s.fault(1, "restart-empty", "m1", "", 1500, 1600)
	if v := s.judge(); v.Conceded() == 0 {
		t.Error("got no conceded violation, want one for the tokens that went back")
	}
	s = back()
	s.fault(1, "restart-empty", "m1", "", 6000, 6100) // after the tokens went back
	s.judge(RuleGrantedTwice, RuleValidity)
}

func TestConcessions_laterViolations(t *testing.T) {
	s := overlapping(t, "stile@etcd", 400, 450)
	s.fault(1, history.Evict, "w1", "holder", 390, 395)
	s.judge()
	s.hold("w1", 31, 60_000, 60_001, 60_100) // a minute later, without a fault
	s.hold("w2", 30, 60_200, 60_201, 60_300)
	s.hold("w1", 40, 70_000, 70_001, 70_100)
	s.hold("w2", 40, 70_200, 70_201, 70_300)
	s.hold("w1", 51, 80_000, 80_001, 80_100)
	s.hold("w2", 50, 80_200, 80_201, 80_300)
	v := s.judge(RuleGrantedTwice, RuleValidity, RuleTokenTwice)
	if n := v.Broken(); n[RuleGrantedTwice] != 2 || n[RuleValidity] != 2 || n[RuleTokenTwice] != 1 {
		t.Errorf("got violations %v, want 2 of %q, 2 of %q and 1 of %q", n, RuleGrantedTwice, RuleValidity, RuleTokenTwice)
	}
}
