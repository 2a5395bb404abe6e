//go:build linux

package nemesis

import (
	"context"
	"fmt"
	"time"

	"github.com/stilelock/stile/lab/torture/site"
)

// workerFaults are those that hit who holds a lock.
func workerFaults() []Fault {
	return []Fault{
		{
			Name:    "holder-pause",
			Summary: "stop a holder's process, for just under, about or past the TTL",
			strike:  pauseHolder,
		},
		{
			Name:    "holder-kill",
			Summary: "kill a holder's process; another one takes its place",
			strike:  killHolder,
		},
		{
			Name:    "holder-cut",
			Summary: "cut a holder off from all servers",
			strike:  isolateHolder("cut off from everybody", (*site.Node).Cut),
		},
		{
			Name:    "holder-deaf",
			Summary: "let a holder's requests reach the servers, but lose their replies",
			strike:  isolateHolder("hears nothing", (*site.Node).Deafen),
		},
		{
			Name:    "holder-late",
			Summary: "let replies reach a holder late, and then cut it off from all servers",
			options: site.Options{Proxies: true},
			strike:  lateHolder,
		},
		{
			Name:    "cpu-starve",
			Summary: "leave a holder or a server one twentieth of a processor",
			strike:  starve,
		},
	}
}

func pauseHolder(ctx context.Context, h *hand) error {
	worker, err := h.holder(ctx)
	if err != nil {
		return err
	}
	pid := worker.Pid()
	h.lasts()
	h.saying("stopped")
	h.heal = func() error { return site.Resume(pid) }
	return site.Pause(pid)
}

func killHolder(ctx context.Context, h *hand) error {
	worker, err := h.holder(ctx)
	if err != nil {
		return err
	}
	h.What = "killed"
	return worker.Kill()
}

// lateHolder makes the last confirmation that a holder gets one that it gets late: what counts a deadline from a reply is wrong
// by as much.
func lateHolder(ctx context.Context, h *hand) error {
	worker, err := h.holder(ctx)
	if err != nil {
		return err
	}
	proxies, err := h.proxies()
	if err != nil {
		return err
	}
	h.On = worker.Name()      // nobody else notices
	late := h.ttls(0.1, 0.17) // later ones would not be waited for
	delay := func(d time.Duration) {
		for _, p := range proxies {
			p.DelayTo(worker.Node().IP(), d)
		}
	}
	h.heal = func() error {
		delay(0)
		return worker.Node().Heal()
	}
	delay(late)
	h.What = fmt.Sprintf("got replies %v late", late)
	if !pause(ctx, h.ttls(0.7, 1)) { // so long that it has renewed what it holds
		return nil
	}
	h.lastsPast()
	h.saying("got replies %v late, and is cut off from everybody", late)
	return worker.Node().Cut()
}

// isolateHolder returns a fault that does something to the network of a holder.
func isolateHolder(what string, isolate func(*site.Node, ...*site.Node) error) func(context.Context, *hand) error {
	return func(ctx context.Context, h *hand) error {
		worker, err := h.holder(ctx)
		if err != nil {
			return err
		}
		h.lasts()
		h.saying("%s", what)
		h.heal = worker.Node().Heal
		return isolate(worker.Node())
	}
}
