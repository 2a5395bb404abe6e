package stile

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/stilelock/stile/store"
)

const (
	// publishAfter is how long a lock must be held before the time of its acquisition is published.
	// A wait must last as long.
	publishAfter = time.Second
	// publishTimeout bounds one attempt.
	publishTimeout = 5 * time.Second
	// publishRetry is the pause after a failed attempt.
	publishRetry = 10 * time.Second
	// publishAttempts is the number of attempts. Nothing depends on their success.
	publishAttempts = 3
	// publishParallel is how many holds of a client are published at the same time. They are many, because
	// a store may send requests that come at the same time together, as package etcdstore does.
	publishParallel = 32
)

// A publisher publishes the owners of holds in the store: when the lock was acquired, and what its holder
// waits for. Each tenure waits for its time on a timer, and then for one of publishParallel goroutines,
// which exist only while there is work. So the cost is bounded however many tenures there are and however
// slow the store is. No call waits for a publisher.
type publisher struct {
	mu      sync.Mutex
	due     []*tenure
	running int // number of goroutines
}

// publish queues a tenure for publication.
func (c *Client) publish(t *tenure) {
	p := &c.publisher
	p.mu.Lock()
	p.due = append(p.due, t)
	start := p.running < publishParallel
	if start {
		p.running++
	}
	p.mu.Unlock()
	if !start {
		return
	}
	call, err := c.track(context.Background())
	if err != nil {
		return // the client is closed: its holds are lost
	}
	defer call.done()
	for t := p.next(); t != nil; t = p.next() {
		t.publishNow(call.ctx)
	}
}

// next returns the next tenure that is due. If there is none, it returns nil, and the goroutine
// must end.
func (p *publisher) next() *tenure {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.due) == 0 {
		p.due = nil
		p.running--
		return nil
	}
	t := p.due[0]
	p.due[0] = nil
	p.due = p.due[1:]
	return t
}

// A publication is the state of publishing one tenure. It is guarded by the queue's mutex.
type publication struct {
	timer    *time.Timer        // nil if it is not to be published
	cancel   context.CancelFunc // ends the attempt under way; nil if there is none
	attempts int
	writing  chan struct{} // full while a request replaces the owner: one at a time; nil before the first
}

// publishLaterLocked schedules the publication of the tenure after d, unless it is published
// already or never will be.
func (t *tenure) publishLaterLocked(d time.Duration) {
	c := t.queue.client
	if c.caps.OwnerUpdates && !t.over && !t.publishedLocked() {
		t.publication.timer = time.AfterFunc(d, func() { c.publish(t) }) // runs in a goroutine of its own
	}
}

// publishedLocked reports whether the store has what others are to see.
func (t *tenure) publishedLocked() bool {
	return !t.owner.Obtained.IsZero() && slices.Equal(t.owner.Waits, t.publicWaitsLocked())
}

// maxWaits is the maximum number of waits that are published.
const maxWaits = 16

// publicWaitsLocked returns the waits that others are to see.
func (t *tenure) publicWaitsLocked() []store.Wait {
	return slices.Clone(t.waits[:min(len(t.waits), maxWaits)])
}

// publishNow makes one attempt. The attempt ends with the tenure. It is harmless if the withdrawal
// overtakes it: SetOwner never restores a removed entry and never changes a detached one.
func (t *tenure) publishNow(ctx context.Context) {
	c, p := t.queue.client, &t.publication
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	t.queue.mu.Lock()
	needed := !t.over && !t.publishedLocked()
	p.cancel = cancel
	t.queue.mu.Unlock()
	if !needed {
		return
	}
	err := t.replaceOwner(ctx, func(*Owner) {})

	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	p.cancel = nil
	p.attempts++
	switch {
	case err == nil:
	case t.over || c.life.Err() != nil:
	default:
		name, token := t.queue.name, tokenOf(t.order)
		c.notifier.post(func() {
			c.log(slog.LevelDebug, "could not publish the owner of a hold",
				slog.String("lock", name), slog.Uint64("token", token), slog.Any("error", err))
		})
		if p.attempts < publishAttempts && !errors.Is(err, store.ErrGone) && !errors.Is(err, store.ErrSessionLost) {
			t.publishLaterLocked(publishRetry)
		}
	}
}

// stopTimersLocked stops the timers of a tenure that is over.
func (t *tenure) stopTimersLocked() {
	if t.lingerTimer != nil {
		t.lingerTimer.Stop()
	}
	if t.publication.timer != nil {
		t.publication.timer.Stop()
	}
	if t.publication.cancel != nil {
		t.publication.cancel()
	}
}

// replaceOwner changes the owner that others see, and publishes the rest with it. If
// the store reports that the entry is gone, the tenure is lost. After any other failure others may see
// either owner.
func (t *tenure) replaceOwner(ctx context.Context, change func(*Owner)) error {
	t.queue.mu.Lock()
	if t.publication.writing == nil {
		t.publication.writing = make(chan struct{}, 1)
	}
	writing := t.publication.writing
	t.queue.mu.Unlock()
	select {
	case writing <- struct{}{}:
		defer func() { <-writing }()
	case <-ctx.Done():
		return ctx.Err()
	}

	t.queue.mu.Lock()
	owner := t.owner
	owner.Obtained, owner.Waits = t.acquiredAt, t.publicWaitsLocked()
	t.queue.mu.Unlock()
	change(&owner)
	if err := checkOwner(owner); err != nil {
		return err
	}
	if err := t.ticket.Extensions().SetOwner(ctx, owner); err != nil {
		if reason := t.reasonIn(err); reason != 0 {
			t.lose(reason, err) // the notification may be late
		}
		return err
	}
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	t.owner = owner
	t.publishLaterLocked(0) // if a wait has begun or ended meanwhile
	return nil
}
