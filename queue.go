package stile

import (
	"slices"
	"sync"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// A queue is the local line of one name: the places of this client, in order of arrival. The rules
// of package line apply, as in the store. An admitted place holds the lock or waits for it in the
// store; the other places wait behind it and have no entry in the store.
type queue struct {
	client *Client
	name   string
	refs   int // places in the queue; guarded by the client's mutex

	// mu guards the fields below, and those fields of the name's places, tenures and holds that say
	// so. No call under it blocks or calls back.
	mu            sync.Mutex
	line          []*Place // the admitted ones are in front
	admittedCount int      // how many are admitted
	removals      []*removal
	kept          *tenure // kept although no place uses it; nil if there is none
	shared        *tenure // the latest shared tenure, which places may join while it is joinable; may be nil
}

// join appends a place to its queue. It fails if the places there are of another kind and, for a
// try, if the place is not admitted at once.
func (c *Client) join(name string, p *Place) error {
	c.mu.Lock()
	p.queue = c.queueLocked(name)
	c.mu.Unlock()

	q := p.queue
	q.mu.Lock()
	err := q.refusalLocked(p)
	if err == nil {
		q.appendLocked(p)
	}
	q.mu.Unlock()

	if err != nil {
		c.unref(q)
	}
	return err
}

// joinAll is join for places with different names, sorted by name, in one step: no other place joins one
// of their queues in between. If one of them cannot join, none does.
func (c *Client) joinAll(names []string, places []*Place) (err error) {
	c.mu.Lock()
	for i, p := range places {
		p.queue = c.queueLocked(names[i])
	}
	c.mu.Unlock()

	for _, p := range places { // in the order of their names, so two calls do not lock each other out
		p.queue.mu.Lock()
	}
	for i, p := range places {
		if err = p.queue.refusalLocked(p); err != nil {
			err = lockError(names[i], err)
			break
		}
	}
	for _, p := range places {
		if err == nil {
			p.queue.appendLocked(p)
		}
	}
	for _, p := range places {
		p.queue.mu.Unlock()
	}

	if err != nil {
		for _, p := range places {
			c.unref(p.queue)
		}
	}
	return err
}

// queueLocked returns the queue of a name, for one more place.
func (c *Client) queueLocked(name string) *queue {
	q := c.queues[name]
	if q == nil {
		q = &queue{client: c, name: name}
		c.queues[name] = q
	}
	q.refs++
	return q
}

// refusalLocked returns the error of a place that may not join the queue, and nil if it may.
func (q *queue) refusalLocked(p *Place) error {
	switch {
	case len(q.line) == 0:
		return nil
	case !line.SameKind(p.mode, q.line[0].mode):
		return &KindError{Name: q.name, Mode: p.mode, Other: q.line[0].entry()}
	case p.try && (q.admittedCount < len(q.line) || !line.Admits(p.mode, modes(q.line))):
		holder := q.line[0].entry()
		return heldError(&store.HeldError{Name: q.name, Holder: &holder})
	}
	return nil
}

// appendLocked appends a place to the queue.
func (q *queue) appendLocked(p *Place) {
	q.line = append(q.line, p)
	q.admitLocked()
	if q.admittedCount < len(q.line) {
		p.turn = make(chan struct{})
		q.contendedLocked()
	}
}

// leave removes a place from its queue, if it is there, and admits the places that may follow.
func (q *queue) leave(p *Place) {
	q.mu.Lock()
	left := q.leaveLocked(p)
	q.mu.Unlock()
	if left {
		q.client.unref(q)
	}
}

// leaveLocked is leave without unref: if the place was there, the caller must call unref later,
// without the lock.
func (q *queue) leaveLocked(p *Place) (left bool) {
	i := slices.Index(q.line, p)
	if i < 0 {
		return false
	}
	q.line = slices.Delete(q.line, i, i+1)
	if i < q.admittedCount {
		q.admittedCount--
		q.admitLocked()
	}
	return true
}

// once returns the channel for an event that happens once, which few ask for. If it has happened, that is
// closedChannel; otherwise *c, which is made now if it is nil, and which the event must close.
func once(c *chan struct{}, happened bool) <-chan struct{} {
	switch {
	case *c == nil && happened:
		*c = closedChannel
	case *c == nil:
		*c = make(chan struct{})
	}
	return *c
}

// closedChannel is the channel of events that have happened before anybody could wait for them.
var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// admitLocked admits all places that may be admitted. Admitted places are always the first ones of
// the line, so the search starts behind them.
func (q *queue) admitLocked() {
	for q.admittedCount < len(q.line) && line.Admits(q.line[q.admittedCount].mode, modes(q.line[:q.admittedCount])) {
		if p := q.line[q.admittedCount]; p.turn == nil {
			p.turn = closedChannel
		} else {
			close(p.turn)
		}
		q.admittedCount++
	}
}

// ref counts a place that was added to a queue behind another one of the same caller.
func (c *Client) ref(q *queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q.refs++
}

// unref removes a queue from the client when its last place has left.
func (c *Client) unref(q *queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.refs--; q.refs == 0 {
		delete(c.queues, q.name)
	}
}

// contendedLocked notifies the admitted places that another place waits.
func (q *queue) contendedLocked() {
	for _, p := range q.line[:q.admittedCount] {
		if p.tenure != nil {
			p.tenure.contendedLocked()
		}
	}
}

// ahead returns how many entries and places must leave before p holds the lock: in the queue, and
// in the store as far as is known.
func (q *queue) ahead(p *Place) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.line, p)
	if i < 0 {
		return 0
	}
	inStore := 0
	for _, other := range q.line[:min(i+1, q.admittedCount)] {
		if other.tenure != nil {
			inStore = max(inStore, int(other.tenure.ahead.Load()))
		}
	}
	return line.Blocking(p.mode, modes(q.line[:i])) + inStore
}

func modes(places []*Place) []line.Mode {
	all := make([]line.Mode, len(places))
	for i, p := range places {
		all[i] = p.mode
	}
	return all
}
