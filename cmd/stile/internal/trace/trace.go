// Package trace records what happens to locks as a trace in the JSON trace event format
// (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU), which Perfetto and
// Chrome show.
//
// A process of the trace is a host, and a thread is a process of that host. It has a slice for each wait
// and each hold. The slices of a thread must not overlap, so a process that waits for or holds several
// locks at once has several threads. An arrow leads from the end of a hold to the hold of the waiter that
// came next.
package trace

import (
	"context"
	"io"
	"math"
	"slices"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
)

// Config says what to record, and how.
type Config struct {
	// To is where the trace is written, as it is recorded. What was written up to any moment can be read: only
	// the closing bracket is missing, which the format permits.
	To io.Writer
	// For is how long to record; zero means until the context ends.
	For time.Duration
	// Name returns a lock's name for people, and Text any other text that comes from the store.
	Name, Text func(string) string
	// Progress is called after each change, with the number of waits, holds and ends of them so far.
	Progress func(events int)
}

// Record records from the observer's first reading until Config.For has passed or ctx ends, and then ends all
// slices. The observer must be running. Record returns an error if the first reading fails, or if writing
// fails; the end of ctx is no error. It returns the number of recorded waits, holds and ends of them.
//
// It remembers the entries of lines, and a bounded number of processes, so it can run for any time.
func Record(ctx context.Context, o *observe.Observer, c Config) (events int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var r *recorder
	var last uint64
	for {
		status := o.Status()
		updates, newest, known := o.Updates(last)
		now := time.Now()
		switch {
		case !status.Read && status.Err != nil:
			return 0, status.Err
		case !status.Read:
		case r == nil:
			if c.For > 0 {
				defer time.AfterFunc(c.For, cancel).Stop()
			}
			r = newRecorder(c, now)
			r.resync(allLines(o), now, "it began before the recording")
			last = newest
		case !known:
			r.instant(r.own, "changes were missed", now)
			r.resync(allLines(o), now, "changes were missed")
			last = newest
		default:
			r.apply(updates)
			last = newest
		}
		if r != nil {
			r.setOutage(status)
			if err := r.flush(); err != nil {
				return r.events, err
			}
			c.Progress(r.events)
		}
		if ctx.Err() != nil { // here, so that nothing is left out that came before
			break
		}
		if r == nil {
			o.WaitStatus(ctx, status)
		} else {
			o.Wait(ctx, newest, status)
		}
	}
	if r == nil {
		r = newRecorder(c, time.Now())
	}
	r.close(time.Now())
	return r.events, r.flush()
}

func allLines(o *observe.Observer) []stile.Line {
	lines, _ := o.Lines("", "", math.MaxInt)
	return lines
}

// namedEvent is an event of a lock.
type namedEvent struct {
	name string
	observe.Event
}

// apply records the events of updates. Updates are sorted by line, but the slices of a thread, which may
// be of several locks, must follow each other.
func (r *recorder) apply(updates []observe.Update) {
	var all []namedEvent
	for _, u := range updates {
		for _, e := range u.Events {
			all = append(all, namedEvent{u.Line.Name, e})
		}
	}
	slices.SortStableFunc(all, func(a, b namedEvent) int { return a.Time.Compare(b.Time) })
	for _, e := range all {
		switch e.What {
		case observe.Waits:
			r.waits(e.name, e.Entry, e.Time, "")
		case observe.Holds:
			r.holds(e.name, e.Entry, e.Time, "")
		case observe.Ended, observe.Left:
			r.gone(e.name, e.Entry, e.Time, e.Cause)
		}
	}
}
