//go:build linux

package trial

import (
	"sync"

	"github.com/stilelock/stile/lab/torture/history"
)

// live is what is known of a run while it runs: who holds what. It decides only whom faults hit.
type live struct {
	mu     sync.Mutex
	held   map[string]map[string]string // grants by worker, and their locks
	grants int64
}

func newLive() *live { return &live{held: map[string]map[string]string{}} }

func (l *live) heard(e history.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case e.Acquire != nil && e.Acquire.Outcome == history.OK:
		l.grants++
		if l.held[e.Worker] == nil {
			l.held[e.Worker] = map[string]string{}
		}
		l.held[e.Worker][e.Acquire.Grant] = e.Acquire.Lock
	case e.End != nil:
		delete(l.held[e.Worker], e.End.Grant)
	case e.Exited != nil:
		delete(l.held, e.Worker)
	}
}

func (l *live) holds(worker string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held[worker]) > 0
}

// locks returns the locks that are held, each with one who holds it.
func (l *live) locks() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	locks := map[string]string{}
	for worker, grants := range l.held {
		for _, lock := range grants {
			locks[lock] = worker
		}
	}
	return locks
}

func (l *live) progress() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grants
}
