// Package observe follows the lines of a store: the holders and waiters now, and what has happened to
// them in the last hour. It only reads.
package observe

import (
	"cmp"
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile"
)

// An Observer keeps the lines of a store and their history in memory, while Run runs. It is safe for
// concurrent use.
type Observer struct {
	client *stile.Client
	prefix string
	boot   string

	mu      sync.Mutex
	lines   map[string]*followed // lines with entries, by name
	leases  leases               // of their sessions
	looked  map[string]time.Time // names that somebody looks at, until then
	names   []string             // their names in order; nil if that must be made again
	history history
	blame   charges
	began   time.Time                 // when all lines were first read
	applied time.Time                 // when the last change was seen
	broken  map[brokenEntry]time.Time // entries that Broken was called for
	changed chan struct{}             // closed and replaced by a change that somebody waits for
	awaited bool                      // somebody waits for a change
	unread  chan struct{}             // has a value if the lease of a session has not been read, or somebody looks at it
	status  Status
	turned  chan struct{} // closed and replaced when the status changes
	watched outcome       // of the watch's last reading
	sampled outcome       // of the last reading of a lease, or a later success of the watch

	hooks Hooks // not changed while Run runs
}

// Status says how recent the observer's lines are.
type Status struct {
	// Read is true if all lines have been read at least once.
	Read bool
	// Err is the error of the last reading, nil if it succeeded. The lines may be out of date then.
	Err error
	// Since is when the present state began: the success, the error, or the start of Run.
	Since time.Time
}

// New returns an observer of all lines that the client can read, except for those whose names are longer than
// [store.MaxNameBytes]: only other programs can lock them, and their size has no limit.
func New(client *stile.Client) *Observer { return NewWithPrefix(client, "") }

// NewWithPrefix returns an observer of the lines whose name begins with prefix.
func NewWithPrefix(client *stile.Client, prefix string) *Observer {
	return &Observer{
		client: client, prefix: prefix, boot: rand.Text(),
		lines: make(map[string]*followed), leases: make(leases), looked: make(map[string]time.Time),
		history: newHistory(), blame: newCharges(), broken: make(map[brokenEntry]time.Time),
		changed: make(chan struct{}), unread: make(chan struct{}, 1), turned: make(chan struct{}), status: Status{Since: time.Now()},
	}
}

// Boot identifies this observer: the numbers of another's updates mean nothing here.
func (o *Observer) Boot() string { return o.boot }

// Run reads the store until ctx ends. It returns an error if the store refuses, and nil when ctx ends. Then
// it may be called again: the lines, the history and the numbers of updates are kept.
func (o *Observer) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var sampling sync.WaitGroup
	sampling.Go(func() { o.sample(ctx) })
	defer sampling.Wait()
	defer cancel()
	var last error
	for change, err := range o.client.WatchChanges(ctx, o.prefix) {
		last = err
		if err != nil || change.All || !change.Exact {
			o.reportReading(readingOf(change), change.At, err)
		}
		if err == nil {
			o.apply(change, seenAt(change))
		}
		o.noteWatched(change.At, err)
	}
	if ctx.Err() != nil {
		return nil
	}
	return last
}

// seenAt returns when a change was seen: when the store reported it, or when the reading that shows it has ended.
func seenAt(c stile.Change) time.Time {
	if c.Exact && !c.All {
		return c.At
	}
	return time.Now()
}

// outcome is how a reading has ended that began at a time.
type outcome struct {
	began time.Time
	err   error
}

// noteWatched sets the status after a reading by the watch.
func (o *Observer) noteWatched(began time.Time, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.watched = outcome{began, err}
	if err == nil && !began.Before(o.sampled.began) {
		o.sampled = o.watched
	}
	o.setStatusLocked(cmp.Or(o.watched.err, o.sampled.err))
}

// noteSampled sets the status after a reading of a lease: the watch itself may not read for a minute if nothing
// changes, and so may not notice for that long that the store does not answer.
func (o *Observer) noteSampled(began time.Time, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.status.Read || began.Before(o.sampled.began) {
		return
	}
	o.sampled = outcome{began, err}
	o.setStatusLocked(cmp.Or(o.watched.err, o.sampled.err))
}

func (o *Observer) setStatusLocked(err error) {
	if o.status.Read && (err == nil) == (o.status.Err == nil) {
		o.status.Err = err
		return
	}
	o.status = Status{Read: o.status.Read || err == nil, Err: err, Since: time.Now()}
	close(o.turned)
	o.turned = make(chan struct{})
	o.notifyLocked()
}

// notifyLocked ends the waits of all callers of Wait.
func (o *Observer) notifyLocked() {
	if o.awaited {
		close(o.changed)
		o.changed, o.awaited = make(chan struct{}), false
	}
}

// apply records a change that was seen at a time. The history is in the order of time, so a change is not earlier than
// the one before.
func (o *Observer) apply(c stile.Change, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now = latest(now, o.applied)
	o.applied = now
	before := o.history.last
	for _, l := range c.Lines {
		if l, ok := bounded(l); ok {
			o.applyLineLocked(l, c.Exact, c.At, now)
		}
	}
	if c.All {
		read := make(map[string]bool, len(c.Lines))
		for i := range c.Lines {
			read[c.Lines[i].Name] = true
		}
		for _, name := range slices.Sorted(maps.Keys(o.lines)) {
			if !read[name] {
				o.applyLineLocked(NoEntries(name), c.Exact, c.At, now)
			}
		}
	}
	if !o.status.Read {
		o.began = now
	}
	o.history.forget(now)
	maps.DeleteFunc(o.broken, func(_ brokenEntry, at time.Time) bool { return now.Sub(at) > brokenMemory })
	if o.history.last > before {
		o.notifyLocked()
	}
}

