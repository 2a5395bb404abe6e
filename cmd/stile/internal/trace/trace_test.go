package trace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/store/memstore"
)

const ttl = 15 * time.Second

// file is what a recording writes to.
type file struct {
	mu     sync.Mutex
	text   []byte
	writes []int // lengths after each write
}

func (f *file) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.text = append(f.text, b...)
	f.writes = append(f.writes, len(f.text))
	return len(b), nil
}

func (f *file) bytes() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return bytes.Clone(f.text)
}

// world is a store that is being recorded, and a fake clock.
type world struct {
	t     *testing.T
	st    *memstore.Store
	file  file
	began time.Time
	stop  func() trace // ends the recording and returns what it has written
}

// recorded calls run with a store and a recorder that is started by start.
func recorded(t *testing.T, run func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { run(t, &world{t: t, st: memstore.New(), began: time.Now()}) })
}

func (w *world) client(owner stile.Owner) *stile.Client {
	w.t.Helper()
	c, err := stile.New(w.st, &stile.Options{TTL: ttl, Owner: owner, Turns: 1})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func on(host string, pid int) stile.Owner { return stile.Owner{Host: host, PID: pid, Command: "job"} }

func (w *world) start() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	o := observe.New(w.client(stile.Owner{}))
	watching, stopWatching := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = o.Run(watching) })
	quote := func(s string) string { return strings.Trim(fmt.Sprintf("%+q", s), `"`) }
	running.Go(func() {
		if _, err := Record(ctx, o, Config{To: &w.file, Name: quote, Text: quote, Progress: func(int) {}}); err != nil {
			w.t.Errorf("Record: %v", err)
		}
		stopWatching()
	})
	end := sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	w.t.Cleanup(end)
	w.stop = func() trace {
		w.t.Helper()
		end()
		return check(w.t, w.file.bytes(), w.began, time.Now(), true)
	}
	synctest.Wait()
}

