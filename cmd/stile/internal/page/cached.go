package page

import (
	"sync"
	"time"
)

// cached is a result that is expensive to get. It is kept for a second, or for ten times as long as it took
// to get it, so that requests cannot use more than a tenth of the time for it.
type cached[T any] struct {
	mu    sync.Mutex
	value *T
	err   error
	until time.Time
}

// get returns the result, from f if it is not kept.
func (c *cached[T]) get(f func() (*T, error)) (*T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if begin := time.Now(); !begin.Before(c.until) {
		c.value, c.err = f()
		took := time.Since(begin)
		c.until = time.Now().Add(max(time.Second, 10*took))
	}
	return c.value, c.err
}
