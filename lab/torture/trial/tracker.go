//go:build linux

package trial

import (
	"strings"
	"sync"

	"github.com/stilelock/stile/lab/torture/history"
)

// tracker tracks which workers hold which locks during a run. Its data only selects the targets of
// faults.
type tracker struct {
	mu     sync.Mutex
	held   map[string]map[string]string // the locks by worker and grant
	runs   map[string]int               // the processes of `stile run` by the worker that started them
	grants int64
}

func newTracker() *tracker {
	return &tracker{held: map[string]map[string]string{}, runs: map[string]int{}}
}

// ownerOf returns the worker that started a command's worker, as w1 for w1-7, or the worker itself
// if it is not a command's.
func ownerOf(worker string) (name string, isCommand bool) {
	name, _, isCommand = strings.Cut(worker, "-")
	return name, isCommand
}

// update updates the tracker with an event of the history.
func (t *tracker) update(e history.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name, isCommand := ownerOf(e.Worker)
	switch {
	case e.Acquire != nil && e.Acquire.Outcome == history.OK:
		t.grants++
		if t.held[name] == nil {
			t.held[name] = map[string]string{}
		}
		t.held[name][e.Acquire.Grant] = e.Acquire.Lock
	case e.End != nil:
		delete(t.held[name], e.End.Grant)
	case e.Started != nil && isCommand:
		t.runs[name] = e.Started.Pid
	case e.Exited != nil && isCommand:
		delete(t.runs, name)
	case e.Exited != nil:
		delete(t.held, name)
	}
}

func (t *tracker) holds(worker string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.held[worker]) > 0
}

// pid returns the process that faults hit: that of `stile run` if the worker runs one, else the
// worker's own.
func (t *tracker) pid(worker string, own int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if pid, ok := t.runs[worker]; ok {
		return pid
	}
	return own
}

// locks returns the locks that are held, each with one of its holders.
func (t *tracker) locks() map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	locks := map[string]string{}
	for worker, grants := range t.held {
		for _, lock := range grants {
			locks[lock] = worker
		}
	}
	return locks
}

func (t *tracker) grantCount() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.grants
}
