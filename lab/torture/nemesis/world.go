//go:build linux

package nemesis

import (
	"context"
	"sync"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/site"
)

// Worker is a process that uses locks. Its methods are safe for concurrent use.
type Worker interface {
	// Name returns the name of the worker in the history.
	Name() string
	// Pid returns the id of the worker's process, which may have ended.
	Pid() int
	// Node returns the node that the worker runs on, alone. Its replacement may run there after its
	// end.
	Node() *site.Node
	// Holds reports whether the worker holds a lock, as far as the harness knows.
	Holds() bool
	// Kill kills the process with SIGKILL, even if it is stopped. The harness starts a replacement.
	Kill() error
}

// World is the target of the faults. Its fields are set before its first use and do not change. Its
// functions are called concurrently.
type World struct {
	// Cluster is the store of the locks, started with the [Options] of the faults.
	Cluster *site.Cluster
	// Workers returns the running workers.
	Workers func() []Worker
	// TTL is the TTL of the locks' sessions.
	TTL time.Duration
	// Record adds an event to the history.
	Record func(history.Event)
	// Evict deletes the entry of a current holder in the store, or with all its whole line. It
	// returns On, Lock, What and Took of the fault. What is empty if no worker held a lock.
	Evict func(ctx context.Context, all bool) (history.Fault, error)
	// Compact compacts the history of etcd.
	Compact func(ctx context.Context) error
	// Progress returns the number of grants so far.
	Progress func() int64

	mu      sync.Mutex
	claimed map[string]bool // victims of faults that have not been healed: names of nodes, or allConnections
}

// claim claims a victim for a fault, and reports whether no other fault had claimed it.
func (w *World) claim(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.claimed[key] {
		return false
	}
	if w.claimed == nil {
		w.claimed = make(map[string]bool)
	}
	w.claimed[key] = true
	return true
}

func (w *World) unclaim(keys []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range keys {
		delete(w.claimed, key)
	}
}