func (o *Observer) applyLineLocked(l stile.Line, exact bool, at, now time.Time) {
	f := o.lines[l.Name]
	if f == nil {
		if Empty(l) {
			return
		}
		f = &followed{line: NoEntries(l.Name)}
		o.lines[l.Name], o.names = f, nil
	}
	before, same := f.line, Same(f.line, l)
	var events []Event
	if same {
		f.line = l
	} else {
		events = f.follow(l, o.status.Read, now) // nobody knows when the entries of the first reading came
	}
	for i := range events {
		events[i].Cause = o.causeLocked(l.Name, events[i].Step, now)
	}
	if len(events) > 0 && o.hooks.Changed != nil {
		o.hooks.Changed(before, l, events)
	}
	o.blame.change(before, l, events, now)
	if !exact {
		o.leases.confirm(l, at)
	} else if o.leases.seeAll(l, at) {
		o.wakeSampler()
	}
	if Empty(l) {
		delete(o.lines, l.Name)
		o.names = nil
	}
	if !same {
		o.history.add(l.Name, now, events)
	}
}

// brokenMemory is how long after a break the end of the entry must be seen.
const brokenMemory = time.Minute

type brokenEntry struct {
	name  string
	token uint64
}

// Broken says that the entry with the token is being broken: this is the cause of its end then. It must be
// called before the break.
func (o *Observer) Broken(name string, token uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.broken[brokenEntry{name, token}] = time.Now()
}

// causeLocked returns why an entry has left its line, if that is known.
func (o *Observer) causeLocked(name string, s Step, now time.Time) string {
	if s.What != Ended && s.What != Left {
		return ""
	}
	if _, ok := o.broken[brokenEntry{name, s.Entry.Token}]; ok {
		return Broken
	}
	return o.leases.cause(s.Entry.Session, now)
}

// Lines returns up to limit lines whose name begins with prefix and is larger than after, in order, and
// whether there are more. Remaining of the entries is what is left now, as far as the observer knows.
func (o *Observer) Lines(prefix, after string, limit int) (lines []stile.Line, more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.names == nil {
		o.names = slices.Sorted(maps.Keys(o.lines))
	}
	i, found := slices.BinarySearch(o.names, max(prefix, after))
	if found && o.names[i] == after {
		i++
	}
	for ; i < len(o.names) && strings.HasPrefix(o.names[i], prefix); i++ {
		if len(lines) == limit {
			return lines, true
		}
		lines = append(lines, o.lineLocked(o.names[i]))
	}
	return lines, false
}

// Line returns the line of a name; it is empty if the name has no holders and waiters.
func (o *Observer) Line(name string) stile.Line {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lineLocked(name)
}

func (o *Observer) lineLocked(name string) stile.Line {
	f := o.lines[name]
	if f == nil {
		return NoEntries(name)
	}
	return f.present(o.leases, time.Now())
}

// Status returns how recent the lines are.
func (o *Observer) Status() Status {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.status
}

// History returns the events of a name that are still known, in order.
func (o *Observer) History(name string) []Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.history.of(name)
}

// An Update is a line that has changed, and the events that explain how.
type Update struct {
	Line   stile.Line
	Events []Event
}

// Updates returns what has changed since the update with the number after, and the number of the last
// update. Several changes of a line are one Update, with the line's present state. known is false if the
// updates since then are not all known any more: the caller must read all lines, and continue after last.
func (o *Observer) Updates(after uint64) (updates []Update, last uint64, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	records, known := o.history.since(after)
	if !known {
		return nil, o.history.last, false
	}
	index := make(map[string]int)
	for _, r := range records {
		if r.forgotten && r.events == nil {
			return nil, o.history.last, false
		}
		i, ok := index[r.name]
		if !ok {
			i = len(updates)
			index[r.name] = i
			updates = append(updates, Update{Line: o.lineLocked(r.name)})
		}
		updates[i].Events = append(updates[i].Events, r.events...)
	}
	return updates, o.history.last, true
}

// Last returns the number of the last update.
func (o *Observer) Last() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.history.last
}

// WaitStatus waits until the status has changed, or ctx has ended.
func (o *Observer) WaitStatus(ctx context.Context, seen Status) {
	o.mu.Lock()
	turned, now := o.turned, o.status
	o.mu.Unlock()
	if differs(now, seen) {
		return
	}
	select {
	case <-turned:
	case <-ctx.Done():
	}
}

// differs reports whether a status is another one, not only another error.
func differs(a, b Status) bool { return a.Read != b.Read || (a.Err == nil) != (b.Err == nil) }

// waitInterval is the minimum duration of Wait.
const waitInterval = 100 * time.Millisecond

// Wait waits until there is an update after the given number, the status has changed, or ctx has ended. Unless ctx
// ends, it takes a tenth of a second at least: there may be hundreds of updates a second, and a reader gets all of
// that time together.
func (o *Observer) Wait(ctx context.Context, after uint64, seen Status) {
	select {
	case <-time.After(waitInterval):
	case <-ctx.Done():
		return
	}
	for {
		o.mu.Lock()
		changed, last, now := o.changed, o.history.last, o.status
		o.awaited = true
		o.mu.Unlock()
		if last != after || differs(now, seen) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
