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

// publisher writes into the store when holds were obtained, for others to read. A hold waits for its time on a timer, and
// then for one of a few goroutines, which exist only while there is something to publish: however many holds there are, and
// however slow the store is, they cost no more goroutines, and nobody waits for the outcome.
type publisher struct {
	mu      sync.Mutex
	due     []*Hold
	running int // goroutines
}

// publish has a hold published.
func (c *Client) publish(h *Hold) {
	p := &c.publisher
	p.mu.Lock()
	p.due = append(p.due, h)
	start := p.running < publishParallel
	if start {
		p.running++
	}
	p.mu.Unlock()
	if !start {
		return
	}
	ctx, done, err := c.begin(context.Background())
	if err != nil {
		return // the client is closed, and its holds are lost
	}
	defer done()
	for h := p.next(); h != nil; h = p.next() {
		h.publishNow(ctx)
	}
}

// next returns a hold that is due; nil if there is none, and the goroutine has to end.
func (p *publisher) next() *Hold {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.due) == 0 {
		p.due = nil
		p.running--
		return nil
	}
	h := p.due[0]
	p.due[0] = nil
	p.due = p.due[1:]
	return h
}

// publishLater has the hold published when d has passed, unless others know already, or never will. It is called with h.mu
// held, while the hold is not over.
func (h *Hold) publishLater(d time.Duration) {
	c := h.place.client
	if c.caps.OwnerUpdates && h.owner.Obtained.IsZero() {
		h.publishing = time.AfterFunc(d, func() { c.publish(h) }) // in a goroutine of its own
	}
}

// publishNow makes one attempt, which ends with the hold. It does no harm if the release overtakes it: SetOwner never brings
// an entry back, and changes none that was let go.
func (h *Hold) publishNow(ctx context.Context) {
	h.mu.Lock()
	owner, over := h.owner, h.over
	h.mu.Unlock()
	if over {
		return
	}
	owner.Obtained = h.obtained
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	err := h.ticket.Extensions().SetOwner(ctx, owner)

	h.mu.Lock()
	defer h.mu.Unlock()
	h.attempts++
	switch {
	case err == nil:
		h.owner = owner
	case h.over || h.place.client.life.Err() != nil:
	default:
		name, token := h.Name(), h.token
		h.place.client.news.tell(func() {
			h.place.client.log(slog.LevelDebug, "could not publish when the lock was obtained",
				slog.String("lock", name), slog.Uint64("token", token), slog.Any("error", err))
		})
		if h.attempts < publishAttempts && !errors.Is(err, store.ErrGone) && !errors.Is(err, store.ErrSessionLost) {
			h.publishLater(publishRetry)
		}
	}
}

// stopPublishing is called with h.mu held, when the hold is over.
func (h *Hold) stopPublishing() {
	if h.publishing != nil {
		h.publishing.Stop()
	}
}
