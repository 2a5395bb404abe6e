package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/work"
)

// session is a key that lives for the TTL, and the entries that are kept with it. Each entry has a lease of its own, in its
// line, because in a cluster they are on different servers; Confirm renews them all.
type session struct {
	store *Store
	id    string
	opts  store.SessionOptions

	// life ends, with a cause that matches store.ErrSessionLost, when the session is closed or known to be lost. Everything
	// that works for the session ends with it, and is counted in work.
	life context.Context
	end  context.CancelCauseFunc
	work work.Group

	mu      sync.Mutex
	entries map[*entry]struct{} // joining, standing or leaving
	begun   int                 // confirmations begun
	at      bootclock.Instant   // when the last one was
	ended   bool                // life has ended
	gone    bool                // nothing of it is in the store any more
}

func newSession(s *Store, opts store.SessionOptions) *session {
	se := &session{store: s, id: strings.ToLower(rand.Text()[:16]), opts: opts, entries: make(map[*entry]struct{})}
	se.life, se.end = context.WithCancelCause(context.Background())
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
	if err := se.alive(); err != nil {
		return err
	}
	visits := se.begin()
	var operations []operation
	ends := make([]int, 0, len(visits)) // of the operations of each visit
	for _, v := range visits {
		operations = append(operations, v.operations(se.opts.TTL)...)
		ends = append(ends, len(operations))
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
	from := 1
	for i, v := range visits {
		if _, _, e := v.report(all[from : 1+ends[i]]); e != nil {
			err = e
		}
		from = 1 + ends[i]
	}
	if err != nil {
		return se.store.explain("renew the session", attempts.EndedBy(ctx, err))
	}
	return se.alive() // it may have been closed meanwhile
}

// begin counts a confirmation that is about to be sent, and returns the visits to all lines in which the session stands.
func (se *session) begin() []visit {
	se.mu.Lock()
	defer se.mu.Unlock()
	se.begun++
	se.at = bootclock.Now()
	byName := make(map[string]*visit)
	for e := range se.entries {
		if !e.known || !e.stands() {
			continue // joining: it will notice that there was a confirmation
		}
		v := byName[e.req.Name]
		if v == nil {
			v = &visit{store: se.store, line: e.line}
			byName[e.req.Name] = v
		}
		v.entries = append(v.entries, e)
	}
	visits := make([]visit, 0, len(byName))
	for _, v := range byName {
		visits = append(visits, *v)
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
	for se.alive() == nil {
		d, _ := se.lease()
		if d <= 0 {
			err := attempt(se.life, func(ctx context.Context) (err error) {
				d, err = se.left(ctx)
				return err
			})
			if err != nil {
				d = attempts.Longest
			}
		}
		attempts.Rest(se.life, d+time.Millisecond)
	}
}

// enter notes that an entry is about to be put in.
func (se *session) enter(e *entry) error {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.ended {
		return se.alive()
	}
	if e.req.Mode == line.Exclusive {
		for other := range se.entries {
			if other.req.Name == e.req.Name && other.req.Mode == line.Exclusive && !other.leaving && other.stands() {
				return fmt.Errorf("%s: session %s stands in the line of lock %q already", se.store, se.id, e.req.Name)
			}
		}
	}
	se.entries[e] = struct{}{}
	se.store.register(e)
	return nil
}

// forget notes that an entry is out, or that its end is no matter of the session's any more.
func (se *session) forget(e *entry) {
	se.mu.Lock()
	delete(se.entries, e)
	se.mu.Unlock()
	se.store.unregister(e)
}

// Close implements [store.Session].
func (se *session) Close(ctx context.Context) error {
	se.finish(fmt.Errorf("%s: %w: session %s is closed", se.store, store.ErrSessionLost, se.id), false)
	se.work.Wait()
	if err := se.clear(ctx); err != nil {
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
	for e := range se.entries {
		operations = append(operations, e.departure())
	}
	se.mu.Unlock()
	err := patiently(ctx, func(ctx context.Context) error {
		all := se.store.server.evalAll(ctx, 0, []request{func(b rueidis.Builder) rueidis.Completed {
			return b.Del().Key(se.key()).Build()
		}}, operations)
		for _, r := range all {
			if r.err != nil {
				return r.err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.gone = true
	return nil
}

// alive returns why the session has ended, or nil.
func (se *session) alive() error { return context.Cause(se.life) }

// lost ends the session because the server does not know it any more, and returns the error that says so.
func (se *session) lost() error {
	se.finish(fmt.Errorf("%s: %w: session %s was not renewed for %v, or its key was deleted or forgotten",
		se.store, store.ErrSessionLost, se.id, se.opts.TTL), true)
	return se.alive()
}

// finish ends the session's life. If it was lost, everybody who stands in a line under it is told, and the one who opened it.
func (se *session) finish(cause error, lost bool) {
	se.mu.Lock()
	if se.ended {
		se.mu.Unlock()
		return
	}
	se.ended = true
	mine := make([]*entry, 0, len(se.entries))
	for e := range se.entries {
		mine = append(mine, e)
	}
	if lost {
		// In a cluster its entries may stand a little longer than the session: elsewhere there is nothing left to do.
		se.work.Start(func() { se.sweep() })
	}
	se.work.Refuse()
	se.end(cause)
	se.mu.Unlock()

	for _, e := range mine {
		if lost {
			e.hear(store.Standing{State: store.Gone, Cause: cause})
		}
		e.silence()
		se.store.unregister(e)
	}
	se.store.end()
	if lost && se.opts.Lost != nil {
		se.opts.Lost(cause)
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
	if ctx.Err() == nil && se.alive() != nil && !errors.Is(err, store.ErrGone) {
		return se.alive()
	}
	return se.store.explain(doing, attempts.EndedBy(ctx, err))
}
