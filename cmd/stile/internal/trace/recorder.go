package trace

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
)

// recorder turns what happens to entries into trace events.
type recorder struct {
	writer
	config Config
	events int // recorded waits, holds and ends of them

	lines     map[string]*line // lines with entries, by name
	hosts     map[string]int   // numbers of hosts, by name
	processes map[processKey]*process
	maxIdle   int     // about so many processes are remembered without being in a line
	forgetAt  int     // number of processes at which idle ones are forgotten
	own       *thread // for what concerns the recording itself
	unread    bool    // own has a slice for an outage of the store
	flows     int
	lastID    int // of processes and threads
}

// line is what is remembered of a line with entries.
type line struct {
	entries map[identity]*entry
	// end is the last hold that ended while somebody waited; nil if there is none.
	end *end
}

// identity identifies an entry. It is the token alone if there is one, because the session of an entry may
// change.
type identity struct {
	token   uint64
	session string
	since   int64
}

// entry is an entry with an open slice.
type entry struct {
	*thread
	holds bool
	began int64 // of the slice, a time stamp
}

// end is the end of a hold, from where arrows begin.
type end struct {
	*entry
	at   int64     // a time stamp
	used time.Time // when the next hold began; zero before
}

// processKey identifies a process of a host: a process of the system, whose number may be used again.
type processKey struct {
	host, user, command string
	pid                 int
}

// process is a process of a host. It has as many threads as it has had slices at a time.
type process struct {
	host    int
	name    string
	free    []*thread // threads without an open slice
	threads int
}

// thread is a thread of the trace.
type thread struct {
	*process
	tid  int
	last int64 // time stamp of its last event
}

// maxIdleProcesses is the number of processes that are remembered without being in a line. A process that is
// forgotten and comes back gets a new thread with the same name.
const maxIdleProcesses = 10000

func newRecorder(c Config, now time.Time) *recorder {
	r := &recorder{
		writer: newWriter(c.To, now), config: c,
		lines: make(map[string]*line), hosts: make(map[string]int),
		processes: make(map[processKey]*process), maxIdle: maxIdleProcesses, forgetAt: maxIdleProcesses,
	}
	r.own = r.newThread(&process{host: r.newProcess("stile trace", now), name: "the recording"}, now)
	return r
}

// newProcess announces a process of the trace and returns its number. Processes and threads are numbered
// together, because Perfetto takes a thread with its process's number for the main thread, and finds the
// thread that gets a name by the number alone.
func (r *recorder) newProcess(name string, now time.Time) int {
	r.lastID++
	r.write(event{Phase: "M", TS: r.ts(now), PID: r.lastID, TID: r.lastID, Name: "process_name", Args: &args{Name: name}})
	return r.lastID
}

// newThread announces a thread of the trace.
func (r *recorder) newThread(p *process, now time.Time) *thread {
	r.lastID++
	p.threads++
	r.write(event{Phase: "M", TS: r.ts(now), PID: p.host, TID: r.lastID, Name: "thread_name", Args: &args{Name: p.name}})
	return &thread{process: p, tid: r.lastID}
}

// threadFor returns a thread without an open slice, of the process that an entry belongs to.
func (r *recorder) threadFor(o stile.Owner, now time.Time) *thread {
	key := processKey{o.Host, o.User, o.Command, o.PID}
	p := r.processes[key]
	if p == nil {
		r.forgetProcesses()
		p = &process{host: r.host(o.Host, now), name: r.config.Text(processName(o))}
		r.processes[key] = p
	}
	if n := len(p.free); n > 0 {
		t := p.free[n-1]
		p.free = p.free[:n-1]
		return t
	}
	return r.newThread(p, now)
}

// processName describes the process of an owner within its host.
func processName(o stile.Owner) string {
	o.Host = ""
	if text := o.String(); text != "" {
		return text
	}
	return "unknown"
}

func (r *recorder) host(name string, now time.Time) int {
	number, ok := r.hosts[name]
	if !ok {
		shown := r.config.Text(name)
		if name == "" {
			shown = "unknown host"
		}
		number = r.newProcess(shown, now)
		r.hosts[name] = number
	}
	return number
}

