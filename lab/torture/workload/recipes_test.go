package workload_test

import (
	"fmt"
	"testing"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
	"github.com/stilelock/stile/lab/torture/verdict"
	"github.com/stilelock/stile/lab/torture/workload"
	"github.com/stilelock/stile/lab/torture/workload/workloadtest"
)

// On a healthy store the workloads that only Stile has break no rule, and reach what they are for.
func TestRecipes(t *testing.T) {
	for load, reached := range map[string][]string{
		workload.ReadWrite: {
			verdict.ReachExclusive, verdict.ReachReader, verdict.ReachReaders, verdict.ReachWriterWaited, verdict.ReachDowngrade, verdict.ReachYield,
		},
		workload.Semaphore: {verdict.ReachSlot, verdict.ReachNumber, verdict.ReachFull},
		workload.Batches:   {verdict.ReachSlot, verdict.ReachNumber, verdict.ReachFull, verdict.ReachExclusive},
		workload.Election:  {verdict.ReachObserved, verdict.ReachYield},
		workload.Sets:      {verdict.ReachTwoLocks, verdict.ReachThreeLocks, verdict.ReachSetWaited, verdict.ReachReader},
	} {
		t.Run(load, func(t *testing.T) {
			t.Parallel()
			etcd, harness := testservers.StartEtcd(t), workloadtest.New(t)
			var ends []func()
			for i := range 4 {
				ends = append(ends, startWorker(t, harness.Config(fmt.Sprintf("w%d", i+1), load,
					locker.Config{Kind: "stile", URL: "etcd://" + etcd.Endpoint(), TTL: longTTL})))
			}
			harness.AwaitHistory("everything that it is for", func(h *history.History) bool {
				for _, name := range reached {
					if timesReached(h, name) == 0 {
						return false
					}
				}
				return true
			})
			for _, end := range ends {
				end()
			}
			h := harness.History()
			h.Run = history.Run{
				Target: "stile@etcd", Workload: load, Faults: "none", TTL: int64(longTTL),
				Offers: history.Offers{Tokens: true, Deadlines: true, Loss: true, Proof: true, Fair: true},
			}
			for _, v := range verdict.Judge(h).Violations {
				if v.Rule != verdict.RuleTooLittle && v.Rule != verdict.RuleLeak { // the workers share this process
					t.Errorf("got violation %+v", v)
				}
			}
			for _, e := range h.Events {
				if a := e.Acquire; a != nil && a.Outcome != history.OK && !a.GaveUp {
					t.Errorf("a call failed on a healthy store: %s", a.Err)
				}
				if w := e.Write; w != nil && (w.Refused || (w.Mode == "unfenced" || w.Mode == "reread") && w.Version != w.Read) {
					t.Errorf("got stale write %+v", *w)
				}
			}
		})
	}
}

func timesReached(h *history.History, name string) int {
	for _, r := range verdict.Reached(h) {
		if r.Name == name {
			return r.Times
		}
	}
	return 0
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		load, kind, cluster string
		possible            bool
	}{
		{workload.Hot, "redsync", "redlock3", true},
		{workload.Sets, "stile", "redlock3", true},
		{workload.Sets, "redsync", "redlock3", false},
		{workload.ReadWrite, "stile", "zk3", true},
		{workload.ReadWrite, "stile", "redlock3", false},
		{workload.Semaphore, "stile", "redlock5", false},
		{workload.Batches, "stile", "redis", true},
		{workload.Batches, "stile", "redlock3", false},
		{workload.Crowd, "stile", "zk3", true},
		{workload.Crowd, "stile", "redlock3", false},
		{workload.Crowd, "concurrency", "etcd3", false},
		{workload.Final, "stile", "etcd", false},
		{"idle", "stile", "etcd", false},
	} {
		if err := workload.Check(c.load, c.kind, c.cluster); (err == nil) != c.possible {
			t.Errorf("%s with %s on %s: got error %v, want possible: %v", c.load, c.kind, c.cluster, err, c.possible)
		}
	}
}
