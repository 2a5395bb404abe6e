// The zkbench program measures what a lock on ZooKeeper costs: with Stile, with go-zookeeper's own Lock, and with
// nothing but the requests that no lock can do without. `make bench-zk` runs it.
//
// It starts one server, and then three, as processes of their own, with default settings but for the ticks, and with
// their data in the directory for temporary files. All clients are in this process; each has its own connection and its
// own session. What is compared runs in turns, a few dozen locks at a time, so that what else the machine does hits all
// alike: the ratios are medians of those of the turns.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "zkbench:", err)
		}
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("zkbench", flag.ContinueOnError)
	turns := flags.Int("turns", 40, "how many turns each variant has")
	block := flags.Int("block", 25, "how many times a variant takes the lock in a turn")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *turns < 1 || *block < 2 {
		return errors.New("want flags only, at least one turn, and blocks of at least two")
	}
	fmt.Printf("zkbench, %s: %d turns of %d each\n", time.Now().Format(time.DateOnly), *turns, *block)
	for _, n := range []int{1, 3} {
		if err := measureOn(ctx, n, *turns, *block); err != nil {
			return err
		}
	}
	return nil
}

// measureOn measures on an ensemble of n servers.
func measureOn(ctx context.Context, n, turns, block int) (err error) {
	e, err := startEnsemble(n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.stop()) }()
	two, err := e.forClients(ctx)
	if err != nil {
		return err
	}
	b := &bench{turns: turns, block: block}
	defer b.close()
	if err := b.connect(ctx, two); err != nil {
		return err
	}
	if err := b.measure(ctx); err != nil {
		return err
	}
	b.report(n)
	return nil
}
