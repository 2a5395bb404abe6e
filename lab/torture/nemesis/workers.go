//go:build linux

package nemesis

import (
	"context"

	"github.com/stilelock/stile/lab/torture/site"
)

// workerFaults are those that hit who holds a lock.
func workerFaults() []Fault {
	return []Fault{
		{
			Name:   "holder-pause",
			About:  "stop a holder's process, for just under, about or past the TTL",
			strike: pauseHolder,
		},
		{
			Name:   "holder-kill",
			About:  "kill a holder's process; another one takes its place",
			strike: killHolder,
		},
		{
			Name:   "holder-cut",
			About:  "cut a holder off from all servers",
			strike: isolateHolder("cut off from everybody", (*site.Node).Cut),
		},
		{
			Name:   "holder-deaf",
			About:  "let a holder's requests reach the servers, but lose their replies",
			strike: isolateHolder("hears nothing", (*site.Node).Deafen),
		},
		{
			Name:   "cpu-starve",
			About:  "leave a holder or a server one twentieth of a processor",
			strike: starve,
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
