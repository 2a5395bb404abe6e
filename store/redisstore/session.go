package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/lifetime"
)

// session is a key with the session's TTL, and the entries that are renewed with it. Each entry has
// a lease of its own in its line, because in a cluster lines are on different servers. Confirm
// renews them all.
type session struct {
	store *Store
	id    string
	opts  store.SessionOptions

	life *lifetime.Life

	mu      sync.Mutex
	lines   map[string][]*entry // by name: entries that are joining, standing or leaving
	begun   int                 // number of confirmations begun
	begunAt bootclock.Instant   // when the last one was begun
	cleared bool                // nothing of the session is in the store any more
}

func newSession(s *Store, opts store.SessionOptions) *session {
	se := &session{store: s, id: strings.ToLower(rand.Text()[:16]), opts: opts, lines: make(map[string][]*entry)}
	se.life = lifetime.New(context.Background(), &se.mu, opts.Lost)
	se.begunAt = bootclock.Now() // taken before the key is set
	return se
}

// ID implements [store.Session].
func (se *session) ID() string { return se.id }

// Terms implements [store.Session]. A server process that is suspended and resumed counts the time
// in between. If its wall clock is set forward all leases end early: see docs/guarantees.md.
func (se *session) Terms() store.Terms { return store.Terms{TTL: se.opts.TTL} }

func (se *session) key() string { return se.store.server.keys.session(se.id) }

// Confirm implements [store.Session]. It renews the session and its entries in one round trip, on
// the master.
func (se *session) Confirm(ctx context.Context) error {
	if err := se.life.Err(); err != nil {
		return err
	}
	renewals, visits := se.beginConfirm()
	operations := make([]operation, 0, len(renewals)+len(visits))
	for _, r := range renewals {
		operations = append(operations, r.operation(se.opts.TTL))
	}
	for _, v := range visits {
		operations = append(operations, v.operation(se.opts.TTL))
	}
	// Renew the session first, so that it does not outlive its entries.
	server := se.store.server
	all := server.evalAll(ctx, server.replicas, []request{func(b rueidis.Builder) rueidis.Completed {
		return b.Pexpire().Key(se.key()).Milliseconds(se.opts.TTL.Milliseconds()).Build()
	}}, operations)
	renewed, err := all[0].number()
	if err == nil && renewed == 0 {
		return se.endLost()
	}
	var again []visit
	if err == nil { // otherwise the server may refuse everything, whatever the lines are
		for i, r := range renewals {
			more, e := r.notRenewed(all[1+i])
			again, err = append(again, more...), cmp.Or(err, e)
		}
	}
	err = cmp.Or(err, se.applyVisits(visits, all[1+len(renewals):]))
	if err == nil && len(again) > 0 {
		operations = operations[:0]
		for _, v := range again {
			operations = append(operations, v.operation(se.opts.TTL))
		}
		err = se.applyVisits(again, server.evalAll(ctx, server.replicas, nil, operations))
	}
	if err != nil {
		return se.store.wrapErr("renew the session", attempts.WithContextErr(ctx, err))
	}
	return se.life.Err() // the session may have been closed meanwhile
}

// applyVisits updates entries with the replies to visits that extend leases, and returns the last error.
func (se *session) applyVisits(visits []visit, all []reply) (err error) {
	for i, v := range visits {
		_, nextExpiry, e := v.apply(all[i])
		if e != nil {
			err = e
		}
		if len(v.entries) == 1 { // the lease that ends first is its own, just extended, if there is no other
			v.entries[0].alone.Store(e == nil && milliseconds(nextExpiry) == milliseconds(se.opts.TTL))
		}
	}
	return err
}

// beginConfirm counts a confirmation that is about to be sent, and returns how it renews all lines in which
// the session has entries.
func (se *session) beginConfirm() (renewals []renewal, visits []visit) {
	se.mu.Lock()
	se.begun++
	se.begunAt = bootclock.Now()
	var gone, alone []*entry
	for _, all := range se.lines {
		stand := make([]*entry, 0, len(all))
		for _, e := range all {
			switch {
			case !e.renewing: // joining: join sees that a confirmation has begun
			case e.stands():
				stand = append(stand, e)
			case !e.leaving:
				gone = append(gone, e)
			}
		}
		if len(stand) == 1 && stand[0].alone.Load() && !se.store.server.cluster {
			alone = append(alone, stand[0])
		} else {
			visits = append(visits, se.store.visits(all[0].line, stand)...)
		}
	}
	se.mu.Unlock()
	for _, e := range gone {
		se.remove(e) // its owner was notified and may not have withdrawn it
	}
	// In the order in which their keys were made, which is how the server finds them in its memory the fastest.
	slices.SortFunc(alone, func(a, b *entry) int { return cmp.Compare(a.number, b.number) })
	for chunk := range slices.Chunk(alone, renewedTogether) {
		renewals = append(renewals, renewal{se.store, chunk})
	}
	return renewals, visits
}

// lease returns how long a new entry's lease must last to cover the last confirmation, and the
// number of that confirmation. d is not positive if none was begun within the TTL.
func (se *session) lease() (d time.Duration, begun int) {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.opts.TTL - bootclock.Now().Sub(se.begunAt), se.begun
}

// markRenewed records that entries are in their lines, with leases that cover the confirmation with
// number begun. From now on confirmations renew the entries. It reports false if another confirmation
// has begun meanwhile, which does not cover them.
func (se *session) markRenewed(entries []*entry, begun int) bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.begun != begun {
		return false
	}
	for _, e := range entries {
		e.renewing = true
	}
	return true
}

