//go:build linux

package nemesis

import (
	"context"
	"sync"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/site"
)

// Worker is a process that takes locks. Its methods are called by several goroutines at once.
type Worker interface {
	// Name is the worker's in the history.
	Name() string
	// Pid is that of its process, which may have ended.
	Pid() int
	// Node is where it runs, alone.
	Node() *site.Node
	// Holds reports whether it holds a lock, as far as is known.
	Holds() bool
	// Kill ends the process with SIGKILL, paused or not. The harness starts another one by itself.
	Kill() error
}

// World is what faults act on. The fields are set before its first use and not changed afterwards; the functions are called
// by several goroutines at once.
type World struct {
	// Cluster is where the locks are kept. It was started with the [Options] of the faults.
	Cluster *site.Cluster
	// Workers returns those that live.
	Workers func() []Worker
	// TTL is that of the locks' sessions.
	TTL time.Duration
	// Record adds an event to the history.
	Record func(history.Event)
	// Evict deletes the entry of a current holder in the store, as an administrator might, and says which.
	Evict func(ctx context.Context) (what string, err error)
	// Compact makes etcd forget its past.
	Compact func(ctx context.Context) error
	// Progress returns how many locks have been granted so far.
	Progress func() int64

	mu     sync.Mutex
	struck map[string]bool // names of the workers and servers that a fault has hit and not left
}

// claim makes a worker or server the victim of a fault, unless it is that of another: two faults would heal each other.
func (w *World) claim(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.struck[name] {
		return false
	}
	if w.struck == nil {
		w.struck = make(map[string]bool)
	}
	w.struck[name] = true
	return true
}

func (w *World) release(names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range names {
		delete(w.struck, name)
	}
}
