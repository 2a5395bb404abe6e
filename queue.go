package stile

import "slices"

// queue is the line in front of a line: the goroutines of this process that want one name, first come first served. Only
// the one at its head has an entry in the store. It is guarded by the client's mutex.
type queue struct {
	head      *Place   // holds the lock, or has or seeks an entry in the store
	waiting   []*Place // behind the head, in order
	contended func()   // is called when somebody joins behind the head; may be nil
}

// join puts a place at the end of the queue of its name. A place that does not wait is not put behind others: then the
// one at the head is returned.
func (c *Client) join(p *Place) (inTheWay *Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[p.name]
	switch {
	case q == nil:
		c.queues[p.name] = &queue{head: p}
		close(p.turn)
	case p.try:
		return q.head
	default:
		q.waiting = append(q.waiting, p)
		if q.contended != nil {
			q.contended()
			q.contended = nil
		}
	}
	return nil
}

// leave takes a place out of its queue. If it was at the head, the next one's turn has come. A place that was told of its
// turn just as it was leaving is at the head, and passes the turn on.
func (c *Client) leave(p *Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passOn(p)
}

// passOn is leave; it is called with c.mu held.
func (c *Client) passOn(p *Place) {
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
