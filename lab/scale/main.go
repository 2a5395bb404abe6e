//go:build linux

// The scale program measures how the cost of a lock grows with numbers: of the waiters for one name,
// of the names that one client holds, of the names in the store, and of the sessions. `make scale`
// runs it, on etcd, Redis, ZooKeeper and in memory.
//
// Each row has servers of its own, and clients in processes of their own. A row that is in the file
// of results is not measured again, so an interrupted run can be continued. What is counted comes
// from the server, or from a proxy before it. Times depend on the machine, and on what else it does;
// requests, messages and bytes hardly do.
//
// The program exits with 1 if two waiters hold a lock at once, if a waiter is forgotten, if a held lock
// is lost, or if the processes together exceed the limit of memory.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
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
	redis   string
	stile   string
	store   string
	measure string
	results string
	numbers []int // empty: those of the plan
	idle    time.Duration
	within  time.Duration
	memory  int64         // bytes
	ttl     time.Duration // of held locks; zero for that of the plan
	worker  worker
}

func run(ctx context.Context, args []string, out io.Writer) error {
	c := config{}
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	flags.StringVar(&c.etcd, "etcd", ".bin/etcd", "the etcd `program`")
	flags.StringVar(&c.redis, "redis", "redis-server", "the redis-server `program`")
	flags.StringVar(&c.stile, "stile", ".bin/stile", "the stile `program`")
	flags.StringVar(&c.store, "store", allValues, "the store: "+strings.Join(stores, ", ")+" or all")
	flags.StringVar(&c.measure, "measure", allValues, "what to measure: "+strings.Join(namesOfMeasures(), ", ")+" or all")
	flags.StringVar(&c.results, "results", "scale.jsonl", "the `file` of results; rows that are in it are not measured again")
	flags.DurationVar(&c.idle, "idle", 5*time.Second, "how long the clients are watched while nothing happens")
	flags.DurationVar(&c.ttl, "ttl", 0, "the TTL of held locks, instead of that of the plan")
	flags.DurationVar(&c.within, "within", 25*time.Minute, "how long the program may take; it then stops, and can be continued")
	flags.Func("memory", "how many `MB` the processes of one row may use together (default 10000)", func(s string) error {
		mb, err := strconv.ParseInt(s, 10, 32)
		c.memory = mb * 1e6
		return err
	})
	flags.Func("n", "numbers instead of those of the plan, separated by commas", func(s string) (err error) {
		c.numbers, err = parseNumbers(s)
		return err
	})
	c.memory = 10e9
	c.worker.flags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.worker.job != "" {
		return c.worker.run(ctx, os.Stdin, out)
	}
	switch {
	case flags.NArg() > 0 || c.idle < 0 || c.ttl < 0 || c.within <= 0 || c.memory <= 0:
		return errors.New("want only flags, -idle and -ttl of at least 0, and positive -within and -memory")
	case c.store != allValues && !slices.Contains(stores, c.store):
		return fmt.Errorf("-store %s: want %s or all", c.store, strings.Join(stores, ", "))
	case c.measure != allValues && !slices.Contains(namesOfMeasures(), c.measure):
		return fmt.Errorf("-measure %s: want %s or all", c.measure, strings.Join(namesOfMeasures(), ", "))
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
	ctx, cancel := context.WithTimeoutCause(ctx, c.within, fmt.Errorf("not finished within %v; run it again to continue", c.within))
	defer cancel()
	keys := plan(c)
	var failed []error
	for _, key := range keys {
		if ctx.Err() != nil {
			break
		}
		if _, done := rows.find(key); done {
			continue
		}
		fmt.Fprintf(os.Stderr, "%v: %v\n", time.Now().Format(time.TimeOnly), key)
		r, err := measure(ctx, c, key)
		if err != nil { // the others may succeed
			failed = append(failed, fmt.Errorf("%v: %w", key, err))
			fmt.Fprintln(os.Stderr, failed[len(failed)-1])
			continue
		}
		rows = append(rows, r)
		if err := json.NewEncoder(file).Encode(r); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(out, rows.of(keys).markdown()); err != nil {
		return err
	}
	return errors.Join(append(failed, rows.of(keys).lost(), context.Cause(ctx))...)
}

// measure measures one row, with a limit of memory.
func measure(ctx context.Context, c config, r row) (row, error) {
	began := time.Now()
	ctx, peak, stop := limitMemory(ctx, c.memory)
	defer stop()
	all := measures()
	i := slices.IndexFunc(all, func(m measurement) bool { return m.name == r.Measure })
	r, err := all[i].measure(ctx, c, r)
	if err != nil {
		return r, errors.Join(err, context.Cause(ctx))
	}
	r.Took, r.PeakMemory = time.Since(began), peak()
	return r, nil
}

func parseNumbers(s string) (numbers []int, err error) {
	for text := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a positive number", text)
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
