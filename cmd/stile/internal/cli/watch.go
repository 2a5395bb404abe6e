package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile"
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
ends.`,
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
		if !reflect.DeepEqual(withoutClocks(c.before), withoutClocks(c.now)) {
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
	return stile.Line{Name: name, Holders: []stile.Entry{}, Waiters: []stile.Entry{}}
}

// withoutClocks returns the line without the fields that change all the time.
func withoutClocks(l stile.Line) stile.Line {
	l.Holders, l.Waiters = slices.Clone(l.Holders), slices.Clone(l.Waiters)
	for _, entries := range [][]stile.Entry{l.Holders, l.Waiters} {
		for i := range entries {
			entries[i].Remaining = 0
		}
	}
	return l
}

// writeEvents writes the events of a changed line, one per line of text.
func (c change) writeEvents(to *bytes.Buffer, now time.Time) {
	at := now.Local().Format(time.DateTime)
	for _, e := range c.events() {
		fmt.Fprintf(to, "%s  %s  %-5s  %s  %s%s\n", at, asArgument(c.now.Name), e.what, tokenOf(e.entry), who(e.entry), c.modeOf(e.entry))
	}
	// A line without entries is not read, and neither is its limit.
	if c.now.Limit != c.before.Limit && len(places(c.before)) > 0 && len(places(c.now)) > 0 {
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
	if len(places(c.now)) == 0 { // such a line is not read
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

// event is something that happened to an entry.
type event struct {
	what  string
	entry stile.Entry
}

// events returns the events that explain the change: first the entries that left, then those that
// were admitted or joined, each in order.
func (c change) events() []event {
	was := make(map[identity]place)
	for _, p := range places(c.before) {
		was[p.identity()] = p
	}
	var came []event
	for _, p := range places(c.now) {
		id := p.identity()
		if _, ok := was[id]; !ok {
			id = p.identityWithoutToken() // a store may assign tokens late
		}
		before, ok := was[id]
		delete(was, id)
		switch {
		case ok && before.holds == p.holds:
		case p.holds:
			came = append(came, event{"holds", p.entry})
		default:
			came = append(came, event{"waits", p.entry})
		}
	}
	var all []event
	for _, p := range places(c.before) {
		if _, gone := was[p.identity()]; !gone {
			continue
		}
		if p.holds {
			all = append(all, event{"ended", p.entry})
		} else {
			all = append(all, event{"left", p.entry})
		}
	}
	return append(all, came...)
}

// place is an entry of a line, and whether it holds the lock.
type place struct {
	entry stile.Entry
	holds bool
}

func places(l stile.Line) []place {
	var all []place
	for _, e := range l.Holders {
		all = append(all, place{e, true})
	}
	for _, e := range l.Waiters {
		all = append(all, place{e, false})
	}
	return all
}

// identity identifies an entry across two readings.
type identity struct {
	token   uint64
	session string
	since   int64
}

// identity is the token alone if there is one, because the session of an entry may change.
func (p place) identity() identity {
	if p.entry.Token != 0 {
		return identity{token: p.entry.Token}
	}
	return p.identityWithoutToken()
}

func (p place) identityWithoutToken() identity {
	return identity{session: p.entry.Session, since: p.entry.Owner.Since.UnixNano()}
}