// forgetProcesses makes room for another process.
func (r *recorder) forgetProcesses() {
	if len(r.processes) < r.forgetAt {
		return
	}
	maps.DeleteFunc(r.processes, func(_ processKey, p *process) bool { return len(p.free) == p.threads })
	r.forgetAt = max(r.maxIdle, 2*len(r.processes))
	used := make(map[string]bool)
	for key := range r.processes {
		used[key.host] = true
	}
	maps.DeleteFunc(r.hosts, func(name string, _ int) bool { return !used[name] })
}

// find returns an entry of the line; nil if it is not known.
func (l *line) find(e stile.Entry) *entry {
	id := identify(e)
	if known := l.entries[id]; known != nil || e.Token == 0 {
		return known
	}
	early := identifyEarly(e) // a store may assign tokens late
	known := l.entries[early]
	if known != nil {
		delete(l.entries, early)
		l.entries[id] = known
	}
	return known
}

func identify(e stile.Entry) identity {
	if e.Token != 0 {
		return identity{token: e.Token}
	}
	return identifyEarly(e)
}

func identifyEarly(e stile.Entry) identity {
	return identity{session: e.Session, since: e.Owner.Since.UnixNano()}
}

func (r *recorder) line(name string) *line {
	l := r.lines[name]
	if l == nil {
		l = &line{entries: make(map[identity]*entry)}
		r.lines[name] = l
	}
	return l
}

// waits records that an entry has joined a line. Nothing happens if it is known: the lines that a
// recording begins with may be newer than the updates that follow.
func (r *recorder) waits(name string, e stile.Entry, at time.Time, note string) {
	l := r.line(name)
	if l.find(e) != nil {
		return
	}
	r.events++
	l.entries[identify(e)] = r.begin(r.threadFor(e.Owner, at), false, name, e, at, note)
}

// holds records that an entry has been admitted.
func (r *recorder) holds(name string, e stile.Entry, at time.Time, note string) {
	l := r.line(name)
	known := l.find(e)
	var t *thread
	switch {
	case known == nil:
		t = r.threadFor(e.Owner, at)
	case known.holds:
		return
	default:
		r.end(known, name, at, "acquired", "")
		t = known.thread
	}
	r.events++
	next := r.begin(t, true, name, e, at, note)
	l.entries[identify(e)] = next
	if l.end == nil {
		return
	}
	// An entry that has waited may have waited for the hold that ended last, unless an earlier entry has
	// come after that. Several entries may be admitted at once.
	if known != nil && (l.end.used.IsZero() || l.end.used.Equal(at)) {
		r.arrow(l.end, next)
	}
	if l.end.used.IsZero() {
		l.end.used = at
	}
}

// gone records that an entry has left its line.
func (r *recorder) gone(name string, e stile.Entry, at time.Time, cause string) {
	l := r.line(name)
	if known := l.find(e); known != nil {
		delete(l.entries, identify(e))
		r.leave(l, known, name, at, cause, "")
	}
	if len(l.entries) == 0 {
		delete(r.lines, name)
	}
}

// leave records the end of a wait or a hold of an entry that has been taken out of its line.
func (r *recorder) leave(l *line, e *entry, name string, at time.Time, cause, note string) {
	r.events++
	switch {
	case e.holds && (cause == observe.Lost || cause == observe.Broken):
		r.instant(e.thread, cause+" "+r.config.Name(name), at)
	case !e.holds && cause == observe.Released:
		cause = observe.Left
	}
	r.end(e, name, at, cause, note)
	e.free = append(e.free, e.thread)
	waiter := func(e *entry) bool { return !e.holds }
	if e.holds && slices.ContainsFunc(slices.Collect(maps.Values(l.entries)), waiter) {
		l.end = &end{entry: e, at: e.last}
	}
}

// resync records the differences between the known entries and those of all lines. The note says why it
// is not known when they arose.
func (r *recorder) resync(lines []stile.Line, at time.Time, note string) {
	there := make(map[*entry]bool)
	for _, now := range lines {
		known := r.line(now.Name)
		for _, e := range slices.Concat(now.Holders, now.Waiters) {
			there[known.find(e)] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.lines)) {
		l := r.lines[name]
		for id, e := range l.entries {
			if !there[e] {
				delete(l.entries, id)
				r.leave(l, e, name, at, "", note)
			}
		}
	}
	for _, now := range lines {
		for _, e := range now.Holders {
			r.holds(now.Name, e, at, note)
		}
		for _, e := range now.Waiters {
			r.waits(now.Name, e, at, note)
		}
	}
	maps.DeleteFunc(r.lines, func(_ string, l *line) bool { return len(l.entries) == 0 })
}