func (w *world) lock(c *stile.Client, name string) *stile.Hold {
	w.t.Helper()
	h, err := c.Mutex(name).Lock(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return h
}

func (w *world) release(h *stile.Hold) {
	w.t.Helper()
	if err := h.Release(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// trace is a trace that was read as a viewer reads it.
type trace struct {
	t      *testing.T
	slices []slice
	marks  []string
	arrows []string // from and to
}

// slice is a slice of a thread. It is open if end is zero.
type slice struct {
	host, thread string
	tid          int
	Name         string
	begin, end   int64
	args         args
}

// check reads a trace and checks it against the rules of the format, and those of the viewers. A trace that is
// not complete may end anywhere after an event.
func check(t *testing.T, text []byte, from, to time.Time, complete bool) trace {
	t.Helper()
	if !complete {
		text = append(bytes.Clone(text), ']')
	}
	for line := range strings.Lines(strings.TrimRight(string(text), "]\n")) {
		// Perfetto's tokenizer looks for these before it decodes an event.
		if !strings.HasPrefix(strings.TrimLeft(line, ","), `{"ph":"`) && line != "[\n" || strings.Index(line, `"ts":`) > len(`,{"ph":"B",`) {
			t.Errorf("ph and ts are not first: %s", line)
		}
	}
	if strings.ContainsFunc(string(text), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
		t.Errorf("the trace has characters that are not printable: %q", text)
	}
	var events []event
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&events); err != nil {
		t.Fatalf("the trace is not an array of events: %v\n%s", err, text)
	}
	c := checker{trace: trace{t: t}, processes: map[int]string{}, threads: map[int]event{}, open: map[int]int{}, starts: map[int]event{}}
	for _, e := range events { // metadata belongs to no time
		c.metadata(e)
	}
	slices.SortStableFunc(events, func(a, b event) int { return int(a.TS - b.TS) })
	for _, e := range events {
		if at := time.UnixMicro(e.TS); at.Before(from.Add(-time.Second)) || at.After(to.Add(time.Second)) {
			t.Errorf("%+v: the time is not in microseconds since 1970", e)
		}
		if c.threads[e.TID].PID != e.PID && e.Phase != "M" {
			t.Errorf("%+v: the thread is not of this process", e)
		}
		c.event(e)
	}
	if complete && len(c.open) > 0 {
		t.Errorf("%d slices have no end", len(c.open))
	}
	if len(c.starts) > 0 {
		t.Errorf("arrows lead nowhere: %v", c.starts)
	}
	for _, e := range events {
		if e.Phase == "s" || e.Phase == "f" {
			c.bind(e)
		}
	}
	return c.trace
}

type checker struct {
	trace
	processes map[int]string // names by number
	threads   map[int]event
	open      map[int]int // index of the open slice, by thread
	starts    map[int]event
}

func (c *checker) metadata(e event) {
	if e.Phase != "M" {
		return
	}
	if e.Args == nil || e.Args.Name == "" {
		c.t.Fatalf("%+v names nothing", e)
	}
	switch e.Name {
	case "process_name":
		c.processes[e.PID] = e.Args.Name
	case "thread_name":
		if _, twice := c.threads[e.TID]; twice {
			c.t.Errorf("%+v: there is a thread with this number; Perfetto gives the name to any of them", e)
		}
		c.threads[e.TID] = e
	default:
		c.t.Errorf("%+v: the format has no such metadata", e)
	}
	if _, both := c.processes[e.TID]; both && e.Name == "thread_name" || c.processes[e.PID] == "" {
		c.t.Errorf("%+v: the number is not of one process or of one thread", e)
	}
}

func (c *checker) event(e event) {
	open, isOpen := c.open[e.TID]
	switch e.Phase {
	case "M":
	case "B":
		if isOpen {
			c.t.Errorf("%+v begins in %+v", e, c.slices[open])
		}
		c.open[e.TID] = len(c.slices)
		c.slices = append(c.slices, slice{
			host: c.processes[e.PID], thread: c.threads[e.TID].Args.Name, tid: e.TID, Name: e.Name, begin: e.TS, args: *e.Args,
		})
	case "E":
		if !isOpen || c.slices[open].Name != e.Name {
			c.t.Errorf("%+v ends no slice", e)
			return
		}
		delete(c.open, e.TID)
		s := &c.slices[open]
		if s.end = e.TS; e.Args != nil {
			s.args.Cause = e.Args.Cause
			s.args.Note = strings.TrimPrefix(s.args.Note+"; "+e.Args.Note, "; ")
		}
	case "i":
		if e.Scope != "t" {
			c.t.Errorf("%+v has no scope", e)
		}
		c.marks = append(c.marks, e.Name)
	case "s":
		if !isOpen {
			c.t.Errorf("%+v begins in no slice", e)
			return
		}
		c.starts[e.ID] = e
	case "f":
		from, ok := c.starts[e.ID]
		delete(c.starts, e.ID)
		if !ok || from.Cat != e.Cat || from.Name != e.Name || e.Bind != "e" || !isOpen {
			c.t.Errorf("%+v does not end the arrow %+v in a slice", e, from)
			return
		}
		c.arrows = append(c.arrows, c.threads[from.TID].Args.Name+" -> "+c.slices[open].thread)
	default:
		c.t.Errorf("%+v: the phase is not known", e)
	}
}

// bind decides which slice an end of an arrow is bound to. For Perfetto it is the slice that is open at the
// event; for Catapult any slice of the thread that the event is in or at the edge of.
func (c *checker) bind(e event) {
	var bound []string
	for _, s := range c.slices {
		if s.tid == e.TID && s.begin <= e.TS && (e.TS <= s.end || s.end == 0) {
			bound = append(bound, s.Name)
		}
	}
	if len(bound) != 1 || !strings.HasPrefix(bound[0], "holds ") {
		c.t.Errorf("%+v is bound to one of the slices %q, want a hold", e, bound)
	}
}

// want checks the slices, in the order of their beginnings: "HOST THREAD NAME FROM-TO", in seconds since
// the beginning, and what is known of the end.
func (tr trace) want(began time.Time, want ...string) {
	tr.t.Helper()
	var got []string
	seconds := func(ts int64) float64 { return time.UnixMicro(ts).Sub(began).Round(time.Second).Seconds() }
	for _, s := range tr.slices {
		text := fmt.Sprintf("%s %s %s %v-%v", s.host, s.thread, s.Name, seconds(s.begin), seconds(s.end))
		if s.args.Cause != "" {
			text += " (" + s.args.Cause + ")"
		}
		if note := strings.Trim(s.args.Note, "; "); note != "" {
			text += ": " + note
		}
		got = append(got, text)
	}
	slices.Sort(got)
	slices.Sort(want)
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		tr.t.Errorf("got the slices\n%s\nwant\n%s", g, w)
	}
}

func TestRecord_waitsHoldsAndHandOvers(t *testing.T) {
	recorded(t, func(t *testing.T, w *world) {
		w.start()
		ann, bob := w.client(on("web-1", 11)), w.client(on("web-2", 22))
		time.Sleep(time.Second)
		h := w.lock(ann, "deploy")
		time.Sleep(2 * time.Second)
		got := make(chan *stile.Hold)
		go func() { got <- w.lock(bob, "deploy") }()
		time.Sleep(3 * time.Second)
		w.release(h)
		h = <-got
		time.Sleep(4 * time.Second)
		w.release(h)
		time.Sleep(time.Second)
		tr := w.stop()
		tr.want(
			w.began, "web-1 pid 11 (job) holds deploy 1-6 (released)",
			"web-2 pid 22 (job) waits deploy 3-6 (acquired)", "web-2 pid 22 (job) holds deploy 6-10 (released)",
		)
		if got, want := fmt.Sprint(tr.arrows), "[pid 11 (job) -> pid 22 (job)]"; got != want {
			t.Errorf("got the arrows %s, want %s", got, want)
		}
		if len(tr.marks) > 0 {
			t.Errorf("got the marks %v, want none: nothing was lost", tr.marks)
		}
		args := tr.slices[0].args
		if args.Lock != "deploy" || args.Token == "" || args.Mode != "exclusive" || args.Host != "web-1" || args.Owner != "pid 11 (job)" || args.Session == "" {
			t.Errorf("got the args %+v", args)
		}
	})
}

// A process may hold and wait for many locks at once. Slices that overlap need threads of their own.
func TestRecord_overlappingSlices(t *testing.T) {
	recorded(t, func(t *testing.T, w *world) {
		w.start()
		ann := w.client(on("web-1", 11))
		a := w.lock(ann, "a")
		time.Sleep(time.Second)
		b := w.lock(ann, "b")
		time.Sleep(time.Second)
		w.release(a)
		time.Sleep(time.Second)
		c := w.lock(ann, "c") // on the thread of a
		time.Sleep(time.Second)
		w.release(b)
		w.release(c)
		time.Sleep(time.Second)
		tr := w.stop()
		tr.want(
			w.began, "web-1 pid 11 (job) holds a 0-2 (released)", "web-1 pid 11 (job) holds b 1-4 (released)",
			"web-1 pid 11 (job) holds c 3-4 (released)",
		)
		if n := bytes.Count(w.file.bytes(), []byte("thread_name")); n != 3 {
			t.Errorf("got %d threads, want 3: two of the process, and the recording's", n)
		}
	})
}

// Changes of several lines that are read at the same time arrive sorted by line. Here the hold that began last
// ended first, and has to get a thread of its own.
func TestRecord_ordersEventsByTime(t *testing.T) {
	now := time.Now()
	var f file
	r := newRecorder(Config{To: &f, Name: strings.Clone, Text: strings.Clone}, now)
	at := func(seconds int, what string, token uint64) observe.Event {
		e := stile.Entry{Token: token, Owner: on("web-1", 11)}
		return observe.Event{Time: now.Add(time.Duration(seconds) * time.Second), Step: observe.Step{What: what, Entry: e}}
	}
	r.apply([]observe.Update{
		{Line: stile.Line{Name: "a"}, Events: []observe.Event{at(1, observe.Holds, 1), at(4, observe.Ended, 1)}},
		{Line: stile.Line{Name: "b"}, Events: []observe.Event{at(2, observe.Holds, 2), at(3, observe.Ended, 2)}},
	})
	r.close(now.Add(6 * time.Second))
	if err := r.flush(); err != nil {
		t.Fatal(err)
	}
	check(t, f.text, now, now.Add(time.Minute), true).want(now, "web-1 pid 11 (job) holds a 1-4", "web-1 pid 11 (job) holds b 2-3")
}

func TestRecord_marksLosses(t *testing.T) {
	recorded(t, func(t *testing.T, w *world) {
		w.start()
		dying := w.client(on("web-1", 11))
		w.lock(dying, "deploy")
		session := w.session("deploy")
		time.Sleep(time.Second)
		w.st.SetFaults(func(c memstore.Call) memstore.Fault { return memstore.Fault{Drop: c.Session == session} })
		time.Sleep(2 * ttl)
		w.st.SetFaults(nil)
		tr := w.stop()
		if fmt.Sprint(tr.marks) != "[lost deploy]" || len(tr.slices) != 1 || tr.slices[0].args.Cause != "lost" {
			t.Errorf("got the marks %v and slices %+v, want the loss of deploy", tr.marks, tr.slices)
		}
	})
}

func (w *world) session(name string) string {
	w.t.Helper()
	l, err := w.client(stile.Owner{}).Line(w.t.Context(), name)
	if err != nil || len(l.Holders) != 1 {
		w.t.Fatalf("got %+v, %v, want one holder", l, err)
	}
	return l.Holders[0].Session
}

func TestRecord_beforeAndAfter(t *testing.T) {
	recorded(t, func(t *testing.T, w *world) {
		ann, bob := w.client(on("web-1", 11)), w.client(on("web-2", 22))
		h := w.lock(ann, "deploy")
		got := make(chan *stile.Hold)
		go func() { got <- w.lock(bob, "deploy") }()
		time.Sleep(time.Second)
		w.start()
		time.Sleep(time.Second)
		w.release(h)
		h = <-got
		time.Sleep(time.Second)
		w.stop().want(
			w.began, "web-1 pid 11 (job) holds deploy 1-2 (released): it began before the recording",
			"web-2 pid 22 (job) waits deploy 1-2 (acquired): it began before the recording",
			"web-2 pid 22 (job) holds deploy 2-3: it went on after the recording",
		)
		w.release(h)
	})
}

func TestRecord_outage(t *testing.T) {
	recorded(t, func(t *testing.T, w *world) {
		w.start()
		ann := w.client(on("web-1", 11))
		h := w.lock(ann, "deploy")
		time.Sleep(time.Second)
		w.st.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Read {
				return memstore.Fault{Err: errors.New("no answer")}
			}
			return memstore.Fault{}
		})
		time.Sleep(20 * time.Second)
		w.st.SetFaults(nil)
		time.Sleep(20 * time.Second)
		w.release(h)
		time.Sleep(time.Second)
		tr := w.stop()
		var outages []slice
		for _, s := range tr.slices {
			if s.Name == "the store cannot be read" {
				outages = append(outages, s)
			}
		}
		if len(outages) != 1 || !strings.Contains(outages[0].args.Note, "no answer") || time.Duration(outages[0].end-outages[0].begin)*time.Microsecond < time.Second {
			t.Errorf("got %+v, want one outage and its error", tr.slices)
		}
	})
}

