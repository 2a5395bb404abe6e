package cli

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/stilelock/stile"
)

// untilShown is how long something may take before the user is told what is going on.
const untilShown = time.Second

// showWaiting returns when the place is ready. If that takes longer than a moment the user is told who has the lock: on a
// terminal in a line that is kept up to date, otherwise once, and only if -v was given or nobody else can end the waiting.
func (r *run) showWaiting(ctx context.Context, client *stile.Client, place *stile.Place) {
	began := time.Now()
	select {
	case <-place.Ready():
		return
	case <-time.After(untilShown):
	}
	progress := newProgress(r.stdio)
	nested := os.Getenv("STILE_NAME") == r.name
	if progress == nil && !r.verbose && !nested {
		return
	}
	defer progress.clear()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	lines := latest(reading, client, r.name)
	var line stile.Line
	for {
		select {
		case <-place.Ready():
			return
		case line = <-lines:
		case <-tick.C:
		}
		if nested && holdsForUs(line) {
			nested = false
			progress.clear()
			r.stdio.say(fmt.Sprintf("lock %q is held for the very command that this is a part of: while that runs, this waits", r.name))
		}
		text := fmt.Sprintf("waiting for lock %q for %v: %s", r.name, round(time.Since(began)), whoIsAhead(line, place.Ahead()))
		switch {
		case progress != nil:
			progress.show(text)
		case line.Name == "":
		case r.verbose:
			r.stdio.say(text)
			return
		default:
			return
		}
	}
}

// holdsForUs reports whether a lock is held by the stile run that this one runs under.
func holdsForUs(line stile.Line) bool {
	for _, h := range line.Holders {
		if strconv.FormatUint(h.Token, 10) == os.Getenv("STILE_TOKEN") && h.Owner.String() == os.Getenv("STILE_OWNER") {
			return true
		}
	}
	return false
}

// latest returns a channel that always has the newest reading of a line that was not received yet, until ctx ends.
func latest(ctx context.Context, client *stile.Client, name string) <-chan stile.Line {
	lines := make(chan stile.Line, 1)
	go func() {
		for line, err := range client.WatchLine(ctx, name) {
			if err != nil {
				continue // whoever waits for the lock hears of what goes wrong
			}
			select {
			case <-lines:
			default:
			}
			lines <- line
		}
	}()
	return lines
}

// whoIsAhead tells a waiter who holds the lock, since when, and how many come first.
func whoIsAhead(line stile.Line, ahead int) string {
	switch {
	case line.Name == "":
		return "asking who has it"
	case len(line.Holders) == 0:
		return "it has become free"
	}
	text := holderOf(line)
	if since := line.Holders[0].Owner.Since; !since.IsZero() {
		text += ", there since " + clock(since)
	}
	if ahead > 1 {
		text += fmt.Sprintf("; %d come first", ahead)
	} else {
		text += "; you are next"
	}
	return text
}

// holderOf says who holds a lock that others wait for.
func holderOf(line stile.Line) string {
	switch {
	case len(line.Holders) == 0:
		return "it has become free just now"
	case line.Holders[0].Owner.IsZero():
		return fmt.Sprintf("it is held by session %s, a client that left no word of who it is", line.Holders[0].Session)
	default:
		return fmt.Sprintf("it is held by %v", line.Holders[0].Owner)
	}
}

// clock writes a time for somebody who has a clock on the wall, and a calendar if it is not of today.
func clock(t time.Time) string {
	t = t.Local()
	if t.Format(time.DateOnly) == time.Now().Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}

// round leaves of a duration what people want to read.
func round(d time.Duration) time.Duration {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond)
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond)
	default:
		return d.Round(time.Second)
	}
}
