package stile

import (
	"context"

	"github.com/stilelock/stile/line"
)

// Locker exports locker, which takes a lock in any mode.
type Locker struct{ l locker }

func (c *Client) Locker(name string, mode line.Mode) Locker {
	return Locker{locker{client: c, name: name, mode: mode}}
}

// Numbered is [Semaphore.Numbered] for a Locker.
func (l Locker) Numbered() Locker {
	l.l.numbered = true
	return l
}

func (l Locker) Lock(ctx context.Context) (*Hold, error)    { return l.l.lock(ctx, false) }
func (l Locker) TryLock(ctx context.Context) (*Hold, error) { return l.l.lock(ctx, true) }
func (l Locker) Join(ctx context.Context) (*Place, error)   { return l.l.join(ctx) }
func (l Locker) Do(ctx context.Context, f func(context.Context, *Hold) error) error {
	return l.l.do(ctx, f)
}

// Queues returns the number of names for which the client has a queue.
func (c *Client) Queues() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queues)
}

// Tenure exports tenure.
type Tenure = tenure

func (h *Hold) Tenure() *Tenure { return h.tenure }

// StopLingerTimer stops the timer of a tenure that was kept, and reports whether it was running.
func (t *Tenure) StopLingerTimer() bool {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	return t.lingerTimer.Stop()
}

// With is [Mutex.With] for a Locker.
func (l Locker) With(opts LockOptions) Locker {
	l.l.opts = opts
	return l
}

// Cycles exports cycles.
var Cycles = cycles

// HoldOf returns the hold of one of the locks.
func (m *MultiHold) HoldOf(name string) *Hold {
	for _, h := range m.holds {
		if h.Name() == name {
			return h
		}
	}
	return nil
}