// If the recording has fallen so far behind that updates are forgotten, it goes on with what is there.
func TestRecord_afterMissedUpdates(t *testing.T) {
	now := time.Now()
	var f file
	r := newRecorder(Config{To: &f, Name: strings.Clone, Text: strings.Clone}, now)
	a, b, c := stile.Entry{Token: 1, Owner: on("h", 1)}, stile.Entry{Token: 2, Owner: on("h", 2)}, stile.Entry{Token: 3, Owner: on("h", 3)}
	r.resync([]stile.Line{{Name: "x", Holders: []stile.Entry{a}, Waiters: []stile.Entry{b}}}, now, "before")
	r.resync([]stile.Line{{Name: "x", Holders: []stile.Entry{b}, Waiters: []stile.Entry{c}}}, now.Add(time.Second), "missed")
	r.resync(nil, now.Add(2*time.Second), "missed")
	if len(r.lines) != 0 {
		t.Errorf("%d lines are remembered, want none", len(r.lines))
	}
	r.close(now.Add(3 * time.Second))
	if err := r.flush(); err != nil {
		t.Fatal(err)
	}
	check(t, f.text, now, now.Add(time.Minute), true).want(
		now, "h pid 1 (job) holds x 0-1: before; missed", "h pid 2 (job) waits x 0-1 (acquired): before",
		"h pid 2 (job) holds x 1-2: missed; missed", "h pid 3 (job) waits x 1-2: missed; missed",
	)
}

