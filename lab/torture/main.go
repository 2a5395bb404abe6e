//go:build linux

// Command torture lets faults strike real stores while real processes use locks on them, and judges
// what happened.
//
//	go run ./lab/torture run --target stile@etcd3 --faults all --for 5m --seed 1
//	go run ./lab/torture check out/history.jsonl
//
// Running and judging are separate: a history is a file that can be judged again. See
// docs/torture.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// The exit statuses.
const (
	exitBroken = 1 // a rule was broken
	exitFailed = 2 // the command failed
)

// errBroken means that a rule was broken. The rule has already been printed.
var errBroken = errors.New("a rule was broken")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	root := &cobra.Command{
		Use:           "torture",
		Short:         "Let faults strike stores while processes use locks, and judge what happened",
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.AddCommand(newRun(), newCheck(), newTable(), newSmoke(), newMatrix(), newList())
	err := root.ExecuteContext(ctx)
	stop()
	switch {
	case errors.Is(err, errBroken):
		os.Exit(exitBroken)
	case err != nil:
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(exitFailed)
	}
}
