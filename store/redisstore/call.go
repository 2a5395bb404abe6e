package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/store/internal/attempts"
)

// calls are the calls of the client. It does not heed a context while it connects, or while it waits for an answer on a
// connection that nobody shares: so nobody waits for it longer than its own context lasts.
type calls struct {
	underWay atomic.Int64

	mu      sync.Mutex
	givenUp int           // calls under way that nobody waits for any more
	none    chan struct{} // closed when there are none; nil before there is one
}

// call has the client do f, and returns what that returns, or the error of ctx if it ends first. Then f goes on, and what it
// returns is lost: so it must not write to anything outside, nor read what its caller changes afterwards.
func call[T any](ctx context.Context, c *calls, f func() T) (T, error) {
	answer := make(chan T, 1)
	c.underWay.Add(1)
	go func() {
		defer c.underWay.Add(-1)
		answer <- f()
	}()
	return await(ctx, c, answer)
}

// await waits for an answer, or until ctx ends. An answer that is there counts, though ctx has ended as well.
func await[T any](ctx context.Context, c *calls, answer chan T) (T, error) {
	select {
	case v := <-answer:
		return v, nil
	case <-ctx.Done():
	}
	select {
	case v := <-answer:
		return v, nil
	default:
	}
	c.giveUp()
	go func() {
		<-answer
		c.over()
	}()
	var none T
	return none, ctx.Err()
}

func (c *calls) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.givenUp == 0 {
		c.none = make(chan struct{})
	}
	c.givenUp++
}

func (c *calls) over() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.givenUp--; c.givenUp == 0 {
		close(c.none)
	}
}

// maxParting is how long to wait for calls that were given up: an attempt lasts no longer.
const maxParting = attempts.Longest + time.Second

// wait waits until no call that was given up is under way, as long as ctx lasts.
func (c *calls) wait(ctx context.Context) {
	c.mu.Lock()
	none, some := c.none, c.givenUp > 0
	c.mu.Unlock()
	if !some {
		return
	}
	timer := time.NewTimer(maxParting)
	defer timer.Stop()
	select {
	case <-none:
	case <-timer.C:
	case <-ctx.Done():
	}
}
