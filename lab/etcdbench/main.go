// The etcdbench program measures what a lock on etcd costs: with Stile, with the etcd client's own
// concurrency.Mutex, and with nothing but the requests that no lock can do without. `make bench-etcd` runs it.
//
// It starts one etcd with default settings as a process of its own, with its data in the directory for temporary
// files. All clients are in this process; each has its own connection and its own session, and the etcd client
// settings are the same for all. What is compared runs in turns, a slice of time each, in an order that changes from
// round to round, so that what else the machine does hits all alike. It can hardly do so to a ratio within one round:
// the ratios are medians of those of the rounds.
//
// Every contest checks that no two clients are in the lock at once. The program exits with 1 if two were, whoever's
// lock it was, or if anything fails. An expectation that is not reached is reported and is not a failure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "etcdbench:", err)
		}
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("etcdbench", flag.ContinueOnError)
	var (
		binary  = flags.String("etcd", ".bin/etcd", "the etcd `program` to measure")
		rounds  = flags.Int("rounds", 5, "how many times everything is measured")
		slice   = flags.Duration("slice", time.Second, "how long each variant runs at a time")
		md      = flags.String("md", "", "also write the report, in Markdown, to this `file`")
		profile = flags.String("cpuprofile", "",
			"write a CPU profile to this `file`; go tool pprof -tagfocus variant=stile shows one variant's part")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *rounds < 1 || *slice < 10*time.Millisecond {
		return errors.New("want flags only, at least one round, and slices of at least 10 ms")
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}

	etcd, err := startEtcd(ctx, *binary)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.stop()) }()

	// Some would wait for a server that has died, and for ever.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		<-etcd.done
		cancel(fmt.Errorf("%w\n%s", etcd.err, etcd.lastWords()))
	}()

	b := &bench{etcd: etcd, rounds: *rounds, slice: *slice, began: time.Now()}
	defer b.close()
	if err := b.measure(ctx); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	text := b.report(describe(b, strings.Join(append([]string{"etcdbench"}, args...), " ")))
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
