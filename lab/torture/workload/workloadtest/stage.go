// Package workloadtest is what a worker needs around it in a test.
package workloadtest

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
	"github.com/stilelock/stile/lab/torture/resource"
	"github.com/stilelock/stile/lab/torture/workload"
)

// patience is how long a test waits for what must happen: only what is broken takes longer.
const patience = 3 * time.Minute

// A Harness is a recorder and a resource.
type Harness struct {
	t    testing.TB
	dir  string
	file *os.File
	end  func() // ends both

	mu     sync.Mutex
	events []history.Event
	more   chan struct{} // closed, and made again, with each event
}

// New starts them in this process. They end with t.
func New(t testing.TB) *Harness {
	t.Helper()
	dir, err := os.MkdirTemp("", "stage") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &Harness{t: t, dir: dir, more: make(chan struct{})}
	if s.file, err = os.Create(filepath.Join(dir, "history.jsonl")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.file.Close() })
	recorder, err := history.Record(s.socket("recorder"), history.NewWriter(s.file, history.Run{Target: "test"}), s.heard)
	if err != nil {
		t.Fatal(err)
	}
	voice, err := history.Speak(s.socket("recorder"), "resource")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() {
		if err := resource.Serve(ctx, s.socket("resource"), voice); err != nil {
			t.Errorf("the resource: %v", err)
		}
	})
	s.end = sync.OnceFunc(func() {
		cancel()
		served.Wait()
		voice.Close()
		if err := recorder.Close(); err != nil {
			t.Errorf("the recorder: %v", err)
		}
	})
	t.Cleanup(s.end)
	return s
}

func (s *Harness) socket(name string) string { return filepath.Join(s.dir, name) }

func (s *Harness) heard(e history.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
	close(s.more)
	s.more = make(chan struct{})
}

// Config returns what to tell a worker that is to play here.
func (s *Harness) Config(worker, load string, l locker.Config) workload.Config {
	return workload.Config{
		Worker: worker, Workload: load, Locker: l, Seed: 1, Prefix: "t/",
		Recorder: s.socket("recorder"), Resource: s.socket("resource"),
	}
}

// Await returns the first event that matches, when it has happened. If it does not, for three minutes, t fails.
func (s *Harness) Await(what string, matches func(history.Event) bool) history.Event {
	s.t.Helper()
	return s.await(what, 0, matches)
}

// AwaitNext is Await for events from now on.
func (s *Harness) AwaitNext(what string, matches func(history.Event) bool) history.Event {
	s.t.Helper()
	s.mu.Lock()
	seen := len(s.events)
	s.mu.Unlock()
	return s.await(what, seen, matches)
}

func (s *Harness) await(what string, seen int, matches func(history.Event) bool) history.Event {
	s.t.Helper()
	timeout := time.After(patience)
	for {
		s.mu.Lock()
		events, more := s.events[seen:], s.more
		s.mu.Unlock()
		for _, e := range events {
			if matches(e) {
				return e
			}
		}
		seen += len(events)
		select {
		case <-more:
		case <-timeout:
			s.t.Fatalf("there was no %s", what)
		}
	}
}

// History ends the stage, when everybody has hung up who plays there, and returns what was recorded.
func (s *Harness) History() *history.History {
	s.t.Helper()
	s.end()
	h, err := history.Read(s.file.Name())
	if err != nil {
		s.t.Fatal(err)
	}
	return h
}
