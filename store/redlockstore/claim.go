package redlockstore

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/bootclock"
)

// fenceTTL is how long a master remembers the last order given out under a name, from the end of the hold. After that the
// time does: see takeScript.
const fenceTTL = 7 * 24 * time.Hour

// claim is one attempt at a lock, and what has become of it at each master. Its id is its own, so whatever is asked for
// it can touch nothing of another attempt, however late it is carried out.
//
// The one thing that must not be carried out late is putting it in: that would leave an entry that nobody knows of. So
// a master is asked to take it out only when the request to put it in is known to be over, or, if that can never be
// known because the connection has broken, together with the word that the attempt is void.
type claim struct {
	store *Store
	name  string
	id    string
	says  value
	value string
	ttl   time.Duration

	mu      sync.Mutex
	at      []replica
	order   uint64            // zero until known
	renewed bootclock.Instant // before the requests were sent by which a majority has it
	loud    bool              // it may have kept others out: they should be told when it goes
	leaving *removal          // once it is being taken out
}

// replica is how a claim stands at one master.
type replica struct {
	master *master
	state  replicaState
	ever   bool // it has been put in, or may have been
	doubt  bool // a request to put it in may yet be carried out
	grant  bool // the order has been sent
}

type replicaState uint8

const (
	out    replicaState = iota // not there
	asking                     // a request to put it in is unanswered
	in                         // there, when it was last heard of
)

// newClaim returns a claim that is nowhere yet.
func (s *Store) newClaim(name string, v value, ttl time.Duration) (*claim, error) {
	c := &claim{store: s, name: name, id: newID(), says: v, ttl: ttl, at: make([]replica, len(s.masters))}
	for i, m := range s.masters {
		c.at[i].master = m
	}
	var err error
	c.value, err = v.encode(c.id)
	return c, err
}

// obstacle is what a master has instead of the claim.
type obstacle struct {
	value string
	ttl   time.Duration // negative if it never ends
}

// result is what has become of an attempt to take a lock.
type result struct {
	won       bool
	obstacles []obstacle // of the masters that have refused because of somebody else
	free      int        // masters that had no obstacle
	late      bool       // other masters might have answered, and have not been waited for
	err       error      // if too few masters have answered to tell who has the lock
}

// vote is what one master has said to one request for a claim.
type vote struct {
	master  *master
	granted bool   // it has the order
	order   uint64 // it has put the claim in, and its orders begin here
	refused *obstacle
	err     error
}

// take tries to put the claim in at a majority of the masters, all of which are asked at once, and to make its order
// known to a majority. If it does not succeed the claim is taken out again, in the background. It returns as soon as
// the outcome is known, or ctx ends. If a majority has answered, and it depends on the others whether the claim has won,
// it gives them only the time that they usually take: what was in the way at those who have answered may be gone sooner.
//
// The order is larger than that of any hold before: the majority that has put the claim in, and told what orders it has
// seen, has a master in common with the majority that was told the order of that hold, while the hold was there.
func (c *claim) take(ctx context.Context) result {
	votes := make(chan vote, 2*len(c.at))
	c.mu.Lock()
	for i := range c.at {
		c.at[i].state = asking
	}
	c.mu.Unlock()
	for i := range c.at {
		if m := c.at[i].master; !c.store.work.Start(func() { c.seize(ctx, m, votes) }) {
			c.seized(m, unsentError{errClosed}, false)
			votes <- vote{master: m, err: errClosed}
		}
	}
	r := c.count(ctx, votes)
	if !r.won {
		c.drop()
	}
	return r
}

// count counts votes until the outcome is known.
func (c *claim) count(ctx context.Context, votes chan vote) result {
	var r result
	var orders []uint64
	heard := c.store.newTally()
	granted, lost, quorum := 0, 0, c.store.quorum
	var late <-chan time.Time
	for granted < quorum {
		// Those who have refused, or failed, at either step cannot help any more.
		if len(c.at)-lost < quorum {
			if heard.failed() > len(c.at)-quorum {
				r.err = heard.err()
			}
			return r
		}
		var v vote
		select {
		case v = <-votes:
		case <-late:
			r.late = true
			return r
		case <-ctx.Done():
			r.err = heard.err()
			return r
		}
		heard.note(v.master, v.err)
		switch {
		case v.granted:
			granted++
		case v.order != 0:
			r.free++
			if orders = append(orders, v.order); len(orders) == quorum {
				c.decide(slices.Max(orders), votes)
			}
		case v.refused != nil:
			lost++
			if !c.sameEntry(v.refused.value) {
				r.obstacles = append(r.obstacles, *v.refused)
			}
		default:
			lost++
		}
		switch {
		case c.decided(): // who has the claim must now be told the order, however long that takes
			late = nil
		case late == nil && heard.answered() >= quorum:
			late = time.After(c.store.usual())
		}
	}
	r.won = true
	return r
}

