//go:build linux

// The soak program measures stile serve with many sessions and entries that do nothing but be there: memory, processor time,
// how long it takes to list them, to hand a lock over meanwhile, and to start again. `make soak` runs it.
//
// It starts a stile serve of its own, on a unix socket in a temporary directory. All clients are in this process: one of the
// library's for each session, with its own entries. Each session holds some locks that nobody else wants, alone/…, and stands
// in one of the lines line/…, which are all of the same length; and there is one long line, hot, which a number of the
// sessions stand in besides.
//
// The program exits with 1 if anything fails, and if a session or a hold is lost. What is slow is reported, and no failure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "soak:", err)
		}
		stop()
		os.Exit(1)
	}
}

// plan is what is to be soaked.
type plan struct {
	stile       string
	sessions    int
	connections int
	alone       int // locks that each session holds and nobody else wants
	lines       int
	waiters     int // in the hot line
	ttl         time.Duration
	idle        time.Duration
}

func run(ctx context.Context, args []string) error {
	var p plan
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.StringVar(&p.stile, "stile", filepath.Join("..", ".bin", "stile"), "the stile `program` to measure")
	flags.IntVar(&p.sessions, "sessions", 10_000, "how many sessions there are")
	flags.IntVar(&p.connections, "connections", 100, "how many connections the sessions share")
	flags.IntVar(&p.alone, "alone", 9, "how many locks each session holds that nobody else wants")
	flags.IntVar(&p.lines, "lines", 1000, "how many lines the sessions stand in, each of them in one")
	flags.IntVar(&p.waiters, "waiters", 1000, "how many wait in the hot line")
	flags.DurationVar(&p.ttl, "ttl", time.Minute, "the sessions' TTL")
	flags.DurationVar(&p.idle, "idle", 2*time.Minute, "how long it is watched doing nothing but renew")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || p.sessions < 2 || p.connections < 1 || p.alone < 0 || p.lines < 1 || p.sessions%p.lines != 0 || p.waiters >= p.sessions {
		return errors.New("want flags only; at least two sessions, as many in each line, and more of them than wait in the hot one")
	}
	dir, err := os.MkdirTemp("", "stile-soak")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := &soak{plan: p, began: time.Now(), server: &server{stile: p.stile, dir: dir}}
	defer s.end()
	if err := s.measure(ctx); err != nil {
		return fmt.Errorf("%w; the server says: %s", err, s.server.lastWords())
	}
	return s.check()
}
