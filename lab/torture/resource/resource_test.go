package resource_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/resource"
)

// A harness is a resource and the events that it has recorded.
type harness struct {
	t      *testing.T
	socket string
	end    func() error // ends the resource and returns the error of Serve
	events chan history.Event
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	dir, err := os.MkdirTemp("", "resource") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file, err := os.Create(filepath.Join(dir, "history"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	s := &harness{t: t, socket: filepath.Join(dir, "resource"), events: make(chan history.Event, 100)}
	recorder := filepath.Join(dir, "recorder")
	r, err := history.Record(recorder, history.NewWriter(file, history.Run{Target: "test"}), func(e history.Event) {
		s.events <- e
	})
	if err != nil {
		t.Fatal(err)
	}
	sender, err := history.Dial(recorder, "resource")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- resource.Serve(ctx, s.socket, sender) }()
	s.end = sync.OnceValue(func() error {
		cancel()
		err := <-served
		sender.Close()
		r.Close()
		return err
	})
	t.Cleanup(func() { _ = s.end() })
	return s
}

func (s *harness) dial() *resource.Client {
	s.t.Helper()
	c, err := resource.Dial(s.t.Context(), s.socket)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// recorded ends the resource and returns the recorded events that the test has not received yet.
func (s *harness) recorded() []history.Event {
	s.t.Helper()
	if err := s.end(); err != nil {
		s.t.Errorf("Serve: got error %v, want none", err)
	}
	close(s.events)
	var all []history.Event
	for e := range s.events {
		all = append(all, e)
	}
	return all
}

func (s *harness) writes() []history.Write {
	s.t.Helper()
	var all []history.Write
	for _, e := range s.recorded() {
		if e.Write != nil {
			all = append(all, *e.Write)
		}
	}
	return all
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestUnfenced_lostUpdate(t *testing.T) {
	s := newHarness(t)
	a, b := s.dial(), s.dial()
	readByA, readByB := must[uint64](t)(a.Read("x")), must[uint64](t)(b.Read("x"))
	for _, err := range []error{
		a.Unfenced(resource.Writer{Lock: "x", Grant: "a.1"}, readByA),
		b.Unfenced(resource.Writer{Lock: "x", Grant: "b.1"}, readByB),
		b.Unfenced(resource.Writer{Lock: "x", Grant: "b.1"}, must[uint64](t)(b.Read("x"))),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := []history.Write{
		{Lock: "x", Grant: "a.1", Mode: "unfenced", Version: 0, Read: 0},
		{Lock: "x", Grant: "b.1", Mode: "unfenced", Version: 1, Read: 0}, // a's update is lost
		{Lock: "x", Grant: "b.1", Mode: "unfenced", Version: 2, Read: 2},
	}
	for i, got := range s.writes() {
		if got != want[i] {
			t.Errorf("write %d: got %+v, want %+v", i, got, want[i])
		}
	}
}

func TestFenced_refusesSmallerTokens(t *testing.T) {
	s := newHarness(t)
	c := s.dial()
	for _, write := range []struct {
		lock     string
		token    uint64
		accepted bool
	}{
		{"x", 5, true},
		{"x", 5, true}, // the same holder again
		{"x", 7, true},
		{"x", 6, false},
		{"x", 5, false},
		{"x", 7, true},
		{"y", 1, true}, // another lock
	} {
		w := resource.Writer{Lock: write.lock, Grant: "g", Token: write.token}
		if got := must[bool](t)(c.Fenced(w)); got != write.accepted {
			t.Errorf("token %d at %s: got accepted %t, want %t", write.token, write.lock, got, write.accepted)
		}
	}
	refused := 0
	for _, w := range s.writes() {
		if w.Refused {
			refused++
		}
	}
	if refused != 2 {
		t.Errorf("got %d recorded refusals, want 2", refused)
	}
}

func TestAudit_acceptsEveryWrite(t *testing.T) {
	s := newHarness(t)
	c := s.dial()
	for _, token := range []uint64{2, 1} {
		if err := c.Audit(resource.Writer{Lock: "x", Grant: "g", Token: token}); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.writes(); len(got) != 2 || got[1].Token != 1 || got[1].Refused || got[1].Mode != "audit" {
		t.Errorf("got writes %+v, want two, the second accepted with token 1", got)
	}
}

// A second reading shows the version then, and that of the first. It changes nothing.
func TestReread(t *testing.T) {
	s := newHarness(t)
	c := s.dial()
	w := resource.Writer{Lock: "x", Grant: "g"}
	for _, do := range []func() error{
		func() error { return c.Reread(w, 0) },
		func() error { return c.Unfenced(w, 0) },
		func() error { return c.Reread(w, 0) },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	got := s.writes()
	if len(got) != 3 || got[0].Mode != "reread" || got[0].Version != 0 || got[2].Version != 1 || got[2].Read != 0 {
		t.Errorf("got %+v, want an unchanged reading, a write and a changed reading", got)
	}
}

func TestServe_stampsWritesOnArrival(t *testing.T) {
	s := newHarness(t)
	c := s.dial()
	before := history.Now()
	if err := c.Audit(resource.Writer{Lock: "x", Grant: "g"}); err != nil {
		t.Fatal(err)
	}
	after := history.Now()
	if e := s.recorded()[0]; e.At < before || e.At > after || e.Worker != "resource" {
		t.Errorf("got event %+v, want a write of the resource between %d and %d", e, before, after)
	}
}

// The connection of a process that is killed under a lock closes like this one.
func TestAttach_recordsEndOnDisconnect(t *testing.T) {
	s := newHarness(t)
	killed, other := s.dial(), s.dial()
	began := history.Now()
	if err := killed.Attach("a.1"); err != nil {
		t.Fatal(err)
	}
	if err := other.Attach("b.1"); err != nil {
		t.Fatal(err)
	}
	if err := other.Detach(); err != nil {
		t.Fatal(err)
	}
	closed := history.Now()
	killed.Close()
	other.Close()
	e := <-s.events
	if e.End == nil || e.End.Grant != "a.1" || e.End.Call < began || e.End.Call > closed || e.At < closed || e.End.Return != 0 {
		t.Errorf("got event %+v (%+v), want the end of a.1 between %d and %d", e, e.End, began, closed)
	}
	if more := s.recorded(); len(more) != 0 {
		t.Errorf("got further events %+v, want none", more)
	}
}

func TestAttach_resourceEndsFirst(t *testing.T) {
	s := newHarness(t)
	if err := s.dial().Attach("a.1"); err != nil {
		t.Fatal(err)
	}
	if events := s.recorded(); len(events) != 0 {
		t.Errorf("got events %+v, want none", events)
	}
}

func TestServe_truncatedLine(t *testing.T) {
	s := newHarness(t)
	s.dial().Close() // after this, the resource listens
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte(`{"op":"audit","lock":"x"}`)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if err := s.dial().Audit(resource.Writer{Lock: "y"}); err != nil { // other clients are still served
		t.Fatal(err)
	}
	if got := s.writes(); len(got) != 1 || got[0].Lock != "y" {
		t.Errorf("got writes %+v, want only that of y", got)
	}
}

func TestServe_invalidRequests(t *testing.T) {
	s := newHarness(t)
	s.dial().Close()
	for _, request := range []string{"{\n", `{"op":"erase"}` + "\n"} {
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(request)); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(conn).ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		var answer struct{ Err string }
		if err := json.Unmarshal(line, &answer); err != nil || answer.Err == "" {
			t.Errorf("reply to %q: got %s, want one with an error", request, line)
		}
		conn.Close()
	}
	if got := s.writes(); len(got) != 0 {
		t.Errorf("got writes %+v, want none", got)
	}
}
