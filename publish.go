package stile

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/stilelock/stile/store"
)

const (
	// publishAfter is how long a lock is held before others are told when it was obtained: shorter holds cost no request.
	publishAfter = time.Second
	// publishTimeout bounds one attempt.
	publishTimeout = 5 * time.Second
	// publishRetry is the pause after a failed attempt.
	publishRetry = 10 * time.Second
	// publishAttempts is how many attempts there are. Nothing depends on their success.
	publishAttempts = 3
	// publishParallel is how many holds of one client are published at a time.
	publishParallel = 4
)

// publisher writes into the store when locks were obtained, for others to read. A tenure waits for its time on a timer, and
// then for one of a few goroutines, which exist only while there is something to publish: however many tenures there are, and
// however slow the store is, they cost no more goroutines, and nobody waits for the outcome.
type publisher struct {
	mu      sync.Mutex
	due     []*tenure
	running int // goroutines
}

// publish has a tenure published.
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
	call, err := c.begin(context.Background())
	if err != nil {
		return // the client is closed, and its holds are lost
	}
	defer call.done()
	for t := p.next(); t != nil; t = p.next() {
		t.publishNow(call.ctx)
	}
}

// next returns a tenure that is due; nil if there is none, and the goroutine has to end.
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

// publication is how far others have been told when the lock was obtained. It is guarded by the queue's mutex.
type publication struct {
	timer    *time.Timer        // nil if it is not to be published
	cancel   context.CancelFunc // ends the attempt under way, if there is one
	attempts int
}

// publishLaterLocked has the tenure published when d has passed, unless others know already, or never will.
func (t *tenure) publishLaterLocked(d time.Duration) {
	c := t.queue.client
	if c.caps.OwnerUpdates && t.owner.Obtained.IsZero() && !t.over {
		t.publication.timer = time.AfterFunc(d, func() { c.publish(t) }) // in a goroutine of its own
	}
}

// publishNow makes one attempt, which ends with the tenure. It does no harm if the withdrawal overtakes it: SetOwner never
// brings an entry back, and changes none that was let go.
func (t *tenure) publishNow(ctx context.Context) {
	c, p := t.queue.client, &t.publication
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	t.queue.mu.Lock()
	owner, over := t.owner, t.over
	p.cancel = cancel
	t.queue.mu.Unlock()
	if over {
		return
	}
	owner.Obtained = t.obtained
	err := t.ticket.Extensions().SetOwner(ctx, owner)

	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	p.cancel = nil
	p.attempts++
	switch {
	case err == nil:
		t.owner = owner
	case t.over || c.life.Err() != nil:
	default:
		name, token := t.queue.name, tokenOf(t.order)
		c.news.tell(func() {
			c.log(slog.LevelDebug, "could not publish when the lock was obtained",
				slog.String("lock", name), slog.Uint64("token", token), slog.Any("error", err))
		})
		if p.attempts < publishAttempts && !errors.Is(err, store.ErrGone) && !errors.Is(err, store.ErrSessionLost) {
			t.publishLaterLocked(publishRetry)
		}
	}
}

// stopPublishingLocked is for a tenure that is over.
func (t *tenure) stopPublishingLocked() {
	if t.publication.timer != nil {
		t.publication.timer.Stop()
	}
	if t.publication.cancel != nil {
		t.publication.cancel()
	}
}
