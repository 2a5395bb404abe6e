package verdict

import (
	"testing"

	"github.com/stilelock/stile/lab/torture/history"
)

// newTurnScenario is newScenario on a store whose tokens have eleven bits for the turns of an entry. If keeps is
// set, clients keep entries after a release.
func newTurnScenario(t *testing.T, target string, keeps bool) *scenario {
	s := newScenario(t)
	s.Run.Target = target
	for i, e := range s.Events { // so that each of the first holds has an entry of its own
		if e.Acquire != nil {
			s.Events[i].Acquire.Token <<= 11
		}
	}
	s.Run.Offers.TurnBits, s.Run.Offers.Keeps = 11, keeps
	return s
}

// turn returns the token of a turn of the entry with an order.
func turn(order, n uint64) uint64 { return order<<11 | n }

// A client keeps an entry, which a fault ends, and locks again with it before it is notified. Another client has
// the lock. The store has ended the entry early, so that is conceded, as it is for a hold that the fault ended.
func TestConcessions_keptEntry(t *testing.T) {
	for _, c := range []struct {
		name          string
		keeps         bool
		target, fault string
		first, again  int64 // when w1 gets the lock with a new entry, and again with the same one
		struck        int64
		order         uint64 // of the entry of the second hold
		excused       bool
	}{
		{"kept when the store loses it", true, "stile@redis", "restart-empty", 300, 1300, 400, 20, true},
		{"kept when an operator deletes it", true, "stile@etcd", history.Evict, 300, 500, 400, 20, true},
		{"the deadline has not passed", true, "stile@redis", "restart-empty", 300, 2300, 400, 20, true},
		{"later than a TTL after the fault", true, "stile@redis", "restart-empty", 300, 2500, 400, 20, false},
		{"an entry that was admitted after the fault", true, "stile@redis", "restart-empty", 1300, 1500, 400, 20, false},
		{"a fault that ends no entry", true, "stile@redis", "holder-pause", 300, 500, 400, 20, false},
		{"a fresh entry", true, "stile@redis", "restart-empty", 300, 1300, 400, 30, false},
		{"a release that proves that it lasted", false, "stile@redis", "restart-empty", 300, 500, 400, 20, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTurnScenario(t, c.target, c.keeps)
			s.hold("w1", turn(20, 0), c.first, c.first+1, c.first+10)
			s.fault(1, c.fault, "s1", "", c.struck, c.struck+5)
			if c.fault == history.Evict {
				s.Events[len(s.Events)-2].Fault.Took = []uint64{turn(20, 0)}
			}
			s.acquires("w2", turn(25, 0), c.again-50, c.again-40)
			s.hold("w1", turn(c.order, 1), c.again, c.again+1, c.again+5)
			s.releases("w2", turn(25, 0), c.again+20)
			v := Judge(s.withFinals())
			var conceded, broken int
			for _, violation := range v.Violations {
				if violation.Rule != RuleOverlap {
					continue
				}
				if violation.Conceded != "" {
					conceded++
				} else {
					broken++
				}
			}
			if want := map[bool][2]int{true: {1, 0}, false: {0, 1}}[c.excused]; [2]int{conceded, broken} != want {
				t.Errorf("got %d overlaps conceded and %d not, want %v; violations: %+v", conceded, broken, want, v.Violations)
			}
		})
	}
}

func TestExpired_grantedAfterDeadline(t *testing.T) {
	for until, broken := range map[int64]bool{498: true, 499: false, 500: false, 2000: false} {
		s := newTurnScenario(t, "stile@redis", true)
		s.hold("w1", turn(20, 0), 300, 301, 310)
		s.hold("w1", turn(20, 1), 500, 501, 510)
		for _, e := range s.Events {
			if e.Acquire != nil && e.Acquire.Token == turn(20, 1) {
				e.Acquire.Until = until * ms
			}
		}
		if broken {
			s.judge(RuleExpired)
		} else {
			s.judge()
		}
	}
}

