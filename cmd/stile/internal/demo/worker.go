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

// Parent and worker talk in JSON over the worker's stdin and stdout. The worker gets its job. It reports that it is ready,
// and waits until it may go on; halfway through its part it does so again. All else it reports unasked. When its stdin
// ends, it ends.

// A job is what a worker has to do. It is not on the command line because the URL may contain a password.
type job struct {
	URL     string        `json:"url"`
	Lock    string        `json:"lock"` // empty: work without
	TTL     time.Duration `json:"ttl"`
	Worker  int           `json:"worker"`
	Counter string        `json:"counter"` // path
	Add     int           `json:"add"`
}

// A report is what a worker has to tell.
type report struct {
	Event event `json:"event"`
	// Added is how many increments this worker has written. The report acknowledges all of them.
	Added int    `json:"added"`
	Text  string `json:"text"` // for people; empty if this is not worth a line
}

// An event is what has happened last to a worker, in a word that can be shown.
type event string

const (
	ready   event = "ready"   // to start; waits for goOn
	waiting event = "joins"   // the line
	adding  event = "adds"    // with the lock
	added   event = "added"   // some more
	halfway event = "halfway" // with the lock; waits for goOn
	lost    event = "lost"    // the lock; has written nothing since
	done    event = "done"    // and is about to release the lock
	killed  event = "killed"  // which it cannot report
)

// goOn is what the parent answers.
type goOn struct{}

// Work is what a worker process does: it gets its job from in, does it, and reports to out. It ends when the job is done,
// when it cannot be done, which is the error, and when in ends, because then there is nobody left to work for.
func Work(ctx context.Context, in io.Reader, out io.Writer, open Open) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := worker{out: json.NewEncoder(out), asked: make(chan goOn)}
	parent := json.NewDecoder(in)
	if err := parent.Decode(&w.job); err != nil {
		return fmt.Errorf("no job to do: %w; workers are started by stile demo", err)
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
		_ = client.Close(ctx) // nothing is held any more; what is left in the store goes with the TTL
	}()
	return w.work(ctx, func(ctx context.Context, _ *stile.Hold) error {
		if err := w.tell(waiting, "joins the line"); err != nil {
			return err
		}
		return client.Mutex(w.Lock).Do(ctx, w.add)
	})
}

// worker is one process that adds to the counter.
type worker struct {
	job
	out   *json.Encoder
	asked chan goOn // answers
	added int
}

var errAlone = errors.New("the parent has ended")

// listen hears when the worker may go on. It calls cancel when the parent has ended.
func (w *worker) listen(ctx context.Context, parent *json.Decoder, cancel context.CancelCauseFunc) {
	for {
		if parent.Decode(&goOn{}) != nil {
			cancel(errAlone)
			return
		}
		select {
		case w.asked <- goOn{}:
		case <-ctx.Done():
			return
		}
	}
}

// work has add called until all is done: again if the lock was lost, which a worker must expect.
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
		if err := w.tell(lost, fmt.Sprintf("has lost the lock at %d, and stopped: %s", w.added, reasonOf(err))); err != nil {
			return err
		}
	}
}

// add adds until all is done. Before each increment it makes sure that the lock is still held. The hold is nil without a
// lock.
func (w *worker) add(ctx context.Context, hold *stile.Hold) error {
	text := "begins to add"
	if hold != nil {
		text = fmt.Sprintf("has the lock, token %d", hold.Token())
	}
	if err := w.tell(adding, text); err != nil {
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
			return fmt.Errorf("%w: its deadline has passed", stile.ErrLost) // the clock is ahead of the timer
		}
		if err := increment(w.Counter); err != nil {
			return err
		}
		w.added++
		if w.added%max(w.Add/100, 1) == 0 {
			if err := w.tell(added, ""); err != nil {
				return err
			}
		}
	}
	return w.tell(done, fmt.Sprintf("is done, at %d", w.added))
}

// tell reports to the parent.
func (w *worker) tell(e event, text string) error {
	return w.out.Encode(report{Event: e, Added: w.added, Text: text})
}

// ask reports to the parent, and waits until it may go on.
func (w *worker) ask(ctx context.Context, e event, text string) error {
	if err := w.tell(e, text); err != nil {
		return err
	}
	select {
	case <-w.asked:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
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
