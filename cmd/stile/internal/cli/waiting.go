package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stilelock/stile"
)

// statusDelay is how long an operation may take before a status is shown.
const statusDelay = time.Second

// showWaiting returns when the lock is held or the attempt has failed. If that takes longer than
// statusDelay, it shows the holder: at a terminal in a status line that is updated, otherwise once,
// and only with -v or if nobody else can end the wait.
func (r *request) showWaiting(ctx context.Context, client *stile.Client, place *pendingHold) {
	began := time.Now()
	select {
	case <-place.ready:
		return
	case <-time.After(statusDelay):
	}
	progress := newProgress(r.stdio)
	around := slices.DeleteFunc(enclosingLocks(), func(h held) bool { return !slices.Contains(r.names, h.Name) })
	if progress == nil && !r.verbose && len(around) == 0 {
		return
	}
	defer progress.clear()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var (
		lines <-chan stile.Line
		line  stile.Line
	)
	if len(r.names) == 1 {
		var stop func()
		lines, stop = latest(ctx, client, r.names[0])
		defer stop()
	}
	for {
		if len(r.names) > 1 {
			if now, err := r.awaitedLine(ctx, client); err == nil {
				line = now
			}
		}
		select {
		case <-place.ready:
			return
		case line = <-lines:
		case <-tick.C:
		}
		if slices.ContainsFunc(around, func(h held) bool { return h.holds(line) }) {
			around = nil
			progress.clear()
			r.stdio.say(fmt.Sprintf("deadlock: lock %q is already held by a stile run that this command runs under; "+
				"it will not be free before that ends", line.Name))
		}
		texts := waitingTexts(cmp.Or(line.Name, r.names[0]), line, place.ahead(line), time.Since(began))
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

// awaitedLine returns the line of the lock that is waited for: of several, the first one that another process
// holds. If there is none, it returns the line of the first lock.
func (r *request) awaitedLine(ctx context.Context, client *stile.Client) (line stile.Line, err error) {
	names := slices.Sorted(slices.Values(r.names))
	for _, name := range append(names, names[0]) {
		line, err = client.Line(ctx, name)
		if err != nil || len(r.names) == 1 {
			line.Name = name
			return line, err
		}
		if len(line.Holders) > 0 && !isOfThisProcess(line.Holders[0]) {
			return line, nil
		}
	}
	return line, nil
}

// isOfThisProcess reports whether this process has made an entry.
func isOfThisProcess(e stile.Entry) bool {
	me := stile.DefaultOwner()
	return e.Owner.PID == me.PID && e.Owner.Host == me.Host
}

// aheadOfThisProcess returns how many entries of a line come before that of this process; -1 if it has none.
func aheadOfThisProcess(line stile.Line) int {
	i := slices.IndexFunc(line.Waiters, isOfThisProcess)
	if i < 0 {
		return -1
	}
	return len(line.Holders) + i
}

// latest returns a channel that always has the newest unread reading of a line, until ctx ends or stop
// is called.
func latest(ctx context.Context, client *stile.Client, name string) (_ <-chan stile.Line, stop func()) {
	ctx, stop = context.WithCancel(ctx)
	lines := make(chan stile.Line, 1)
	go func() {
		for line, err := range client.WatchLine(ctx, name) {
			if err != nil {
				continue // the caller that waits for the lock gets the error
			}
			select {
			case <-lines:
			default:
			}
			lines <- line
		}
	}()
	return lines, stop
}

// waitingTexts returns texts that say who holds the lock, since when, and how many waiters are
// ahead, which may be unknown (-1): the full text first, then shorter ones without the less important parts.
func waitingTexts(lock string, line stile.Line, ahead int, waited time.Duration) []string {
	name, so := fmt.Sprintf("%q: ", lock), "; waited "+round(waited).String()
	switch {
	case line.Name == "":
		return []string{name + "asking who holds it" + so, "asking who holds it"}
	case len(line.Holders) == 0:
		return []string{name + "just became free" + so, "just became free"}
	}
	shortest := "next in line"
	if ahead > 1 {
		shortest = fmt.Sprintf("%d ahead", ahead)
	}
	place := "; " + shortest
	if ahead < 0 {
		place, shortest = "", "waiting"
	}
	word := heldWord(line.Holders[0])
	held, since := word+holderNames(line), sinceWhen(line)
	texts := []string{name + held + since + place + so, name + held + since + place, name + held + place}
	if owner := line.Holders[0].Owner; owner.Command != "" && owner.Host != "" {
		owner.Command = ""
		texts = append(texts, name+word+owner.String()+place)
		owner.PID = 0
		texts = append(texts, name+word+owner.String()+place, word+owner.String()+place)
	}
	return append(texts, shortest)
}

// sinceWhen says since when the first holder has held the lock, if that is known.
func sinceWhen(line stile.Line) string {
	if len(line.Holders) == 0 || line.Holders[0].Owner.Obtained.IsZero() {
		return ""
	}
	return " since " + clock(line.Holders[0].Owner.Obtained)
}

// holderOf describes the holder of a lock that others wait for.
func holderOf(line stile.Line) string {
	if len(line.Holders) == 0 {
		return "it has just become free"
	}
	return "it is " + heldWord(line.Holders[0]) + holderNames(line)
}

// holderNames names the first holder of a lock that is held, and counts the others.
func holderNames(line stile.Line) string {
	name := holderName(line.Holders[0])
	switch others := len(line.Holders) - 1; others {
	case 0:
		return name
	case 1:
		return name + " and 1 other"
	default:
		return fmt.Sprintf("%s and %d others", name, others)
	}
}

// heldWord says no more than is known: whether the holder still holds the lock or only keeps it.
func heldWord(holder stile.Entry) string {
	if holder.Owner.Lingers {
		return "held or kept by "
	}
	return "held by "
}

// holderName describes the owner of an entry, which may be a foreign client.
func holderName(e stile.Entry) string {
	if e.Owner.IsZero() {
		return fmt.Sprintf("an unknown client (session %s), not stile", plain(e.Session))
	}
	return e.Owner.String()
}

// clock formats a time as a wall-clock time, with the date unless it is today.
func clock(t time.Time) string {
	t = t.Local()
	if t.Format(time.DateOnly) == time.Now().Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}

// round rounds a duration for people.
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
