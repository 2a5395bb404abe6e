package stile

import (
	"context"
	"sync"
	"time"
)

// A notifier calls the logger and the hooks, one after another, in a goroutine that exists only
// while calls are pending. The goroutines that renew a session or end a hold do not wait for these
// calls: a log writer that blocks must not delay the notification of lost holders.
type notifier struct {
	mu      sync.Mutex
	pending []func()
	idle    chan struct{} // closed when no call is pending; nil while the goroutine does not run
}

func (n *notifier) post(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pending = append(n.pending, f)
	if n.idle == nil {
		n.idle = make(chan struct{})
		go n.run()
	}
}

func (n *notifier) run() {
	for {
		n.mu.Lock()
		if len(n.pending) == 0 {
			close(n.idle)
			n.idle = nil
			n.mu.Unlock()
			return
		}
		f := n.pending[0]
		n.pending = n.pending[1:]
		n.mu.Unlock()
		f()
	}
}

// wait waits until no call is pending, ctx ends or the timeout passes.
func (n *notifier) wait(ctx context.Context, timeout time.Duration) {
	n.mu.Lock()
	idle := n.idle
	n.mu.Unlock()
	if idle == nil {
		return
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	case <-ctx.Done():
	}
}
