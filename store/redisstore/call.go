package redisstore

import (
	"context"
	"sync"
	"time"

	"github.com/stilelock/stile/store/internal/attempts"
)

// maxCalls is how many calls the client may have to answer at a time. Those that were given up are among them: so there is an
// end to what gathers at a server that hangs.
const maxCalls = 4096

// calls are the calls of the client. It does not heed a context while it connects, or while it waits for an answer on a
// connection that nobody shares: so nobody waits for it longer than its own context lasts.
type calls struct {
	slots chan struct{} // holds one for each call under way

	mu      sync.Mutex
	givenUp int           // calls under way that nobody waits for any more
	none    chan struct{} // closed when there are none; nil before there is one
}

func newCalls() *calls { return &calls{slots: make(chan struct{}, maxCalls)} }

// call has the client do f, and returns what that returns, or the error of ctx if it ends first. Then f goes on, and what it
// returns is lost: so it must not write to anything outside.
func call[T any](ctx context.Context, c *calls, f func() T) (T, error) {
	var none T
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return none, ctx.Err()
	}
	answer := make(chan T, 1)
	go func() {
		defer func() { <-c.slots }()
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
