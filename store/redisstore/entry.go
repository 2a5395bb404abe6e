package redisstore

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/delivery"
)

// payload is the public information about an entry, stored as JSON.
type payload struct {
	Change  int64       `json:"change,omitempty"` // number of the change of the owner; the script finds it at the start
	Session string      `json:"session"`
	Owner   store.Owner `json:"owner"`
}

// entry is an entry in a line, and its ticket.
type entry struct {
	session *session
	req     store.Request
	id      string
	line    lineKeys
	payload string
	changes atomic.Int64 // number of calls of setOwner

	replaces *entry // the entry that goes when this one is put in; nil if there is none

	joinInDoubt    atomic.Bool // a request to put it in was abandoned, and may yet be carried out
	removed        atomic.Bool // it is known to be out of the line
	outlasts       atomic.Bool // it outlives its session, or may
	removalInDoubt atomic.Bool // a request to remove it, now or later, got no reply and may have been carried out

	renewing bool // confirmations renew it; guarded by the session's mutex
	leaving  bool // it is being removed; guarded by the session's mutex

	mu        sync.Mutex
	delivery  delivery.Delivery
	contended func()
}

// Enqueue implements [store.Session].
func (se *session) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	if err := se.life.Err(); err != nil {
		return nil, err
	}
	op := "join the line"
	e, err := se.newEntry(req, "")
	if err != nil {
		return nil, se.store.wrapErr(op, err)
	}
	if err := se.add(e); err != nil {
		return nil, err
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	err = e.join(bounded)
	if err == nil {
		return e, nil
	}
	e.undoJoin()
	if held, ok := errors.AsType[*store.HeldError](err); ok {
		return nil, held
	}
	if kind, ok := errors.AsType[*store.KindError](err); ok {
		return nil, kind
	}
	return nil, se.wrapErr(ctx, op, err)
}

// newEntry returns an entry whose id has the given mark, which may be empty, before its mode.
func (se *session) newEntry(req store.Request, mark string) (*entry, error) {
	text, err := json.Marshal(payload{Session: se.id, Owner: req.Owner})
	return &entry{
		session: se, req: req, id: rand.Text() + mark + "." + modeCode(req.Mode), line: se.store.server.keys.forLine(req.Name),
		payload: string(text), delivery: delivery.New(req.Notify),
	}, err
}

// join puts the entry in, delivers its standing, and starts polling if it waits.
func (e *entry) join(ctx context.Context) error { return e.session.join(ctx, []*entry{e}) }

// join puts entries in, in one step, delivers their standings, and starts polling for those that wait. If
// it fails, some may be in; see undoJoin.
func (se *session) join(ctx context.Context, entries []*entry) error {
	nextExpiry := make([]time.Duration, len(entries))
	for {
		var begun int
		var replies []reply
		err := retry(ctx, func(ctx context.Context) (err error) {
			var keep time.Duration
			if keep, begun = se.lease(); keep <= 0 {
				// No confirmation has succeeded for a TTL; but the last request for one may have
				// been carried out.
				if keep, err = se.remainingTTL(ctx); err != nil {
					return err
				}
			}
			replies = se.sendJoin(ctx, keep, entries)
			return firstError(replies)
		})
		if err != nil {
			return err
		}
		for i, e := range entries {
			var refused error
			if nextExpiry[i], refused = e.joined(replies[i]); err == nil {
				err = refused
			}
		}
		if err != nil {
			return err
		}
		if se.markRenewed(entries, begun) {
			break
		}
		// Another confirmation has begun meanwhile, and does not renew these entries. Repeat the
		// request to extend the leases accordingly.
	}
	for i, e := range entries {
		e.beginDelivery(nextExpiry[i])
	}
	return nil
}

// sendJoin sends one request to put entries in. If they are in already, it extends their leases.
func (se *session) sendJoin(ctx context.Context, keep time.Duration, entries []*entry) []reply {
	s := se.store
	operations := make([]operation, 0, len(entries))
	for _, e := range entries {
		operations = append(operations, e.joinOperation(keep))
	}
	var replies []reply
	if len(operations) == 1 {
		replies = s.server.evalAll(ctx, s.server.replicas, nil, operations)
	} else {
		replies = s.server.evalTogether(ctx, s.server.replicas, operations)
	}
	if firstError(replies) != nil {
		// Even a request that the server refuses may have been carried out in part, or not have
		// reached the replicas.
		for _, e := range entries {
			e.joinInDoubt.Store(true)
		}
	}
	return replies
}

