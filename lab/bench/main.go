// The bench program measures what a lock costs on etcd, Redis or ZooKeeper: with Stile, with other
// lock libraries, and with the bare requests that every lock needs. It also measures what it takes
// to run a command under a lock, compared with flock(1). `make bench STORE=etcd` runs it.
//
// The servers are separate processes with default settings. Their data is in the directory for
// temporary files. All clients are in this process; each has its own connection and its own
// session. The exceptions are workloads of many goroutines in several processes, and leaders that are
// killed: those are in worker processes, which are this program too. The contenders run in turns, in an order that changes, so that other load on the machine
// affects all of them alike. Such load has the least effect on ratios within one round, so the
// reported ratios are medians of the rounds' ratios. In the measurement of crashes they run all at once: they
// wait most of the time.
//
// Every contest checks that no two clients hold the lock at once. The program exits with 1 if two
// clients of any contender did, or if anything fails. A missed expectation is reported, but it is
// not a failure.
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
	"runtime/pprof"
	"slices"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
		stop()
		os.Exit(1)
	}
}

// config holds the values of the flags.
type config struct {
	store   string
	contest string // empty: all that the store has
	rounds  int
	slice   time.Duration
	etcd    string
	redis   string
	stile   string
	lean    string
	format  string
}

// selects reports whether a contest is to be measured.
func (c config) selects(contest string) bool { return c.contest == "" || c.contest == contest }

// stores maps the values of -store to the functions that measure, and to the values of -contest.
var stores = map[string]struct {
	measure  func(context.Context, config) (*report, error)
	contests []string
}{
	"etcd":    {measureEtcd, []string{"mutex", "crowd", "distinct", "linger", "rwmutex", "semaphore", "election", "lockall"}},
	"redis":   {measureRedis, []string{"mutex", "rwmutex", "semaphore", "lockall"}},
	"zk":      {measureZooKeeper, []string{"mutex", "lockall"}},
	"startup": {measureStartup, nil},
	"page":    {measurePage, nil},
	"crash":   {measureCrash, nil},
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	var c config
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&c.store, "store", "etcd", "what to measure: etcd, redis, zk, startup, page or crash")
	flags.StringVar(&c.contest, "contest", "", "measure only this: mutex, crowd, distinct, linger, rwmutex, semaphore, election or lockall; not every store has all")
	flags.IntVar(&c.rounds, "rounds", 5, "number of rounds; each round measures everything")
	flags.DurationVar(&c.slice, "slice", time.Second, "how long each contender runs at a time")
	flags.StringVar(&c.etcd, "etcd", ".bin/etcd", "the etcd `program`")
	flags.StringVar(&c.redis, "redis", "redis-server", "the redis-server `program`")
	flags.StringVar(&c.stile, "stile", ".bin/stile", "the stile `program`, for -store startup, page and crash")
	flags.StringVar(&c.lean, "lean", ".bin/lean/stile", "the stile `program` without the server, beside its stiled, for -store startup")
	flags.StringVar(&c.format, "o", "text", "output format: text (Markdown) or json")
	profile := flags.String("cpuprofile", "",
		"write a CPU profile to this `file`; go tool pprof -tagfocus contender=Stile shows one contender's share")
	worker := flags.String("worker", "", "for internal use: the `job` of a worker process")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *worker != "" {
		return runWorker(ctx, *worker, os.Stdin, out)
	}
	store, ok := stores[c.store]
	switch {
	case !ok:
		return fmt.Errorf("-store %s: want etcd, redis, zk, startup, page or crash", c.store)
	case c.contest != "" && !slices.Contains(store.contests, c.contest):
		return fmt.Errorf("-contest %s: -store %s has %q", c.contest, c.store, store.contests)
	case c.format != "text" && c.format != "json":
		return fmt.Errorf("-o %s: want text or json", c.format)
	case flags.NArg() > 0 || c.rounds < 1 || c.slice < 10*time.Millisecond:
		return errors.New("want only flags, -rounds of at least 1 and -slice of at least 10ms")
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
	began := time.Now()
	r, err := store.measure(ctx, c)
	if err != nil {
		return err
	}
	r.About = append(about(began, c), r.About...)
	if err := r.write(out, c.format); err != nil {
		return err
	}
	if n := r.violations(); n > 0 {
		return fmt.Errorf("%d times a client acquired a lock while another client held it; the report names the contenders", n)
	}
	return nil
}

func (r *report) write(out io.Writer, format string) error {
	if format == "text" {
		_, err := io.WriteString(out, r.markdown())
		return err
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}
