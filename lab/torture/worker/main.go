// Command worker is the process that takes locks in a run of the torture harness, and the one that is the resource.
//
//	worker           does what the workload.Config says that is the first line of its standard input
//	worker resource  is the resource of that Config: it listens at Resource, and records as Worker
//	worker child …   is what `stile run` runs in the workload "command"
//
// The first two end in order on SIGTERM, or when their standard input is closed. All end with 0 if nothing went wrong here,
// whatever happened to the locks, and else with 1 and a line on the standard error.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/resource"
	"github.com/stilelock/stile/lab/torture/workload"
)

func main() {
	signal.Notify(make(chan os.Signal, 1), os.Interrupt) // a Ctrl-C is for the harness, which then ends us in order
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 0:
		return configured(ctx, workload.Run)
	case len(args) == 1 && args[0] == "resource":
		return configured(ctx, serve)
	case len(args) == 2 && args[0] == "child":
		return workload.RunChild(ctx, args[1], os.Stdout)
	default:
		return fmt.Errorf("not understood: %q", args)
	}
}

// configured calls f with the Config on the standard input, and with a context that ends with that.
func configured(ctx context.Context, f func(context.Context, workload.Config) error) error {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("no line with a Config on the standard input: %w", err)
	}
	var c workload.Config
	if err := json.Unmarshal(line, &c); err != nil {
		return fmt.Errorf("not a Config: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return f(ctx, c)
}

func serve(ctx context.Context, c workload.Config) error {
	sender, err := history.Dial(c.Recorder, c.Worker)
	if err != nil {
		return err
	}
	return errors.Join(resource.Serve(ctx, c.Resource, sender), sender.Close())
}