// A store may assign tokens late, and an update may say again what is known.
func TestRecord_knowsEntriesAgain(t *testing.T) {
	now := time.Now()
	var f file
	r := newRecorder(Config{To: &f, Name: strings.Clone, Text: strings.Clone}, now)
	early := stile.Entry{Session: "s", Owner: stile.Owner{Host: "h", PID: 1, Command: "job", Since: now}}
	late := early
	late.Token = 7
	r.waits("x", early, now, "")
	r.waits("x", early, now, "")
	r.holds("x", late, now.Add(time.Second), "")
	r.waits("x", late, now.Add(time.Second), "")
	late.Session = "other"
	r.holds("x", late, now.Add(2*time.Second), "")
	r.gone("x", late, now.Add(3*time.Second), observe.Released)
	r.gone("x", late, now.Add(3*time.Second), observe.Released)
	r.close(now.Add(4 * time.Second))
	if err := r.flush(); err != nil {
		t.Fatal(err)
	}
	check(t, f.text, now, now.Add(time.Minute), true).want(now, "h pid 1 (job) waits x 0-1 (acquired)", "h pid 1 (job) holds x 1-3 (released)")
}

// A slot that is free for long, or that nobody has waited for, is not handed over.
func TestRecord_arrowsOfSlots(t *testing.T) {
	now := time.Now()
	var f file
	r := newRecorder(Config{To: &f, Name: strings.Clone, Text: strings.Clone}, now)
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	e := func(pid int) stile.Entry { return stile.Entry{Token: uint64(pid), Owner: on("h", pid)} }
	r.holds("x", e(1), at(0), "")
	r.holds("x", e(2), at(0), "")
	r.gone("x", e(1), at(1), observe.Released) // nobody waits
	r.waits("x", e(3), at(2), "")
	r.holds("x", e(3), at(3), "") // a limit was raised
	r.waits("x", e(4), at(4), "")
	r.waits("x", e(5), at(4), "")
	r.gone("x", e(2), at(5), observe.Released)
	r.holds("x", e(4), at(5), "") // from 2
	r.holds("x", e(5), at(5), "") // from 2: a writer's end admits several readers
	r.waits("x", e(6), at(6), "")
	r.holds("x", e(6), at(7), "") // a limit was raised
	r.close(at(8))
	if err := r.flush(); err != nil {
		t.Fatal(err)
	}
	tr := check(t, f.text, now, at(60), true)
	if got, want := fmt.Sprint(tr.arrows), "[pid 2 (job) -> pid 4 (job) pid 2 (job) -> pid 5 (job)]"; got != want {
		t.Errorf("got the arrows %s, want %s", got, want)
	}
}

