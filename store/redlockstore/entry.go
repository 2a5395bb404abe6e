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
	// tries is how often a try is made while nobody has the lock, but others who try as well are in the way: more often if the
	// masters that might settle it are slow.
	tries = 4
	// listenDelay is how long an entry is held before it subscribes to its own removal. That would cost more than a short
	// hold does.
	listenDelay = 200 * time.Millisecond
	// slowPoll is about how often a lock is tried for although nothing was published, in case nothing can be received.
	slowPoll = time.Second
	// mostAttempt bounds the time of one attempt, as half the TTL does.
	mostAttempt = 5 * time.Second
	// mostPause bounds the pauses between attempts while nobody seems to have the lock, unless the attempts themselves take
	// long.
	mostPause = 250 * time.Millisecond
)

// state is how an entry stands.
type state uint8

const (
	joining  state = iota // Enqueue has not returned
	waiting               // it tries for the lock again and again
	admitted              // it has the lock, and its session renews it
	outlives              // it has the lock for a time of its own
	over                  // nobody wants to hear of it any more
)

// entry is a place in a line that is no line: whoever comes when the lock is free may have it.
type entry struct {
	session *session
	req     store.Request
	says    value           // but for Owner.Obtained, which each attempt has of its own
	life    context.Context // ends when nothing has to be done for it any more
	stop    context.CancelFunc
	waited  chan struct{} // closed when it does not try any more
	claim   *claim        // that it was admitted with; set once, with mu held, before it is in the session's kept

	// mu is taken before the session's, and before the claim's.
	mu       sync.Mutex
	state    state
	delivery delivery.Delivery
	gone     error    // why it went by itself
	leaving  *removal // its claim's or, if it was not admitted, that of its last attempt
	parting  bool     // Withdraw has been called
	until    *keeping // while it is being given a time of its own, and afterwards
}

func newEntry(se *session, req store.Request) *entry {
	e := &entry{session: se, req: req, waited: make(chan struct{}), delivery: delivery.New(req.Notify)}
	e.says = value{Session: se.id, Entry: rand.Text(), Owner: req.Owner}
	e.life, e.stop = context.WithCancel(se.life.Context())
	return e
}

// Enqueue implements [store.Session].
func (se *session) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	doing := "join the line"
	if req.Mode != line.Exclusive {
		return nil, se.store.explain(doing, fmt.Errorf("%w: a lock of mode %v: Redlock has exclusive ones only",
			store.ErrUnsupported, req.Mode))
	}
	if err := ctx.Err(); err != nil {
		return nil, se.store.explain(doing, err)
	}
	e, err := se.join(req)
	if err != nil {
		return nil, err
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	if err := e.arrive(bounded); err != nil {
		e.part()
		return nil, se.explain(ctx, doing, err)
	}
	return e, nil
}

// attempt tries for the lock once.
func (e *entry) attempt(ctx context.Context) (*claim, result) {
	within, cancel := context.WithTimeout(ctx, min(e.session.ttl/2, mostAttempt))
	defer cancel()
	says := e.says
	says.Owner.Obtained = time.Now() // if it wins
	c, err := e.session.store.newClaim(e.req.Name, says, e.session.ttl)
	if err != nil {
		return nil, result{err: err}
	}
	return c, c.take(within)
}

