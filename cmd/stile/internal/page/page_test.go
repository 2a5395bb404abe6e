package page_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/cmd/stile/internal/page"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

const (
	readToken  = "read-0123456789abcdef"
	breakToken = "break-0123456789abcdef"
	ttl        = 5 * time.Minute // on a busy machine
	patience   = 3 * time.Minute // likewise
)

// world is a store with a page.
type world struct {
	*testing.T
	st    store.Store
	truth *stile.Client // reads the store
	page  *page.Page
	url   string
	token string // sent with every request if it is not empty
	log   logBuffer

	description func() *description // the OpenAPI document
}

// logBuffer collects what is logged.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// start serves the page of a store in memory, on the loopback interface unless configure says otherwise.
func start(t *testing.T, configure func(*page.Config)) *world {
	t.Helper()
	return startOn(t, memstore.New(), configure)
}

func startOn(t *testing.T, st store.Store, configure func(*page.Config)) *world {
	t.Helper()
	w := &world{T: t, st: st}
	cfg := page.Config{
		Address: "127.0.0.1:0", Store: "mem:", Version: "test",
		Logger: slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if configure != nil {
		configure(&cfg)
	}
	client := w.client("observer")
	w.truth = client
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "locks 1\n") })
	p, err := page.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	page.SetLongTimeouts(p)
	p.Serve(page.Source{Client: client, Observer: observe.New(client), Metrics: metrics})
	t.Cleanup(p.Close)
	w.page, w.url = p, p.URL()
	w.description = sync.OnceValue(w.readDescription)
	return w
}

// tokens writes a file of tokens, one of each role, and reads it.
func tokens(t *testing.T) *page.Tokens {
	t.Helper()
	return tokensOf(t, "# for the tests\nread "+readToken+"\n\nbreak "+breakToken+"\n")
}

