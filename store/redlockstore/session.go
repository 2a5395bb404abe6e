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

// session is a set of entries that are renewed together. The masters know only of the entries: that the session has
// ended is decided here, by the same clock by which the keeper decides, and enforced by taking the entries out.
type session struct {
	store *Store
	id    string
	ttl   time.Duration
	opts  store.SessionOptions

	life *lifetime.Life

	mu      sync.Mutex
	entries map[*entry]struct{} // those that were not withdrawn
	kept    map[*entry]struct{}
	asked   bootclock.Instant // when the last confirmation was begun
	expires bootclock.Instant // unless it is confirmed
	timer   *time.Timer       // fires then
}

func newSession(s *Store, opts store.SessionOptions) *session {
	se := &session{
		store: s, id: rand.Text()[:16], ttl: opts.TTL, opts: opts,
		entries: make(map[*entry]struct{}), kept: make(map[*entry]struct{}),
	}
	se.life = lifetime.New(s.life, &se.mu, opts.Lost)
	return se
}

// slack is by how much a master may let a key expire early: its clock may run fast by a hundredth, and it counts in
// milliseconds.
func slack(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// ID implements [store.Session]. The values of the session's entries have it in them.
func (se *session) ID() string { return se.id }

// Terms implements [store.Session]. The slack is the drift that Redlock reckons with.
func (se *session) Terms() store.Terms { return store.Terms{TTL: se.ttl, Slack: slack(se.ttl)} }

// begin makes sure that there is a majority to lock with.
func (se *session) begin(ctx context.Context) error {
	sent, err := se.store.patiently(ctx, func() error {
		_, err := se.store.ask(ctx, straggle, renewScript, []string{se.store.keys.index()}, []string{millis(se.ttl), millis(fenceTTL)})
		return err
	})
	if err != nil {
		return err
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.expires = sent.Add(se.ttl - slack(se.ttl))
	se.timer = time.AfterFunc(se.expires.Sub(bootclock.Now()), se.look)
	return nil
}

// look ends the session if it is time to.
func (se *session) look() {
	se.mu.Lock()
	left := se.expires.Sub(bootclock.Now())
	if left > 0 && !se.life.EndedLocked() {
		se.timer.Reset(left)
	}
	se.mu.Unlock()
	if left <= 0 {
		_ = se.expired()
	}
}

// expired ends the session because it was not confirmed in time, and returns the error that says so.
func (se *session) expired() error {
	err := fmt.Errorf("%s: %w: session %s was not confirmed for %v", se.store, store.ErrSessionLost, se.id, se.ttl)
	se.finish(err, true)
	return se.alive()
}

// alive returns why the session has ended, or nil.
func (se *session) alive() error {
	err := se.life.Err()
	if err != nil && se.store.life.Err() != nil {
		return fmt.Errorf("%s: %w: %w", se.store, store.ErrSessionLost, errClosed)
	}
	return err
}

// batchSize is how many locks are renewed, or read, by one request.
const batchSize = 256

// Confirm implements [store.Session]. It proves that a majority of the masters has answered, and of each entry that is
// admitted, that a majority has it; an entry that no majority can have any more is reported gone. At masters where an
// entry is missing it is put in again, while a majority has it: after a restart, for example.
func (se *session) Confirm(ctx context.Context) error {
	sent := bootclock.Now()
	se.mu.Lock()
	overdue := se.expires.Before(sent) && !se.life.EndedLocked()
	se.asked = sent
	held := make([]*entry, 0, len(se.kept))
	for e := range se.kept {
		held = append(held, e)
	}
	se.mu.Unlock()
	if overdue {
		return se.expired()
	}
	if err := se.alive(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return se.store.explain("renew the session", err)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	for first := 0; first == 0 || first < len(held); first += batchSize {
		if err := se.renew(bounded, held[first:min(first+batchSize, len(held))]); err != nil {
			return se.explain(ctx, "renew the session", err)
		}
	}
	return se.confirmed(sent)
}

func (se *session) confirmed(sent bootclock.Instant) error {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.life.EndedLocked() {
		return se.alive()
	}
	se.expires = max(se.expires, sent.Add(se.ttl-slack(se.ttl)))
	se.timer.Reset(se.expires.Sub(bootclock.Now()))
	return nil
}

// renew has entries renewed, and returns when it is known of each that a majority has it, or that none can have. It
// tells the latter that they are gone.
func (se *session) renew(ctx context.Context, held []*entry) error {
	claims := make([]*claim, len(held))
	for i, e := range held {
		claims[i] = e.claim
	}
	lost, err := se.store.renew(ctx, claims, se.ttl)
	for _, i := range lost {
		held[i].goneAlone()
	}
	return err
}

// join notes that an entry is about to be put in.
func (se *session) join(req store.Request) (*entry, error) {
	se.mu.Lock()
	late := se.expires.Before(bootclock.Now()) && !se.life.EndedLocked()
	se.mu.Unlock()
	if late {
		return nil, se.expired()
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.life.EndedLocked() {
		return nil, se.alive()
	}
	e := newEntry(se, req)
	se.entries[e] = struct{}{}
	return e, nil
}

// keep has an entry renewed from now on. It reports false if it is not certain that the entry stands as long as the
// session: because it was renewed before the last confirmation was begun.
func (se *session) keep(e *entry, c *claim) (ok bool, err error) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.life.EndedLocked() {
		return false, se.alive()
	}
	c.mu.Lock()
	renewed := c.renewed
	c.mu.Unlock()
	if !se.asked.Before(renewed) && se.asked != 0 {
		return false, nil
	}
	e.claim = c
	se.kept[e] = struct{}{}
	return true, nil
}

// release has an entry renewed no more.
func (se *session) release(e *entry) {
	se.mu.Lock()
	defer se.mu.Unlock()
	delete(se.entries, e)
	delete(se.kept, e)
}

// Close implements [store.Session].
func (se *session) Close(ctx context.Context) error {
	ended := se.finish(fmt.Errorf("%s: %w: session %s is closed", se.store, store.ErrSessionLost, se.id), false)
	se.life.AwaitNotified()
	se.life.AwaitWork()
	for _, e := range ended {
		if _, err := e.left(ctx); err != nil {
			return se.store.explain("end the session", attempts.EndedBy(ctx, err))
		}
	}
	return nil
}

// finish ends the session's life, and begins to take its entries out, which it returns. If it was lost, everybody who
// stands in a line under it is notified, and the one who opened it.
func (se *session) finish(cause error, lost bool) []*entry {
	var all map[*entry]struct{}
	se.life.End(cause, lost, func() {
		se.timer.Stop()
		all = se.entries
		maps.Copy(all, se.kept)
		se.entries, se.kept = nil, nil
	}, func() {
		for e := range all {
			e.sessionEnded(cause, lost)
		}
	})
	return slices.Collect(maps.Keys(all))
}

// explain is [Store.explain] for calls that were bounded by ctx and by the session's life.
func (se *session) explain(ctx context.Context, doing string, err error) error {
	if se.life.CutShort(ctx) != nil {
		return se.alive()
	}
	return se.store.explain(doing, attempts.EndedBy(ctx, err))
}
