//go:build linux

package nemesis

import (
	"context"
	"syscall"
	"time"

	"github.com/stilelock/stile/lab/torture/site"
)

// A starved process is stopped for most of each period, as the kernel stops the processes of a
// control group that has used up its CPU quota. Signals achieve that without a control group, which
// would remain if the harness were killed.
const (
	starvePeriod  = 100 * time.Millisecond
	starveRunTime = starvePeriod / 20
)

func starve(ctx context.Context, st *striker) error {
	pid, err := st.pickProcess(ctx)
	if err != nil {
		return err
	}
	st.Duration = st.randomTTLs(0.6, 2.5)
	st.describe("runs %v of every %v,", starveRunTime, starvePeriod)
	// The first stop is here, to return an error if there is no such process.
	if err := site.Pause(pid); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan error, 1)
	go func() { stopped <- throttle(ctx, pid) }()
	st.heal = func() error {
		stop()
		return <-stopped
	}
	return nil
}

// pickProcess picks the process of a worker, preferably a holder, or of a server.
func (st *striker) pickProcess(ctx context.Context) (pid int, err error) {
	if st.random.IntN(2) == 0 {
		server, err := st.pickServer(ctx)
		if err != nil {
			return 0, err
		}
		return server.Pid(), nil
	}
	worker, err := st.pickHolder(ctx)
	if err != nil {
		return 0, err
	}
	return worker.Pid(), nil
}

// throttle stops a process for most of each period until ctx ends, and then resumes it.
func throttle(ctx context.Context, pid int) error {
	for {
		sleep(ctx, starvePeriod-starveRunTime)
		if err := site.Resume(pid); err != nil || ctx.Err() != nil {
			return err
		}
		sleep(ctx, starveRunTime)
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return err
		}
	}
}
