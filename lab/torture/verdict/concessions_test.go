package verdict

import (
	"testing"

	"github.com/stilelock/stile/lab/torture/history"
)

// overlapping tells of w1, which believes in its hold until it is told of the loss, and of w2, which has the lock before. The
// rest of a history is as in tell, and on target.
func overlapping(t *testing.T, target string, granted, told int64) *story {
	s := tell(t)
	s.Run.Target = target
	s.takes("w1", 20, 300, 301)
	s.takes("w2", 21, 310, granted)
	s.add(told-1, "w1", history.Event{Extend: &history.Extend{Grant: "w1/20", Until: (told + 100) * ms}})
	s.add(told, "w1", history.Event{End: &history.End{Grant: "w1/20", LostAt: told * ms, Why: "it is gone"}})
	s.add(told+1, "w2", history.Event{Extend: &history.Extend{Grant: "w2/21", Until: (told + 2000) * ms}})
	s.releases("w2", 21, told+2)
	return s
}

func TestWhatFaultsExcuseOnWhichStores(t *testing.T) {
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
		{"server-kill", "stile@redis", true}, // the site's save nothing
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

// From the strike until a TTL after its healing, here at 1000, and for two TTLs.
func TestHowFarAConcessionGoes(t *testing.T) {
	for _, c := range []struct {
		name          string
		granted, told int64
		excused       bool
	}{
		{"just before it struck", 899, 1500, false},
		{"as it struck", 900, 1500, true},
		{"a TTL after the healing", 3000, 3100, true},
		{"later", 3001, 3100, false},
		{"for two TTLs", 1000, 5000, true},
		{"for longer", 1000, 5001, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := overlapping(t, "stile@redis", c.granted, c.told)
			for at := int64(2000); at < c.told; at += 1500 { // both go on to believe
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

func TestAnEvictionExcusesOnlyWhatHappensToItsLock(t *testing.T) {
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

// evicts tells of an eviction that took the entries of these tokens, and excuses nothing that happens to other entries.
func (s *story) evicts(from, to int64, took ...uint64) {
	s.fault(1, history.Evict, "w1", "holder", from, to)
	for _, e := range s.Events {
		if e.Fault != nil {
			e.Fault.Lock, e.Fault.Took = "demo", took
		}
	}
}

func (s *story) loses(worker string, token uint64, at int64) {
	s.add(at, worker, history.Event{End: &history.End{Grant: name(worker, token), LostAt: at * ms, Why: "it is gone"}})
}

func TestAnEvictionExcusesTheHolderThatItEvicted(t *testing.T) {
	t.Run("until it is told, beside the next one", func(t *testing.T) {
		s := tell(t)
		s.takes("w1", 20, 300, 301)
		s.evicts(340, 341, 20)
		s.takes("w2", 21, 310, 342)
		s.loses("w1", 20, 343)
		s.releases("w2", 21, 400)
		if v := s.judge(); v.Conceded() != 2 {
			t.Errorf("%+v", v.Violations)
		}
	})
	t.Run("also if its call returns after the eviction, or after that of the next one", func(t *testing.T) {
		s := tell(t)
		s.evicts(340, 341, 20)
		s.takes("w2", 21, 310, 900)
		s.takes("w1", 20, 300, 902)
		s.loses("w1", 20, 903)
		s.releases("w2", 21, 1000)
		if v := s.judge(); v.Conceded() != 2 {
			t.Errorf("%+v", v.Violations)
		}
	})
	t.Run("but not if its release shows that it was there until then", func(t *testing.T) {
		s := tell(t)
		s.takes("w1", 20, 300, 301)
		s.evicts(340, 341, 20)
		s.takes("w2", 21, 310, 342)
		s.releases("w1", 20, 350)
		s.releases("w2", 21, 400)
		if v := s.judge(RuleOverlap, RuleValidity, RuleGrantedTwice); v.Conceded() != 0 {
			t.Errorf("%+v", v.Violations)
		}
	})
}

func TestTwoGrantsAfterAnEvictionAreExcusedByNothing(t *testing.T) {
	// w2 and w3 waited when w1 was evicted. Both are given the lock, and w3 is told that it has lost it.
	both := func(t *testing.T, took ...uint64) *story {
		s := tell(t)
		s.takes("w1", 20, 300, 301)
		s.evicts(340, 341, took...)
		s.loses("w1", 20, 341)
		s.takes("w2", 21, 310, 342)
		s.takes("w3", 22, 311, 343)
		s.loses("w3", 22, 345)
		s.loses("w2", 21, 346)
		return s
	}
	t.Run("only the holder was evicted", func(t *testing.T) { both(t, 20).judge(RuleOverlap, RuleValidity) })
	t.Run("all of the line was", func(t *testing.T) {
		v := both(t, 20, 21, 22).judge(RuleOverlap, RuleValidity, RuleDeletedEntry)
		if n := v.Broken()[RuleDeletedEntry]; n != 2 {
			t.Errorf("%d of two holds were found to be of deleted entries", n)
		}
	})
	t.Run("whichever returns first", func(t *testing.T) {
		s := tell(t)
		s.takes("w1", 20, 300, 301)
		s.evicts(340, 341, 20)
		s.loses("w1", 20, 341)
		s.takes("w3", 22, 311, 342)
		s.takes("w2", 21, 310, 343)
		s.loses("w3", 22, 345)
		s.loses("w2", 21, 346)
		if v := s.judge(RuleOverlap, RuleValidity); v.Conceded() != 0 {
			t.Errorf("%+v", v.Violations)
		}
	})
	t.Run("but a leader that goes on may end leases after its healing, one after another", func(t *testing.T) {
		s := tell(t)
		s.Run.Target = "stile@etcd3"
		s.fault(1, "leader-pause", "m1", "leader", 340, 341)
		s.takes("w1", 20, 300, 1341)
		s.takes("w2", 21, 310, 1343)
		s.takes("w3", 22, 311, 1345)
		s.loses("w1", 20, 1344)
		s.loses("w2", 21, 1346)
		s.releases("w3", 22, 1400)
		if v := s.judge(); v.Conceded() != 4 {
			t.Errorf("%+v", v.Violations)
		}
	})
	t.Run("where nothing tells whose entry was deleted, a quarter of a TTL later", func(t *testing.T) {
		for late, excused := range map[int64]bool{841: true, 842: false} {
			s := tell(t)
			s.evicts(340, 341)
			s.takes("w1", 20, 300, late)
			s.takes("w2", 21, 310, late+2)
			s.loses("w1", 20, late+4)
			s.releases("w2", 21, late+50)
			s.judgeIf(!excused, RuleOverlap, RuleValidity)
		}
	})
}

func TestADeletedEntryIsGivenNoLock(t *testing.T) {
	deleted := func(t *testing.T) *story {
		s := tell(t)
		s.takes("w1", 20, 300, 301)
		s.evicts(340, 341, 20, 21)
		s.loses("w1", 20, 341)
		return s
	}
	t.Run("not even for a moment", func(t *testing.T) {
		s := deleted(t)
		s.takes("w2", 21, 310, 342)
		s.loses("w2", 21, 342)
		s.judge(RuleDeletedEntry)
	})
	t.Run("its owner joins again", func(t *testing.T) {
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
	t.Run("another lock's tokens are others", func(t *testing.T) {
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

// Of two holds that overlap, three rules may be broken. A fault that excuses one of them excuses all, unless the store itself is
// shown to have let two hold.
func TestVerdictsOnTwoHoldsAgree(t *testing.T) {
	for _, fault := range []string{history.Evict, "leader-pause", "server-pause"} {
		for _, lasted := range []bool{false, true} {
			s := tell(t)
			s.Run.Target = "stile@etcd3"
			s.takes("w1", 20, 300, 301)
			s.fault(1, fault, "x", "", 340, 341)
			s.takes("w2", 21, 310, 342)
			if s.releases("w2", 21, 400); lasted {
				s.releases("w1", 20, 350)
			} else {
				s.loses("w1", 20, 350)
			}
			if v := s.judgeIf(lasted, RuleOverlap, RuleValidity, RuleGrantedTwice); lasted == (v.Conceded() > 0) {
				t.Errorf("%s, w1 had it to its release: %v: %+v", fault, lasted, v.Violations)
			}
		}
	}
}

func TestAFaultThatFailedMayHaveHappened(t *testing.T) {
	s := overlapping(t, "stile@etcd", 400, 450)
	s.fault(1, history.Evict, "w1", "holder", 390, 395)
	s.fault(2, "reset", "all", "", 600, 601)
	for _, e := range s.Events {
		if e.Heal != nil && e.Heal.ID == 1 {
			e.Heal.Err = "etcdserver: request timed out"
		}
	}
	if v := s.judge(); v.Conceded() != 2 {
		t.Errorf("%+v", v.Violations)
	}
}

// The clock of a Redis is ahead for a moment, and the tokens with it. Then it forgets everything, and they go back, and those of
// before are met again and again until the clock has got there.
func TestTokensThatGoBackAfterTheStoreHasForgottenThem(t *testing.T) {
	back := func() *story {
		s := tell(t)
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
		t.Error("that the tokens went back is not shown")
	}
	s = back()
	s.fault(1, "restart-empty", "m1", "", 6000, 6100) // when it was over
	s.judge(RuleGrantedTwice, RuleValidity)
}

func TestWhatIsConcededHidesNothing(t *testing.T) {
	s := overlapping(t, "stile@etcd", 400, 450)
	s.fault(1, history.Evict, "w1", "holder", 390, 395)
	s.judge()
	s.hold("w1", 31, 60_000, 60_001, 60_100) // a minute later, with nothing done
	s.hold("w2", 30, 60_200, 60_201, 60_300)
	s.hold("w1", 40, 70_000, 70_001, 70_100)
	s.hold("w2", 40, 70_200, 70_201, 70_300)
	s.hold("w1", 51, 80_000, 80_001, 80_100)
	s.hold("w2", 50, 80_200, 80_201, 80_300)
	v := s.judge(RuleGrantedTwice, RuleValidity, RuleTokenTwice)
	if n := v.Broken(); n[RuleGrantedTwice] != 2 || n[RuleValidity] != 2 || n[RuleTokenTwice] != 1 {
		t.Errorf("%v", n)
	}
}