// Changes that were read at once have one time. An arrow between them still leads from a hold to a hold.
func TestRecord_arrowsOfShortHolds(t *testing.T) {
	now := time.Now()
	var f file
	r := newRecorder(Config{To: &f, Name: strings.Clone, Text: strings.Clone}, now)
	e := func(token uint64, pid int) stile.Entry { return stile.Entry{Token: token, Owner: on("h", pid)} }
	r.holds("x", e(1, 1), now, "")
	r.waits("x", e(2, 2), now, "")
	r.waits("x", e(3, 1), now, "")
	r.gone("x", e(1, 1), now, observe.Released)
	r.holds("x", e(2, 2), now, "")
	r.gone("x", e(2, 2), now, observe.Released)
	r.holds("x", e(3, 1), now, "")
	r.close(now)
	if err := r.flush(); err != nil {
		t.Fatal(err)
	}
	tr := check(t, f.text, now, now, true)
	if got, want := fmt.Sprint(tr.arrows), "[pid 1 (job) -> pid 2 (job) pid 2 (job) -> pid 1 (job)]"; got != want {
		t.Errorf("got the arrows %s, want %s", got, want)
	}
}

// A file can be read whenever its writer is killed.
func TestRecord_cutOff(t *testing.T) {
	recorded(t, func(t *testing.T, w *world) {
		w.start()
		ann, bob := w.client(on("web-1", 11)), w.client(on("web-2", 22))
		for range 3 {
			a := w.lock(ann, "deploy")
			got := make(chan *stile.Hold)
			go func() { got <- w.lock(bob, "deploy") }()
			time.Sleep(time.Second)
			w.release(a)
			time.Sleep(time.Second)
			w.release(<-got)
			time.Sleep(time.Second)
		}
		w.stop()
		if len(w.file.writes) < 10 {
			t.Errorf("got %d writes, want one for each change", len(w.file.writes))
		}
		for _, n := range w.file.writes[:len(w.file.writes)-1] {
			check(t, w.file.text[:n], w.began, time.Now(), false)
		}
	})
}

