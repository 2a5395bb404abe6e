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
	number  int64 // the store numbers its entries in the order in which it makes them
	id      string
	line    lineKeys
	payload string
	changes atomic.Int64 // number of calls of setOwner
	records atomic.Int64 // number of calls of setRecord

	replaces *entry // the entry that goes when this one is put in; nil if there is none

	joinInDoubt    atomic.Bool // a request to put it in was abandoned, and may yet be carried out
	removed        atomic.Bool // it is known to be out of the line
	outlasts       atomic.Bool // it outlives its session, or may
	alone          atomic.Bool // it held the lock and was alone in the line when it was last visited or renewed
	removalInDoubt atomic.Bool // a request to remove it, now or later, got no reply and may have been carried out

	renewing bool // confirmations renew it; guarded by the session's mutex
	leaving  bool // it is being removed; guarded by the session's mutex

	mu        sync.Mutex
	delivery  delivery.Delivery
	contended func()
}

// Enqueue implements [store.Session].
func (se *session) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	e, err := se.newEntry(req)
	if err != nil {
		return nil, se.store.wrapErr(joinOp, err)
	}
	if err := se.enqueue(ctx, []*entry{e}); err != nil {
		return nil, err
	}
	return e, nil
}

const joinOp = "join the line" // the operation in errors

// enqueue puts new entries in, all in one step. On failure it removes those that are in, or may be, in the
// background.
func (se *session) enqueue(ctx context.Context, entries []*entry) error {
	if err := se.add(entries...); err != nil {
		return err
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	err := se.join(bounded, entries)
	if err == nil {
		return nil
	}
	for _, e := range entries {
		e.undoJoin()
	}
	if held, ok := errors.AsType[*store.HeldError](err); ok {
		return held
	}
	if kind, ok := errors.AsType[*store.KindError](err); ok {
		return kind
	}
	return se.wrapErr(ctx, joinOp, err)
}

func (se *session) newEntry(req store.Request) (*entry, error) {
	text, err := json.Marshal(payload{Session: se.id, Owner: req.Owner})
	return &entry{
		session: se, req: req, number: se.store.made.Add(1), id: rand.Text() + "." + modeCode(req.Mode), line: se.store.server.keys.forLine(req.Name),
		payload: string(text), delivery: delivery.New(req.Notify),
	}, err
}

// join puts entries in, delivers their standings, and starts polling those that wait.
func (se *session) join(ctx context.Context, entries []*entry) error {
	for {
		var begun int
		var replies [][]message
		err := retry(ctx, func(ctx context.Context) (err error) {
			var keep time.Duration
			if keep, begun = se.lease(); keep <= 0 {
				// No confirmation has succeeded for a TTL; but the last request for one may have
				// been carried out.
				if keep, err = se.remainingTTL(ctx); err != nil {
					return err
				}
			}
			replies, err = se.sendJoin(ctx, entries, keep)
			return err
		})
		if err != nil {
			return err
		}
		for i, e := range entries {
			if err := e.refusal(replies[i]); err != nil {
				return err
			}
		}
		for i, e := range entries {
			if len(replies[i]) < 3 {
				return errors.New("unexpected script reply: it is too short")
			}
			word, _ := replies[i][0].ToString()
			number, _ := replies[i][1].ToString()
			e.update(parseStanding(word, number, e))
		}
		if se.markRenewed(entries, begun) {
			for i, e := range entries {
				nextExpiry, _ := replies[i][2].ToString()
				e.beginDelivery(time.Duration(parseInt(nextExpiry)) * time.Millisecond)
			}
			return nil
		}
		// Another confirmation has begun meanwhile, and does not renew these entries. Repeat the
		// request to extend the leases accordingly.
	}
}

// refusal returns the error of an entry that was refused, as the script's reply to a join or a requeue
// says. It returns nil for other replies.
func (e *entry) refusal(words []message) error {
	if len(words) == 0 {
		return nil
	}
	switch word, _ := words[0].ToString(); word {
	case "held":
		return &store.HeldError{Name: e.req.Name, Holder: firstEntry(words)}
	case "kind":
		return e.kindError(firstEntry(words))
	case "absent":
		return e.replaces.absentErr(e)
	case "ended":
		return e.session.endLost()
	case "void":
		return fmt.Errorf("%w: %w", store.ErrGone, errVoid)
	}
	return nil
}

// sendJoin sends one request to put entries in, and returns the script's reply for each. If they are in
// already, the request extends their leases.
func (se *session) sendJoin(ctx context.Context, entries []*entry, keep time.Duration) ([][]message, error) {
	s := se.store
	replies := make([][]message, 1, len(entries))
	r := s.server.evalAll(ctx, s.server.replicas, nil, []operation{se.joinOperation(entries, keep)})[0]
	err := r.err
	if err != nil {
		// Even a request that the server refuses may have been carried out in part, or not have
		// reached the replicas.
		for _, e := range entries {
			e.joinInDoubt.Store(true)
		}
		return nil, err
	}
	if len(entries) == 1 {
		if replies[0], err = r.ToArray(); err != nil {
			return nil, fmt.Errorf("unexpected script reply: %w", err)
		}
		return replies, nil
	}
	return parseReplies(r, entries)
}

// joinOperation returns the operation that puts entries in.
func (se *session) joinOperation(entries []*entry, keep time.Duration) operation {
	s, e := se.store, entries[0]
	try, flag := "0", s.flag(e.line)
	if e.req.Try {
		try = "1"
	}
	o := operation{line: e.line, session: se.key()}
	switch {
	case len(entries) > 1:
		o.op, o.args = "joinall", []string{milliseconds(keep), try, s.id, flag}
		for i, e := range entries {
			if i > 0 {
				o.others = append(o.others, e.line)
			}
			o.args = append(o.args, e.req.Name, e.id, e.payload)
		}
	case e.replaces != nil:
		o.op, o.args = "requeue", []string{e.replaces.id, e.id, milliseconds(keep), s.id, flag, e.payload}
	default:
		o.op, o.args = "join", []string{e.id, milliseconds(keep), try, s.id, flag, e.payload}
	}
	return o
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
		ClaimNumber: e.claimNumber, SetRecord: e.setRecord,
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
