package workload_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/verdict"
	"github.com/stilelock/stile/lab/torture/workload"
	"github.com/stilelock/stile/lab/torture/workload/workloadtest"
)

// On a healthy store a crowd breaks no rule. Some of it give up, and some close their clients; in the end
// all that wait get the lock or give up.
func TestCrowd(t *testing.T) {
	t.Parallel()
	server, harness := testservers.StartRedis(t), workloadtest.New(t)
	const workers, callers, clients = 3, 28, 26
	var ends []func()
	for i := range workers {
		c := harness.Config(fmt.Sprintf("w%d", i+1), workload.Crowd, stileOn(server, longTTL))
		c.CrowdSize, c.HoldUnit = callers, 2*time.Second
		ends = append(ends, startWorker(t, c))
	}
	closed := func(e history.Event) bool { return e.End != nil && e.End.Err == "the client was closed instead" }
	gaveUp := func(e history.Event) bool { return e.Acquire != nil && e.Acquire.GaveUp }
	harness.Await("closed clients", counted(2, closed))
	harness.Await("callers that gave up", counted(5, gaveUp))
	harness.Await("number of releases", counted(200, released))
	stopping := history.Event{At: history.Now(), Stopping: &history.Stopping{}}
	for _, end := range ends {
		end()
	}
	h := harness.History()
	h.Events = append(h.Events, stopping)
	h.Run = history.Run{
		Target: "stile@redis", Workload: workload.Crowd, Faults: "none", TTL: int64(longTTL),
		Offers: history.Offers{Tokens: true, Deadlines: true, Loss: true, Proof: true, Fair: true},
	}
	for _, v := range verdict.Judge(h).Violations {
		if v.Rule != verdict.RuleTooLittle && v.Rule != verdict.RuleLeak { // the workers share this process
			t.Errorf("got violation %+v", v)
		}
	}
	if timesReached(h, verdict.ReachServed) == 0 {
		t.Error("not all that waited at the end got the lock or gave up")
	}
	var used, opened []string
	for _, e := range h.Events {
		switch {
		case e.Asked != nil:
			used = append(used, e.Asked.Client)
		case e.Opened != nil:
			opened = append(opened, e.Opened.Client)
		case e.Acquire != nil && e.Acquire.Outcome != history.OK && !e.Acquire.GaveUp:
			t.Errorf("a call failed on a healthy store: %s", e.Acquire.Err)
		}
	}
	slices.Sort(used)
	slices.Sort(opened)
	if n, m := len(slices.Compact(used)), len(slices.Compact(slices.Clone(opened))); n != workers*clients || m != n || len(opened) == n {
		t.Errorf("got %d clients, %d of them with sessions, %d in all; want %d clients, all with sessions, some with two", n, m, len(opened), workers*clients)
	}
}