// remainingTTL returns how long the session still has on the server.
func (se *session) remainingTTL(ctx context.Context) (time.Duration, error) {
	ms, err := se.store.server.do(ctx, 0, []request{func(b rueidis.Builder) rueidis.Completed {
		return b.Pttl().Key(se.key()).Build()
	}})[0].number()
	switch {
	case err != nil:
		return 0, err
	case ms == -2: // no such key
		return 0, se.endLost()
	case ms == -1: // the expiry was removed by another client
		return se.opts.TTL, nil
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// detectExpiry ends the session if it expires on the server because the keeper does not confirm it.
func (se *session) detectExpiry() {
	life := se.life.Context()
	for life.Err() == nil {
		d, _ := se.lease()
		if d <= 0 {
			err := retry(life, func(ctx context.Context) (err error) {
				d, err = se.remainingTTL(ctx)
				return err
			})
			if err != nil {
				d = attempts.MaxTimeout
			}
		}
		attempts.Sleep(life, d+time.Millisecond)
	}
}

// add registers entries that are about to be put in.
func (se *session) add(entries ...*entry) error {
	se.mu.Lock()
	defer se.mu.Unlock()
	if err := se.life.Err(); err != nil {
		return err
	}
	for _, e := range entries {
		se.lines[e.req.Name] = append(se.lines[e.req.Name], e)
		se.store.register(e)
	}
	return nil
}

// remove unregisters an entry that is out, or that has outlived the session.
func (se *session) remove(e *entry) {
	se.mu.Lock()
	left := slices.DeleteFunc(se.lines[e.req.Name], func(other *entry) bool { return other == e })
	if len(left) > 0 {
		se.lines[e.req.Name] = left
	} else {
		delete(se.lines, e.req.Name)
	}
	se.mu.Unlock()
	se.store.unregister(e)
}

// allLocked returns all registered entries.
func (se *session) allLocked() []*entry {
	var all []*entry
	for _, chunk := range se.lines {
		all = append(all, chunk...)
	}
	return all
}

// Close implements [store.Session].
func (se *session) Close(ctx context.Context) error {
	se.finish(fmt.Errorf("%s: %w: session %s is closed", se.store, store.ErrSessionLost, se.id), false)
	se.life.AwaitNotified()
	se.life.AwaitWork()
	err := se.removeAll(ctx)
	se.store.awaitAbandonedCalls(ctx)
	if err != nil {
		return se.store.wrapErr("end the session", attempts.WithContextErr(ctx, err))
	}
	return nil
}

// removeAll removes the session and its entries from the store.
func (se *session) removeAll(ctx context.Context) error {
	se.mu.Lock()
	if se.cleared {
		se.mu.Unlock()
		return nil
	}
	var operations []operation
	for _, e := range se.allLocked() {
		o := e.leaveOperation()
		if !e.renewing || e.outlasts.Load() {
			o.args[0] = "end" // a request to put it in, or to remove it later, may be in flight
		}
		operations = append(operations, o)
	}
	se.mu.Unlock()
	first := []request{func(b rueidis.Builder) rueidis.Completed { return b.Del().Key(se.key()).Build() }}
	for ; len(first) > 0 || len(operations) > 0; first = nil {
		chunk := operations[:min(se.store.server.chunkSize, len(operations))] // more might exceed an attempt's time
		operations = operations[len(chunk):]
		err := retryBounded(ctx, func(ctx context.Context) error {
			return firstError(se.store.server.evalAll(ctx, 0, first, chunk))
		})
		if err != nil {
			return err
		}
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.cleared = true
	return nil
}

// endLost ends the session because the server does not know it any more, and returns the error that
// says so.
func (se *session) endLost() error {
	se.finish(fmt.Errorf("%s: %w: session %s was not renewed for %v, or its key was deleted or forgotten",
		se.store, store.ErrSessionLost, se.id, se.opts.TTL), true)
	return se.life.Err()
}

// finish ends the session's life. If the session was lost, the owners of its entries and then its
// own owner are notified.
func (se *session) finish(cause error, lost bool) {
	var mine []*entry
	ended := se.life.End(cause, lost, func() {
		mine = se.allLocked()
		if lost {
			// In a cluster the entries may stand a little longer than the session; otherwise
			// nothing is left to remove.
			se.life.Start(se.sweep)
		}
	}, func() {
		for _, e := range mine {
			if lost {
				e.update(store.Standing{State: store.Gone, Cause: cause})
			}
			e.silence()
			se.store.unregister(e)
		}
	})
	if ended {
		se.store.removeSession() // last, because it may block
	}
}

// sweep tries once to remove what is left of a lost session.
func (se *session) sweep() {
	ctx, cancel := context.WithTimeout(context.Background(), attempts.MinTimeout)
	defer cancel()
	if err := se.removeAll(ctx); err == nil {
		return
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.cleared = true // the leases are about to expire
}

// wrapErr is [Store.wrapErr] for calls bounded by ctx and by the session's life.
func (se *session) wrapErr(ctx context.Context, op string, err error) error {
	if ended := se.life.EndedDuring(ctx); ended != nil && !errors.Is(err, store.ErrGone) {
		return ended
	}
	return se.store.wrapErr(op, attempts.WithContextErr(ctx, err))
}
