package stile

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/line"
)

// This file keeps tenures: with [Options.Linger], after the last hold of a tenure was released, its entry stays in
// the store, so that the client can lock the name again without a request. That is the next turn of the tenure.
// A kept tenure is given up:
//
//   - when the store reports that another client waits behind the entry; a lost report costs that client at
//     most the rest of the linger time
//   - when the linger time has passed since the store admitted the entry; turns do not extend it, and suspend
//     counts, although the timer stands still meanwhile
//   - when its turns are used up
//   - when the renewal of the session is overdue; and it ends with the session and with the client
//   - when a place of the client cannot use it: a reader, a slot, one of a [set], one with an owner of its own
//
// The entries of tenures that may be kept say so from the start (Owner.Lingers), because to write it at each
// release would cost what keeping saves.

// mayLingerLocked reports whether the tenure may be kept now, or taken if it is kept.
func (t *tenure) mayLingerLocked() bool {
	if !t.lingers() || t.pinned || t.waitersBehind || t.over || t.turn+1 >= t.queue.client.opts.Turns {
		return false
	}
	now, healthy := t.session.Healthy()
	return healthy && now.Before(t.lingerUntil)
}

// lingers reports whether the tenure may be kept at all.
func (t *tenure) lingers() bool {
	return t.queue.client.opts.Linger > 0 && t.mode == line.Exclusive && !t.ownEntry
}

// keepLocked keeps the tenure of a hold that is being released, if it may be kept and no other place of the
// client wants the lock. The reference of the hold's place to the queue becomes that of the kept tenure.
func (t *tenure) keepLocked() bool {
	q := t.queue
	if len(q.line) > 1 || !t.mayLingerLocked() {
		return false
	}
	if t.lingerTimer == nil {
		t.lingerTimer = time.AfterFunc(t.lingerUntil.Sub(bootclock.Now()), func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			if q.kept == t {
				q.giveUpKeptLocked()
			}
		})
	}
	q.kept = t
	t.holds, t.onContended = nil, nil
	q.leaveLocked(q.line[0])
	return true
}

// takeKept returns the kept tenure of the queue for another turn. It returns nil if there is none, or if the
// place may not use it; then it is given up.
func (p *Place) takeKept() *tenure {
	q := p.queue
	q.mu.Lock()
	t := q.kept
	if t == nil {
		q.mu.Unlock()
		return nil
	}
	if p.mode != line.Exclusive || p.ownEntry || !t.mayLingerLocked() {
		q.giveUpKeptLocked()
		q.mu.Unlock()
		return nil
	}
	q.kept = nil
	t.nextTurnLocked()
	p.tenure = t
	q.mu.Unlock()
	q.client.unref(q)
	return t
}

// giveUpKeptLocked withdraws the entry of the kept tenure, if there is one, in the background.
func (q *queue) giveUpKeptLocked() {
	t := q.kept
	if t == nil {
		return
	}
	q.kept, t.over = nil, true
	t.stopTimersLocked()
	r := q.addRemovalLocked(t.mode)
	go q.giveBack(t, r) // the store may be the caller
}

func (q *queue) giveBack(t *tenure, r *removal) {
	t.session.Unsubscribe(t)
	started := q.client.later(context.Background(), func() {}, func(ctx context.Context) {
		err := t.ticket.Withdraw(ctx)
		q.removed(r)
		if err != nil && !errors.Is(err, ErrGone) {
			q.client.notifier.post(func() {
				q.client.log(slog.LevelWarn, "kept lock not given back yet", slog.String("lock", q.name), slog.Any("error", err))
			})
		}
	})
	if !started { // the client is closed: the entry ends with its session
		q.removed(r)
	}
}

// giveUpKept gives up all kept tenures of the client.
func (c *Client) giveUpKept() {
	c.mu.Lock()
	queues := make([]*queue, 0, len(c.queues))
	for _, q := range c.queues {
		queues = append(queues, q)
	}
	c.mu.Unlock()
	for _, q := range queues {
		q.mu.Lock()
		q.giveUpKeptLocked()
		q.mu.Unlock()
	}
}

// maxKeptWait is how long a try waits at most for an entry that may only be kept.
const maxKeptWait = time.Second

// outwait is the second attempt of a try that was refused because of an entry that may only be kept: it waits
// behind that entry, which makes the client that keeps it give it up. If the lock is not free in time, it
// returns refused.
func (t *tenure) outwait(ctx context.Context, refused error) error {
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	err := t.enter(short, false)
	if err != nil {
		return err
	}
	timer := time.AfterFunc(min(maxKeptWait, t.session.Store().Terms().TTL/4), cancel)
	defer timer.Stop()
	err = t.await(short, true)
	if errors.Is(err, errGaveUp) && ctx.Err() == nil {
		t.withdraw()
		return refused
	}
	return err
}
