package redisstore

import (
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

// session is a key that lives for the TTL, and the entries that are kept with it. Each entry has a lease of its own, in its
// line, because in a cluster they are on different servers; Confirm renews them all.
type session struct {
	store *Store
	id    string
	opts  store.SessionOptions

	life *lifetime.Life

	mu    sync.Mutex
	lines map[string][]*entry // joining, standing or leaving, by name
	begun int                 // confirmations begun
	at    bootclock.Instant   // when the last one was
	gone  bool                // nothing of it is in the store any more
}

func newSession(s *Store, opts store.SessionOptions) *session {
	se := &session{store: s, id: strings.ToLower(rand.Text()[:16]), opts: opts, lines: make(map[string][]*entry)}
	se.life = lifetime.New(context.Background(), &se.mu, opts.Lost)
	se.at = bootclock.Now() // before the key is made
	return se
}

// ID implements [store.Session].
func (se *session) ID() string { return se.id }

// Terms implements [store.Session]. A server that is stopped and goes on counts the time that it stood; one whose wall clock
// is set forward ends everything early: see docs/guarantees.md.
func (se *session) Terms() store.Terms { return store.Terms{TTL: se.opts.TTL} }

func (se *session) key() string { return se.store.server.keys.session(se.id) }

// Confirm implements [store.Session]. Everything is renewed in one round, on the master.
func (se *session) Confirm(ctx context.Context) error {
	if err := se.life.Err(); err != nil {
		return err
	}
	visits := se.begin()
	operations := make([]operation, 0, len(visits))
	for _, v := range visits {
		operations = append(operations, v.operation(se.opts.TTL))
	}
	// The session first, so that it does not outlive its entries.
	server := se.store.server
	all := server.evalAll(ctx, server.replicas, []request{func(b rueidis.Builder) rueidis.Completed {
		return b.Pexpire().Key(se.key()).Milliseconds(se.opts.TTL.Milliseconds()).Build()
	}}, operations)
	renewed, err := all[0].number()
	if err == nil && renewed == 0 {
		return se.lost()
	}
	for i, v := range visits {
		if _, _, e := v.report(all[1+i]); e != nil {
			err = e
		}
	}
	if err != nil {
		return se.store.explain("renew the session", attempts.EndedBy(ctx, err))
	}
	return se.life.Err() // it may have been closed meanwhile
}

// begin counts a confirmation that is about to be sent, and returns the visits to all lines in which the session stands.
func (se *session) begin() []visit {
	se.mu.Lock()
	se.begun++
	se.at = bootclock.Now()
	visits := make([]visit, 0, len(se.lines))
	var gone []*entry
	for _, all := range se.lines {
		stand := make([]*entry, 0, len(all))
		for _, e := range all {
			switch {
			case !e.known: // joining: it will notice that there was a confirmation
			case e.stands():
				stand = append(stand, e)
			case !e.leaving:
				gone = append(gone, e)
			}
		}
		visits = append(visits, se.store.visits(all[0].line, stand)...)
	}
	se.mu.Unlock()
	for _, e := range gone {
		se.forget(e) // its owner may have it still, and has been told
	}
	return visits
}

// lease returns how long an entry that is put in now has to be kept, so that it stands as long as the confirmation lasts that
// was begun last, and the number of that confirmation. It is not positive if there has been none for the TTL.
func (se *session) lease() (d time.Duration, begun int) {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.opts.TTL - bootclock.Now().Sub(se.at), se.begun
}

// kept notes that an entry is in its line and kept as long as the confirmation with the number begun lasts: from here on
// confirmations renew it. It reports false if another one has begun meanwhile, which did not.
func (se *session) kept(e *entry, begun int) bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.begun != begun {
		return false
	}
	e.known = true
	return true
}

