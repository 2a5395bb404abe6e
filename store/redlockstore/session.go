package redlockstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/lifetime"
)

// session is a set of entries that are renewed together. The masters know only the entries. The
// client decides when the session has ended, by the clock that the keeper uses, and enforces that
// by removing the entries.
type session struct {
	store *Store
	id    string
	ttl   time.Duration
	opts  store.SessionOptions

	life *lifetime.Life

	mu           sync.Mutex
	entries      map[*entry]struct{} // those that were not withdrawn
	held         map[*entry]struct{}
	confirmBegun bootclock.Instant // when the last confirmation was begun
	expires      bootclock.Instant // the end of the session unless it is confirmed
	timer        *time.Timer       // fires at expires
}

func newSession(s *Store, opts store.SessionOptions) *session {
	se := &session{
		store: s, id: rand.Text()[:16], ttl: opts.TTL, opts: opts,
		entries: make(map[*entry]struct{}), held: make(map[*entry]struct{}),
	}
	se.life = lifetime.New(s.life, &se.mu, opts.Lost)
	return se
}

// slack returns how early a key may expire at a master: its clock may be fast by a hundredth, and
// it counts milliseconds.
func slack(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// ID implements [store.Session]. The values of the session's entries contain it.
func (se *session) ID() string { return se.id }

// Terms implements [store.Session]. The slack is Redlock's allowance for clock drift.
func (se *session) Terms() store.Terms { return store.Terms{TTL: se.ttl, Slack: slack(se.ttl)} }

// open checks that a majority answers, and starts the session's time.
func (se *session) open(ctx context.Context) error {
	sent, err := se.store.retry(ctx, func() error {
		_, err := se.store.askMajority(ctx, stragglerWait, renewScript, []string{se.store.keys.index()}, []string{millis(se.ttl), millis(fenceTTL)})
		return err
	})
	if err != nil {
		return err
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.expires = sent.Add(se.ttl - slack(se.ttl))
	se.timer = time.AfterFunc(se.expires.Sub(bootclock.Now()), se.checkExpiry)
	return nil
}

// checkExpiry ends the session if it has expired.
func (se *session) checkExpiry() {
	se.mu.Lock()
	left := se.expires.Sub(bootclock.Now())
	if left > 0 && !se.life.EndedLocked() {
		se.timer.Reset(left)
	}
	se.mu.Unlock()
	if left <= 0 {
		_ = se.expire()
	}
}

// expire ends the session because it was not confirmed in time, and returns the error that says so.
func (se *session) expire() error {
	err := fmt.Errorf("%s: %w: session %s was not confirmed for %v", se.store, store.ErrSessionLost, se.id, se.ttl)
	se.finish(err, true)
	return se.checkAlive()
}

// checkAlive returns why the session has ended, or nil.
func (se *session) checkAlive() error {
	err := se.life.Err()
	if err != nil && se.store.life.Err() != nil {
		return fmt.Errorf("%s: %w: %w", se.store, store.ErrSessionLost, errClosed)
	}
	return err
}

// batchSize is the number of locks that one request renews or reads.
const batchSize = 256

// Confirm implements [store.Session]. It succeeds if a majority of the masters has answered and,
// for each admitted entry, a majority has it; an entry that no majority can have any more is
// reported gone. While a majority has an entry, it is put in again at masters that lack it, for
// example after a restart.
func (se *session) Confirm(ctx context.Context) error {
	sent := bootclock.Now()
	se.mu.Lock()
	overdue := se.expires.Before(sent) && !se.life.EndedLocked()
	se.confirmBegun = sent
	held := make([]*entry, 0, len(se.held))
	for e := range se.held {
		held = append(held, e)
	}
	se.mu.Unlock()
	if overdue {
		return se.expire()
	}
	if err := se.checkAlive(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return se.store.wrapErr("renew the session", err)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	for first := 0; first == 0 || first < len(held); first += batchSize {
		if err := se.renew(bounded, held[first:min(first+batchSize, len(held))]); err != nil {
			return se.wrapErr(ctx, "renew the session", err)
		}
	}
	return se.confirmed(sent)
}

func (se *session) confirmed(sent bootclock.Instant) error {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.life.EndedLocked() {
		return se.checkAlive()
	}
	se.expires = max(se.expires, sent.Add(se.ttl-slack(se.ttl)))
	se.timer.Reset(se.expires.Sub(bootclock.Now()))
	return nil
}

// renew renews entries, and returns when it is known of each that a majority has it, or that none
// can. The latter are reported gone.
func (se *session) renew(ctx context.Context, held []*entry) error {
	bids := make([]*bid, len(held))
	for i, e := range held {
		bids[i] = e.bid
	}
	lost, err := se.store.renew(ctx, bids, se.ttl)
	for _, i := range lost {
		held[i].evict()
	}
	return err
}

// join registers an entry that is about to be put in.
func (se *session) join(req store.Request) (*entry, error) {
	se.mu.Lock()
	expired := se.expires.Before(bootclock.Now()) && !se.life.EndedLocked()
	se.mu.Unlock()
	if expired {
		return nil, se.expire()
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.life.EndedLocked() {
		return nil, se.checkAlive()
	}
	e := newEntry(se, req)
	se.entries[e] = struct{}{}
	return e, nil
}

// addHeld adds an entry to those that are renewed. It reports false if the bid was renewed before
// the last confirmation was begun, because then the entry might end before the session.
func (se *session) addHeld(e *entry, c *bid) (ok bool, err error) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.life.EndedLocked() {
		return false, se.checkAlive()
	}
	c.mu.Lock()
	renewed := c.renewed
	c.mu.Unlock()
	if !se.confirmBegun.Before(renewed) && se.confirmBegun != 0 {
		return false, nil
	}
	e.bid = c
	se.held[e] = struct{}{}
	return true, nil
}

// remove unregisters an entry; it is no longer renewed.
func (se *session) remove(e *entry) {
	se.mu.Lock()
	defer se.mu.Unlock()
	delete(se.entries, e)
	delete(se.held, e)
}

// Close implements [store.Session].
func (se *session) Close(ctx context.Context) error {
	ended := se.finish(fmt.Errorf("%s: %w: session %s is closed", se.store, store.ErrSessionLost, se.id), false)
	se.life.AwaitNotified()
	se.life.AwaitWork()
	for _, e := range ended {
		if _, err := e.awaitRemoval(ctx); err != nil {
			return se.store.wrapErr("end the session", attempts.WithContextErr(ctx, err))
		}
	}
	return nil
}

// finish ends the session's life, starts to remove its entries, and returns them. If the session
// was lost, the owners of its entries and then its own owner are notified.
func (se *session) finish(cause error, lost bool) []*entry {
	var all map[*entry]struct{}
	se.life.End(cause, lost, func() {
		se.timer.Stop()
		all = se.entries
		maps.Copy(all, se.held)
		se.entries, se.held = nil, nil
	}, func() {
		for e := range all {
			e.sessionEnded(cause, lost)
		}
	})
	return slices.Collect(maps.Keys(all))
}

// wrapErr is [Store.wrapErr] for calls bounded by ctx and by the session's life.
func (se *session) wrapErr(ctx context.Context, op string, err error) error {
	if se.life.EndedDuring(ctx) != nil {
		return se.checkAlive()
	}
	return se.store.wrapErr(op, attempts.WithContextErr(ctx, err))
}
