package page

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// slowWriter is the connection of a client that does not read until goOn is closed.
type slowWriter struct {
	http.ResponseWriter
	writes, goOn chan struct{}
}

func (w slowWriter) Write(b []byte) (int, error) {
	w.writes <- struct{}{}
	<-w.goOn
	return w.ResponseWriter.Write(b)
}

// Clients that do not read can keep only so much in memory. Beyond that, answers are refused until some of the others
// have been taken or given up. No place to make an answer is taken meanwhile.
func TestAnswers_slowReaders(t *testing.T) {
	t.Parallel()
	const size, room = 1 << 20, 8
	a := answers{places: make(chan struct{}, 1), maxBytes: size * room}
	var running atomic.Int32
	handler := a.keep(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		running.Add(1)
		defer running.Add(-1)
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(make([]byte, size))
	}))
	request := func() *http.Request { return httptest.NewRequest(http.MethodGet, "/api/v1/line", nil) }
	var readers sync.WaitGroup
	slow := func() slowWriter {
		return slowWriter{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	}
	var all []slowWriter
	for range room {
		w := slow()
		readers.Go(func() { handler.ServeHTTP(w, request()) })
		<-w.writes
		all = append(all, w)
	}
	if n := running.Load(); n > 0 {
		t.Errorf("%d handlers wait for clients", n)
	}
	for range 3 { // a refusal takes no room
		r := httptest.NewRecorder()
		handler.ServeHTTP(r, request())
		if h := r.Header(); r.Code != http.StatusServiceUnavailable || h.Get("Retry-After") != "1" || h.Get("Content-Encoding") != "" {
			t.Errorf("beyond the limit: got %d, %v, want 503 without encoding", r.Code, h)
		}
	}
	close(all[0].goOn)
	for deadline := time.Now().Add(30 * time.Second); a.bytes.Load() > size*(room-1); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("an answer that was taken still counts")
		}
	}
	r := httptest.NewRecorder()
	handler.ServeHTTP(r, request())
	if r.Code != http.StatusOK || r.Body.Len() != size || r.Header().Get("Content-Encoding") != "gzip" {
		t.Errorf("when there is room again: got %d with %d bytes, %v", r.Code, r.Body.Len(), r.Header())
	}
	for _, w := range all[1:] {
		close(w.goOn)
	}
	readers.Wait()
	if n := a.bytes.Load(); n != 0 {
		t.Errorf("%d bytes count at the end", n)
	}
}

// An answer has room by itself, however large it is.
func TestAnswers_largerThanTheLimit(t *testing.T) {
	t.Parallel()
	a := answers{maxBytes: 10}
	if !a.take(20) {
		t.Error("the only answer has no room")
	}
	if a.take(1) {
		t.Error("another one has room beside it")
	}
	a.give(20)
	if !a.take(8) || a.take(3) || !a.take(2) {
		t.Error("got other room than for 10 bytes")
	}
}

// Few answers are made at the same time: while they are made they may take much memory. One whose client has gone is not
// made, and one that waits for the store leaves its place to others.
func TestAnswers_fewAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := answers{places: make(chan struct{}, 2), maxBytes: 1 << 20}
		var running atomic.Int32
		goOn := make(chan struct{})
		run := func() {
			running.Add(1)
			<-goOn
			running.Add(-1)
		}
		handler := a.keep(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { run() }))
		serve := func(ctx context.Context, handler http.Handler) {
			r := httptest.NewRequest(http.MethodGet, "/api/v1/line", nil).WithContext(ctx)
			go handler.ServeHTTP(httptest.NewRecorder(), r)
			synctest.Wait()
		}
		wantRunning := func(want int32) {
			t.Helper()
			if n := running.Load(); n != want {
				t.Fatalf("%d answers are being made, want %d", n, want)
			}
		}
		for range 5 {
			serve(t.Context(), handler)
		}
		ctx, cancel := context.WithCancel(t.Context())
		serve(ctx, handler)
		cancel()
		wantRunning(2)
		made := 0
		for ; running.Load() > 0; made++ {
			goOn <- struct{}{}
			synctest.Wait()
		}
		if made != 5 {
			t.Errorf("%d answers were made, want 5", made)
		}
		atStore := a.keep(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { a.outside(run) }))
		for range 5 {
			serve(t.Context(), atStore)
		}
		wantRunning(5)
		serve(t.Context(), handler)
		wantRunning(6)
		close(goOn)
		synctest.Wait()
		if n := len(a.places); n > 0 {
			t.Errorf("%d places are taken at the end", n)
		}
	})
}