// close ends all slices and the trace.
func (r *recorder) close(now time.Time) {
	for _, name := range slices.Sorted(maps.Keys(r.lines)) {
		for _, e := range r.lines[name].entries {
			r.end(e, name, now, "", "it went on after the recording")
		}
	}
	if r.unread {
		r.on(r.own, now, event{Phase: "E", Cat: "store", Name: outageName})
	}
	r.finish()
}

const outageName = "the store cannot be read"

// setOutage records the beginning and the end of an outage of the store, in which changes are not seen.
func (r *recorder) setOutage(s observe.Status) {
	out := s.Err != nil
	if out == r.unread {
		return
	}
	r.unread = out
	e := event{Phase: "E", Cat: "store", Name: outageName}
	if out {
		e.Phase, e.Args = "B", &args{Note: r.config.Text(s.Err.Error())}
	}
	r.on(r.own, s.Since, e)
}

// on writes an event of a thread.
func (r *recorder) on(t *thread, at time.Time, e event) {
	// The lines that a recording begins with may be newer than the updates that follow. The time stamps of a
	// thread must not go back.
	t.last = max(t.last, r.ts(at))
	e.TS, e.PID, e.TID = t.last, t.host, t.tid
	r.write(e)
}

// sliceName returns the category and the name of a slice.
func (r *recorder) sliceName(holds bool, name string) (category, text string) {
	category = observe.Waits
	if holds {
		category = observe.Holds
	}
	return category, category + " " + r.config.Name(name)
}

// minHold is the shortest hold of a trace, in microseconds: it has a moment that is neither its beginning nor
// its end, so an arrow can begin or end there.
const minHold = 2

// begin begins a slice.
func (r *recorder) begin(t *thread, holds bool, name string, e stile.Entry, at time.Time, note string) *entry {
	category, text := r.sliceName(holds, name)
	a := &args{
		Lock: r.config.Name(name), Mode: e.Mode.String(), Session: r.config.Text(e.Session), Host: r.config.Text(e.Owner.Host),
		Owner: r.config.Text(processName(e.Owner)), Reason: r.config.Text(e.Owner.Reason), Value: r.config.Text(e.Owner.Value), Note: note,
	}
	if e.Token != 0 {
		a.Token = strconv.FormatUint(e.Token, 10)
	}
	for key, value := range e.Owner.Labels {
		if a.Labels == nil {
			a.Labels = make(map[string]string)
		}
		a.Labels[r.config.Text(key)] = r.config.Text(value)
	}
	r.on(t, at, event{Phase: "B", Cat: category, Name: text, Args: a})
	begun := &entry{thread: t, holds: holds, began: t.last}
	if holds {
		t.last += minHold
	}
	return begun
}

// end ends a slice.
func (r *recorder) end(e *entry, name string, at time.Time, cause, note string) {
	category, text := r.sliceName(e.holds, name)
	r.on(e.thread, at, event{Phase: "E", Cat: category, Name: text, Args: &args{Cause: cause, Note: note}})
}

// instant marks a moment.
func (r *recorder) instant(t *thread, text string, at time.Time) {
	r.on(t, at, event{Phase: "i", Cat: "marks", Name: text, Scope: "t"})
}

// arrow draws an arrow from the end of a hold to the beginning of the next. Its ends are a microsecond within
// the holds: where two slices of a thread meet, viewers take either of them.
func (r *recorder) arrow(from *end, to *entry) {
	r.flows++
	e := event{ID: r.flows, Cat: "hand-over", Name: "hand-over"}
	e.Phase, e.TS, e.PID, e.TID = "s", from.at-1, from.host, from.tid
	r.write(e)
	e.Phase, e.TS, e.PID, e.TID, e.Bind = "f", to.began+1, to.host, to.tid, "e"
	r.write(e)
}
