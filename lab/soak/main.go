//go:build linux

// The soak program measures stile serve with many idle sessions and entries: memory,
// processor time, how long it takes to list them, to hand a lock over among them, and to restart.
// `make soak` runs it.
//
// It starts its own stile serve, on a unix socket in a temporary directory. All clients are in this
// process: one client of the library per session, each with its own entries. Each session holds
// some uncontended locks (alone/…) and is in one or more of the lines line/…, which all have the same
// length. Some of the sessions are also in one long line, hot.
//
// The program exits with 1 if anything fails, or if a session or a hold is lost. Slow results are
// reported, but they are not failures.
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

// plan holds the values of the flags.
type plan struct {
	stile       string
	sessions    int
	connections int
	uncontended int // locks that each session holds without competition
	lines       int
	joined      int // lines that each session is in
	waiters     int // in the hot line
	ttl         time.Duration
	idle        time.Duration
}

func run(ctx context.Context, args []string) error {
	var p plan
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.StringVar(&p.stile, "stile", filepath.Join("..", ".bin", "stile"), "the stile `program` to measure")
	flags.IntVar(&p.sessions, "sessions", 10_000, "number of sessions")
	flags.IntVar(&p.connections, "connections", 100, "number of connections that the sessions share")
	flags.IntVar(&p.uncontended, "alone", 9, "number of uncontended locks that each session holds")
	flags.IntVar(&p.lines, "lines", 1000, "number of lines")
	flags.IntVar(&p.joined, "joined", 1, "number of lines that each session is in")
	flags.IntVar(&p.waiters, "waiters", 1000, "number of waiters in the hot line")
	flags.DurationVar(&p.ttl, "ttl", time.Minute, "the sessions' TTL")
	flags.DurationVar(&p.idle, "idle", 2*time.Minute, "how long the server is measured while the sessions are only renewed")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || p.sessions < 2 || p.connections < 1 || p.uncontended < 0 || p.lines < 1 || p.joined < 1 || p.joined > p.lines ||
		p.sessions*p.joined%p.lines != 0 || p.waiters >= p.sessions {
		return errors.New("want only flags, at least two sessions, lines of the same length, and fewer -waiters than sessions")
	}
	dir, err := os.MkdirTemp("", "stile-soak")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := &soak{plan: p, began: time.Now(), server: &server{stile: p.stile, dir: dir}}
	defer s.end()
	if err := s.measure(ctx); err != nil {
		return fmt.Errorf("%w; end of the server's log: %s", err, s.server.logTail())
	}
	return s.check()
}
