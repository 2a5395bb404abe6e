//go:build linux

// Command torture hurts real stores while real processes take locks on them, and judges what happened.
//
//	go run ./lab/torture run --target stile@etcd3 --faults all --for 5m --seed 1
//	go run ./lab/torture check out/history.jsonl
//
// Running and judging are two things: a history is a file that anybody can check again. docs/torture.md has the rest.
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

// The exit codes.
const (
	exitBroken = 1 // a rule was broken
	exitFailed = 2 // it could not be run, or judged
)

// errBroken: a rule was broken, as has been told.
var errBroken = errors.New("a rule was broken")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	root := &cobra.Command{
		Use:           "torture",
		Short:         "Hurt stores while processes take locks, and judge what happened",
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
