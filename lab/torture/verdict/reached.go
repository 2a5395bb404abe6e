package verdict

import (
	"slices"
	"strings"

	"github.com/stilelock/stile/lab/torture/history"
)

// A Reach is something that a run may have reached, and how often it has.
type Reach struct {
	Name  string `json:"name"`
	Times int    `json:"times"`
}

// What a run can reach. A run whose history promises one of them, and has none, breaks
// [RuleTooLittle].
const (
	ReachExclusive     = "a lock was held exclusively"
	ReachReader        = "a lock was held by a reader"
	ReachReaders       = "readers of two workers held a lock together"
	ReachWriterWaited  = "a writer waited for a reader of another worker"
	ReachDowngrade     = "a downgrade met waiting readers"
	ReachSlot          = "a slot without a number was held"
	ReachNumber        = "a slot with a number was held"
	ReachFull          = "all slots were held while a caller waited"
	ReachObserved      = "an observer was told of a leader while it led"
	ReachYield         = "a hold was yielded to another worker"
	ReachTwoLocks      = "one call held two locks"
	ReachThreeLocks    = "one call held three locks"
	ReachSetWaited     = "a call for several locks waited for another worker"
	ReachSetLost       = "a call for several locks lost an entry while it waited"
	ReachRecorded      = "stile once recorded a success"
	ReachSkipped       = "stile once skipped a command after a success"
	ReachLongLine      = "the line was at least 400 entries long"
	ReachMiddle        = "a waiter gave up in the middle of the line"
	ReachFaultHandOver = "a hand-over happened during a fault"
	ReachCrowdBehind   = "a holder was stopped or killed with a crowd behind it"
	// ReachServed can be reached only at the end of a run.
	ReachServed        = "all that waited at the end got the lock or gave up"
	ReachPaused        = "a holder was stopped for longer than the TTL"
	ReachKilled        = "a holder was killed"
	ReachEvicted       = "a holder's entry was deleted"
	ReachLeaderChanged = "a hand-over met a change of the leader"
)

// Reached returns what a run has reached, in a fixed order, with zeros. It can be called for the
// history so far of a run that has not ended.
func Reached(h *history.History) []Reach {
	l := newIndex(h)
	j := &judge{Verdict: &Verdict{Run: h.Run}, history: h, index: l}
	j.End, j.Holds = l.end, l.holds
	j.readFaults()
	j.setArrivals()
	r := reacher{index: l, strikes: j.Strikes, ttl: h.Run.TTL, byLock: byLock(l.holds, func(h *Hold) string { return h.Lock }), at: map[*Hold]int{}}
	for _, all := range r.byLock {
		for i, h := range all {
			r.at[h] = i
		}
	}
	var all []Reach
	for _, what := range []struct {
		name  string
		times func() int
	}{
		{ReachExclusive, r.holdsThat(func(h *Hold) bool { return h.Mode == history.Exclusive })},
		{ReachReader, r.holdsThat(func(h *Hold) bool { return h.Mode == history.Shared })},
		{ReachReaders, r.holdsThat(r.readsBesideOther)},
		{ReachWriterWaited, r.holdsThat(r.waitedForReader)},
		{ReachDowngrade, r.holdsThat(r.metWaitingReader)},
		{ReachSlot, r.holdsThat(func(h *Hold) bool { return h.Mode.Slots() > 0 && h.Number == 0 })},
		{ReachNumber, r.holdsThat(func(h *Hold) bool { return h.Number > 0 })},
		{ReachFull, r.holdsThat(r.filledAllSlots)},
		{ReachObserved, r.observations},
		{ReachYield, r.holdsThat(r.yieldedToOther)},
		{ReachTwoLocks, r.setsOf(2)},
		{ReachThreeLocks, r.setsOf(3)},
		{ReachSetWaited, r.holdsThat(func(h *Hold) bool { return h.Set != "" && r.waitedForOther(h) })},
		{ReachSetLost, r.strikesThat(r.hitWaitingSet)},
		{ReachRecorded, r.onceThat(func(o *history.Once) bool { return o.Recorded })},
		{ReachSkipped, r.onceThat(func(o *history.Once) bool { return o.Skipped })},
		{ReachLongLine, r.longLines},
		{ReachMiddle, r.gaveUpInMiddle},
		{ReachFaultHandOver, r.strikesThat(r.sawHandOver)},
		{ReachCrowdBehind, r.strikesThat(r.metCrowd)},
		{ReachServed, r.servedAtEnd},
		{ReachPaused, r.strikesThat(func(s Strike) bool { return s.Name == "holder-pause" && s.To-s.From > r.ttl && r.victimHeld(s) })},
		{ReachKilled, r.strikesThat(func(s Strike) bool { return s.Name == "holder-kill" && r.victimHeld(s) })},
		{ReachEvicted, r.strikesThat(func(s Strike) bool { return s.Name == history.Evict })},
		{ReachLeaderChanged, r.strikesThat(r.metHandOver)},
	} {
		all = append(all, Reach{what.name, what.times()})
	}
	return all
}

type reacher struct {
	index   *index
	strikes []Strike
	ttl     int64
	byLock  map[string][]*Hold // in the order of their returns
	at      map[*Hold]int      // their indices there
}

func (r *reacher) holdsThat(fits func(*Hold) bool) func() int {
	return func() (n int) {
		for _, h := range r.index.holds {
			if fits(h) {
				n++
			}
		}
		return n
	}
}

func (r *reacher) onceThat(fits func(*history.Once) bool) func() int {
	return func() (n int) {
		for _, e := range r.index.once {
			if fits(e.Once) {
				n++
			}
		}
		return n
	}
}