func TestRecord_hostileTexts(t *testing.T) {
	recorded(t, func(t *testing.T, w *world) {
		w.start()
		evil := "\x1b]0;x\a\",\"ph\":\"B\u202e<img onerror=x>"
		c := w.client(stile.Owner{Host: evil, User: evil, Command: evil, Reason: evil, Labels: map[string]string{evil: evil}})
		h := w.lock(c, `a"b\`)
		time.Sleep(time.Second)
		w.release(h)
		time.Sleep(time.Second)
		if tr := w.stop(); len(tr.slices) != 1 || len(tr.slices[0].args.Labels) != 1 {
			t.Errorf("got %+v, want one slice with a label", tr.slices)
		}
	})
}

// A recording may run for weeks beside jobs that are new processes each minute, each on a new host.
func TestRecord_boundedMemory(t *testing.T) {
	now := time.Now()
	var f file
	r := newRecorder(Config{To: &f, Name: strings.Clone, Text: strings.Clone}, now)
	const most = 100
	r.maxIdle, r.forgetAt = most, most
	long := stile.Entry{Token: 1, Owner: on("stays", 1)}
	r.holds("stays", long, now, "")
	for i := range 10 * most {
		e := stile.Entry{Token: uint64(i + 2), Owner: on(fmt.Sprint("pod-", i), 1)}
		name := fmt.Sprint("job-", i)
		r.waits(name, e, now, "")
		r.holds(name, e, now, "")
		r.gone(name, e, now, observe.Released)
	}
	if len(r.processes) > most || len(r.hosts) > most || len(r.lines) != 1 {
		t.Errorf("%d processes, %d hosts and %d lines are remembered, want at most %d, and 1 line",
			len(r.processes), len(r.hosts), len(r.lines), most)
	}
	r.gone("stays", long, now, observe.Released)
	r.close(now)
	if err := r.flush(); err != nil {
		t.Fatal(err)
	}
	check(t, f.text, now, now, true)
}

// A slow store does not make the recording shorter.
func TestRecord_forATime(t *testing.T) {
	recorded(t, func(t *testing.T, w *world) {
		w.lock(w.client(on("a", 1)), "x")
		w.st.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Watch {
				return memstore.Fault{Delay: 5 * time.Second}
			}
			return memstore.Fault{}
		})
		ctx, cancel := context.WithCancel(t.Context())
		o := observe.New(w.client(stile.Owner{}))
		done := make(chan error)
		go func() { done <- o.Run(ctx) }()
		events, err := Record(ctx, o, Config{To: &w.file, For: 2 * time.Second, Name: strings.Clone, Text: strings.Clone, Progress: func(int) {}})
		if took := time.Since(w.began); events != 1 || err != nil || took != 7*time.Second {
			t.Errorf("got %d events and %v after %v, want 1 event after 7s", events, err, took)
		}
		check(t, w.file.bytes(), w.began, time.Now(), true)
		w.st.SetFaults(nil)
		cancel()
		<-done
	})
}

func TestRecord_storeThatCannotBeRead(t *testing.T) {
	recorded(t, func(t *testing.T, w *world) {
		broken := errors.New("no answer")
		w.st.SetFaults(func(memstore.Call) memstore.Fault { return memstore.Fault{Err: broken} })
		ctx, cancel := context.WithCancel(t.Context())
		o := observe.New(w.client(stile.Owner{}))
		done := make(chan error)
		go func() { done <- o.Run(ctx) }()
		if _, err := Record(ctx, o, Config{To: &w.file}); !errors.Is(err, broken) {
			t.Errorf("got %v, want the error of the store", err)
		}
		cancel()
		<-done
		if text := w.file.bytes(); len(text) > 0 {
			t.Errorf("wrote %q, want nothing", text)
		}
	})
}

// failing is a disk that is full.
type failing struct{}

var errFull = errors.New("disk full")

func (failing) Write([]byte) (int, error) { return 0, errFull }

func TestRecord_diskFull(t *testing.T) {
	recorded(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		o := observe.New(w.client(stile.Owner{}))
		done := make(chan error)
		go func() { done <- o.Run(ctx) }()
		if _, err := Record(ctx, o, Config{To: failing{}, Name: strings.Clone, Text: strings.Clone}); !errors.Is(err, errFull) {
			t.Errorf("got %v, want the error of the disk", err)
		}
		cancel()
		<-done
	})
}
