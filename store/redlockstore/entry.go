package redlockstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

const (
	// tries is how often a try is made while nobody has the lock, but others who try as well are in the way: more often if the
	// masters that might settle it are slow.
	tries = 4
	// lateListening is how long an entry is held before it is listened to whether somebody takes it out. Short holds need
	// not, and it would cost more than they do.
	lateListening = 200 * time.Millisecond
	// slowPoll is about how often a lock is tried for although nothing was heard: in case nothing can be.
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
	mu      sync.Mutex
	state   state
	gone    error      // why it went by itself
	leaving *departure // its claim's or, if it was not admitted, that of its last attempt
	parting bool       // Withdraw has been called
	until   *keeping   // while it is being given a time of its own, and afterwards
}

func newEntry(se *session, req store.Request) *entry {
	e := &entry{session: se, req: req, waited: make(chan struct{})}
	e.says = value{Session: se.id, Entry: rand.Text(), Owner: req.Owner}
	e.life, e.stop = context.WithCancel(se.life)
	return e
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
	e.tell(store.Standing{State: store.Admitted, Order: c.order})
	time.AfterFunc(lateListening, func() { e.session.work.Start(e.listen) })
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

// wait lets the entry wait, unless its session has ended meanwhile, which is an error.
func (e *entry) wait() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == over {
		return e.gone
	}
	e.state = waiting
	e.tell(store.Standing{State: store.Waiting, Ahead: 1})
	if !e.session.work.Start(e.contend) {
		close(e.waited)
	}
	return nil
}

// contend tries for the lock until the entry has it. Between the attempts it waits for word that the lock was freed, for
// the time that it is freed by itself, or, if others contend as well, for a moment that is left to chance: those who come
// at the same moment get a minority each, and nobody the lock.
func (e *entry) contend() {
	var c *claim
	defer func() { e.contended(c) }()
	s := e.session.store
	freed := newBell(s.quorum)
	defer s.hub.listen(topic{channel: s.keys.channel(e.req.Name)}, freed.hear)()
	var b backoff
	for e.life.Err() == nil {
		freed.forget()
		start := time.Now()
		var r result
		c, r = e.attempt(e.life)
		if r.won {
			if ok, err := e.admit(e.life, c); ok || err != nil {
				return
			}
			continue
		}
		if freed.wait(e.life, b.pause(s, r, time.Since(start))) {
			attempts.Rest(e.life, b.scatter())
		}
	}
}

// contended notes that the entry does not try for the lock any more. If it was not admitted, its last claim is on its way
// out.
func (e *entry) contended(last *claim) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.claim == nil && last != nil {
		e.leaving = last.drop()
	}
	close(e.waited)
}

// backoff decides how long to wait between attempts.
type backoff struct {
	level  int           // how much others contend
	silent int           // attempts in a row that no majority has answered
	window time.Duration // in which chance chooses
}

// pause returns how long to wait, if nothing is heard, after an attempt that took so long and has failed.
func (b *backoff) pause(s *Store, r result, took time.Duration) time.Duration {
	switch {
	case r.err != nil:
		b.silent = min(b.silent+1, 4)
		return mathrand.N(firstRedial << b.silent)
	case r.held(s):
		b.silent, b.level = 0, max(0, b.level-1)
		return min(r.freeAfter(s)+mathrand.N(2*time.Millisecond), slowPoll/2+mathrand.N(slowPoll))
	default:
		b.silent, b.level = 0, min(b.level+1, 6)
		took = max(took, time.Millisecond)
		b.window = min(took<<b.level, max(mostPause, 4*took))
		return mathrand.N(b.window)
	}
}

// scatter returns how long to wait when the lock was freed, so that not all who have heard it ask at the same moment. Who
// has met nobody else need not wait.
func (b *backoff) scatter() time.Duration {
	if b.level == 0 {
		return 0
	}
	return mathrand.N(b.window)
}

// held reports whether somebody has the lock for certain.
func (r result) held(s *Store) bool {
	for _, o := range r.obstacles {
		same := 0
		for _, other := range r.obstacles {
			if other.value == o.value {
				same++
			}
		}
		if same >= s.quorum {
			return true
		}
	}
	return false
}

// freeAfter returns when a majority of the masters is free at the latest, if nothing is renewed.
func (r result) freeAfter(s *Store) time.Duration {
	var left []time.Duration
	for _, o := range r.obstacles {
		if o.ttl >= 0 {
			left = append(left, o.ttl+time.Millisecond)
		}
	}
	slices.Sort(left)
	if n := s.quorum - r.free; n <= 0 {
		return 0
	} else if n <= len(left) {
		return left[n-1]
	}
	return 2 * slowPoll
}

// holder returns the entry that is in the way at most masters, nil if there is none.
func (r result) holder() *store.Entry {
	best, times := obstacle{}, 0
	for _, o := range r.obstacles {
		n := 0
		for _, other := range r.obstacles {
			if other.value == o.value {
				n++
			}
		}
		if n > times {
			best, times = o, n
		}
	}
	if times == 0 {
		return nil
	}
	_, v, ours := decode(best.value)
	return &store.Entry{
		Mode: line.Exclusive, Admitted: true, Session: v.Session, Foreign: !ours, Owner: v.Owner, Remaining: max(0, best.ttl),
	}
}

// listen hears whether somebody takes the entry out while it is held. What it misses the next confirmation tells.
func (e *entry) listen() {
	if e.life.Err() != nil {
		return
	}
	s := e.session.store
	taken := newBell(s.quorum)
	heard := func(n news) {
		if n.payload == "-"+e.claim.id {
			taken.hear(n)
		}
	}
	defer s.hub.listen(topic{channel: s.keys.channel(e.req.Name)}, heard)()
	for taken.wait(e.life, -1) {
		lost, err := s.renew(e.life, []*claim{e.claim}, e.session.ttl)
		if err == nil && len(lost) > 0 {
			e.goneAlone()
		}
	}
}

// tell tells the entry's owner how it stands. It is called with e.mu held, and never after the state is over.
func (e *entry) tell(st store.Standing) {
	if e.req.Notify != nil {
		e.req.Notify(st)
	}
}

// goneAlone ends an entry that no majority of the masters has any more, while its session lives on.
func (e *entry) goneAlone() {
	cause := fmt.Errorf("%s: %w: no majority of the masters has the entry for lock %q any more", e.session.store, store.ErrGone, e.req.Name)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != admitted && e.state != outlives {
		return
	}
	e.session.release(e) // first: who is told may enqueue again
	if e.state == admitted {
		e.tell(store.Standing{State: store.Gone, Cause: cause})
	}
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
		e.tell(store.Standing{State: store.Gone, Cause: cause})
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
	doing := fmt.Sprintf("leave the line of lock %q", e.req.Name)
	e.mu.Lock()
	if e.gone != nil || e.leaving != nil && e.leaving.over() {
		defer e.mu.Unlock()
		return e.hasGone(doing, e.gone)
	}
	// It is taken out once: who comes while that is under way, because an earlier call has begun it or the entry's time is
	// over, waits for the end of it, and hears then that the entry has gone. The masters' answers may have been on their way
	// when this call was made, and say nothing of how the entry stood then.
	first := !e.parting && e.leaving == nil && (e.state != outlives || time.Now().Before(e.until.until))
	e.parting = true
	e.state = over
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

// over reports whether the claim is out.
func (d *departure) over() bool {
	select {
	case <-d.done:
		_, err := d.outcome()
		return err == nil
	default:
		return false
	}
}

// wait waits until the claim is out, and reports whether it was there.
func (d *departure) wait(ctx context.Context, s *Store) (presence, error) {
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
