//go:build linux

package trial

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/nemesis"
	"github.com/stilelock/stile/lab/torture/verdict"
	"github.com/stilelock/stile/lab/torture/workload"
)

// promised returns what a run with a workload and faults must reach to prove anything: see
// [verdict.Reached].
func promised(load, cluster string, faults []nemesis.Fault) []string {
	var all []string
	add := func(possible bool, names ...string) {
		if possible {
			all = append(all, names...)
		}
	}
	zk, redlock := strings.HasPrefix(cluster, "zk"), strings.HasPrefix(cluster, "redlock")
	switch load {
	case workload.ReadWrite:
		add(true, verdict.ReachExclusive, verdict.ReachReader, verdict.ReachReaders, verdict.ReachWriterWaited, verdict.ReachYield)
		add(!zk, verdict.ReachDowngrade)
	case workload.Semaphore:
		add(true, verdict.ReachSlot, verdict.ReachNumber, verdict.ReachFull)
	case workload.Batches:
		add(true, verdict.ReachExclusive, verdict.ReachSlot, verdict.ReachNumber, verdict.ReachFull)
	case workload.Election:
		add(!redlock, verdict.ReachObserved, verdict.ReachYield) // Redlock has neither tokens nor an order
	case workload.Sets:
		add(true, verdict.ReachExclusive, verdict.ReachTwoLocks, verdict.ReachThreeLocks, verdict.ReachSetWaited)
		add(!redlock, verdict.ReachReader)
	case workload.Crowd:
		add(true, verdict.ReachLongLine, verdict.ReachMiddle, verdict.ReachServed)
	case workload.Once:
		add(true, verdict.ReachRecorded, verdict.ReachSkipped)
	}
	for _, f := range faults {
		for _, name := range reachedBy(f.Name) {
			switch {
			case slices.Contains(all, name):
			case name == verdict.ReachCrowdBehind, name == verdict.ReachFaultHandOver:
				add(load == workload.Crowd, name)
			case name != verdict.ReachSetLost:
				add(true, name)
			case load == workload.Sets: // on other stores than etcd and ZooKeeper waiters have no entry that an eviction deletes
				add(zk || strings.HasPrefix(cluster, "etcd"), name)
			}
		}
	}
	return all
}

// reachedBy returns what a fault leads to, sooner or later.
func reachedBy(fault string) []string {
	switch {
	case fault == "holder-pause":
		return []string{verdict.ReachPaused, verdict.ReachCrowdBehind, verdict.ReachFaultHandOver}
	case fault == "holder-kill":
		return []string{verdict.ReachKilled, verdict.ReachCrowdBehind}
	case fault == history.Evict:
		return []string{verdict.ReachEvicted, verdict.ReachSetLost}
	case strings.HasPrefix(fault, "leader-"):
		return []string{verdict.ReachLeaderChanged}
	case fault == "holder-cut", fault == "holder-deaf", fault == "slow-net":
		return []string{verdict.ReachFaultHandOver}
	default:
		return nil
	}
}

// leadsTo reports whether a fault leads to something that is missing.
func leadsTo(fault string, missing []string) bool {
	return slices.ContainsFunc(reachedBy(fault), func(name string) bool { return slices.Contains(missing, name) })
}

// progress is the history so far, as far as it shows what was reached.
type progress struct {
	run history.Run

	mu     sync.Mutex
	events []history.Event
}

func (p *progress) add(e history.Event) {
	if e.Write != nil || e.Entry != nil || e.Extend != nil || e.Census != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, e)
}

// missing returns what the run promises and has not reached, except for what it can reach only at its
// end.
func (p *progress) missing() []string {
	p.mu.Lock()
	events := slices.Clone(p.events)
	p.mu.Unlock()
	slices.SortStableFunc(events, func(a, b history.Event) int { return cmp.Compare(a.At, b.At) })
	reached := verdict.Reached(&history.History{Run: p.run, Events: events})
	return slices.DeleteFunc(slices.Clone(p.run.Promised), func(name string) bool {
		return name == verdict.ReachServed || slices.ContainsFunc(reached, func(r verdict.Reach) bool { return r.Name == name && r.Times > 0 })
	})
}
