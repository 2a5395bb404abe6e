package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/line"
)

// watch is one call of the verb.
type watch struct {
	reader
	prefix string
	known  map[string]stile.Line // lines with entries, as last written, by name
}

func newWatch(stdio Stdio) *cobra.Command {
	w := watch{reader: newReader(stdio), known: make(map[string]stile.Line)}
	cmd := &cobra.Command{
		Use:        "watch [flags] [PREFIX]",
		SuggestFor: []string{"tail", "follow", "monitor"},
		Short:      "Print changes to locks as they happen",
		Long: `Print the holders and waiters of all locks, or of those whose name begins with PREFIX, and
then every change, until interrupted.

Each line of output is one event, with the time at which this machine saw it:
  holds   a client acquired the lock
  waits   a client joined the line
  ended   a hold ended: it was released, lost or broken
  left    a waiter left without having acquired the lock
  remark  something is wrong with the line; the remark says how to repair it

(shared) marks a reader, and (2 of 3 slots) says how many slots are taken after the event. A new
limit of the slots has a line of its own.

With -o json each line of output is an object: the new state of a lock that has changed.

The store is read at most ten times a second, so a change that is undone between two
readings is missed. An outage of the store is reported once when it begins and once when it
ends.

Exit codes:
  125  stile failed, or could not read the store at the start
  128+N  signal N ended it; 141 if the program that reads its output has ended`,
		Example: `  stile watch
  stile watch deploy/ | grep --line-buffered ' holds '
  stile watch -o json | jq -r --unbuffered '[.time, .name, .holders[0].owner.host] | @tsv'`,
		Args: prefixArg(&w.prefix),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Signals may end the process at once: there is nothing to clean up.
			ctx, cancel := context.WithCancelCause(cmd.Context())
			defer cancel(nil)
			onReaderGone(stdio.Out, func() { cancel(errStdoutClosed) })
			err := stdio.withClient(ctx, w.url, func(client *stile.Client) error { return w.run(ctx, client) })
			if errors.Is(context.Cause(ctx), errStdoutClosed) {
				return errStdoutClosed
			}
			return err
		},
	}
	w.addFlags(cmd.Flags())
	return cmd
}

func (w *watch) run(ctx context.Context, client *stile.Client) error {
	var storeOutage outage
	begun := false
	for lines, err := range client.WatchLines(ctx, w.prefix) {
		if err != nil && !begun {
			return err
		}
		begun = true
		if update := storeOutage.update(err); update != "" {
			w.stdio.say(update)
		}
		if err != nil {
			continue
		}
		b, err := w.write(lines, time.Now())
		if err != nil {
			return err
		}
		if err := w.stdio.write(b); err != nil {
			return err
		}
	}
	return storeOutage.err // a permanent error is the last one
}

// write returns the output for a reading of all lines and stores the reading.
func (w *watch) write(lines []stile.Line, now time.Time) ([]byte, error) {
	var buf bytes.Buffer
	for _, c := range w.changes(lines) {
		if w.format == formatText {
			c.writeEvents(&buf, now)
			continue
		}
		b, err := asJSON(watchInJSON{now.UTC().Truncate(time.Millisecond), asJSONLine(c.now)}, "")
		if err != nil {
			return nil, err
		}
		buf.Write(b)
	}
	return buf.Bytes(), nil
}

// watchInJSON is the JSON output of watch.
type watchInJSON struct {
	Time time.Time `json:"time"`
	jsonLine
}

// A change is a line that differs from the reading before.
type change struct{ before, now stile.Line }

// changes returns the changes since the last call, sorted by name.
func (w *watch) changes(lines []stile.Line) []change {
	now := make(map[string]stile.Line, len(lines))
	names := slices.Collect(maps.Keys(w.known))
	for _, l := range lines {
		now[l.Name] = l
		names = append(names, l.Name)
	}
	slices.Sort(names)
	var all []change
	for _, name := range slices.Compact(names) {
		c := change{lineOrEmpty(w.known, name), lineOrEmpty(now, name)}
		if !observe.Same(c.before, c.now) {
			all = append(all, c)
		}
	}
	w.known = now
	return all
}

func lineOrEmpty(lines map[string]stile.Line, name string) stile.Line {
	if l, ok := lines[name]; ok {
		return l
	}
	return observe.NoEntries(name)
}

// writeEvents writes the events of a changed line, one per line of text.
func (c change) writeEvents(to *bytes.Buffer, now time.Time) {
	at := now.Local().Format(time.DateTime)
	for _, s := range observe.Steps(c.before, c.now) {
		fmt.Fprintf(to, "%s  %s  %-5s  %s  %s%s\n", at, asArgument(c.now.Name), s.What, tokenOf(s.Entry), who(s.Entry), c.modeOf(s.Entry))
	}
	// A line without entries is not read, and neither is its limit.
	if c.now.Limit != c.before.Limit && !observe.Empty(c.before) && !observe.Empty(c.now) {
		fmt.Fprintf(to, "%s  %s  %s\n", at, asArgument(c.now.Name), limitText(c.now))
	}
	for _, remark := range c.now.Remarks {
		if !slices.Contains(c.before.Remarks, remark) {
			fmt.Fprintf(to, "%s  %s  remark %s\n", at, asArgument(c.now.Name), plain(remark))
		}
	}
}

// modeOf describes the mode of an entry and the slots that are taken after the change; "" for an exclusive
// entry.
func (c change) modeOf(e stile.Entry) string {
	limit := c.now.Limit
	if observe.Empty(c.now) { // such a line is not read
		limit = c.before.Limit
	}
	switch slots := e.Mode.Within(limit).Slots(); {
	case slots > 0:
		return fmt.Sprintf(" (%d of %d slots)", len(c.now.Holders), slots)
	case e.Mode == line.Shared:
		return " (shared)"
	default:
		return ""
	}
}
