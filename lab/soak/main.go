//go:build linux

// The soak program measures stile serve with many sessions and entries that do nothing but be there: memory, processor time,
// how long it takes to list them, to hand a lock over meanwhile, and to start again. `make soak` runs it.
//
// It starts a stile serve of its own, on a unix socket in a temporary directory. All clients are in this process: one of the
// library's for each session, with its own entries. Session i holds the lock line/i and waits for the ones before that, so
// that there are as many lines as sessions, all of the same length; and there is one long line, hot, which a number of
// the sessions stand in besides.
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
	each        int // entries in each line
	waiters     int // in the hot line
	ttl         time.Duration
	idle        time.Duration
}

func run(ctx context.Context, args []string) error {
	var p plan
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.StringVar(&p.stile, "stile", filepath.Join("..", ".bin", "stile"), "the stile `program` to measure")
	flags.IntVar(&p.sessions, "sessions", 10_000, "how many sessions there are, and lines")
	flags.IntVar(&p.connections, "connections", 100, "how many connections the sessions share")
	flags.IntVar(&p.each, "each", 10, "how many entries there are in each line")
	flags.IntVar(&p.waiters, "waiters", 1000, "how many wait in the hot line")
	flags.DurationVar(&p.ttl, "ttl", time.Minute, "the sessions' TTL")
	flags.DurationVar(&p.idle, "idle", 2*time.Minute, "how long it is watched doing nothing but renew")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || p.sessions < 2 || p.connections < 1 || p.each < 1 || p.each > p.sessions || p.waiters >= p.sessions {
		return errors.New("want flags only; at least two sessions, and more of them than stand in any line")
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
