package redlockstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/delivery"
)

const (
	// minTries is how often a Try entry attempts to take a lock that no client certainly holds, if
	// other attempts are in the way. There are more attempts if slow masters might settle the
	// matter.
	minTries = 4
	// subscribeDelay is how long an entry is held before it subscribes to its own removal: for a
	// short hold the subscription would cost more than the hold.
	subscribeDelay = 200 * time.Millisecond
	// pollInterval is the approximate interval between attempts when nothing is published, in case
	// messages are lost.
	pollInterval = time.Second
	// maxAttemptTime bounds the time of one attempt, as half the TTL does.
	maxAttemptTime = 5 * time.Second
	// maxBackoff bounds the pauses between attempts while no client certainly holds the lock,
	// unless the attempts themselves take long.
	maxBackoff = 250 * time.Millisecond
)

// state is the state of an entry.
type state uint8

const (
	joining  state = iota
	waiting        // it tries to take the lock repeatedly
	admitted       // it holds the lock, and the session renews it
	detached       // it holds the lock for the time that withdrawAfter has set
	over           // the owner gets no more notifications
)

// entry is an entry of a session. There is no line: a client that asks while the lock is free may
// get it.
type entry struct {
	session *session
	req     store.Request
	info    value           // Owner.Obtained is set for each attempt
	life    context.Context // ends when the entry needs no more work
	stop    context.CancelFunc
	stopped chan struct{} // closed when it no longer tries to take the lock
	bid     *bid          // the bid that it was admitted with; set once, with mu held, before the entry is in the session's held set

	// Lock order: mu, the session's mu, the bid's mu.
	mu          sync.Mutex
	state       state
	delivery    delivery.Delivery
	gone        error    // why it ended without a withdrawal
	leaving     *removal // the removal of its bid or, if it was not admitted, of its last attempt
	withdrawing bool
	detachment  *detachment // set by withdrawAfter
}

func newEntry(se *session, req store.Request) *entry {
	e := &entry{session: se, req: req, stopped: make(chan struct{}), delivery: delivery.New(req.Notify)}
	e.info = value{Session: se.id, Entry: rand.Text(), Owner: req.Owner}
	e.life, e.stop = context.WithCancel(se.life.Context())
	return e
}

// Enqueue implements [store.Session].
func (se *session) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	op := "join the line"
	if req.Mode != line.Exclusive {
		return nil, se.store.wrapErr(op, fmt.Errorf("mode %v: %w by Redlock, which has exclusive locks only",
			req.Mode, store.ErrUnsupported))
	}
	if err := ctx.Err(); err != nil {
		return nil, se.store.wrapErr(op, err)
	}
	e, err := se.join(req)
	if err != nil {
		return nil, err
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	if err := e.tryJoin(bounded); err != nil {
		e.abort()
		return nil, se.wrapErr(ctx, op, err)
	}
	return e, nil
}

// attempt tries to take the lock once.
func (e *entry) attempt(ctx context.Context) (*bid, result) {
	within, cancel := context.WithTimeout(ctx, min(e.session.ttl/2, maxAttemptTime))
	defer cancel()
	info := e.info
	info.Owner.Obtained = time.Now() // in case it wins
	b, err := e.session.store.newBid(e.req.Name, info, e.session.ttl)
	if err != nil {
		return nil, result{err: err}
	}
	return b, b.take(within)
}

