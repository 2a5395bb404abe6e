package redlockstore

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store/internal/attempts"
)

// removal counts the answers of the masters while a bid is removed.
type removal struct {
	quorum  int
	mu      sync.Mutex
	replies *tally
	absent  int      // masters that did not have it
	deleted int      // masters that had it and have deleted it
	unclear int      // masters that do not have it now, but may have had it when they were first asked
	found   presence // set when done is closed
	settled bool
	done    chan struct{} // closed when the outcome is known, or every master has answered or failed
}

// presence is whether a bid was there when it was removed.
type presence uint8

const (
	notKnown presence = iota // the decisive masters do not answer, or their first reply was lost
	wasThere                 // a majority had it
	wasGone                  // a majority did not
)

func newRemoval(s *Store) *removal {
	return &removal{quorum: s.quorum, replies: s.newTally(), done: make(chan struct{})}
}

// record counts the answer of one master: whether it has deleted the bid, and if not (doubt),
// whether an earlier request without a reply may have. The bid is out when a majority does not
// have it. If it is then unknown whether a majority had it, the other masters are waited for. That
// is rare: it needs a master that did not have the bid, or that did not answer at once.
func (d *removal) record(m *master, deleted, doubt bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.replies.record(m, err)
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
	case d.absent >= d.quorum, d.deleted >= d.quorum, d.replies.all():
		d.settleLocked()
	case d.goneLocked() == d.quorum:
		time.AfterFunc(attempts.MaxTimeout, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.settleLocked()
		})
	}
}

// goneLocked counts the masters that do not have the bid.
func (d *removal) goneLocked() int { return d.absent + d.deleted + d.unclear }

// settleLocked fixes the outcome.
func (d *removal) settleLocked() {
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

// outcome returns whether the bid was there when it was removed. The error means that it may not
// be out.
func (d *removal) outcome() (presence, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.goneLocked() < d.quorum {
		return notKnown, d.replies.err()
	}
	return d.found, nil
}

// drop removes the bid in the background: at once where no request to put it in is unanswered, at
// the other masters after that reply.
func (b *bid) drop() *removal {
	b.mu.Lock()
	if b.leaving != nil {
		defer b.mu.Unlock()
		return b.leaving
	}
	d := newRemoval(b.store)
	b.leaving = d
	var where []*master
	for _, at := range b.placements {
		if at.state != unanswered {
			where = append(where, at.master)
		}
	}
	b.mu.Unlock()
	for _, m := range where {
		b.leaveAt(m, d)
	}
	return d
}

// leaveAt removes the bid at one master that has no unanswered request to put it in.
func (b *bid) leaveAt(m *master, d *removal) {
	b.mu.Lock()
	at := b.placements[m.number]
	publishRemoval := b.publishRemoval
	b.mu.Unlock()
	if !at.everPresent {
		d.record(m, false, false, nil)
		return
	}
	b.store.removeAt(m, b.name, b.id, at.doubt, publishRemoval, d)
}

// removeAt removes an entry at one master. void also voids the attempt, because a request to put it
// in may still be carried out there. If the master is unreachable the removal is carried out when
// it is connected again.
func (s *Store) removeAt(m *master, name, id string, void, publishRemoval bool, d *removal) {
	channel := ""
	if publishRemoval {
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
				deleted, err = parseBool(reply)
			}
			d.record(m, deleted, doubt, err)
		}
		m.removeLater(later)
	}
	ask := func() {
		reply, err := m.ask(s.life, leaveScript, keys, args(void))
		switch _, refused := rueidis.IsRedisErr(err); {
		case err == nil:
			deleted, err := parseBool(reply)
			d.record(m, deleted, false, err)
		case refused && !temporary(err):
			s.logger.LogAttrs(s.life, slog.LevelWarn, "removal of an entry refused; it expires with its TTL",
				slog.String("lock", name), slog.String("master", m.addr), slog.Any("error", err))
			d.record(m, false, false, err)
		default:
			postpone(inDoubt(err))
		}
	}
	if !s.work.Start(ask) {
		d.record(m, false, false, errClosed)
	}
}

// isOut reports whether the bid is out.
func (d *removal) isOut() bool {
	select {
	case <-d.done:
		_, err := d.outcome()
		return err == nil
	default:
		return false
	}
}

// wait waits until the bid is out, and returns whether it was there.
func (d *removal) wait(ctx context.Context, s *Store) (presence, error) {
	select {
	case <-d.done:
		return d.outcome()
	case <-ctx.Done():
		d.mu.Lock()
		defer d.mu.Unlock()
		return notKnown, d.replies.err()
	case <-s.life.Done():
		return notKnown, errClosed
	}
}
