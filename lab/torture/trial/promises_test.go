//go:build linux

package trial

import (
	"slices"
	"testing"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/nemesis"
	"github.com/stilelock/stile/lab/torture/verdict"
	"github.com/stilelock/stile/lab/torture/workload"
)

func TestPromised(t *testing.T) {
	for _, c := range []struct {
		load, cluster, faults string
		promised              []string
	}{
		{workload.Hot, "etcd3", "none", nil},
		{workload.Hot, "etcd3", "holder-pause,evict,reset", []string{verdict.ReachPaused, verdict.ReachEvicted}},
		{workload.Sets, "etcd", "evict", []string{
			verdict.ReachExclusive, verdict.ReachTwoLocks, verdict.ReachThreeLocks, verdict.ReachSetWaited, verdict.ReachReader,
			verdict.ReachEvicted, verdict.ReachSetLost,
		}},
		{workload.Sets, "redlock3", "evict", []string{
			verdict.ReachExclusive, verdict.ReachTwoLocks, verdict.ReachThreeLocks, verdict.ReachSetWaited, verdict.ReachEvicted,
		}},
		{workload.Semaphore, "zk3", "leader-kill,leader-pause,holder-kill", []string{
			verdict.ReachSlot, verdict.ReachNumber, verdict.ReachFull, verdict.ReachLeaderChanged, verdict.ReachKilled,
		}},
		{workload.Crowd, "redis", "none", []string{verdict.ReachLongLine, verdict.ReachMiddle, verdict.ReachServed}},
		{workload.Crowd, "etcd3", "holder-kill,slow-net,compact", []string{
			verdict.ReachLongLine, verdict.ReachMiddle, verdict.ReachServed, verdict.ReachKilled, verdict.ReachCrowdBehind, verdict.ReachFaultHandOver,
		}},
		{workload.Hot, "etcd3", "holder-kill,slow-net", []string{verdict.ReachKilled}},
		{workload.ReadWrite, "zk3", "none", []string{
			verdict.ReachExclusive, verdict.ReachReader, verdict.ReachReaders, verdict.ReachWriterWaited, verdict.ReachYield,
		}},
	} {
		faults, err := nemesis.Parse(c.faults, c.cluster)
		if err != nil {
			t.Fatal(err)
		}
		if got := promised(c.load, c.cluster, faults); !slices.Equal(got, c.promised) {
			t.Errorf("%s on %s under %s: got promises %q, want %q", c.load, c.cluster, c.faults, got, c.promised)
		}
	}
}

// Every promise is something that package verdict looks for.
func TestPromised_known(t *testing.T) {
	var known []string
	for _, r := range verdict.Reached(&history.History{}) {
		known = append(known, r.Name)
	}
	for _, load := range workload.Names() {
		for _, cluster := range []string{"etcd3", "redis", "redlock3", "zk3"} {
			faults, err := nemesis.Parse("all", cluster)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range promised(load, cluster, faults) {
				if !slices.Contains(known, name) {
					t.Errorf("%s on %s promises %q, which is never looked for", load, cluster, name)
				}
			}
		}
	}
}

func TestProgress_missing(t *testing.T) {
	p := &progress{run: history.Run{TTL: 1, Promised: []string{verdict.ReachReader, verdict.ReachEvicted}}}
	if got := p.missing(); len(got) != 2 {
		t.Errorf("got %q missing, want both", got)
	}
	p.add(history.Event{At: 5, Fault: &history.Fault{ID: 1, Name: history.Evict}})
	p.add(history.Event{At: 6, Heal: &history.Heal{ID: 1}})
	p.add(history.Event{At: 4, Acquire: &history.Acquire{Grant: "g", Mode: history.Shared, Outcome: history.Failed}})
	if got := p.missing(); !slices.Equal(got, []string{verdict.ReachReader}) {
		t.Errorf("got %q missing, want the reader, which was not granted", got)
	}
	p.add(history.Event{At: 7, Acquire: &history.Acquire{Grant: "h", Mode: history.Shared, Outcome: history.OK, Return: 7}})
	if got := p.missing(); len(got) != 0 {
		t.Errorf("got %q missing, want none", got)
	}
}

// What can be reached only at the end is not waited for.
func TestProgress_missingAtEnd(t *testing.T) {
	p := &progress{run: history.Run{TTL: 1, Promised: []string{verdict.ReachServed}}}
	if got := p.missing(); len(got) != 0 {
		t.Errorf("got %q missing, want none before the end", got)
	}
}

func TestLeadsTo(t *testing.T) {
	if !leadsTo("leader-mute", []string{verdict.ReachLeaderChanged}) || leadsTo("reset", []string{verdict.ReachPaused}) {
		t.Error("got the wrong faults for what is missing")
	}
}