// tryJoin tries to take the lock, and leaves the entry admitted or waiting, or returns an error.
func (e *entry) tryJoin(ctx context.Context) error {
	s := e.session.store
	begun := time.Now()
	for n := 1; ; n++ {
		start := time.Now()
		c, r := e.attempt(ctx)
		switch {
		case r.won:
			if ok, err := e.admit(ctx, c); ok || err != nil {
				close(e.stopped)
				return err
			}
		case ctx.Err() != nil, r.err != nil && s.refused(r.err):
			return attempts.WithContextErr(ctx, r.err)
		case r.err != nil:
			attempts.Sleep(ctx, firstRedial+mathrand.N(firstRedial))
		case e.req.Try && (r.held(s) || n >= minTries && (!r.incomplete || time.Since(begun) > maxOutcomeWait)):
			return &store.HeldError{Name: e.req.Name, Holder: r.holder()}
		case e.req.Try:
			took := time.Since(start)
			attempts.Sleep(ctx, took/2+mathrand.N(took))
		default:
			return e.wait()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// admit admits the entry with a bid that has won. It reports false if the bid has been lost
// meanwhile. If the entry was withdrawn, or the session has ended, the bid is removed; the latter
// is an error.
func (e *entry) admit(ctx context.Context, b *bid) (ok bool, err error) {
	for {
		ok, err := e.admitIfCurrent(b)
		if err != nil {
			b.drop()
		}
		if ok || err != nil {
			return ok, err
		}
		if !b.renewAlone(ctx) {
			b.drop()
			return false, nil
		}
	}
}

// admitIfCurrent admits the entry if its bid need not be renewed first; otherwise it reports
// false. A confirmation that finds the bid lost waits for e.mu, so the loss is delivered after
// the admission.
func (e *entry) admitIfCurrent(b *bid) (ok bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == over {
		b.drop()
		return true, e.session.checkAlive()
	}
	if ok, err := e.session.addHeld(e, b); !ok || err != nil {
		return false, err
	}
	e.state = admitted
	e.delivery.Begin()
	e.delivery.Deliver(store.Standing{State: store.Admitted, Order: b.order})
	time.AfterFunc(subscribeDelay, func() { e.session.life.Start(e.watchRemoval) })
	return true, nil
}

// renewAlone renews the bid alone. It reports false if the bid is lost or the masters do not
// answer.
func (b *bid) renewAlone(ctx context.Context) bool {
	within, cancel := context.WithTimeout(ctx, b.ttl/5)
	defer cancel()
	sent := bootclock.Now()
	lost, err := b.store.renew(within, []*bid{b}, b.ttl)
	if err != nil || len(lost) > 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.renewed = sent
	return true
}

// watchRemoval detects that another client removes the entry while it is held. The next
// confirmation detects what it misses.
func (e *entry) watchRemoval() {
	if e.life.Err() != nil {
		return
	}
	s := e.session.store
	taken := newQuorumSignal(s.quorum)
	received := func(n event) {
		if n.payload == "-"+e.bid.id {
			taken.received(n)
		}
	}
	defer s.subscriptions.listen(topic{channel: s.keys.channel(e.req.Name)}, received)()
	for taken.wait(e.life, -1) {
		lost, err := s.renew(e.life, []*bid{e.bid}, e.session.ttl)
		if err == nil && len(lost) > 0 {
			e.evict()
		}
	}
}

// evict ends an entry that no majority of the masters has, while its session lives on.
func (e *entry) evict() {
	cause := fmt.Errorf("%s: %w: no majority of the masters has it any more", e.session.store, store.ErrGone)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != admitted && e.state != detached {
		return
	}
	e.session.remove(e) // first: a notified owner may enqueue again
	e.delivery.Deliver(store.Standing{State: store.Gone, Cause: cause})
	e.state, e.gone = over, cause
	e.stop()
	e.bid.drop()
}

// sessionEnded ends an entry with its session.
func (e *entry) sessionEnded(cause error, lost bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stop()
	if e.state == over || e.state == detached {
		return
	}
	if lost {
		e.delivery.Deliver(store.Standing{State: store.Gone, Cause: cause})
	}
	e.state, e.gone = over, cause
	if e.bid != nil {
		e.leaving = e.bid.drop()
	}
}

// abort ends an entry that could not be put in.
func (e *entry) abort() {
	e.mu.Lock()
	e.state = over
	e.delivery.Silence()
	e.mu.Unlock()
	e.stop()
	e.session.remove(e)
}

// Extensions implements [store.Ticket].
func (e *entry) Extensions() store.Extensions {
	return store.Extensions{WithdrawAfter: e.withdrawAfter}
}

// Withdraw implements [store.Ticket].
func (e *entry) Withdraw(ctx context.Context) error {
	op := "leave the line"
	e.mu.Lock()
	if e.gone != nil || e.leaving != nil && e.leaving.isOut() {
		defer e.mu.Unlock()
		return e.goneErr(op, e.gone)
	}
	// The entry is removed once. A call that arrives while an earlier call is removing it, or after
	// its detachment has ended, waits for the removal and returns that the entry is gone: the
	// masters' replies may predate this call, so they do not show whether the entry stood when the
	// call was made.
	first := !e.withdrawing && e.leaving == nil && (e.state != detached || time.Now().Before(e.detachment.until))
	e.withdrawing = true
	e.state = over
	e.delivery.Silence()
	e.stop()
	wasAdmitted := e.bid != nil
	if wasAdmitted && e.leaving == nil {
		e.leaving = e.bid.drop()
	}
	e.mu.Unlock()
	e.session.remove(e)

	if !wasAdmitted {
		select {
		case <-e.stopped:
		case <-ctx.Done():
			return e.session.store.wrapErr(op, ctx.Err())
		}
	}
	found, err := e.awaitRemoval(ctx)
	switch {
	case err != nil:
		return e.session.store.wrapErr(op, attempts.WithContextErr(ctx, err))
	case !first, wasAdmitted && found == wasGone:
		return e.goneErr(op, nil)
	case wasAdmitted && found == notKnown:
		return e.session.store.wrapErr(op, fmt.Errorf("%w: the entry is removed, but no majority of the masters knows whether it was there", store.ErrNotKnown))
	}
	return nil
}

// awaitRemoval waits until the entry's bid is removed, and returns whether it was there.
func (e *entry) awaitRemoval(ctx context.Context) (presence, error) {
	e.mu.Lock()
	leaving := e.leaving
	e.mu.Unlock()
	if leaving == nil {
		return wasGone, nil
	}
	return leaving.wait(ctx, e.session.store)
}

// goneErr returns the error for an entry that is gone, with the reason if that is known. It matches
// [store.ErrGone].
func (e *entry) goneErr(op string, why error) error {
	if why == nil {
		why = errors.New("the masters do not have the entry any more")
	}
	return fmt.Errorf("%s: %s: %w: %w", e.session.store, op, store.ErrGone, why)
}
