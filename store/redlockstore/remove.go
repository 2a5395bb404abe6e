package redlockstore

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store/internal/attempts"
)

// removal takes a claim out at all masters.
type removal struct {
	quorum  int
	mu      sync.Mutex
	heard   *tally
	absent  int           // masters that did not have it
	deleted int           // masters that had it, and do not any more
	unclear int           // masters that do not have it, and may have had it when they were first asked
	found   presence      // when it was out
	settled bool          // done is closed
	done    chan struct{} // closed when the claim is out, or every master has answered or refused to
}

// presence says whether a claim was there when it was taken out.
type presence uint8

const (
	notKnown presence = iota // the masters that could tell do not answer, or their first answer was lost
	wasThere                 // a majority had it
	wasGone                  // a majority did not
)

func newRemoval(s *Store) *removal {
	return &removal{quorum: s.quorum, heard: s.newTally(), done: make(chan struct{})}
}

// note counts what one master has said: whether it has deleted the claim, and if not, whether an earlier request that was not
// answered may have. The claim is out when a majority does not have it. If it is not known then whether a majority had it, those
// masters are waited for that could tell: not all had it, or not all have answered at once, so that is rare.
func (d *removal) note(m *master, deleted, doubt bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard.note(m, err)
	switch {
	case err != nil:
	case deleted:
		d.deleted++
	case doubt:
		d.unclear++
	default:
		d.absent++
	}
	switch {
	case d.absent >= d.quorum, d.deleted >= d.quorum, d.heard.all():
		d.settle()
	case d.without() == d.quorum:
		time.AfterFunc(attempts.Longest, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.settle()
		})
	}
}

// without counts the masters that do not have the claim. It is called with d.mu held.
func (d *removal) without() int { return d.absent + d.deleted + d.unclear }

// settle is called with d.mu held.
func (d *removal) settle() {
	if d.settled {
		return
	}
	d.settled = true
	switch {
	case d.deleted >= d.quorum:
		d.found = wasThere
	case d.absent >= d.quorum:
		d.found = wasGone
	}
	close(d.done)
}

// outcome reports whether the claim was there when it was taken out. The error says that it may not be out.
func (d *removal) outcome() (presence, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.without() < d.quorum {
		return notKnown, d.heard.err()
	}
	return d.found, nil
}

// drop takes the claim out, at once where it is known to be, elsewhere as soon as it is known. It goes on by itself.
func (c *claim) drop() *removal {
	c.mu.Lock()
	if c.leaving != nil {
		defer c.mu.Unlock()
		return c.leaving
	}
	d := newRemoval(c.store)
	c.leaving = d
	var where []*master
	for _, at := range c.at {
		if at.state != asking {
			where = append(where, at.master)
		}
	}
	c.mu.Unlock()
	for _, m := range where {
		c.leave(m, d)
	}
	return d
}

// leave takes the claim out at one master, where no request to put it in is unanswered any more.
func (c *claim) leave(m *master, d *removal) {
	c.mu.Lock()
	at := c.at[m.number]
	loud := c.loud
	c.mu.Unlock()
	if !at.ever {
		d.note(m, false, false, nil)
		return
	}
	c.store.takeOut(m, c.name, c.id, at.doubt, loud, d)
}

// takeOut takes an entry out at one master. If it may yet be put in there, void prevents it. If the master is out of
// reach it is done when that is over.
func (s *Store) takeOut(m *master, name, id string, void, loud bool, d *removal) {
	channel := ""
	if loud {
		channel = s.keys.channel(name)
	}
	keys := []string{s.keys.lock(name), s.keys.void(name, id), s.keys.index()}
	args := func(void bool) []string {
		ttl := "0"
		if void {
			ttl = millis(voidTTL)
		}
		return []string{id, ttl, name, channel}
	}
	later := &pendingRemoval{keys: keys, args: args(true)}
	postpone := func(doubt bool) {
		later.done = func(reply rueidis.RedisMessage, err error) {
			deleted := false
			if err == nil {
				deleted, err = isOne(reply)
			}
			d.note(m, deleted, doubt, err)
		}
		m.removeLater(later)
	}
	ask := func() {
		reply, err := m.ask(s.life, leaveScript, keys, args(void))
		switch _, refused := rueidis.IsRedisErr(err); {
		case err == nil:
			deleted, err := isOne(reply)
			d.note(m, deleted, false, err)
		case refused && !passes(err):
			s.logger.LogAttrs(s.life, slog.LevelWarn, "an entry could not be taken out; it goes when its time is over",
				slog.String("lock", name), slog.String("master", m.addr), slog.Any("error", err))
			d.note(m, false, false, err)
		default:
			postpone(inDoubt(err))
		}
	}
	if !s.work.Start(ask) {
		d.note(m, false, false, errClosed)
	}
}

// over reports whether the claim is out.
func (d *removal) over() bool {
	select {
	case <-d.done:
		_, err := d.outcome()
		return err == nil
	default:
		return false
	}
}

// wait waits until the claim is out, and reports whether it was there.
func (d *removal) wait(ctx context.Context, s *Store) (presence, error) {
	select {
	case <-d.done:
		return d.outcome()
	case <-ctx.Done():
		d.mu.Lock()
		defer d.mu.Unlock()
		return notKnown, d.heard.err()
	case <-s.life.Done():
		return notKnown, errClosed
	}
}
