package stile

import (
	"context"
	"slices"
)

// queue is the line in front of a line: the goroutines of this process that want one name, first come first served. Only
// the one at its head has an entry in the store. It is guarded by the client's mutex.
type queue struct {
	head      *Place   // holds the lock, or has or seeks an entry in the store
	waiting   []*Place // behind the head, in order
	contended func()   // is called when somebody joins behind the head; may be nil
}

// join puts a place into the queue of its name and waits until it is at the head. On failure it is not in the queue.
func (c *Client) join(ctx context.Context, p *Place) error {
	c.mu.Lock()
	q := c.queues[p.name]
	if q == nil {
		c.queues[p.name] = &queue{head: p}
		c.mu.Unlock()
		return nil
	}
	q.waiting = append(q.waiting, p)
	if q.contended != nil {
		q.contended()
		q.contended = nil
	}
	c.mu.Unlock()

	select {
	case <-p.turn:
		return nil
	case <-ctx.Done():
		c.leave(p)
		return ctx.Err()
	}
}

// tryJoin is join for those who do not wait. If the queue is not empty it returns who is at its head.
func (c *Client) tryJoin(p *Place) (head *Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.queues[p.name]; q != nil {
		return q.head
	}
	c.queues[p.name] = &queue{head: p}
	return nil
}

// leave takes a place out of its queue. If it was at the head, the next one's turn has come. A place that was told of its
// turn just as it was leaving is at the head, and passes the turn on.
func (c *Client) leave(p *Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[p.name]
	switch {
	case q == nil:
	case q.head != p:
		q.waiting = slices.DeleteFunc(q.waiting, func(other *Place) bool { return other == p })
	case len(q.waiting) == 0:
		delete(c.queues, p.name)
	default:
		q.head, q.contended = q.waiting[0], nil
		q.waiting = slices.Delete(q.waiting, 0, 1)
		close(q.head.turn)
	}
}

// aheadHere says how many places are ahead of p in this process.
func (c *Client) aheadHere(p *Place) (n int, head *Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[p.name]
	if q == nil || q.head == p {
		return 0, p
	}
	return 1 + slices.Index(q.waiting, p), q.head
}

// whenContended calls f when somebody waits behind p in this process: at once if somebody does.
func (c *Client) whenContended(p *Place, f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[p.name]
	switch {
	case q == nil || q.head != p:
	case len(q.waiting) > 0:
		f()
	default:
		q.contended = f
	}
}