// joinOperation returns the operation that puts the entry in, or extends its lease.
func (e *entry) joinOperation(keep time.Duration) operation {
	s := e.session.store
	try, flag := "0", ""
	if e.req.Try {
		try = "1"
	}
	if s.isSubscribed(e.line) {
		flag = "l"
	}
	o := operation{
		line: e.line, op: "join", args: []string{e.id, milliseconds(keep), try, s.client, flag, e.payload}, session: e.session.key(),
	}
	if e.replaces != nil {
		o.op, o.args = "requeue", []string{e.replaces.id, e.id, milliseconds(keep), s.client, flag, e.payload}
	}
	return o
}

// joined records the script's reply to a request to put the entry in. It returns the time until the entry
// should be polled, or why it was refused.
func (e *entry) joined(r reply) (nextExpiry time.Duration, err error) {
	words, err := r.ToArray()
	if err != nil || len(words) < 1 {
		return 0, fmt.Errorf("unexpected script reply: %w", err)
	}
	word, _ := words[0].ToString()
	switch {
	case word == "held":
		return 0, &store.HeldError{Name: e.req.Name, Holder: firstEntry(words)}
	case word == "kind":
		return 0, e.kindError(firstEntry(words))
	case word == "absent":
		return 0, e.replaces.absentErr(e)
	case word == "ended":
		return 0, e.session.endLost()
	case word == "void":
		return 0, fmt.Errorf("%w: %w", store.ErrGone, errVoid)
	case len(words) < 3:
		return 0, fmt.Errorf("unexpected script reply %q", word)
	}
	number, _ := words[1].ToString()
	e.update(parseStanding(word, number, e))
	left, _ := words[2].ToString()
	return time.Duration(parseInt(left)) * time.Millisecond, nil
}

// beginDelivery delivers the entry's standing to the owner, and has the entry polled while it
// waits.
func (e *entry) beginDelivery(nextExpiry time.Duration) {
	e.mu.Lock()
	e.delivery.Begin()
	waits := e.delivery.Waiting()
	e.mu.Unlock()
	if waits {
		e.session.store.startPolling(e, nextExpiry)
	}
}

// update records a standing, from any source and in any order, and reports whether it is new.
func (e *entry) update(now store.Standing) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	// An entry that was skipped while its client was away may find others ahead of it. Ahead is the
	// least number of entries that must leave, so it does not go up.
	if last, known := e.delivery.Last(); known && now.State == store.Waiting && now.Ahead > last.Ahead {
		return false
	}
	return e.delivery.Deliver(now)
}

// waits reports whether the entry waits, as far as is known, and its owner has not been silenced.
func (e *entry) waits() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.delivery.Waiting()
}

// admitted reports whether the entry is admitted and not gone, as far as is known.
func (e *entry) admitted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.delivery.Admitted()
}

// last returns the last known standing. known is false before the entry has been put in.
func (e *entry) last() (now store.Standing, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.delivery.Last()
}

// stands reports whether the entry is not gone, as far as is known.
func (e *entry) stands() bool {
	now, _ := e.last()
	return now.State != store.Gone
}

// silence stops all callbacks to the owner.
func (e *entry) silence() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.delivery.Silence()
	e.contended = nil
}

// over reports whether the entry was withdrawn, or is gone as far as is known.
func (e *entry) over() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.delivery.Over()
}

// kindError returns the error of an entry that was refused because first is of another kind.
func (e *entry) kindError(first *store.Entry) error {
	if first == nil {
		return errors.New("unexpected script reply: the line is of another kind, but has no entries")
	}
	return &store.KindError{Name: e.req.Name, Mode: e.req.Mode, Other: *first}
}

// firstEntry returns the first entry of the line, from the script's reply to an entry that it
// refused, or nil if the reply has none. The reply has the value of the lock's key if it is
// foreign, the first holder or waiter with its order, that entry's information, and its id again if it was
// downgraded.
func firstEntry(words []message) *store.Entry {
	if len(words) != 5 {
		return nil
	}
	if value, err := words[1].ToString(); err == nil {
		first := foreignEntry(value, 0)
		return &first
	}
	who, err := words[2].AsStrSlice()
	known, err2 := words[3].ToString()
	downgraded, err3 := words[4].ToString()
	if err != nil || err2 != nil || err3 != nil || len(who) != 2 {
		return nil
	}
	first := parseEntry(who[0], who[1], known, downgraded)
	first.Admitted = true
	return &first
}

