// Command worker is a process of the torture harness.
//
//	worker           runs the workload of a workload.Config, the first line of its standard input
//	worker resource  is the resource of such a Config: it listens at Resource and records as Worker
//	worker child …   is the command that `stile run` runs in the workload "command"
//
// The first two release everything and end on SIGTERM, or when their standard input is closed. The
// exit status is 0 if the worker itself did not fail, whatever happened to the locks. Otherwise it
// is 1, with a line on the standard error.
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
	signal.Notify(make(chan os.Signal, 1), os.Interrupt) // Ctrl-C is for the harness, which then terminates its workers
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
		return withConfig(ctx, workload.Run)
	case len(args) == 1 && args[0] == "resource":
		return withConfig(ctx, serve)
	case len(args) == 2 && args[0] == "child":
		return workload.RunChild(ctx, args[1], os.Stdout)
	default:
		return fmt.Errorf("invalid arguments %q: want none, resource, or child with a text", args)
	}
}

// withConfig calls f with the Config from the standard input, and with a context that ends when the
// standard input is closed.
func withConfig(ctx context.Context, f func(context.Context, workload.Config) error) error {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the Config from the standard input: %w", err)
	}
	var c workload.Config
	if err := json.Unmarshal(line, &c); err != nil {
		return fmt.Errorf("invalid Config: %w", err)
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