// arrive tries for the lock, and leaves the entry admitted or waiting. It returns an error if it is neither.
func (e *entry) arrive(ctx context.Context) error {
	s := e.session.store
	begun := time.Now()
	for n := 1; ; n++ {
		start := time.Now()
		c, r := e.attempt(ctx)
		switch {
		case r.won:
			if ok, err := e.admit(ctx, c); ok || err != nil {
				close(e.waited)
				return err
			}
		case ctx.Err() != nil, r.err != nil && s.refused(r.err):
			return attempts.EndedBy(ctx, r.err)
		case r.err != nil:
			attempts.Rest(ctx, firstRedial+mathrand.N(firstRedial))
		case e.req.Try && (r.held(s) || n >= tries && (!r.late || time.Since(begun) > mostUsual)):
			return &store.HeldError{Name: e.req.Name, Holder: r.holder()}
		case e.req.Try:
			took := time.Since(start)
			attempts.Rest(ctx, took/2+mathrand.N(took))
		default:
			return e.wait()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// admit admits the entry with a claim that has won. It reports false if the claim was lost again. If the entry was
// withdrawn meanwhile, or the session has ended, the claim is taken out; the latter is an error.
func (e *entry) admit(ctx context.Context, c *claim) (ok bool, err error) {
	for {
		ok, err := e.admitNow(c)
		if err != nil {
			c.drop()
		}
		if ok || err != nil {
			return ok, err
		}
		if !c.stillMine(ctx) {
			c.drop()
			return false, nil
		}
	}
}

// admitNow is admit for a claim that need not be renewed first; it reports false if it must be. A confirmation that finds
// that the claim is lost waits for e.mu, and so tells of that after the admission.
func (e *entry) admitNow(c *claim) (ok bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == over {
		c.drop()
		return true, e.session.alive()
	}
	if ok, err := e.session.keep(e, c); !ok || err != nil {
		return false, err
	}
	e.state = admitted
	e.delivery.Begin()
	e.delivery.Deliver(store.Standing{State: store.Admitted, Order: c.order})
	time.AfterFunc(listenDelay, func() { e.session.life.Start(e.listen) })
	return true, nil
}

// stillMine renews the claim alone. It reports false if that cannot be known.
func (c *claim) stillMine(ctx context.Context) bool {
	within, cancel := context.WithTimeout(ctx, c.ttl/5)
	defer cancel()
	sent := bootclock.Now()
	lost, err := c.store.renew(within, []*claim{c}, c.ttl)
	if err != nil || len(lost) > 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renewed = sent
	return true
}

// listen notices if somebody takes the entry out while it is held. What it misses the next confirmation shows.
func (e *entry) listen() {
	if e.life.Err() != nil {
		return
	}
	s := e.session.store
	taken := newQuorumSignal(s.quorum)
	heard := func(n news) {
		if n.payload == "-"+e.claim.id {
			taken.received(n)
		}
	}
	defer s.subscriptions.listen(topic{channel: s.keys.channel(e.req.Name)}, heard)()
	for taken.wait(e.life, -1) {
		lost, err := s.renew(e.life, []*claim{e.claim}, e.session.ttl)
		if err == nil && len(lost) > 0 {
			e.goneAlone()
		}
	}
}

// goneAlone ends an entry that no majority of the masters has any more, while its session lives on.
func (e *entry) goneAlone() {
	cause := fmt.Errorf("%s: %w: no majority of the masters has it any more", e.session.store, store.ErrGone)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != admitted && e.state != outlives {
		return
	}
	e.session.release(e) // first: an owner that is notified may enqueue again
	e.delivery.Deliver(store.Standing{State: store.Gone, Cause: cause})
	e.state, e.gone = over, cause
	e.stop()
	e.claim.drop()
}

// sessionEnded ends an entry with its session.
func (e *entry) sessionEnded(cause error, lost bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stop()
	if e.state == over || e.state == outlives {
		return
	}
	if lost {
		e.delivery.Deliver(store.Standing{State: store.Gone, Cause: cause})
	}
	e.state, e.gone = over, cause
	if e.claim != nil {
		e.leaving = e.claim.drop()
	}
}

// part ends an entry that could not be put in.
func (e *entry) part() {
	e.mu.Lock()
	e.state = over
	e.delivery.Silence()
	e.mu.Unlock()
	e.stop()
	e.session.release(e)
}

// Extensions implements [store.Ticket].
func (e *entry) Extensions() store.Extensions {
	return store.Extensions{WithdrawAfter: e.withdrawAfter}
}

// Withdraw implements [store.Ticket].
func (e *entry) Withdraw(ctx context.Context) error {
	doing := "leave the line"
	e.mu.Lock()
	if e.gone != nil || e.leaving != nil && e.leaving.over() {
		defer e.mu.Unlock()
		return e.hasGone(doing, e.gone)
	}
	// It is taken out once. A call that comes while that is under way, because an earlier call has begun it or the entry's
	// time is over, waits for the end of it, and returns that the entry has gone: the masters' answers may have been on their
	// way when the call was made, and do not show how the entry stood then.
	first := !e.parting && e.leaving == nil && (e.state != outlives || time.Now().Before(e.until.until))
	e.parting = true
	e.state = over
	e.delivery.Silence()
	e.stop()
	hadIt := e.claim != nil
	if hadIt && e.leaving == nil {
		e.leaving = e.claim.drop()
	}
	e.mu.Unlock()
	e.session.release(e)

	if !hadIt {
		select {
		case <-e.waited:
		case <-ctx.Done():
			return e.session.store.explain(doing, ctx.Err())
		}
	}
	found, err := e.left(ctx)
	switch {
	case err != nil:
		return e.session.store.explain(doing, attempts.EndedBy(ctx, err))
	case !first, hadIt && found == wasGone:
		return e.hasGone(doing, nil)
	case hadIt && found == notKnown:
		return e.session.store.explain(doing, fmt.Errorf("%w: it is out, and no majority of the masters could tell", store.ErrNotKnown))
	}
	return nil
}

// left waits until what is being taken out of the entry is out, and reports whether that was there.
func (e *entry) left(ctx context.Context) (presence, error) {
	e.mu.Lock()
	leaving := e.leaving
	e.mu.Unlock()
	if leaving == nil {
		return wasGone, nil
	}
	return leaving.wait(ctx, e.session.store)
}

// hasGone returns the error that says that the entry is out already, and why, if that is known. It matches
// [store.ErrGone].
func (e *entry) hasGone(doing string, why error) error {
	if why == nil {
		why = errors.New("the masters do not have the entry any more")
	}
	return fmt.Errorf("%s: %s: %w: %w", e.session.store, doing, store.ErrGone, why)
}
