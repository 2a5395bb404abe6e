//go:build linux

package trial

import (
	"strings"
	"sync"

	"github.com/stilelock/stile/lab/torture/history"
)

// live is what is known of a run while it runs: who holds what. It decides only whom faults hit.
type live struct {
	mu     sync.Mutex
	held   map[string]map[string]string // grants by worker, and their locks
	runs   map[string]int               // the processes of `stile run`, by the worker that has started them
	grants int64
}

func newLive() *live { return &live{held: map[string]map[string]string{}, runs: map[string]int{}} }

// starter returns the worker that has started another, w1 for w1-7; if none has, the worker itself.
func starter(worker string) (name string, another bool) {
	name, _, another = strings.Cut(worker, "-")
	return name, another
}

func (l *live) heard(e history.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name, another := starter(e.Worker)
	switch {
	case e.Acquire != nil && e.Acquire.Outcome == history.OK:
		l.grants++
		if l.held[name] == nil {
			l.held[name] = map[string]string{}
		}
		l.held[name][e.Acquire.Grant] = e.Acquire.Lock
	case e.End != nil:
		delete(l.held[name], e.End.Grant)
	case e.Started != nil && another:
		l.runs[name] = e.Started.Pid
	case e.Exited != nil && another:
		delete(l.runs, name)
	case e.Exited != nil:
		delete(l.held, name)
	}
}

func (l *live) holds(worker string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held[worker]) > 0
}

// pid returns the process that faults are to hit instead of the worker's own: that of `stile run`, if it has started one.
func (l *live) pid(worker string, own int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if pid, ok := l.runs[worker]; ok {
		return pid
	}
	return own
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