func TestLostEntry_usedAgain(t *testing.T) {
	for _, c := range []struct {
		name   string
		asked  int64
		token  uint64
		worker string
		broken bool
	}{
		{"asked after it was notified", 351, turn(20, 1), "w1", true},
		{"asked before", 349, turn(20, 1), "w1", false},
		{"another entry", 351, turn(21, 0), "w1", false},
		{"another client, in another order of arrival", 351, turn(22, 1), "w2", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTurnScenario(t, "stile@etcd", true)
			s.acquires("w1", turn(20, 0), 300, 301)
			s.loses("w1", turn(20, 0), 350)
			s.hold(c.worker, c.token, c.asked, 352, 360)
			if c.broken {
				s.judge(RuleLostEntry)
			} else {
				s.judge()
			}
		})
	}
}

// All turns of an entry end with it.
func TestHolderNotTold_laterTurn(t *testing.T) {
	for at, broken := range map[int64]bool{4000: false, 4500: true} {
		s := newTurnScenario(t, "stile@etcd", true)
		s.hold("w1", turn(20, 0), 300, 301, 310)
		s.add(400, "", history.Event{Entry: &history.Entry{Lock: "demo", Key: "demo/1", Token: turn(20, 0), Gone: true}})
		s.hold("w1", turn(20, 1), at, at+1, at+10)
		if broken {
			s.judge(RuleNotTold)
		} else {
			s.judge()
		}
	}
}

// The release of a turn is no request to the store. It proves that the hold had lasted only if the release of the
// entry's last turn does.
func TestProof_ofTurns(t *testing.T) {
	for _, c := range []struct {
		name    string
		keeps   bool
		outcome history.Outcome // of the release of the last turn
		proven  bool
	}{
		{"the entry was withdrawn", false, history.OK, true},
		{"the entry was gone", false, history.Failed, false},
		{"the entry may be kept", true, history.OK, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTurnScenario(t, "stile@etcd", c.keeps)
			s.hold("w1", turn(20, 0), 300, 301, 310)
			s.hold("w1", turn(20, 1), 320, 321, 330)
			s.Events[len(s.Events)-1].End.Outcome = c.outcome
			for _, h := range newIndex(&s.History).holds {
				if orderOf(h.Token, s.Run.Offers) == 20 && h.proven(s.Run.Offers) != c.proven {
					t.Errorf("hold with token %d: proven is %t, want %t", h.Token, h.proven(s.Run.Offers), c.proven)
				}
			}
		})
	}
}

// The fenced resource accepts a write with a kept entry, and then one of a newer entry, which was granted before the
// kept one was used again. The tokens are in order, so it is no stale write; that the holds overlap is judged
// elsewhere. A fresh entry whose token contradicts its grant protects nothing.
func TestStaleWrite_keptEntry(t *testing.T) {
	for _, c := range []struct {
		name  string
		order uint64 // of the entry of the second hold of w1
		stale int
	}{
		{"kept", 20, 0},
		{"fresh, with a smaller token", 22, 1},
		{"fresh, with a larger token", 30, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTurnScenario(t, "stile@redis", true)
			s.hold("w1", turn(20, 0), 300, 301, 310)
			s.fault(1, "restart-empty", "s1", "", 400, 405)
			s.acquires("w2", turn(25, 0), 450, 460)
			s.hold("w1", turn(c.order, 1), 500, 501, 515)
			s.writes("w1", turn(c.order, 1), 505, "fenced", 0, 0, false)
			s.writes("w2", turn(25, 0), 510, "fenced", 0, 0, false)
			s.releases("w2", turn(25, 0), 520)
			if v := Judge(s.withFinals()); v.Figures.StaleAccepted != c.stale {
				t.Errorf("got damage %+v, want %d stale writes accepted", v.Figures.Damage, c.stale)
			}
		})
	}
}
