package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/stilelock/stile"
)

// Parent and worker exchange JSON over the worker's stdin and stdout. The worker receives its job.
// It reports that it is ready and waits for goOn; it does the same halfway through its part. It
// sends all other reports without waiting. When its stdin ends, it ends.

// A job is the work of a worker. It is not on the command line, because the URL may contain a
// password.
type job struct {
	URL     string        `json:"url"`
	Lock    string        `json:"lock"` // empty: work without a lock
	TTL     time.Duration `json:"ttl"`
	Worker  int           `json:"worker"`
	Counter string        `json:"counter"` // path
	Add     int           `json:"add"`
}

// A report is a message from a worker.
type report struct {
	Event event `json:"event"`
	// Added is the number of increments that this worker has written. The report acknowledges all
	// of them.
	Added int    `json:"added"`
	Text  string `json:"text"` // for display; empty for none
}

// An event is the last event of a worker, in a word that is displayed.
type event string

const (
	ready   event = "ready"   // ready to start; waits for goOn
	waiting event = "joins"   // joins the line
	adding  event = "adds"    // has the lock and adds
	added   event = "added"   // progress
	halfway event = "halfway" // has the lock; waits for goOn
	lost    event = "lost"    // has lost the lock and written nothing since
	done    event = "done"    // is about to release the lock
	killed  event = "killed"  // set by the parent
)

// goOn is the parent's answer to ready and halfway.
type goOn struct{}

// Work is the main function of a worker process. It reads its job from in, does it, and reports to
// out. It returns when the job is done or has failed, and when in ends, because then the parent has
// ended.
func Work(ctx context.Context, in io.Reader, out io.Writer, open Open) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := worker{out: json.NewEncoder(out), replies: make(chan goOn)}
	parent := json.NewDecoder(in)
	if err := parent.Decode(&w.job); err != nil {
		return fmt.Errorf("read the worker's job: %w; workers are started by stile demo", err)
	}
	go w.listen(ctx, parent, cancel)
	if w.Lock == "" {
		return w.work(ctx, w.add)
	}

	conn, err := open(ctx, w.URL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	owner := stile.DefaultOwner()
	owner.Command = fmt.Sprintf("stile demo, worker %d", w.Worker)
	client, err := stile.New(conn.Store, &stile.Options{TTL: w.TTL, Owner: owner})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = client.Close(ctx) // nothing is held any more; entries that are left end with the TTL
	}()
	return w.work(ctx, func(ctx context.Context, _ *stile.Hold) error {
		if err := w.report(waiting, "joins the line"); err != nil {
			return err
		}
		return client.Mutex(w.Lock).Do(ctx, w.add)
	})
}

// worker is one process that adds to the counter.
type worker struct {
	job
	out     *json.Encoder
	replies chan goOn
	added   int
}

var errParentEnded = errors.New("the parent has ended")

// listen receives the parent's answers. It calls cancel when the parent has ended.
func (w *worker) listen(ctx context.Context, parent *json.Decoder, cancel context.CancelCauseFunc) {
	for {
		if parent.Decode(&goOn{}) != nil {
			cancel(errParentEnded)
			return
		}
		select {
		case w.replies <- goOn{}:
		case <-ctx.Done():
			return
		}
	}
}

// work calls add until all increments are done, again after each loss of the lock.
func (w *worker) work(ctx context.Context, add func(context.Context, *stile.Hold) error) error {
	if err := w.ask(ctx, ready, ""); err != nil {
		return err
	}
	for {
		err := add(ctx, nil)
		if !errors.Is(err, stile.ErrLost) || ctx.Err() != nil {
			return err
		}
		if w.added == w.Add { // lost after the last increment
			return nil
		}
		if err := w.report(lost, fmt.Sprintf("has lost the lock at %d, and stopped: %s", w.added, reasonOf(err))); err != nil {
			return err
		}
	}
}

// add increments until all is done. Before each increment it checks that the lock is still held.
// hold is nil without a lock.
func (w *worker) add(ctx context.Context, hold *stile.Hold) error {
	text := "begins to add"
	if hold != nil {
		text = fmt.Sprintf("has the lock, token %d", hold.Token())
	}
	if err := w.report(adding, text); err != nil {
		return err
	}
	for w.added < w.Add {
		if w.added == w.Add/2 {
			if err := w.ask(ctx, halfway, fmt.Sprintf("is halfway, at %d", w.added)); err != nil {
				return err
			}
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case hold != nil && !hold.Valid():
			return fmt.Errorf("%w: its deadline has passed", stile.ErrLost) // not yet noticed by the timer
		}
		if err := increment(w.Counter); err != nil {
			return err
		}
		w.added++
		if w.added%max(w.Add/100, 1) == 0 {
			if err := w.report(added, ""); err != nil {
				return err
			}
		}
	}
	return w.report(done, fmt.Sprintf("is done, at %d", w.added))
}

// report sends a report to the parent.
func (w *worker) report(e event, text string) error {
	return w.out.Encode(report{Event: e, Added: w.added, Text: text})
}

// ask sends a report to the parent, and waits for goOn.
func (w *worker) ask(ctx context.Context, e event, text string) error {
	if err := w.report(e, text); err != nil {
		return err
	}
	select {
	case <-w.replies:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reasonOf returns the reason of a loss without the name of the lock.
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
