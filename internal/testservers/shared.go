package testservers

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
)

// Shared is a server that several tests share and none disturbs. The first call of Start or Get
// starts it. TestMain closes it.
type Shared[S Server] struct {
	// New starts the server.
	New func() (S, error)

	start  sync.Once
	server S
	err    error
	failed atomic.Bool // whether a test that used it has failed
}

// Start returns the server, starting it on the first call. Later calls return the same server or
// error.
func (s *Shared[S]) Start() (S, error) {
	s.start.Do(func() { s.server, s.err = s.New() })
	return s.server, s.err
}

// Get returns the server, starting it on the first call. If that failed, Get fails or skips the
// test: see [Check].
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

// Close closes the server, if it was started. It shows the end of its log if a test that used it
// has failed. Get must not be called afterwards.
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
