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

// payload is what an entry says of itself to everybody, as JSON.
type payload struct {
	Session string      `json:"session"`
	Owner   store.Owner `json:"owner"`
}

// entry is one place in a line, and the ticket to it.
type entry struct {
	session *session
	req     store.Request
	id      string
	line    lineKeys
	text    string

	doubt    atomic.Bool // a request to put it in was given up, and may yet be carried out
	out      atomic.Bool // it is known not to be in the line any more
	outlasts atomic.Bool // its end is not the session's, or may not be
	asked    atomic.Bool // a request that was to take it out, at once or later, was not answered and may have been carried out

	known   bool // confirmations renew it; guarded by the session's mutex
	leaving bool // it is being taken out; guarded by the session's mutex

	mu        sync.Mutex
	delivery  delivery.Delivery
	contended func()
}

// Enqueue implements [store.Session].
func (se *session) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	if err := se.life.Err(); err != nil {
		return nil, err
	}
	doing := "join the line"
	e := &entry{
		session: se, req: req, id: rand.Text() + "." + modeCode(req.Mode), line: se.store.server.keys.of(req.Name),
		delivery: delivery.New(req.Notify),
	}
	text, err := json.Marshal(payload{Session: se.id, Owner: req.Owner})
	if err != nil {
		return nil, se.store.explain(doing, err)
	}
	e.text = string(text)
	if err := se.enter(e); err != nil {
		return nil, err
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	err = e.join(bounded)
	if err == nil {
		return e, nil
	}
	e.silence()
	if _, in := e.last(); in || e.doubt.Load() {
		e.discard()
	} else {
		se.forget(e)
	}
	if held, ok := errors.AsType[*store.HeldError](err); ok {
		return nil, held
	}
	return nil, se.explain(ctx, doing, err)
}

// join puts the entry in, tells how it stands, and has it followed from there.
func (e *entry) join(ctx context.Context) error {
	se := e.session
	for {
		var begun int
		var r reply
		err := attempt(ctx, func(ctx context.Context) (err error) {
			var keep time.Duration
			if keep, begun = se.lease(); keep <= 0 {
				// It has not been confirmed for its TTL; but the last request to confirm it may have been carried out.
				if keep, err = se.left(ctx); err != nil {
					return err
				}
			}
			r = e.ask(ctx, keep)
			return r.err
		})
		if err != nil {
			return err
		}
		words, err := r.ToArray()
		if err != nil || len(words) < 1 {
			return fmt.Errorf("unexpected script reply: %w", err)
		}
		word, _ := words[0].ToString()
		switch {
		case word == "held":
			return e.heldBy(words)
		case word == "ended":
			return se.lost()
		case word == "void":
			return fmt.Errorf("%w: %w", store.ErrGone, errVoid)
		case len(words) < 3:
			return fmt.Errorf("unexpected script reply %q", word)
		}
		number, _ := words[1].ToString()
		e.update(standingOf(word, number, e))
		if se.kept(e, begun) {
			soonest, _ := words[2].ToString()
			e.begin(time.Duration(integer(soonest)) * time.Millisecond)
			return nil
		}
		// Meanwhile another confirmation has begun, which does not keep this entry: so it has to be kept as long.
	}
}

// ask sends one request to put the entry in. If it is in already, it is kept.
func (e *entry) ask(ctx context.Context, keep time.Duration) reply {
	s := e.session.store
	try, flag := "0", ""
	if e.req.Try {
		try = "1"
	}
	if s.listens(e.line) {
		flag = "l"
	}
	r := s.server.evalAll(ctx, s.server.replicas, nil, []operation{{
		line: e.line, op: "join", args: []string{e.id, milliseconds(keep), try, s.client, flag, e.text}, session: e.session.key(),
	}})[0]
	if r.err != nil {
		// Even one that the server refuses may have been carried out in part, or not have reached the replicas.
		e.doubt.Store(true)
	}
	return r
}

// begin delivers to the owner how the entry stands, and has it polled while it waits.
func (e *entry) begin(soonest time.Duration) {
	e.mu.Lock()
	e.delivery.Begin()
	waits := e.delivery.Waiting()
	e.mu.Unlock()
	if waits {
		e.session.store.follow(e, soonest)
	}
}

// update takes in how the entry stands, from whatever source and in whatever order, and reports whether that is news.
func (e *entry) update(now store.Standing) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	// Those who stood aside while they were away may find others in front of them; what counts is who must leave at least.
	if last, known := e.delivery.Last(); known && now.State == store.Waiting && now.Ahead > last.Ahead {
		return false
	}
	return e.delivery.Deliver(now)
}

// waits reports whether the entry's turn has not come yet, as far as is known, and its owner waits for it.
func (e *entry) waits() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.delivery.Waiting()
}

