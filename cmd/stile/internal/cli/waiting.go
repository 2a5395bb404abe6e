package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stilelock/stile"
)

// untilShown is how long something may take before the user is told what is going on.
const untilShown = time.Second

// showWaiting returns when the place is ready. If that takes longer than a moment the user is shown who has the lock: on a
// terminal in a line that is kept up to date, otherwise once, and only if -v was given or nobody else can end the waiting.
func (r *run) showWaiting(ctx context.Context, client *stile.Client, place *stile.Place) {
	began := time.Now()
	select {
	case <-place.Ready():
		return
	case <-time.After(untilShown):
	}
	progress := newProgress(r.stdio)
	around := slices.DeleteFunc(heldAround(), func(h held) bool { return h.Name != r.name })
	if progress == nil && !r.verbose && len(around) == 0 {
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
		if slices.ContainsFunc(around, func(h held) bool { return h.holds(line) }) {
			around = nil
			progress.clear()
			r.stdio.say(fmt.Sprintf("deadlock: lock %q is already held by a stile run that this command runs under; "+
				"it will not be free before that ends", r.name))
		}
		texts := waitingTexts(r.name, line, place.Ahead(), time.Since(began))
		switch {
		case progress != nil:
			progress.show(texts...)
		case line.Name == "":
		case r.verbose:
			r.stdio.say(texts[0])
			return
		default:
			return
		}
	}
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

// waitingTexts tells a waiter who holds the lock, since when, and how many come first: all of it first, and then ever less, what
// matters least left out first.
func waitingTexts(lock string, line stile.Line, ahead int, waited time.Duration) []string {
	name, so := fmt.Sprintf("%q: ", lock), "; waited "+round(waited).String()
	switch {
	case line.Name == "":
		return []string{name + "asking who holds it" + so, "asking who holds it"}
	case len(line.Holders) == 0:
		return []string{name + "just became free" + so, "just became free"}
	}
	place := "next in line"
	if ahead > 1 {
		place = fmt.Sprintf("%d come first", ahead)
	}
	held, since := "held by "+holderName(line.Holders[0]), sinceWhen(line)
	texts := []string{name + held + since + "; " + place + so, name + held + since + "; " + place, name + held + "; " + place}
	if owner := line.Holders[0].Owner; owner.Command != "" && owner.Host != "" {
		owner.Command = ""
		texts = append(texts, name+"held by "+owner.String()+"; "+place)
		owner.PID = 0
		texts = append(texts, name+"held by "+owner.String()+"; "+place, "held by "+owner.String()+"; "+place)
	}
	return append(texts, place)
}

// sinceWhen says since when the first holder is in the line, if it is known.
func sinceWhen(line stile.Line) string {
	if len(line.Holders) == 0 || line.Holders[0].Owner.Since.IsZero() {
		return ""
	}
	return " since " + clock(line.Holders[0].Owner.Since)
}

// holderOf says who holds a lock that others wait for.
func holderOf(line stile.Line) string {
	if len(line.Holders) == 0 {
		return "it has just become free"
	}
	return "it is held by " + holderName(line.Holders[0])
}

// holderName says who somebody is, who may be no stile.
func holderName(e stile.Entry) string {
	if e.Owner.IsZero() {
		return fmt.Sprintf("an unknown client (session %s), not stile", plain(e.Session))
	}
	return e.Owner.String()
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
