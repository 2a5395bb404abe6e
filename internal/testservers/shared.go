package testservers

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
)

// Shared is a server that several tests use and none of them hurts. The first that needs it starts it, and TestMain
// closes it.
type Shared[S Server] struct {
	// New starts the server.
	New func() (S, error)

	start  sync.Once
	server S
	err    error
	failed atomic.Bool // a test that used it
}

// Start starts the server if it has not been started, and returns it.
func (s *Shared[S]) Start() (S, error) {
	s.start.Do(func() { s.server, s.err = s.New() })
	return s.server, s.err
}

// Get returns the server. If it could not be started the test fails, or is skipped as [Check] says.
func (s *Shared[S]) Get(t testing.TB) S {
	t.Helper()
	server, err := s.Start()
	Check(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			s.failed.Store(true)
		}
	})
	return server
}

// Close ends the server, if it was started. What it logged last is shown if a test that used it has failed. No test may
// call Get any more.
func (s *Shared[S]) Close() {
	s.start.Do(func() { s.err = os.ErrClosed })
	if s.err != nil {
		return
	}
	if s.failed.Load() {
		fmt.Fprintln(os.Stderr, s.server.Log())
	}
	if err := s.server.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "testservers:", err)
	}
}
