//go:build linux

package nemesis

import (
	"context"
	"syscall"
	"time"

	"github.com/stilelock/stile/lab/torture/site"
)

// A starved process is stopped for most of each period, as the kernel does to a group of processes whose quota of the
// processors is used up. Signals do it without such a group, which would stay behind if we were killed.
const (
	period = 100 * time.Millisecond
	ration = period / 20
)

func starve(ctx context.Context, h *hand) error {
	pid, err := h.eater(ctx)
	if err != nil {
		return err
	}
	h.For = h.ttls(0.6, 2.5)
	h.saying("runs %v of every %v,", ration, period)
	// Once by hand, to know that there is such a process.
	if err := site.Pause(pid); err != nil {
		return err
	}
	ctx, feed := context.WithCancel(context.WithoutCancel(ctx))
	fed := make(chan error, 1)
	go func() { fed <- keepShort(ctx, pid) }()
	h.heal = func() error {
		feed()
		return <-fed
	}
	return nil
}

// eater chooses a holder or a server.
func (h *hand) eater(ctx context.Context) (pid int, err error) {
	if h.random.IntN(2) == 0 {
		server, err := h.server(ctx)
		if err != nil {
			return 0, err
		}
		return server.Pid(), nil
	}
	worker, err := h.holder(ctx)
	if err != nil {
		return 0, err
	}
	return worker.Pid(), nil
}

// keepShort keeps a process short until ctx ends, and lets it run then.
func keepShort(ctx context.Context, pid int) error {
	for {
		pause(ctx, period-ration)
		if err := site.Resume(pid); err != nil || ctx.Err() != nil {
			return err
		}
		pause(ctx, ration)
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return err
		}
	}
}
