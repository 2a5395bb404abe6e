package workload

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
	"github.com/stilelock/stile/lab/torture/resource"
)

// worker is one worker at work.
type worker struct {
	config   Config
	voice    *history.Voice
	resource *resource.Client // nil for Final
	locker   locker.Locker    // nil for Command, and when ctx ended while connecting
	locks    []string
	calls    atomic.Uint64 // for the names of grants
	tried    atomic.Uint64 // how many of the locks Final has tried
}

// run connects, works until ctx ends, closes everything, and counts what is open before and after.
func (w *worker) run(ctx context.Context, p plan) error {
	if w.config.Workload != Final {
		r, err := resource.Dial(context.WithoutCancel(ctx), w.config.Resource)
		if err != nil {
			return fmt.Errorf("no resource: %w", err)
		}
		w.resource = r
		defer r.Close()
	}
	before := w.census()
	w.say(history.Event{Census: &before})
	if w.config.Workload != Command {
		if err := w.connect(ctx); err != nil {
			return err
		}
	}
	err := w.work(ctx, p)
	w.close()
	after := w.censusAfter(before)
	w.say(history.Event{Census: &after})
	return err
}

// work lets the strands go on until ctx ends, or one of them fails, or all are done.
func (w *worker) work(ctx context.Context, p plan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, p.strands)
	var strands sync.WaitGroup
	for i := range p.strands {
		strands.Go(func() {
			s := &strand{worker: w, chance: w.chance(i)}
			for ctx.Err() == nil && errs[i] == nil {
				errs[i] = p.once(s, ctx)
			}
			if errors.Is(errs[i], errDone) {
				errs[i] = nil // the others are not
				return
			}
			cancel()
		})
	}
	strands.Wait()
	return errors.Join(errs...)
}

// errDone is returned by a strand for which there is nothing left to do.
var errDone = errors.New("done")

// patience is how long a worker tries to connect: longer than any server is down, or a machine busy.
const patience = 2 * time.Minute

// connect opens the locker, again and again while its servers cannot be reached. If ctx ends first it opens none, and that
// is no error.
func (w *worker) connect(ctx context.Context) error {
	for began := time.Now(); ctx.Err() == nil; sleep(ctx, 100*time.Millisecond) {
		l, err := locker.Open(ctx, w.config.Locker, w.config.Worker)
		if err == nil {
			w.locker = l
			return nil
		}
		if time.Since(began) > patience {
			return err
		}
	}
	return nil
}

// close closes the locker. If its servers cannot be told, that is their trouble: the TTL ends what there is.
func (w *worker) close() {
	w.leave(func(ctx context.Context) { _ = w.locker.Close(ctx) })
}

// abandon leaves the locker without telling its servers, or closes it where that cannot be done.
func (w *worker) abandon() {
	if left, ok := w.locker.(locker.Abandoner); ok {
		w.leave(left.Abandon)
	}
	w.close()
}

// leave has the locker, if there is one, left in some way, for no longer than the TTL.
func (w *worker) leave(how func(context.Context)) {
	if w.locker == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.config.Locker.TTL)
	defer cancel()
	how(ctx)
	w.locker = nil
}

// chance returns what is chance for one strand: the same for the same seed.
func (w *worker) chance(strand int) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, w.config.Worker, "/", strand)
	return rand.New(rand.NewPCG(w.config.Seed, h.Sum64()))
}

// newGrant returns a name for a call.
func (w *worker) newGrant() string { return fmt.Sprintf("%s.%d", w.config.Worker, w.calls.Add(1)) }

func (w *worker) say(e history.Event) { w.voice.Say(e) }

// census counts what this process has open, before it connects.
func (w *worker) census() history.Census {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic("/proc/self/fd: " + err.Error()) // every Linux has it
	}
	return history.Census{Phase: "begin", Goroutines: runtime.NumGoroutine(), Descriptors: len(open)}
}

// censusAfter counts what this process has open at its end, when there is no more than before or there has been time enough.
func (w *worker) censusAfter(before history.Census) history.Census {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		c := w.census()
		c.Phase = "end"
		settled := c.Goroutines <= before.Goroutines && c.Descriptors <= before.Descriptors
		if settled || time.Since(began) > w.config.settleTimeout() {
			return c
		}
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
