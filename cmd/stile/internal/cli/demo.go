package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/cmd/stile/internal/demo"
	"github.com/stilelock/stile/storeurl"
)

func newDemo(stdio Stdio) *cobra.Command {
	var url string
	ttl := duration(5 * time.Second)
	var worker int
	c := demo.Config{Workers: 10, Add: 100_000, Open: stdio.openStore, Out: stdio.Out}
	cmd := &cobra.Command{
		Use:   "demo [flags]",
		Short: "Show that the lock works: ten processes add to one file, and one is killed",
		Long: `Show with real processes that the lock works.

Ten processes each add 1 to the number in a file, 100000 times: read, add, write. Only a
lock, which each process takes once, keeps them apart. One process is killed with kill -9
halfway, while it holds the lock; the others wait until its lease expires.

The screen shows the holder and the waiters as the store has them. The last line compares
the number in the file with the additions that all processes have acknowledged, including
the killed one: "expected N, found N".

Exit codes:
  0    the two are equal
  1    they differ
  125  the demo could not be carried out, for example because somebody else killed a worker
  128+N  signal N ended it; no worker is left`,
		Example: `  stile demo
  stile demo --without-lock
  stile demo --workers 20 --ttl 3s
  stile demo --url etcd://db1:2379,db2:2379,db3:2379`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if worker > 0 {
				// The parent handles signals that a terminal or timeout(1) sends to all processes
				// at once, and ends the workers.
				signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
				return demo.Work(cmd.Context(), stdio.In, stdio.Out, stdio.openStore)
			}
			if ttl <= 0 {
				return errors.New("--ttl must be longer than 0")
			}
			chosen, err := chooseStore(url)
			if err != nil {
				return err
			}
			c.URL, c.TTL = chosen.url, time.Duration(ttl)
			return runDemo(cmd.Context(), c)
		},
	}
	c.Worker = func(number int) []string { return []string{"demo", "--worker", strconv.Itoa(number)} }
	flags := cmd.Flags()
	addURL(flags, &url)
	flags.IntVar(&c.Workers, "workers", c.Workers, "number of processes")
	flags.IntVar(&c.Add, "add", c.Add, "number of additions by each process")
	flags.Var(&ttl, "ttl", "TTL of the leases; the lock is free that long after the kill")
	flags.BoolVar(&c.WithoutLock, "without-lock", false, "show what goes wrong without the lock")
	flags.IntVar(&worker, "worker", 0, "be the worker with this number")
	flags.Lookup("worker").Hidden = true
	return cmd
}

// runDemo runs the parent process.
func runDemo(ctx context.Context, c demo.Config) error {
	c.Store = storeurl.Redact(c.URL)
	signals := child.Listen()
	defer signals.Close()
	// SIGPIPE must not end this process: a file would be left behind. A failed write is an error
	// like any other.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	signals.Await()
	running, listened := untilInterrupted(ctx, signals)
	ok, err := demo.Run(running, c)
	listened()
	if interrupted, ok := errors.AsType[*interruption](context.Cause(running)); ok {
		return &exit{Code: child.ExitCodeFor(interrupted.signal)}
	}
	if err == nil && !ok {
		return &exit{Code: 1}
	}
	return err
}
