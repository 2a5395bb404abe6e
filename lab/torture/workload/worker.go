package workload

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
	"github.com/stilelock/stile/lab/torture/resource"
)

// worker is the state of a running worker.
type worker struct {
	config        Config
	sender        *history.Sender
	resource      *resource.Client // nil for Final
	locker        locker.Locker    // nil for Command, Once and Crowd, or if ctx ended while connecting
	crowd         *crowd           // nil for all but Crowd
	locks         []string
	calls         atomic.Uint64 // the number of calls, for the names of grants
	finalsStarted atomic.Uint64 // the number of locks that Final has started on
}

// run connects, works until ctx ends, and closes everything. It counts the open goroutines and
// descriptors before and after.
func (w *worker) run(ctx context.Context, p plan) error {
	if w.config.Workload != Final {
		r, err := resource.Dial(context.WithoutCancel(ctx), w.config.Resource)
		if err != nil {
			return fmt.Errorf("connect to the resource: %w", err)
		}
		w.resource = r
		defer r.Close()
	}
	before := w.census()
	w.say(history.Event{Census: &before})
	if !RunsStile(w.config.Workload) && w.crowd == nil {
		if err := w.connect(ctx); err != nil {
			return err
		}
	}
	err := w.work(ctx, p)
	w.close()
	if w.crowd != nil {
		w.crowd.close()
	}
	after := w.censusAfter(before)
	w.say(history.Event{Census: &after})
	return err
}

// work runs the sequences until ctx ends, one of them fails, or all are done.
func (w *worker) work(ctx context.Context, p plan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, p.sequences)
	var sequences sync.WaitGroup
	for i := range p.sequences {
		sequences.Go(func() {
			s := &sequence{worker: w, number: i, rng: w.newRand(i)}
			for ctx.Err() == nil && errs[i] == nil {
				errs[i] = p.step(s, ctx)
			}
			if errors.Is(errs[i], errDone) {
				errs[i] = nil // the other sequences continue
				return
			}
			cancel()
		})
	}
	sequences.Wait()
	return errors.Join(errs...)
}

// errDone is returned by a sequence that has nothing left to do.
var errDone = errors.New("done")

// connectTimeout is how long a worker tries to connect. It is longer than any fault keeps a server
// down, or a machine is busy.
const connectTimeout = 2 * time.Minute

// connect opens the locker. It retries while the servers cannot be reached. If ctx ends first, it
// opens none and returns nil.
func (w *worker) connect(ctx context.Context) (err error) {
	w.locker, err = w.open(ctx, w.config.Locker)
	return err
}

// open opens a locker as connect does.
func (w *worker) open(ctx context.Context, c locker.Config) (locker.Locker, error) {
	for began := time.Now(); ctx.Err() == nil; sleep(ctx, 100*time.Millisecond) {
		l, err := locker.Open(ctx, c, w.config.Worker)
		if err == nil {
			return l, nil
		}
		if time.Since(began) > connectTimeout {
			return nil, err
		}
	}
	return nil, nil
}

// close closes the locker. If its servers cannot be reached, the TTL ends its session.
func (w *worker) close() {
	w.closeWith(func(ctx context.Context) { _ = w.locker.Close(ctx) })
}

// abandon leaves the locker without notifying its servers or, if it cannot be abandoned, closes it.
func (w *worker) abandon() {
	if abandoner, ok := w.locker.(locker.Abandoner); ok {
		w.closeWith(abandoner.Abandon)
	}
	w.close()
}

// closeWith calls closeLocker for the locker, if there is one, with the TTL as a timeout.
func (w *worker) closeWith(closeLocker func(context.Context)) {
	if w.locker == nil {
		return
	}
	w.withinTTL(closeLocker)
	w.locker = nil
}

// withinTTL calls a function with the TTL as a timeout.
func (w *worker) withinTTL(f func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), w.config.Locker.TTL)
	defer cancel()
	f(ctx)
}

// newRand returns the random numbers of one sequence. They depend on the seed, the worker's name
// and the sequence.
func (w *worker) newRand(sequence int) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, w.config.Worker, "/", sequence)
	return rand.New(rand.NewPCG(w.config.Seed, h.Sum64()))
}

// newGrant returns a new grant name.
func (w *worker) newGrant() string { return fmt.Sprintf("%s.%d", w.config.Worker, w.calls.Add(1)) }

func (w *worker) say(e history.Event) { w.sender.Send(e) }

// census counts the goroutines and descriptors that this process has open.
func (w *worker) census() history.Census {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic("/proc/self/fd: " + err.Error()) // every Linux has it
	}
	return history.Census{Phase: "begin", Goroutines: runtime.NumGoroutine(), Descriptors: len(open)}
}

// censusAfter takes the census at the end of the worker. It waits until nothing more is open than
// before, for at most the settle timeout.
func (w *worker) censusAfter(before history.Census) history.Census {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		c := w.census()
		c.Phase = "end"
		settled := c.Goroutines <= before.Goroutines && c.Descriptors <= before.Descriptors
		if settled || time.Since(began) > w.config.settleTimeout() {
			if !settled {
				w.printDescriptors()
			}
			return c
		}
	}
}

// printDescriptors prints what is open to the standard error, so that a leak can be followed to its cause.
// A TCP connection is shown as a line of /proc/net/tcp.
func (w *worker) printDescriptors() {
	const dir = "/proc/self/fd"
	open, _ := os.ReadDir(dir)
	connections, _ := os.ReadFile("/proc/self/net/tcp")
	for _, fd := range open {
		link, _ := os.Readlink(filepath.Join(dir, fd.Name()))
		inode := " " + strings.TrimSuffix(strings.TrimPrefix(link, "socket:["), "]") + " "
		for line := range strings.Lines(string(connections)) {
			if strings.Contains(line, inode) {
				link += ": " + strings.TrimSpace(line)
			}
		}
		fmt.Fprintf(os.Stderr, "%s has descriptor %s: %s\n", w.config.Worker, fd.Name(), link)
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
