// Package workloadtest provides the recorder and the resource that a worker needs in a test.
package workloadtest

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
	"github.com/stilelock/stile/lab/torture/resource"
	"github.com/stilelock/stile/lab/torture/workload"
)

// awaitTimeout bounds the waits for events that must happen. It is long, for busy machines.
const awaitTimeout = 3 * time.Minute

// A Harness is a recorder and a resource, which run in the test's process.
type Harness struct {
	t    testing.TB
	dir  string
	file *os.File
	stop func() // stops both

	mu      sync.Mutex
	events  []history.Event
	changed chan struct{} // closed and replaced with each event
}

// New starts a harness. It stops when t ends.
func New(t testing.TB) *Harness {
	t.Helper()
	dir, err := os.MkdirTemp("", "harness") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &Harness{t: t, dir: dir, changed: make(chan struct{})}
	if s.file, err = os.Create(filepath.Join(dir, "history.jsonl")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.file.Close() })
	recorder, err := history.Record(s.socket("recorder"), history.NewWriter(s.file, history.Run{Target: "test"}), s.add)
	if err != nil {
		t.Fatal(err)
	}
	sender, err := history.Dial(s.socket("recorder"), "resource")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() {
		if err := resource.Serve(ctx, s.socket("resource"), sender); err != nil {
			t.Errorf("the resource: %v", err)
		}
	})
	s.stop = sync.OnceFunc(func() {
		cancel()
		served.Wait()
		sender.Close()
		if err := recorder.Close(); err != nil {
			t.Errorf("the recorder: %v", err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

func (s *Harness) socket(name string) string { return filepath.Join(s.dir, name) }

func (s *Harness) add(e history.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// Config returns the configuration of a worker that uses the harness.
func (s *Harness) Config(worker, load string, l locker.Config) workload.Config {
	return workload.Config{
		Worker: worker, Workload: load, Locker: l, Seed: 1, Prefix: "t/",
		Recorder: s.socket("recorder"), Resource: s.socket("resource"),
	}
}

// Await waits for an event that matches, and returns the first, which may have been recorded
// already. The test fails after three minutes.
func (s *Harness) Await(what string, matches func(history.Event) bool) history.Event {
	s.t.Helper()
	return s.await(what, 0, matches)
}

// AwaitNext is Await for the events that are recorded from now on.
func (s *Harness) AwaitNext(what string, matches func(history.Event) bool) history.Event {
	s.t.Helper()
	s.mu.Lock()
	seen := len(s.events)
	s.mu.Unlock()
	return s.await(what, seen, matches)
}

func (s *Harness) await(what string, seen int, matches func(history.Event) bool) history.Event {
	s.t.Helper()
	timeout := time.After(awaitTimeout)
	for {
		s.mu.Lock()
		events, changed := s.events[seen:], s.changed
		s.mu.Unlock()
		for _, e := range events {
			if matches(e) {
				return e
			}
		}
		seen += len(events)
		select {
		case <-changed:
		case <-timeout:
			s.t.Fatalf("got no %s in time", what)
		}
	}
}

// AwaitHistory waits until the history so far is as wanted. The test fails after three minutes.
func (s *Harness) AwaitHistory(what string, wanted func(*history.History) bool) {
	s.t.Helper()
	timeout := time.After(awaitTimeout)
	for ticker := time.NewTicker(200 * time.Millisecond); ; {
		s.mu.Lock()
		events := slices.Clone(s.events)
		s.mu.Unlock()
		slices.SortStableFunc(events, func(a, b history.Event) int { return cmp.Compare(a.At, b.At) })
		if wanted(&history.History{Events: events}) {
			ticker.Stop()
			return
		}
		select {
		case <-ticker.C:
		case <-timeout:
			s.t.Fatalf("did not reach %s in time", what)
		}
	}
}

// History stops the harness and returns the history. All workers must have ended.
func (s *Harness) History() *history.History {
	s.t.Helper()
	s.stop()
	h, err := history.Read(s.file.Name())
	if err != nil {
		s.t.Fatal(err)
	}
	return h
}
