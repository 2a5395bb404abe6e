//go:build linux

package nemesis

import (
	"context"
	"fmt"
	"time"

	"github.com/stilelock/stile/lab/torture/site"
)

// workerFaults returns the faults of workers, preferably of holders.
func workerFaults() []Fault {
	return []Fault{
		{
			Name:    "holder-pause",
			Summary: "stop a holder's process for just under, about or longer than the TTL",
			strike:  pauseHolder,
		},
		{
			Name:    "holder-kill",
			Summary: "kill a holder's process; another worker replaces it",
			strike:  killHolder,
		},
		{
			Name:    "holder-cut",
			Summary: "cut a holder off from all servers",
			strike:  isolateHolder("cut off from all servers", (*site.Node).Cut),
		},
		{
			Name:    "holder-deaf",
			Summary: "deliver a holder's requests to the servers, but lose their replies",
			strike:  isolateHolder("cannot receive", (*site.Node).Deafen),
		},
		{
			Name:    "holder-late",
			Summary: "delay the replies to a holder, and then cut it off from all servers",
			options: site.Options{Proxies: true},
			strike:  lateHolder,
		},
		{
			Name:    "cpu-starve",
			Summary: "leave a holder or a server one twentieth of a CPU",
			strike:  starve,
		},
	}
}

func pauseHolder(ctx context.Context, st *striker) error {
	worker, err := st.pickHolder(ctx)
	if err != nil {
		return err
	}
	pid := worker.Pid()
	st.setDuration()
	st.describe("stopped")
	st.heal = func() error { return site.Resume(pid) }
	return site.Pause(pid)
}

func killHolder(ctx context.Context, st *striker) error {
	worker, err := st.pickHolder(ctx)
	if err != nil {
		return err
	}
	st.What = "killed"
	return worker.Kill()
}

// lateHolder delays the replies to a holder, so that the last confirmation that reaches it is late.
// A deadline that is counted from a reply is wrong by that delay.
func lateHolder(ctx context.Context, st *striker) error {
	worker, err := st.pickHolder(ctx)
	if err != nil {
		return err
	}
	proxies, err := st.proxies()
	if err != nil {
		return err
	}
	st.On = worker.Name()             // no other worker is affected
	delay := st.randomTTLs(0.1, 0.17) // a later reply would not be awaited
	setDelay := func(d time.Duration) {
		for _, p := range proxies {
			p.DelayTo(worker.Node().IP(), d)
		}
	}
	st.heal = func() error {
		setDelay(0)
		return worker.Node().Heal()
	}
	setDelay(delay)
	st.What = fmt.Sprintf("replies delayed by %v", delay)
	if !sleep(ctx, st.randomTTLs(0.7, 1)) { // long enough for it to renew its hold
		return nil
	}
	st.setDurationPastTTL()
	st.describe("replies delayed by %v, then cut off from all servers", delay)
	return worker.Node().Cut()
}

// isolateHolder returns a fault of a holder's connections.
func isolateHolder(what string, isolate func(*site.Node, ...*site.Node) error) func(context.Context, *striker) error {
	return func(ctx context.Context, st *striker) error {
		worker, err := st.pickHolder(ctx)
		if err != nil {
			return err
		}
		st.setDuration()
		st.describe("%s", what)
		st.heal = worker.Node().Heal
		return isolate(worker.Node())
	}
}
