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
	// Node is where it runs, alone. The one that takes its place when it is dead may run there, too.
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
	// Evict deletes the entry of a current holder in the store, as an administrator might, or all of its line. It returns the
	// fault's On, Lock, What and Took. What is empty if nobody held.
	Evict func(ctx context.Context, all bool) (history.Fault, error)
	// Compact makes etcd forget its past.
	Compact func(ctx context.Context) error
	// Progress returns how many locks have been granted so far.
	Progress func() int64

	mu    sync.Mutex
	taken map[string]bool // the places at which a fault has struck and is not healed
}

// take takes a place, unless it is taken.
func (w *World) take(place string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.taken[place] {
		return false
	}
	if w.taken == nil {
		w.taken = make(map[string]bool)
	}
	w.taken[place] = true
	return true
}

func (w *World) leave(places []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, place := range places {
		delete(w.taken, place)
	}
}