// strikesThat counts the strikes without an error that fit.
func (r *reacher) strikesThat(fits func(Strike) bool) func() int {
	return func() (n int) {
		for _, s := range r.strikes {
			if s.Err == "" && fits(s) {
				n++
			}
		}
		return n
	}
}

// near returns the holds of a lock that returned in a certain time: mostly before h, and a few after.
func (r *reacher) near(h *Hold) []*Hold {
	const before, after = 20, 20
	all, i := r.byLock[h.Lock], r.at[h]
	return all[max(0, i-before):min(len(all), i+after)]
}

func (r *reacher) readsBesideOther(h *Hold) bool {
	return h.Mode == history.Shared && slices.ContainsFunc(r.near(h), func(other *Hold) bool {
		return other.Mode == history.Shared && other.Worker != h.Worker && other.Return < h.End && h.Return < other.End
	})
}

func (r *reacher) waitedForReader(h *Hold) bool {
	return h.Mode == history.Exclusive && slices.ContainsFunc(r.near(h), func(other *Hold) bool {
		return other.Mode == history.Shared && r.keptOut(other, h)
	})
}

func (r *reacher) waitedForOther(h *Hold) bool {
	return slices.ContainsFunc(r.near(h), func(other *Hold) bool { return r.keptOut(other, h) })
}

// keptOut reports whether the worker of one hold waited all the time from the grant to the end of
// another worker's.
func (r *reacher) keptOut(held, h *Hold) bool {
	return held.Worker != h.Worker && h.Call < held.End && held.End <= h.Return && held.Return < held.End
}

// metWaitingReader reports whether a reader of another worker asked before a downgrade, and was
// granted the lock after it, while the downgraded hold lasted.
func (r *reacher) metWaitingReader(h *Hold) bool {
	return h.Downgraded != 0 && slices.ContainsFunc(r.near(h), func(other *Hold) bool {
		return other.Mode == history.Shared && other.Worker != h.Worker && other.Call < h.Downgrade && h.Downgrade < other.Return && other.Return < h.End
	})
}

// filledAllSlots reports whether a hold took the last free slot while another worker waited.
func (r *reacher) filledAllSlots(h *Hold) bool {
	n := h.Mode.Slots()
	if n == 0 {
		return false
	}
	held, waited := 0, false
	for _, other := range r.near(h) {
		if other.Return <= h.Return && h.Return < other.End {
			held++
		}
		waited = waited || other.Worker != h.Worker && other.Call < h.Return && h.Return < other.Return
	}
	return held == n && waited
}

// yieldedToOther reports whether another worker held the lock between the end of a hold and the one
// that it was yielded for.
func (r *reacher) yieldedToOther(h *Hold) bool {
	old := r.index.byGrant[h.Yielded]
	return old != nil && slices.ContainsFunc(r.near(h), func(other *Hold) bool {
		return other.Worker != h.Worker && old.Release < other.Return && other.Return < h.Return
	})
}

// observations counts the observations of leaders that led when their observers were told.
func (r *reacher) observations() (n int) {
	leaders := map[string]map[uint64]*Hold{}
	for _, h := range r.index.holds {
		if leaders[h.Lock] == nil {
			leaders[h.Lock] = map[uint64]*Hold{}
		}
		leaders[h.Lock][h.Token] = h
	}
	for _, e := range r.index.observed {
		if h := leaders[e.Observed.Lock][e.Observed.Token]; h != nil && h.Call < e.At && e.At < h.End && e.Observed.Value != "" {
			n++
		}
	}
	return n
}

// setsOf counts the calls that held n locks.
func (r *reacher) setsOf(n int) func() int {
	return func() (times int) {
		sizes := map[string]int{}
		for _, h := range r.index.holds {
			if h.Set != "" {
				sizes[h.Set]++
			}
		}
		for _, size := range sizes {
			if size == n {
				times++
			}
		}
		return times
	}
}

// hitWaitingSet reports whether the eviction of a whole line deleted an entry of a call for several
// locks that waited: the call had asked some time before, and was granted the lock with an entry that
// was made after it.
func (r *reacher) hitWaitingSet(s Strike) bool {
	return s.Name == history.Evict && len(s.Took) > 1 && slices.ContainsFunc(r.byLock[s.Lock], func(h *Hold) bool {
		return h.Set != "" && h.Call < s.From-r.ttl/20 && s.To < h.Return && h.Token > slices.Max(s.Took)
	})
}

// victimHeld reports whether the victim of a strike held a lock when it struck.
func (r *reacher) victimHeld(s Strike) bool {
	return slices.ContainsFunc(r.index.holds, func(h *Hold) bool {
		name, _, _ := strings.Cut(h.Worker, "-") // a command is that of a worker
		return slices.Contains(strings.Split(s.On, ","), name) && h.Return < s.From && !h.overBy(s.From)
	})
}

// overBy reports whether a hold was over at a time. The End of a command that was killed is recorded as
// of its last request, which may have come long before.
func (h *Hold) overBy(at int64) bool {
	killed := h.Outcome == history.Unknown && h.Released == 0
	return h.Release != 0 && h.Release <= at && !killed || h.LostAt != 0 && h.LostAt <= at || h.Exit != 0 && h.Exit < at
}

// metHandOver reports whether a lock passed from one worker to another who had asked before a strike
// on the leader was healed, and got the lock after it had struck.
func (r *reacher) metHandOver(s Strike) bool {
	if s.Role != "leader" || !strings.HasPrefix(s.Name, "leader-") {
		return false
	}
	for _, all := range r.byLock {
		for i, h := range all {
			if i > 0 && all[i-1].Worker != h.Worker && h.Call < s.To && s.From < h.Return && h.Return < s.To+r.ttl {
				return true
			}
		}
	}
	return false
}
