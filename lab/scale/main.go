//go:build linux

// The scale program measures how the cost of a lock grows with the number of its waiters, on etcd:
// what it costs to join the line, to wait in it, and to be admitted. `make scale` runs it.
//
// The waiters are in ten processes, each waiter with a session of its own, and the processes have
// one connection each. Rows alternate between Stile and the stock mutex of the etcd client. A row
// that is in the file of results is not measured again, so an interrupted run can be continued.
// What is counted comes from the server's own metrics. Times depend on the machine, and on what
// else it does; requests, messages and bytes hardly do.
//
// All waiters take one flock(2) while they hold the lock. The program exits with 1 if one of them
// finds it taken, or if a waiter does not pass.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "scale:", err)
		}
		stop()
		os.Exit(1)
	}
}

// config holds the values of the flags.
type config struct {
	etcd    string
	results string
	waiters []int
	idle    time.Duration
	worker  worker
}

func run(ctx context.Context, args []string, out io.Writer) error {
	c := config{waiters: []int{1, 10, 100, 1000, 2000}}
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	flags.StringVar(&c.etcd, "etcd", ".bin/etcd", "the etcd `program`")
	flags.StringVar(&c.results, "results", "scale.jsonl", "the `file` of results; rows that are in it are not measured again")
	flags.DurationVar(&c.idle, "idle", 10*time.Second, "how long the waiters are watched while nothing happens")
	flags.Func("waiters", "numbers of waiters, separated by commas (default 1,10,100,1000,2000)", func(s string) (err error) {
		c.waiters, err = parseNumbers(s)
		return err
	})
	c.worker.flags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.worker.endpoint != "" {
		return c.worker.run(ctx)
	}
	if flags.NArg() > 0 || c.idle < 0 {
		return errors.New("want only flags, and -idle of at least 0")
	}
	rows, err := readRows(c.results)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(c.results, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, n := range c.waiters {
		for _, contender := range contenders {
			key := row{Contender: contender, Waiters: n, Revision: revision()}
			if _, done := rows.find(key); done {
				continue
			}
			fmt.Fprintf(os.Stderr, "%s, %d waiters\n", contender, n)
			r, err := measure(ctx, c, key)
			if err != nil {
				return fmt.Errorf("%s with %d waiters: %w", contender, n, err)
			}
			rows = append(rows, r)
			if err := json.NewEncoder(file).Encode(r); err != nil {
				return err
			}
		}
	}
	_, err = io.WriteString(out, rows.of(revision(), c.waiters).markdown())
	return err
}

func parseNumbers(s string) (numbers []int, err error) {
	for text := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a number of waiters", text)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// revision returns the version-control revision that the program was built from, as far as it is
// known.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	rev := ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			rev = s.Value[:min(12, len(s.Value))] + rev
		case "vcs.modified":
			if s.Value == "true" {
				rev += "+"
			}
		}
	}
	return rev
}

// readRows reads a file of results. A file that does not exist has none. An incomplete last line,
// which an interrupted run may leave, is ignored.
func readRows(path string) (rows rows, err error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var r row
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			rows = append(rows, r)
		}
	}
	return rows, lines.Err()
}