// admitted reports whether the entry's turn has come, and the entry is not gone, as far as is known.
func (e *entry) admitted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.delivery.Admitted()
}

// last returns how the entry stands, as far as is known, and whether anything is: so it has been put in.
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

// silence ends the calls of the owner.
func (e *entry) silence() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.delivery.Silence()
	e.contended = nil
}

// over reports whether the entry was withdrawn, or is gone, as far as is known.
func (e *entry) over() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.delivery.Over()
}

// heldBy returns the error of a try that found the lock held, from the script's reply: what is in the lock's key, if it is not
// ours, the first who stands there, with its order, and what is known of it.
func (e *entry) heldBy(words []message) error {
	held := &store.HeldError{Name: e.req.Name}
	if len(words) != 4 {
		return held
	}
	if value, err := words[1].ToString(); err == nil {
		holder := foreign(value, 0)
		held.Holder = &holder
		return held
	}
	who, err := words[2].AsStrSlice()
	known, err2 := words[3].ToString()
	if err == nil && err2 == nil && len(who) == 2 {
		holder := described(who[0], who[1], known)
		holder.Admitted = true
		held.Holder = &holder
	}
	return held
}

// discard has the entry taken out, in the background.
func (e *entry) discard() {
	e.session.leave(e)
	e.session.life.Start(e.clear)
}

// clear takes the entry out, and makes sure that no request that is still under way puts it in. It goes on until that is done
// or the session has ended, which does the same.
func (e *entry) clear() {
	se := e.session
	life := se.life.Context()
	attempts.UntilDone(life, attempts.Longest, func() error {
		o := e.departure()
		err := attempt(life, func(ctx context.Context) error {
			return se.store.server.eval(ctx, o.line, o.op, o.args...).err
		})
		switch {
		case err == nil:
			se.forget(e)
		case life.Err() == nil:
			se.store.logger.LogAttrs(life, slog.LevelWarn, "entry in doubt could not be taken out yet",
				slog.String("lock", e.req.Name), slog.Any("error", err))
		}
		return err
	})
}

// departure is the operation that takes the entry out.
func (e *entry) departure() operation {
	how := ""
	if e.doubt.Load() {
		how = "void"
	}
	return operation{line: e.line, op: "leave", args: []string{how, e.id}}
}

// Extensions implements [store.Ticket].
func (e *entry) Extensions() store.Extensions {
	return store.Extensions{WithdrawAfter: e.withdrawAfter, SetOwner: e.setOwner, NotifyContended: e.notifyContended}
}

// Withdraw implements [store.Ticket].
func (e *entry) Withdraw(ctx context.Context) error {
	return e.depart(ctx, func() operation { return e.departure() }, false)
}

// depart has the entry leave its line, at once or later, by means of operations that do no harm if they are carried out more
// than once and say whether the entry was there. If the caller gives up they are carried out in the background.
func (e *entry) depart(ctx context.Context, next func() operation, lingers bool) error {
	se := e.session
	doing := "leave the line"
	e.silence()
	se.leave(e)
	if e.out.Load() {
		return fmt.Errorf("%s: %s: %w: the entry had left already", se.store, doing, store.ErrGone)
	}
	outlasts := e.outlasts.Load()
	if lingers {
		e.outlasts.Store(true) // perhaps, from now on; before Close looks
	}
	ended := se.life.Err()
	if ended != nil && !outlasts {
		return fmt.Errorf("%w: %w", store.ErrGone, ended) // it goes with the session
	}
	bounded, cancel := se.life.Within(ctx)
	if ended != nil {
		bounded, cancel = context.WithTimeoutCause(ctx, attempts.Patience, errPatience)
	}
	defer cancel()
	absent, err := e.carryOut(bounded, next)
	switch {
	case err != nil && ended != nil:
		return se.store.explain(doing, attempts.EndedBy(ctx, err))
	case err != nil:
		se.life.Start(func() { e.keepDeparting(next) })
		if err = se.explain(ctx, doing, err); !outlasts && !lingers {
			err = se.life.WentWith(ctx, err)
		}
		return err
	case absent != nil:
		return fmt.Errorf("%s: %s: %w", se.store, doing, absent)
	}
	return nil
}

// keepDeparting goes on with a departure whose caller has given up.
func (e *entry) keepDeparting(next func() operation) {
	life := e.session.life.Context()
	attempts.UntilDone(life, attempts.Longest, func() error {
		_, err := e.carryOut(life, next)
		return err
	})
}

// leave notes that an entry is on its way out.
func (se *session) leave(e *entry) {
	se.mu.Lock()
	e.leaving = true
	se.mu.Unlock()
}

// integer reads a number that the script has written as text.
func integer(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
