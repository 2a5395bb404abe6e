package stile

import (
	"context"
	"sync"
	"time"
)

// news is told to the logger and the hooks one thing after another, by a goroutine that exists only while there is
// something to tell. Whoever renews a session or ends a hold does not wait for it: a log whose reader has stopped
// reading must not keep others from learning that they have lost.
type news struct {
	mu     sync.Mutex
	untold []func()
	told   chan struct{} // closed when all has been told; nil if nobody is telling
}

func (n *news) tell(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.untold = append(n.untold, f)
	if n.told == nil {
		n.told = make(chan struct{})
		go n.run()
	}
}

func (n *news) run() {
	for {
		n.mu.Lock()
		if len(n.untold) == 0 {
			close(n.told)
			n.told = nil
			n.mu.Unlock()
			return
		}
		f := n.untold[0]
		n.untold = n.untold[1:]
		n.mu.Unlock()
		f()
	}
}

// wait returns when all has been told, or ctx has ended, or after most.
func (n *news) wait(ctx context.Context, most time.Duration) {
	n.mu.Lock()
	told := n.told
	n.mu.Unlock()
	if told == nil {
		return
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-told:
	case <-timer.C:
	case <-ctx.Done():
	}
}
