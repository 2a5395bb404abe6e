package stile

import (
	"slices"
	"sync"

	"github.com/stilelock/stile/line"
)

// A queue is the local line of one name: the places of this process, in order of arrival. Package line decides whose turn
// it is, as it does in the store. A place whose turn has come holds the lock, or goes for it in the store; the others wait
// behind it without an entry.
type queue struct {
	client *Client
	name   string
	refs   int // the places that have joined and not left; guarded by the client's mutex

	// mu guards the rest, and what places, tenures and holds of the name say it guards. Nothing is waited for while it is
	// held, and no callback is called.
	mu     sync.Mutex
	line   []*Place // those whose turn has come are in front
	turns  int      // how many those are
	shared *tenure  // the last one in shared mode, which others join while it is open; may be nil
}

// join puts a place at the end of its queue. A place that does not wait, and whose turn it is not, is not put there: then
// join returns the one that holds the lock or goes for it.
func (c *Client) join(name string, p *Place) (inTheWay *Place) {
	c.mu.Lock()
	q := c.queues[name]
	if q == nil {
		q = &queue{client: c, name: name}
		c.queues[name] = q
	}
	q.refs++
	c.mu.Unlock()
	p.queue = q

	q.mu.Lock()
	q.line = append(q.line, p)
	q.admitLocked()
	inTurn := q.turns == len(q.line)
	if p.try && !inTurn {
		q.line = q.line[:len(q.line)-1]
		inTheWay = q.line[0]
	} else if !inTurn {
		q.contendedLocked()
	}
	q.mu.Unlock()

	if inTheWay != nil {
		c.forgetPlace(q)
	}
	return inTheWay
}

// leave takes a place out of its queue, if it is there. Others' turn may come with that.
func (q *queue) leave(p *Place) {
	q.mu.Lock()
	left := q.leaveLocked(p)
	q.mu.Unlock()
	if left {
		q.client.forgetPlace(q)
	}
}

// leaveLocked is leave but for the client, which has to be told of a place that has left with forgetPlace.
func (q *queue) leaveLocked(p *Place) (left bool) {
	i := slices.Index(q.line, p)
	if i < 0 {
		return false
	}
	q.line = slices.Delete(q.line, i, i+1)
	if i < q.turns {
		q.turns--
		q.admitLocked()
	}
	return true
}

// admitLocked gives those their turn whose turn has come. Who is admitted behind others finds only admitted ones ahead: so
// they are the first of the line, and looking goes on where it ended.
func (q *queue) admitLocked() {
	for q.turns < len(q.line) && line.Admits(q.line[q.turns].mode, modes(q.line[:q.turns])) {
		close(q.line[q.turns].turn)
		q.turns++
	}
}

// forgetPlace lets the client forget a queue when its last place has left.
func (c *Client) forgetPlace(q *queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.refs--; q.refs == 0 {
		delete(c.queues, q.name)
	}
}

// contendedLocked lets those who have their turn know that somebody waits for it.
func (q *queue) contendedLocked() {
	for _, p := range q.line[:q.turns] {
		if p.tenure != nil {
			p.tenure.contendedLocked()
		}
	}
}

// ahead is how many must leave before it is p's turn to hold the lock: in the queue, and in the store as far as is known.
func (q *queue) ahead(p *Place) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.line, p)
	if i < 0 {
		return 0
	}
	inStore := 0
	for _, other := range q.line[:min(i+1, q.turns)] {
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