// sameEntry reports whether a value is that of another attempt of the same entry, which is on its way out.
func (c *claim) sameEntry(text string) bool {
	_, v, ours := decode(text)
	return ours && v.Session == c.says.Session && v.Entry == c.says.Entry
}

// seize puts the claim in at one master.
func (c *claim) seize(ctx context.Context, m *master, votes chan<- vote) {
	k := c.store.keys
	reply, err := m.take(ctx,
		[]string{k.lock(c.name), k.fence(c.name), k.void(c.name, c.id)},
		[]string{c.id, c.value, millis(c.ttl)})
	v := vote{master: m, err: err}
	if err == nil {
		v.order, v.refused, v.err = readTaken(reply)
	}
	taken := v.order != 0
	grant := c.seized(m, err, taken)
	votes <- v
	if grant {
		c.grant(m, votes)
	}
}

// readTaken reads the answer of takeScript.
func readTaken(reply rueidis.RedisMessage) (order uint64, refused *obstacle, err error) {
	parts, err := reply.ToArray()
	if err != nil || len(parts) == 0 {
		return 0, nil, cmp.Or(err, errStrange)
	}
	switch said, _ := parts[0].AsInt64(); {
	case said == 1 && len(parts) == 2:
		text, _ := parts[1].ToString()
		order, err = strconv.ParseUint(text, 10, 64)
		return order, nil, err
	case said == 0 && len(parts) == 3:
		value, err := parts[1].ToString()
		left, _ := parts[2].AsInt64()
		return 0, &obstacle{value: value, ttl: time.Duration(left) * time.Millisecond}, err
	default:
		return 0, nil, errStrange
	}
}

// seized notes how a request to put the claim in has ended. It reports whether the order is to be sent now. If the claim
// is being taken out, that is begun at this master.
func (c *claim) seized(m *master, err error, taken bool) (grant bool) {
	c.mu.Lock()
	at := &c.at[m.number]
	at.state = out
	if taken {
		at.state = in
	}
	at.doubt = at.doubt || inDoubt(err)
	at.ever = at.ever || taken || at.doubt
	grant = taken && c.order != 0 && !at.grant && c.leaving == nil
	at.grant = at.grant || grant
	leaving := c.leaving
	c.mu.Unlock()
	if leaving != nil {
		c.leave(m, leaving)
	}
	return grant
}

// decide fixes the claim's order, and has it sent to the masters that have the claim. Those that put it in later are sent
// it then.
func (c *claim) decide(order uint64, votes chan<- vote) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.order, c.renewed, c.loud = order, bootclock.Now(), true
	for i := range c.at {
		at := &c.at[i]
		if at.state != in {
			continue
		}
		at.grant = true
		if !c.store.work.Start(func() { c.grant(at.master, votes) }) {
			votes <- vote{master: at.master, err: errClosed}
		}
	}
}

func (c *claim) decided() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.order != 0
}

// grant makes the order known to a master that has the claim.
func (c *claim) grant(m *master, votes chan<- vote) {
	k := c.store.keys
	reply, err := m.ask(c.store.life, grantScript,
		[]string{k.lock(c.name), k.fence(c.name), k.index()},
		[]string{c.id, strconv.FormatUint(c.order, 10), millis(c.ttl), millis(fenceTTL), c.name, k.channel(c.name)})
	mine := false
	if err == nil {
		mine, err = isOne(reply)
	}
	votes <- vote{master: m, granted: mine, err: err}
}

// said notes what a master has answered to a renewal. It reports whether the claim should be restored there: if the
// master has nobody's.
func (c *claim) said(m *master, answer int64) (absent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := &c.at[m.number]
	if at.state != asking {
		at.state = out
		if answer == 1 {
			at.state = in
		}
	}
	return answer == 0 && at.state == out
}

// restore puts the claim in at a master that does not have it, while a majority has.
func (c *claim) restore(m *master) {
	c.mu.Lock()
	at := &c.at[m.number]
	if c.leaving != nil || at.state != out {
		c.mu.Unlock()
		return
	}
	at.state = asking
	c.mu.Unlock()

	k := c.store.keys
	reply, err := m.ask(c.store.life, restoreScript,
		[]string{k.lock(c.name), k.fence(c.name), k.void(c.name, c.id), k.index()},
		[]string{c.id, c.value, strconv.FormatUint(c.order, 10), millis(c.ttl), millis(fenceTTL), c.name})
	mine := false
	if err == nil {
		mine, err = isOne(reply)
	}
	c.seized(m, err, mine)
}