// A client that does not read keeps its answer for half a minute at most.
func TestAnswers_readerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/api/v1/lines", "/api/v1/line?name=a", "/api/v1/history?name=a", eventsPath} {
		served(t, func(t *testing.T, p *Page, client *stile.Client, request func(path string) net.Conn) {
			// Answers of a few kilobytes are in the buffers of the connection.
			lock := client.Mutex("a").With(stile.LockOptions{Reason: strings.Repeat("x", 7<<10)})
			hold, err := lock.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = hold.Release(context.Background()) }()
			time.Sleep(time.Second)
			conn := request(path)
			defer conn.Close()
			synctest.Wait()
			if p.answers.bytes.Load() == 0 {
				t.Errorf("%s: no answer waits for its reader", path)
			}
			time.Sleep(requestTimeout)
			synctest.Wait()
			if n := p.answers.bytes.Load(); n != 0 {
				t.Errorf("%s: %d bytes still wait for their reader", path, n)
			}
		})
	}
}

func entriesOf(n, textBytes int) (all []stile.Entry) {
	for i := range n {
		text := fmt.Sprint(i)
		all = append(all, stile.Entry{Token: uint64(i), Owner: stile.Owner{Reason: text + strings.Repeat("x", max(0, textBytes-len(text)))}})
	}
	return all
}

// A line has the first entries for which an answer has room, and says how many more there are.
func TestLine_cut(t *testing.T) {
	t.Parallel()
	for _, of := range []struct {
		holders, waiters, textBytes   int
		wantHolders, atLeast, omitted int
	}{
		{1, maxEntries - 1, 0, 1, maxEntries - 1, 0},
		{1, maxEntries, 0, 1, maxEntries - 1, 1},
		{maxEntries + 2, 3, 0, maxEntries, 0, 5},
		{1, 3000, 8 << 10, 1, 450, 3000},
	} {
		l := lineOf(stile.Line{Name: "a", Holders: entriesOf(of.holders, of.textBytes), Waiters: entriesOf(of.waiters, of.textBytes)})
		if len(l.Holders) != of.wantHolders || len(l.Waiters) < of.atLeast || l.Omitted > of.omitted ||
			len(l.Holders)+len(l.Waiters)+l.Omitted != of.holders+of.waiters {
			t.Errorf("%+v: got %d holders, %d waiters and %d more", of, len(l.Holders), len(l.Waiters), l.Omitted)
		}
		if size := sizeOf(l.Line); size > maxAnswerBytes {
			t.Errorf("%+v: it has %d bytes", of, size)
		}
	}
}