// left asks the server how long the session still lives.
func (se *session) left(ctx context.Context) (time.Duration, error) {
	ms, err := se.store.server.do(ctx, 0, []request{func(b rueidis.Builder) rueidis.Completed {
		return b.Pttl().Key(se.key()).Build()
	}})[0].number()
	switch {
	case err != nil:
		return 0, err
	case ms == -2: // there is no such key
		return 0, se.lost()
	case ms == -1: // somebody has taken its end away
		return se.opts.TTL, nil
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// lookAfter learns of the session's end when nobody confirms it.
func (se *session) lookAfter() {
	life := se.life.Context()
	for life.Err() == nil {
		d, _ := se.lease()
		if d <= 0 {
			err := attempt(life, func(ctx context.Context) (err error) {
				d, err = se.left(ctx)
				return err
			})
			if err != nil {
				d = attempts.Longest
			}
		}
		attempts.Rest(life, d+time.Millisecond)
	}
}

// enter notes that an entry is about to be put in.
func (se *session) enter(e *entry) error {
	se.mu.Lock()
	defer se.mu.Unlock()
	if err := se.life.Err(); err != nil {
		return err
	}
	se.lines[e.req.Name] = append(se.lines[e.req.Name], e)
	se.store.register(e)
	return nil
}

// forget notes that an entry is out, or that its end is no matter of the session's any more.
func (se *session) forget(e *entry) {
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

// all returns the entries that are joining, standing or leaving. The session's mutex is held.
func (se *session) all() []*entry {
	var all []*entry
	for _, some := range se.lines {
		all = append(all, some...)
	}
	return all
}

// Close implements [store.Session].
func (se *session) Close(ctx context.Context) error {
	se.finish(fmt.Errorf("%s: %w: session %s is closed", se.store, store.ErrSessionLost, se.id), false)
	se.life.AwaitNotified()
	se.life.AwaitWork()
	err := se.clear(ctx)
	se.store.unused(ctx)
	if err != nil {
		return se.store.explain("end the session", attempts.EndedBy(ctx, err))
	}
	return nil
}

// clear takes everything out of the store that is the session's.
func (se *session) clear(ctx context.Context) error {
	se.mu.Lock()
	if se.gone {
		se.mu.Unlock()
		return nil
	}
	var operations []operation
	for _, e := range se.all() {
		o := e.departure()
		if !e.known || e.outlasts.Load() {
			o.args[0] = "end" // the request to put it in, or to let it go later, may be under way
		}
		operations = append(operations, o)
	}
	se.mu.Unlock()
	first := []request{func(b rueidis.Builder) rueidis.Completed { return b.Del().Key(se.key()).Build() }}
	for ; len(first) > 0 || len(operations) > 0; first = nil {
		some := operations[:min(se.store.server.round, len(operations))] // many might take longer than an attempt may
		operations = operations[len(some):]
		err := patiently(ctx, func(ctx context.Context) error {
			return firstError(se.store.server.evalAll(ctx, 0, first, some))
		})
		if err != nil {
			return err
		}
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.gone = true
	return nil
}

// lost ends the session because the server does not know it any more, and returns the error that says so.
func (se *session) lost() error {
	se.finish(fmt.Errorf("%s: %w: session %s was not renewed for %v, or its key was deleted or forgotten",
		se.store, store.ErrSessionLost, se.id, se.opts.TTL), true)
	return se.life.Err()
}

// finish ends the session's life. If it was lost, everybody who stands in a line under it is notified, and the one who
// opened it.
func (se *session) finish(cause error, lost bool) {
	var mine []*entry
	ended := se.life.End(cause, lost, func() {
		mine = se.all()
		if lost {
			// In a cluster its entries may stand a little longer than the session: elsewhere there is nothing left to do.
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
		se.store.end() // last, because it may have to wait
	}
}

// sweep tries once to take out what is left of a session that is lost.
func (se *session) sweep() {
	ctx, cancel := context.WithTimeout(context.Background(), attempts.Shortest)
	defer cancel()
	if err := se.clear(ctx); err == nil {
		return
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.gone = true // soon, by itself
}

// explain is [Store.explain] for calls that were bounded by ctx and by the session's life.
func (se *session) explain(ctx context.Context, doing string, err error) error {
	if ended := se.life.CutShort(ctx); ended != nil && !errors.Is(err, store.ErrGone) {
		return ended
	}
	return se.store.explain(doing, attempts.EndedBy(ctx, err))
}