// undoJoin ends a join that has failed.
func (e *entry) undoJoin() {
	e.silence()
	if e.mayBeIn() {
		e.discard()
	} else {
		e.session.remove(e)
	}
}

// mayBeIn reports whether a request has put the entry in, or may have, or may yet do so.
func (e *entry) mayBeIn() bool {
	_, in := e.last()
	return in || e.joinInDoubt.Load()
}

// discard removes the entry in the background.
func (e *entry) discard() {
	e.session.markLeaving(e)
	e.session.life.Start(e.removeUntilDone)
}

// removeUntilDone removes the entry, and voids requests in flight that would put it in. It repeats
// that until it succeeds or the session has ended, which has the same effect.
func (e *entry) removeUntilDone() {
	se := e.session
	life := se.life.Context()
	attempts.UntilDone(life, attempts.MaxTimeout, func() error {
		o := e.leaveOperation()
		err := retry(life, func(ctx context.Context) error {
			return se.store.server.eval(ctx, o.line, o.op, o.args...).err
		})
		switch {
		case err == nil:
			se.remove(e)
		case life.Err() == nil:
			se.store.logger.LogAttrs(life, slog.LevelWarn, "could not remove the entry of a failed request; retrying",
				slog.String("lock", e.req.Name), slog.Any("error", err))
		}
		return err
	})
}

// leaveOperation returns the operation that removes the entry.
func (e *entry) leaveOperation() operation {
	how := ""
	if e.joinInDoubt.Load() {
		how = "void"
	}
	return operation{line: e.line, op: "leave", args: []string{how, e.id}}
}

// Extensions implements [store.Ticket].
func (e *entry) Extensions() store.Extensions {
	return store.Extensions{
		WithdrawAfter: e.withdrawAfter, SetOwner: e.setOwner, Downgrade: e.downgrade, NotifyContended: e.notifyContended, Requeue: e.requeue,
		ClaimNumber: e.claimNumber,
	}
}

// Withdraw implements [store.Ticket].
func (e *entry) Withdraw(ctx context.Context) error {
	return e.withdraw(ctx, func() operation { return e.leaveOperation() }, false)
}

// withdraw removes the entry, at once or (outlasting) at a later time. next returns the operation
// for each attempt. The operations must be idempotent and report whether the entry was there. If
// ctx ends they are repeated in the background.
func (e *entry) withdraw(ctx context.Context, next func() operation, outlasting bool) error {
	se := e.session
	op := "leave the line"
	e.silence()
	se.markLeaving(e)
	if e.removed.Load() {
		return fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, op, store.ErrGone)
	}
	outlasts := e.outlasts.Load()
	if outlasting {
		e.outlasts.Store(true) // it may, from now on; set before Close looks
	}
	ended := se.life.Err()
	if ended != nil && !outlasts {
		return fmt.Errorf("%w: %w", store.ErrGone, ended) // it is removed with the session
	}
	bounded, cancel := se.life.Within(ctx)
	if ended != nil {
		bounded, cancel = context.WithTimeoutCause(ctx, attempts.MaxDuration, errNoSuccess)
	}
	defer cancel()
	absent, err := e.requestRemoval(bounded, next)
	switch {
	case err != nil && ended != nil:
		return se.store.wrapErr(op, attempts.WithContextErr(ctx, err))
	case err != nil:
		se.life.Start(func() { e.withdrawInBackground(next) })
		if err = se.wrapErr(ctx, op, err); !outlasts && !outlasting {
			err = se.life.RemovedWithSession(ctx, err)
		}
		return err
	case absent != nil:
		return fmt.Errorf("%s: %s: %w", se.store, op, absent)
	}
	return nil
}

// withdrawInBackground repeats a withdrawal whose caller has stopped waiting.
func (e *entry) withdrawInBackground(next func() operation) {
	life := e.session.life.Context()
	attempts.UntilDone(life, attempts.MaxTimeout, func() error {
		_, err := e.requestRemoval(life, next)
		return err
	})
}

// markLeaving records that an entry is being removed.
func (se *session) markLeaving(e *entry) {
	se.mu.Lock()
	e.leaving = true
	se.mu.Unlock()
}

// parseInt parses a number from the script's reply. An invalid one is zero.
func parseInt(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