// The waits of an answer are bounded, and say how many more there are.
func TestWaits_cut(t *testing.T) {
	t.Parallel()
	body := func() *waitsBody {
		b := &waitsBody{Waits: []wait{}, Cycles: [][]string{{"a", "b"}, {"c"}}}
		for _, e := range entriesOf(3000, 8<<10) {
			b.Waits = append(b.Waits, wait{Waiter: e, WaitsFor: "a", Holds: []string{"b"}})
		}
		return b
	}
	b := body()
	b.cut()
	if n := len(b.Waits); n < 400 || n > 520 || n+b.Omitted != 3000 || len(b.Cycles) != 2 || b.OmittedCycles != 0 {
		t.Errorf("got %d waits, %d omitted, and %d cycles, %d omitted", n, b.Omitted, len(b.Cycles), b.OmittedCycles)
	}
	b = body()
	name := strings.Repeat("n", store.MaxNameBytes)
	for range 100 {
		b.Cycles = append(b.Cycles, slices.Repeat([]string{name}, 100))
	}
	b.cut()
	if n := len(b.Cycles); n < 70 || n > 90 || n+b.OmittedCycles != 102 || len(b.Waits) > 5 || len(b.Waits)+b.Omitted != 3000 {
		t.Errorf("got %d waits, %d omitted, and %d cycles, %d omitted", len(b.Waits), b.Omitted, n, b.OmittedCycles)
	}
	b = &waitsBody{Waits: []wait{{Holds: slices.Repeat([]string{name}, 10_000)}}}
	b.cut()
	if text, err := json.Marshal(b); err != nil || !strings.Contains(string(text), `"waits":[]`) {
		t.Errorf("got %.100s, %v, want a list of waits", text, err)
	}
	b = body()
	b.Cycles = append([][]string{slices.Repeat([]string{name}, 10_000)}, b.Cycles...)
	b.Waits[0].Holds = slices.Repeat([]string{name}, 10_000)
	b.cut()
	if n := len(b.Waits); n < 400 || n+b.Omitted != 3000 || len(b.Cycles) != 2 || b.OmittedCycles != 1 {
		t.Errorf("with one of each that is too large: got %d waits, %d omitted, and %d cycles, %d omitted", n, b.Omitted, len(b.Cycles), b.OmittedCycles)
	}
	b = &waitsBody{Waits: []wait{{Waiter: stile.Entry{}, Holds: []string{"a"}}}, Cycles: [][]string{{"a"}}}
	if b.cut(); len(b.Waits)+len(b.Cycles) != 2 || b.Omitted+b.OmittedCycles != 0 {
		t.Errorf("got %+v, want all", b)
	}
}

