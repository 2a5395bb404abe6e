package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/store/internal/attempts"
)

// calls tracks the calls of the Redis client. The client ignores contexts while it connects, and
// while it waits for a reply on a connection that is not shared. Callers therefore abandon a call
// when their own context ends.
type calls struct {
	running atomic.Int64

	mu            sync.Mutex
	abandoned     int           // abandoned calls that have not returned
	noneAbandoned chan struct{} // closed when abandoned is zero again; nil before the first abandoned call
}

// call runs f and returns its result, or the error of ctx if that ends first. Then f keeps running,
// and its result is discarded. So f must not write to variables outside, nor read what the caller
// changes afterwards.
func call[T any](ctx context.Context, c *calls, f func() T) (T, error) {
	answer := make(chan T, 1)
	c.running.Add(1)
	go func() {
		defer c.running.Add(-1)
		answer <- f()
	}()
	return await(ctx, c, answer)
}

// await waits for an answer until ctx ends. If both have happened the answer is returned.
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
	c.abandon()
	go func() {
		<-answer
		c.abandonedReturned()
	}()
	var zero T
	return zero, ctx.Err()
}

func (c *calls) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abandoned == 0 {
		c.noneAbandoned = make(chan struct{})
	}
	c.abandoned++
}

func (c *calls) abandonedReturned() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abandoned--; c.abandoned == 0 {
		close(c.noneAbandoned)
	}
}

// abandonedTimeout bounds wait: an attempt lasts no longer than attempts.MaxTimeout.
const abandonedTimeout = attempts.MaxTimeout + time.Second

// wait waits, until ctx ends, for all abandoned calls to return.
func (c *calls) wait(ctx context.Context) {
	c.mu.Lock()
	none, abandoned := c.noneAbandoned, c.abandoned > 0
	c.mu.Unlock()
	if !abandoned {
		return
	}
	timer := time.NewTimer(abandonedTimeout)
	defer timer.Stop()
	select {
	case <-none:
	case <-timer.C:
	case <-ctx.Done():
	}
}
