// The redisbench program measures what a lock on Redis costs: with Stile, with redsync, with bsm's redislock and with
// rueidislock. `make bench-redis` runs it.
//
// It starts one redis-server as a process of its own, and asks it once directly, on loopback, and once through a proxy that
// makes a round trip take eight milliseconds. All clients are in this process; each has its own connections. What is compared
// runs in turns, in an order that changes from round to round, so that what else the machine does hits all alike. Ratios are
// medians of those of the rounds.
//
// Every contest checks that no two clients are in the lock at once. The program exits with 1 if two were, whoever's lock it
// was, or if anything fails. An expectation that is not reached is reported and is not a failure.
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
			fmt.Fprintln(os.Stderr, "redisbench:", err)
		}
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("redisbench", flag.ContinueOnError)
	var (
		binary = flags.String("redis", "redis-server", "the redis-server `program` to measure")
		rounds = flags.Int("rounds", 5, "how many times everything is measured")
		slice  = flags.Duration("slice", time.Second, "how long each variant runs at a time")
		md     = flags.String("md", "", "also write the report, in Markdown, to this `file`")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *rounds < 1 || *slice < 10*time.Millisecond {
		return errors.New("want flags only, at least one round, and slices of at least 10 ms")
	}
	server, err := startRedis(ctx, *binary)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()

	b := &bench{server: server, rounds: *rounds, slice: *slice, began: time.Now()}
	if err := b.measure(ctx); err != nil {
		return err
	}
	text := b.report()
	fmt.Print(text)
	if *md != "" {
		if err := os.WriteFile(*md, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if n := b.violations(); n > 0 {
		return fmt.Errorf("%d times a client took a lock that another was holding; the report tells whose lock", n)
	}
	return nil
}
