package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/child"
)

// wait is one call of the verb.
type wait struct {
	reader
	name     string
	nonblock bool
	limit    duration
	limitSet bool
}

func newWait(stdio Stdio) *cobra.Command {
	w := wait{reader: newReader(stdio)}
	cmd := &cobra.Command{
		Use:   "wait [flags] NAME",
		Short: "Wait until nobody holds a lock, without taking it",
		Long: `Wait until nobody holds the lock NAME; if it has slots, until all are free. stile wait neither takes
the lock nor joins its line, so another client may hold it a moment later. To exclude others, use stile run.

NAME may be any name that stile ls prints, in double quotes too, or a path as for stile run.

The store is read at most ten times a second, so a lock that is free for less than a tenth
of a second may be missed.

With -o json the last reading of the line is printed.

Exit codes:
  0    the lock is free
  75   the lock is still held (-n, -w)
  125  stile failed, or could not read the line
  128+N  signal N ended the wait

A DURATION is in seconds (5, 0.5) or has units (500ms, 1m30s).`,
		Example: `  stile wait nightly-backup && echo "the backup is done"
  stile wait -w 1h deploy/web
  stile wait -n nightly-backup; test $? = 75 && echo "still at it"`,
		Args: nameArg(&w.name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			w.limitSet = cmd.Flags().Changed("wait")
			return w.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	w.addFlags(flags)
	flags.BoolVarP(&w.nonblock, "nonblock", "n", false, "do not wait, only report")
	flags.VarP(&w.limit, "wait", "w", "give up after this long; 0 means -n")
	return cmd
}

func (w *wait) run(ctx context.Context) error {
	if w.nonblock && w.limitSet {
		return errors.New("-n and -w contradict each other: use one of them")
	}
	signals := child.Listen()
	defer signals.Close()
	signals.Await()
	ctx, listened := untilInterrupted(ctx, signals)
	var line stile.Line
	err := w.stdio.withClient(ctx, w.url, func(client *stile.Client) (err error) {
		line, err = w.untilFree(ctx, client)
		return err
	})
	listened()
	if interrupted, ok := errors.AsType[*interruption](context.Cause(ctx)); ok {
		return &exit{Code: child.ExitCodeFor(interrupted.signal)}
	}
	if err != nil {
		return err
	}
	return w.printOutcome(line)
}

// untilFree waits until the lock is free or the limit is reached, and returns the last reading of
// the line.
func (w *wait) untilFree(ctx context.Context, client *stile.Client) (stile.Line, error) {
	began := time.Now()
	line, err := client.Line(ctx, w.name)
	if err != nil || len(line.Holders) == 0 || w.nonblock || w.limitSet && w.limit == 0 {
		return line, err
	}
	ctx, cancel := w.bounded(ctx)
	readings := read(ctx, client, w.name)
	defer func() {
		cancel()
		for range readings { // drain: the client is about to be closed
		}
	}()
	progress := newProgress(w.stdio)
	defer progress.clear()
	tick := time.NewTicker(statusDelay)
	defer tick.Stop()

	var storeOutage outage
	for len(line.Holders) > 0 {
		select {
		case r, ok := <-readings:
			if !ok { // the wait is over, or the watch has ended
				return line, storeOutage.err
			}
			if update := storeOutage.update(r.err); update != "" {
				progress.clear()
				w.stdio.say(update)
			}
			if r.err == nil {
				line = r.line
			}
		case <-tick.C:
			progress.show(w.status(line, time.Since(began))...)
		}
	}
	return line, nil
}

// status returns texts about the holders, in several lengths for different terminal widths.
func (w *wait) status(line stile.Line, waited time.Duration) []string {
	name := fmt.Sprintf("%q: ", w.name)
	held, since := heldBy(line), sinceWhen(line)
	return []string{
		name + held + since + "; waited " + twoUnits(waited), name + held + since, name + held, held, "waited " + twoUnits(waited),
	}
}

// bounded returns a context with the limit of the wait.
func (w *wait) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.limitSet {
		return context.WithTimeout(ctx, time.Duration(w.limit))
	}
	return context.WithCancel(ctx)
}

// A reading is a line as read, or the error of the reading.
type reading struct {
	line stile.Line
	err  error
}

// read returns the readings of a line until ctx ends or a permanent error occurs.
func read(ctx context.Context, client *stile.Client, name string) <-chan reading {
	readings := make(chan reading)
	go func() {
		defer close(readings)
		for line, err := range client.WatchLine(ctx, name) {
			select {
			case readings <- reading{line, err}:
			case <-ctx.Done():
			}
		}
	}()
	return readings
}

// printOutcome prints the outcome of the wait.
func (w *wait) printOutcome(line stile.Line) error {
	if w.format == formatJSON {
		if err := w.stdio.writeJSON(asJSONLine(line)); err != nil {
			return err
		}
	}
	switch {
	case len(line.Holders) == 0:
		return nil
	case w.nonblock || w.limit == 0:
		return &exit{exitNotObtained, fmt.Errorf("lock %q is %s", w.name, heldBy(line))}
	default:
		return &exit{exitNotObtained, fmt.Errorf("lock %q was not free within %s: it is %s", w.name, brief(time.Duration(w.limit)), heldBy(line))}
	}
}

func heldBy(line stile.Line) string { return "held by " + holders(line) }