func tokensOf(t *testing.T, text string) *page.Tokens {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := page.ReadTokens(file)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (w *world) client(command string) *stile.Client {
	w.Helper()
	c, err := stile.New(w.st, &stile.Options{TTL: ttl, Owner: stile.Owner{Command: command}})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func (w *world) lock(c *stile.Client, name string) *stile.Hold {
	w.Helper()
	h, err := c.Mutex(name).Lock(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return h
}

// foreign adds an entry with a name that Stile itself may not accept.
func (w *world) foreign(name string) {
	w.Helper()
	se, err := w.st.Open(w.Context(), store.SessionOptions{TTL: time.Hour})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = se.Close(context.Background()) })
	if _, err := se.Enqueue(w.Context(), store.Request{Name: name, Mode: line.Exclusive, Notify: func(store.Standing) {}}); err != nil {
		w.Fatal(err)
	}
}

// request makes a request with the given method and changes of the header, host and body.
func (w *world) request(method, path string, change ...func(*http.Request)) (status int, header http.Header, body string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, w.url+path, nil)
	if err != nil {
		w.Fatal(err)
	}
	if w.token != "" {
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	for _, f := range change {
		f(r)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.Fatal(err)
	}
	w.checkAnswer(method, path, resp.StatusCode, string(text))
	return resp.StatusCode, resp.Header, string(text)
}

// get gets the answer to GET /api/v1/PATH, which must succeed, into a value.
func (w *world) get(path string, into any) {
	w.Helper()
	status, _, body := w.request(http.MethodGet, "/api/v1/"+path)
	if status != http.StatusOK {
		w.Fatalf("GET %s: got status %d: %s", path, status, body)
	}
	if err := json.Unmarshal([]byte(body), into); err != nil {
		w.Fatalf("GET %s: %v: %s", path, err, body)
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

type linesAnswer struct {
	Lines []page.Line `json:"lines"`
	Next, Update,
	Error string
	Read bool
}

// awaitLines waits until the page shows n lines.
func (w *world) awaitLines(n int) (got linesAnswer) {
	w.Helper()
	defer func() {
		if w.Failed() {
			truth, err := w.truth.Lines(context.WithoutCancel(w.Context()), "")
			w.Logf("the page shows %+v, the store has %+v (%v); log: %s", got, truth, err, &w.log)
		}
	}()
	eventually(w.T, fmt.Sprintf("%d lines", n), func() bool {
		got = linesAnswer{}
		w.get("lines?limit=1000", &got)
		return got.Read && len(got.Lines) == n
	})
	return got
}

// An event is a server-sent event.
type event struct{ name, id, data string }

// events is a reader of events.
type events struct {
	w      *world
	cancel context.CancelFunc
	body   io.ReadCloser
	text   *bufio.Reader
	id     string // of the last event, as a browser keeps it
}

// events connects to the stream of events. lastID is that of the last event before a connection was lost.
func (w *world) events(query, lastID string) *events {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/api/v1/events"+query, nil)
	if err != nil {
		w.Fatal(err)
	}
	if lastID != "" {
		r.Header.Set("Last-Event-ID", lastID)
	}
	if w.token != "" {
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	resp, err := http.DefaultClient.Do(r) //nolint:bodyclose // events.close does it
	if err != nil {
		w.Fatal(err)
	}
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
		w.Fatalf("events: got status %d and type %s", resp.StatusCode, kind)
	}
	e := &events{w: w, cancel: cancel, body: resp.Body, text: bufio.NewReader(resp.Body), id: lastID}
	w.Cleanup(e.close)
	return e
}

func (e *events) close() {
	e.cancel()
	_ = e.body.Close()
}

// next returns the next event.
func (e *events) next() (ev event, err error) {
	timer := time.AfterFunc(patience, e.cancel)
	defer timer.Stop()
	for {
		text, err := e.text.ReadString('\n')
		if err != nil {
			return event{}, err
		}
		field, value, _ := strings.Cut(strings.TrimSuffix(text, "\n"), ": ")
		switch field {
		case "event":
			ev.name = value
		case "id":
			ev.id, e.id = value, value
		case "data":
			ev.data = value
		case "":
			if ev.data != "" {
				e.w.checkEvent(ev)
				return ev, nil
			}
			ev = event{}
		}
	}
}

// await returns the next event with a name.
func (e *events) await(name string) event {
	e.w.Helper()
	for {
		ev, err := e.next()
		if err != nil {
			e.w.Fatalf("wait for the event %s: %v", name, err)
		}
		if ev.name == name {
			return ev
		}
	}
}

func TestPage_servesItsFiles(t *testing.T) {
	t.Parallel()
	w := start(t, func(c *page.Config) { c.Tokens = tokens(t) }) // files need none
	for path, kind := range map[string]string{
		"/": "text/html; charset=utf-8", "/static/app.js": "text/javascript; charset=utf-8", "/static/style.css": "text/css; charset=utf-8",
		"/openapi.json": "application/json",
	} {
		status, header, _ := w.request(http.MethodGet, path)
		if got := header.Get("Content-Type"); status != http.StatusOK || got != kind {
			t.Errorf("%s: got status %d and type %s, want 200 and %s", path, status, got, kind)
		}
	}
	for _, path := range []string{"/static/", "/static", "/static/page.go", "/static/../page.go", "/static/%2e%2e/page.go", "/index.html", "/docs", "/schemas/Line.json", "/openapi.yaml"} {
		w.token = readToken
		if status, _, body := w.request(http.MethodGet, path); status != http.StatusNotFound {
			t.Errorf("%s: got status %d and %s, want 404", path, status, body)
		}
	}
	_, header, _ := w.request(http.MethodGet, "/static/app.js")
	status, _, _ := w.request(http.MethodGet, "/static/app.js", func(r *http.Request) { r.Header.Set("If-None-Match", header.Get("ETag")) })
	if status != http.StatusNotModified {
		t.Errorf("with the ETag: got status %d, want 304", status)
	}
}

func TestPage_showsLines(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.awaitLines(0)
	ann, bob := w.client("ann"), w.client("bob")
	h := w.lock(ann, "a/1")
	place, err := bob.Mutex("a/1").Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = place.Leave(context.Background()) }()
	w.lock(ann, "b")
	eventually(t, "a line with a waiter", func() bool {
		var l page.Line
		w.get("line?name=a%2F1", &l)
		return len(l.Holders) == 1 && l.Holders[0].Owner.Command == "ann" && l.Holders[0].Token == h.Token() &&
			len(l.Waiters) == 1 && l.Waiters[0].Owner.Command == "bob"
	})
	if got := w.awaitLines(2); got.Lines[0].Name != "a/1" || got.Lines[1].Name != "b" || got.Next != "" {
		t.Errorf("lines: got %+v, want a/1 and b", got)
	}
	for query, want := range map[string]string{"prefix=a": "a/1", "prefix=c": "", "contains=1": "a/1", "contains=b": "b", "limit=1": "a/1"} {
		var got linesAnswer
		var names []string
		w.get("lines?"+query, &got)
		for _, l := range got.Lines {
			names = append(names, l.Name)
		}
		if strings.Join(names, " ") != want {
			t.Errorf("lines?%s: got %v, want %s", query, names, want)
		}
	}

	var leases struct {
		Leases []struct {
			Key     string
			Entries []struct {
				Token     string
				Remaining float64 `json:"remaining_seconds"`
			}
		}
	}
	w.get("leases?key=Yg&key=YS8x&key=YS8x", &leases)
	if l := leases.Leases; len(l) != 2 || l[0].Key != "YS8x" || len(l[0].Entries) != 2 || l[0].Entries[0].Token != fmt.Sprint(h.Token()) ||
		l[0].Entries[0].Remaining <= 0 || l[0].Entries[0].Remaining > ttl.Seconds() {
		t.Errorf("leases: got %+v, want both entries of a/1 with the time they have left, and b", leases)
	}

	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	var history struct {
		Events []page.Event
	}
	eventually(t, "the whole history", func() bool {
		w.get("history?key=YS8x", &history)
		return len(history.Events) == 4
	})
	var told []string
	for _, e := range history.Events {
		told = append(told, e.Entry.Owner.Command+" "+e.What+" "+e.Cause)
	}
	if got := strings.Join(told, ", "); got != "ann holds , bob waits , ann ended released, bob holds " {
		t.Errorf("history: got %s", got)
	}
	var server struct{ Stile, Store, Boot string }
	w.get("server", &server)
	if server.Stile != "test" || server.Store != "mem:" || server.Boot == "" {
		t.Errorf("server: got %+v", server)
	}
	if _, _, body := w.request(http.MethodGet, "/metrics"); body != "locks 1\n" {
		t.Errorf("metrics: got %s", body)
	}
}

// Names are hostile input. Each comes back exactly, by its key.
// A client may keep a lock that it has released. The page says that it may, before and after the release.
func TestPage_keptLock(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	c, err := stile.New(w.st, &stile.Options{TTL: ttl, Linger: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	for range 2 {
		h := w.lock(c, "a")
		for _, do := range []func(context.Context) error{func(context.Context) error { return nil }, h.Release} {
			if err := do(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := w.awaitLines(1); !got.Lines[0].Holders[0].Owner.Lingers {
				t.Errorf("got the line %+v, want one that may be kept", got.Lines[0])
			}
		}
	}
}

func TestPage_hostileNames(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	names := []string{
		strings.Repeat("x", 512), "\u202eגנב\u202c", `<img src=x onerror=alert(1)>`, "\xff\xfe/not UTF-8", "a\xff", "a\ufffd", "line\nbreak", `"quoted"`, "\x00", "%2e%2e", "a&b=c#d?e",
	}
	for _, name := range names {
		w.foreign(name)
	}
	got := w.awaitLines(len(names))
	keys := map[string]page.Line{}
	for _, l := range got.Lines {
		keys[l.Key] = l
	}
	for _, name := range names {
		key := base64Of(name)
		l, ok := keys[key]
		if !ok {
			t.Errorf("%q is not in the lines", name)
			continue
		}
		if unquoted := unquote(l.Argument, l.Name); unquoted != name {
			t.Errorf("%q: got the argument %s, which means %q", name, l.Argument, unquoted)
		}
		for _, path := range []string{"line?key=" + key, "line?name=" + escape(name), "history?key=" + key, "lines?prefix=" + escape(name)} {
			var one struct {
				Key   string
				Lines []page.Line
			}
			w.get(path, &one)
			if one.Key != key && (len(one.Lines) != 1 || one.Lines[0].Key != key) {
				t.Errorf("%s: got %+v, want the key %s", path, one, key)
			}
		}
	}
	_, header, body := w.request(http.MethodGet, "/api/v1/lines")
	if strings.Contains(body, "<img") || header.Get("Content-Type") != "application/json" || header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("a browser could take the answer for HTML: %v %s", header, body)
	}
}

// Paging while lines come and go neither repeats nor misses a line that was there all the time.
func TestPage_pagingWhileLinesComeAndGo(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	const n = 200
	for i := range n {
		w.foreign(fmt.Sprintf("stays/%03d", i))
		if i%10 == 0 {
			w.foreign(fmt.Sprintf("stays/%03d\xff", i)) // no UTF-8
		}
	}
	const stays = n + n/10
	w.awaitLines(stays)
	ctx, cancel := context.WithCancel(t.Context())
	var churn sync.WaitGroup
	for i := range 4 {
		c := w.client("churn")
		churn.Go(func() {
			for j := 0; ctx.Err() == nil; j++ {
				h, err := c.Mutex(fmt.Sprintf("stays/%03d-%d", j*37%n, i)).Lock(ctx)
				if err != nil {
					return
				}
				time.Sleep(time.Duration(200+j%50) * time.Millisecond) // so that a reading sees it
				_ = h.Release(context.WithoutCancel(ctx))
			}
		})
	}
	defer churn.Wait()
	defer cancel()
	passing := 0
	for round := 0; round < 10 || passing < 20 && !t.Failed(); round++ {
		seen := map[string]int{}
		for after, more := "", true; more; more = after != "" {
			var got linesAnswer
			w.get(fmt.Sprintf("lines?prefix=stays&limit=%d&after=%s", 1+round%10*3, after), &got)
			for _, l := range got.Lines {
				if seen[l.Key]++; seen[l.Key] > 1 {
					t.Fatalf("round %d: %s was listed again", round, l.Argument)
				}
			}
			after = got.Next
		}
		stayed := 0
		for key := range seen {
			if name := decode(key); strings.Contains(name, "-") {
				passing++
			} else {
				stayed++
			}
		}
		if stayed != stays {
			t.Errorf("round %d: got %d of the lines that stayed, want %d", round, stayed, stays)
		}
	}
}

// crowded is a store with a few lines that have many waiters.
type crowded struct{ store.Store }

// Capabilities hides that the store reports changes itself, because Lines returns more than it has.
func (s crowded) Capabilities() store.Capabilities {
	caps := s.Store.Capabilities()
	caps.Follow = nil
	return caps
}

func (crowded) Lines(context.Context, string) iter.Seq2[store.Line, error] {
	return func(yield func(store.Line, error) bool) {
		for _, name := range []string{"0", "1", "2"} {
			l := store.Line{Name: name}
			for i := range 3000 {
				l.Entries = append(l.Entries, store.Entry{Order: uint64(i + 1), Admitted: i == 0, Session: "s"})
			}
			if !yield(l, nil) {
				return
			}
		}
		yield(store.Line{
			Name: "9", Entries: []store.Entry{{Admitted: true, Foreign: true, Session: "s"}}, Remarks: []string{"what is wrong"},
		}, nil)
	}
}

// An answer is not larger because lines have many waiters.
func TestPage_manyWaiters(t *testing.T) {
	t.Parallel()
	w := startOn(t, crowded{memstore.New()}, nil)
	eventually(t, "all lines", func() bool { return w.linesAfter("").Read })
	var names []string
	for after, more := "", true; more; more = after != "" {
		got := w.linesAfter(after)
		for _, l := range got.Lines {
			names = append(names, l.Name)
		}
		if len(got.Lines) > 2 {
			t.Errorf("got %d lines in one answer", len(got.Lines))
		}
		after = got.Next
	}
	if got := strings.Join(names, ""); got != "0129" {
		t.Errorf("got the lines %s, want 0129", got)
	}
}

// linesAfter returns the lines after a key.
func (w *world) linesAfter(after string) (got linesAnswer) {
	w.Helper()
	w.get("lines?limit=1000&after="+after, &got)
	return got
}

func TestPage_waitsAndCycles(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	ann, bob := w.client("ann"), w.client("bob")
	a, b := w.lock(ann, "a"), w.lock(bob, "b")
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for name, c := range map[string]*stile.Client{"b": ann, "a": bob} {
		outer := map[string]*stile.Hold{"b": a, "a": b}[name]
		waiting.Go(func() {
			nested, cancelNested := context.WithCancel(outer.Context())
			defer cancelNested()
			defer context.AfterFunc(ctx, cancelNested)()
			if _, err := c.Mutex(name).Lock(nested); err == nil {
				t.Errorf("lock %s was obtained", name)
			}
		})
	}
	defer waiting.Wait()
	defer cancel()
	var got struct {
		Waits []struct {
			Waiter   stile.Entry
			WaitsFor string `json:"waits_for"`
			Holds    []string
		}
		Cycles [][]string
	}
	eventually(t, "a cycle", func() bool {
		w.get("waits", &got)
		return len(got.Cycles) == 1
	})
	if fmt.Sprint(got.Cycles) != "[[a b]]" || len(got.Waits) != 2 || got.Waits[0].Waiter.Owner.Command != "ann" ||
		got.Waits[0].WaitsFor != "b" || fmt.Sprint(got.Waits[0].Holds) != "[a]" {
		t.Errorf("waits: got %+v, want that ann, who holds a, waits for b, and a cycle", got)
	}
}

func TestPage_blame(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	ann, bob := w.client("ann"), w.client("bob")
	w.awaitLines(0)
	w.lock(ann, "a")
	place, err := bob.Mutex("a").Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = place.Leave(context.Background()) }()
	var got struct {
		Blame []struct {
			Holder         stile.Owner
			Name, Key      string
			Waited         float64 `json:"waited_seconds"`
			Waiters, Holds int
		}
	}
	eventually(t, "ann is blamed", func() bool {
		w.get("blame?prefix=a", &got)
		return len(got.Blame) == 1
	})
	if b := got.Blame[0]; b.Holder.Command != "ann" || b.Key != "YQ" || b.Waited <= 0 || b.Waiters != 1 || b.Holds != 1 {
		t.Errorf("blame: got %+v, want one hold of ann and one waiter", b)
	}
	w.get("blame?prefix=b", &got)
	if len(got.Blame) != 0 {
		t.Errorf("blame of other locks: got %+v, want none", got)
	}
}

// refusing is a store that refuses to be followed as long as that is set.
type refusing struct {
	store.Store
	mu  sync.Mutex
	err error
}

func (s *refusing) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *refusing) Capabilities() store.Capabilities {
	caps := s.Store.Capabilities()
	follow := caps.Follow
	caps.Follow = func(ctx context.Context, prefix string, changed func(store.Changes)) error {
		s.mu.Lock()
		err := s.err
		s.mu.Unlock()
		if err != nil {
			return err
		}
		return follow(ctx, prefix, changed)
	}
	return caps
}

// If the store refuses to be watched, the answers say so, and the page tries again.
func TestPage_storeRefuses(t *testing.T) {
	t.Parallel()
	st := &refusing{Store: memstore.New(), err: errors.New("permission denied")}
	w := startOn(t, st, nil)
	stream := w.events("", "")
	for {
		if ev := stream.await("status"); strings.Contains(ev.data, "permission denied") {
			break
		}
	}
	var got linesAnswer
	w.get("lines", &got)
	if !strings.Contains(got.Error, "permission denied") || strings.Contains(got.Error, "stile:") {
		t.Errorf("lines: got the error %q, want it without a prefix", got.Error)
	}
	st.set(nil)
	for {
		if ev := stream.await("status"); strings.Contains(ev.data, `"error":""`) {
			break
		}
	}
	w.lock(w.client("ann"), "a")
	w.awaitLines(1)
	// The log has one line for the beginning of the outage and one for its end, however often it was tried.
	eventually(t, "the end of the outage is in the log", func() bool { return strings.Contains(w.log.String(), "store can be read again") })
	if log := w.log.String(); strings.Count(log, "store cannot be read") != 1 || strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "permission denied") {
		t.Errorf("the log does not have the outage once: %s", log)
	}
}

// An outage of the store is in the log too, with the error, although the watch itself goes on.
func TestPage_logsOutages(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	w := startOn(t, st, nil)
	w.lock(w.client("ann"), "a")
	w.awaitLines(1)
	st.SetFaults(func(c memstore.Call) memstore.Fault {
		if c.Op == memstore.Read {
			return memstore.Fault{Err: errors.New("no answer")}
		}
		return memstore.Fault{}
	})
	w.lock(w.client("bob"), "b") // the observer reads the lease of a session that it has not seen
	eventually(t, "the outage is in the log", func() bool {
		return strings.Contains(w.log.String(), `level=WARN msg="store cannot be read" err=`)
	})
	st.SetFaults(nil)
	eventually(t, "the end of the outage is in the log", func() bool {
		return strings.Contains(w.log.String(), `level=INFO msg="store can be read again" after=`)
	})
}
