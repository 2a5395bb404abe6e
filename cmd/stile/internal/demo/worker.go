package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/storeurl"
)

// Open opens the store that a URL names.
type Open func(ctx context.Context, url string) (*storeurl.Conn, error)

// Work is what a worker process does: it gets its job from in, does it, and reports to out. It ends when the job is done,
// when it cannot be done, which is the error, and when in ends, because then there is nobody left to work for.
func Work(ctx context.Context, in io.Reader, out io.Writer, open Open) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := worker{out: json.NewEncoder(out)}
	parent := json.NewDecoder(in)
	if err := parent.Decode(&w.job); err != nil {
		return fmt.Errorf("no job to do: %w; workers are started by stile demo", err)
	}
	w.orders = listen(ctx, parent, cancel)
	closed, err := w.connect(ctx, open)
	if err != nil {
		return err
	}
	defer closed()
	return w.work(ctx)
}

var errAlone = errors.New("the parent has ended")

// listen receives the parent's orders. When there will be no more it calls cancel.
func listen(ctx context.Context, parent *json.Decoder, cancel context.CancelCauseFunc) <-chan order {
	orders := make(chan order)
	go func() {
		for {
			var o order
			if parent.Decode(&o) != nil {
				cancel(errAlone)
				return
			}
			select {
			case orders <- o:
			case <-ctx.Done():
				return
			}
		}
	}()
	return orders
}

// worker is one process that adds to the counter.
type worker struct {
	job
	out    *json.Encoder
	orders <-chan order
	mutex  *stile.Mutex // nil: work without
	added  int
}

// connect opens the store, unless the work is done without a lock.
func (w *worker) connect(ctx context.Context, open Open) (closed func(), err error) {
	if w.Lock == "" {
		return func() {}, nil
	}
	opened, err := open(ctx, w.URL)
	if err != nil {
		return nil, err
	}
	owner := stile.DefaultOwner()
	owner.Command = fmt.Sprintf("stile demo, worker %d", w.Worker)
	client, err := stile.New(opened.Store, &stile.Options{TTL: w.TTL, Owner: owner})
	if err != nil {
		_ = opened.Close()
		return nil, err
	}
	w.mutex = client.Mutex(w.Lock)
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = client.Close(ctx) // nothing is held any more; what is left in the store goes with the TTL
		_ = opened.Close()
	}, nil
}

func (w *worker) work(ctx context.Context) error {
	if err := w.tell(report{Event: ready}); err != nil {
		return err
	}
	if _, err := w.ask(ctx); err != nil {
		return err
	}
	for turn := 1; turn <= w.Turns; turn++ {
		for w.added < w.end(turn) {
			err := w.turn(ctx, w.end(turn))
			if err != nil && !errors.Is(err, stile.ErrLost) {
				return err
			}
		}
	}
	return w.tell(report{Event: done})
}

// turn takes the lock, adds until so many increments are done, and lets the lock go. If the lock is lost the error matches
// [stile.ErrLost]: the rest is for another turn.
func (w *worker) turn(ctx context.Context, until int) error {
	g, err := w.grab(ctx)
	if err != nil {
		return err
	}
	err = w.fill(ctx, g, until)
	r := report{Event: ended, Held: time.Since(g.since)}
	switch {
	case errors.Is(err, stile.ErrLost):
		r.Event, r.Why = lost, reasonOf(err)
	case err != nil:
		return err
	}
	if e := w.tell(r); e != nil { // before the next one can tell that it has begun
		return e
	}
	if e := g.release(ctx); !errors.Is(e, stile.ErrLost) { // lost now: nothing was written since
		err = errors.Join(err, e)
	}
	return err
}

// fill adds until so many increments are done, or halfway if the parent says so.
func (w *worker) fill(ctx context.Context, g grip, until int) error {
	o, err := w.ask(ctx)
	if err != nil {
		return err
	}
	if !o.Halt {
		return w.addUntil(ctx, g, until)
	}
	if err := w.addUntil(ctx, g, w.added+(until-w.added)/2); err != nil {
		return err
	}
	if err := w.tell(report{Event: halted}); err != nil {
		return err
	}
	select {
	case <-g.lost():
		return g.check()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// addUntil adds until so many increments are done. Before each it makes sure that the lock is still held.
func (w *worker) addUntil(ctx context.Context, g grip, until int) error {
	percent := max(w.Add/100, 1)
	for w.added < until {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := g.check(); err != nil {
			return err
		}
		if err := increment(w.Counter); err != nil {
			return err
		}
		w.added++
		if w.added%percent == 0 {
			if err := w.tell(report{Event: added}); err != nil {
				return err
			}
		}
	}
	return nil
}

// tell reports to the parent how far this worker is.
func (w *worker) tell(r report) error {
	r.Added = w.added
	return w.out.Encode(r)
}

// ask waits for the parent's order.
func (w *worker) ask(ctx context.Context) (order, error) {
	select {
	case o := <-w.orders:
		return o, nil
	case <-ctx.Done():
		return order{}, context.Cause(ctx)
	}
}

// grip is what makes it right to write: a hold or, without a lock, the mere will.
type grip struct {
	hold  *stile.Hold // nil without a lock
	since time.Time
}

// grab takes the lock.
func (w *worker) grab(ctx context.Context) (grip, error) {
	if w.mutex == nil {
		return grip{since: time.Now()}, w.tell(report{Event: begun})
	}
	if err := w.tell(report{Event: waiting}); err != nil {
		return grip{}, err
	}
	asked := time.Now()
	hold, err := w.mutex.Lock(ctx)
	if err != nil {
		return grip{}, err
	}
	g := grip{hold, time.Now()}
	err = w.tell(report{Event: begun, Token: hold.Token(), Waited: g.since.Sub(asked)})
	return g, err
}

// check returns an error matching [stile.ErrLost] if the lock is not held any more.
func (g grip) check() error {
	switch {
	case g.hold == nil || g.hold.Valid():
		return nil
	case g.hold.Err() != nil:
		return g.hold.Err()
	default: // the clock is ahead of the timer
		return fmt.Errorf("%w: its deadline has passed", stile.ErrLost)
	}
}

// reasonOf says why a lock was lost, and not which: the report is about that.
func reasonOf(err error) string {
	lost, ok := errors.AsType[*stile.LostError](err)
	switch {
	case !ok:
		return err.Error()
	case lost.Err == nil:
		return lost.Reason.String()
	default:
		return fmt.Sprintf("%v: %v", lost.Reason, lost.Err)
	}
}

func (g grip) lost() <-chan struct{} {
	if g.hold == nil {
		return nil
	}
	return g.hold.Lost()
}

func (g grip) release(ctx context.Context) error {
	if g.hold == nil {
		return nil
	}
	return g.hold.Release(ctx)
}