// A message with more than an event has room for is not sent: the reader reads all lines instead, in pages.
func TestStream_largeChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		client, err := stile.New(st, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close(context.Background()) }()
		p := newPage(Config{})
		p.observer = observe.New(client)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.observer.Run(ctx) }()
		defer func() { cancel(); <-done }()
		synctest.Wait()
		se, err := st.Open(t.Context(), store.SessionOptions{TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = se.Close(context.Background()) }()
		after := p.observer.Last()
		var text string
		sent := func() string {
			recorder := httptest.NewRecorder()
			to := &reader{w: recorder, control: http.NewResponseController(recorder), page: p}
			p.sendUpdates(t.Context(), to, after, "a")
			text = recorder.Body.String()
			name, _, _ := strings.Cut(strings.TrimPrefix(text, "event: "), "\n")
			return name
		}
		joins := func(name string, n int) {
			for range n {
				_, err := se.Enqueue(t.Context(), store.Request{
					Name: name, Mode: line.Exclusive, Notify: func(store.Standing) {},
					Owner: store.Owner{Reason: strings.Repeat("x", stile.MaxOwnerBytes)},
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
		}
		joins("b", 700)
		joins("a", 100)
		if got := sent(); got != "lines" {
			t.Errorf("a small change: got the event %q, want lines", got)
		}
		for _, name := range []string{"a1", "a2", "a3"} {
			joins(name, 400)
		}
		after = p.observer.Last()
		for _, name := range []string{"a1", "a2", "a3", "a4"} {
			joins(name, 1)
		}
		if got := sent(); got != "lines" || !strings.Contains(text, `"name":"a4"`) || strings.Count(text, `"omitted":`) != 3 {
			t.Errorf("small changes of large lines: got the event %q, want all lines, three of them cut", got)
		}
		after = p.observer.Last()
		for i := range 600 {
			joins(fmt.Sprint("a/", i), 1)
		}
		if got := sent(); got != "reset" {
			t.Errorf("many lines that would be cut to nothing: got the event %q, want reset", got)
		}
		joins("a", 600)
		if got := sent(); got != "reset" {
			t.Errorf("a large change: got the event %q, want reset", got)
		}
		p.answers.maxBytes = 10
		p.answers.take(1)
		recorder := httptest.NewRecorder()
		to := &reader{w: recorder, control: http.NewResponseController(recorder), page: p}
		if p.sendUpdates(t.Context(), to, after, "a"); to.err == nil || recorder.Body.Len() > 0 {
			t.Errorf("without room for answers: got %q, %v, want the end of the stream", recorder.Body, to.err)
		}
		p.answers.maxBytes = 1000 // enough for the status
		after = p.observer.Last()
		joins("a5", 1)
		began := time.Now()
		p.stream(t.Context(), httptest.NewRecorder(), "a", p.updateID(after))
		if took := time.Since(began); took > 0 {
			t.Errorf("the stream went on for %v", took)
		}
	})
}

// A network that opens many connections keeps its own clients out, and those of no other.
func TestConnections_networks(t *testing.T) {
	t.Parallel()
	cs := &connections{maxProven: 1, maxUnproven: 3}
	add := func(address string) (c, other *connection) {
		tcp, err := net.ResolveTCPAddr("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		mine, its := net.Pipe()
		t.Cleanup(func() { _ = mine.Close() })
		c = &connection{Conn: its, all: cs, network: networkOf(tcp)}
		return c, cs.add(c)
	}
	other, _ := add("192.0.2.1:1000")
	var flood []*connection
	for i := range 100 {
		c, closed := add(fmt.Sprintf("[2001:db8::%x]:1000", i+1))
		flood = append(flood, c)
		if i < 2 {
			if closed != nil {
				t.Fatal("a connection was closed though there was room")
			}
		} else if closed != flood[i-2] {
			t.Fatalf("connection %d of the flood did not replace the oldest of its network", i+1)
		}
	}
	if third, closed := add("[2001:db8:1::1]:1000"); closed != flood[98] || third == nil {
		t.Error("a third network did not replace one of the flood")
	}
	if closed, ok := other.prove(); closed != nil || !ok {
		t.Errorf("prove: got %v, %v", closed, ok)
	}
	if _, closed := add("[2001:db8::1]:2000"); closed != nil {
		t.Error("a proven connection has a place among the others")
	}
	_ = other.Close()
	_ = other.Close()
	if len(cs.proven) != 0 || len(cs.unproven) != 3 {
		t.Errorf("%d proven connections and %d others count", len(cs.proven), len(cs.unproven))
	}
}

// Of the connections that wait for a request, the one that has waited longest gives way.
func TestConnections_idle(t *testing.T) {
	t.Parallel()
	cs := &connections{maxProven: 3, maxUnproven: 10}
	proven := func() (c, other *connection, ok bool) {
		_, its := net.Pipe()
		c = &connection{Conn: its, all: cs}
		cs.add(c)
		end := c.begin()
		defer end()
		other, ok = c.prove()
		return c, other, ok
	}
	a, _, _ := proven()
	b, _, _ := proven()
	c, _, _ := proven()
	end := a.begin()
	if _, other, ok := proven(); other != b || !ok {
		t.Error("the second one did not give way")
	}
	end()
	if _, other, ok := proven(); other != c || !ok {
		t.Error("the third one did not give way")
	}
	for _, c := range slices.Clone(cs.proven) {
		c.begin()
	}
	if _, _, ok := proven(); ok {
		t.Error("there was room though all have a request")
	}
	if len(cs.proven) != 3 || len(cs.unproven) != 1 {
		t.Errorf("%d proven connections and %d others count", len(cs.proven), len(cs.unproven))
	}
}
