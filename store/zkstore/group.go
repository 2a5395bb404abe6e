package zkstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// maxSessionBytes bounds what the end of one ZooKeeper session writes.
//
// The leader then writes one transaction with the paths of all the session's ephemeral nodes.
// Servers refuse to read a transaction that is larger than jute.maxbuffer (a megabyte by default)
// and some more, but they write it. From then on no server can read its own log or learn from the
// leader, so none can start. The bound is half of that megabyte.
const maxSessionBytes = 512 << 10

// sizeIn is what an entry in a directory adds to the transaction: a length of four bytes, and the
// path with the longest number that ZooKeeper may append. The entry of a slot may add another path.
func (e *entry) sizeIn(dir string, readWrite bool) int64 {
	size := int64(4 + len(join(dir, nodePrefix(e.guid, e.req.Mode, readWrite))) + len("-2147483648"))
	if e.req.Mode.Slots() > 0 {
		size += maxClaimBytes(dir) // it may claim a number
	}
	return size
}

// sizeOf is sizeIn for an entry that has no line yet.
func (s *Store) sizeOf(e *entry) int64 { return e.sizeIn(s.paths.dir(e.req.Name), s.readWrite) }

// group is a [store.Session]: one ZooKeeper session, and further ones if there are more entries
// than one can have; see [maxSessionBytes]. It is confirmed when all of them are, and lost with the
// first that is lost. Further sessions stay until the group ends.
type group struct {
	store *Store
	opts  store.SessionOptions
	first *session

	mu       sync.Mutex
	sessions []*session // the first, and the further ones
	usable   int        // how many of them accept entries
	opening  *opening   // of a further session; nil if none is under way
	ended    error      // why the group has ended; nil if it has not
}

// opening is an attempt to open a further session, shared by all calls that wait for it.
type opening struct {
	done chan struct{}
	err  error // set before done is closed
}

func newGroup(s *Store, opts store.SessionOptions) *group {
	g := &group{store: s, opts: opts, usable: 1}
	g.first = newSession(g)
	g.sessions = []*session{g.first}
	return g
}

// ID implements [store.Session]: the id of the first session, as ZooKeeper's own tools print it.
// Entries in further sessions have other ids.
func (g *group) ID() string { return g.first.ID() }

// Terms implements [store.Session]. Followers report their clients to the leader every half tick,
// and a follower may be cut off before its next report; so the leader's last report may be one
// confirmation older than the last one here. Requests that were lost with a connection are
// repeated, so an attempt may take longer than leaving a silent server does.
func (g *group) Terms() store.Terms {
	ttl := g.first.ttl
	return store.Terms{TTL: ttl, Slack: ttl / 3, Attempt: attemptFor(ttl)}
}

// attemptFor is how long a confirmation may take. It ends soon after a silent server is abandoned,
// so that the next one counts from a later time. When an attempt begins, a third of the time for
// which the last confirmation is valid has passed; two attempts fit into the rest. An attempt and
// the pause after it are shorter than the slack, because the leader may know only the previous
// request.
func attemptFor(ttl time.Duration) time.Duration { return silenceTimeout(ttl) + ttl/20 }

// Confirm implements [store.Session].
func (g *group) Confirm(ctx context.Context) error {
	return g.each(func(se *session) error { return se.Confirm(ctx) })
}

// Close implements [store.Session].
func (g *group) Close(ctx context.Context) error {
	g.end(fmt.Errorf("%s: %w: session %s is closed", g.store, store.ErrSessionLost, g.ID()))
	return g.each(func(se *session) error { return se.Close(ctx) })
}

// each calls do for all sessions at once. If several fail it prefers the error of a lost session.
func (g *group) each(do func(*session) error) error {
	g.mu.Lock()
	sessions := slices.Clone(g.sessions)
	g.mu.Unlock()
	errs := make([]error, len(sessions))
	var calls sync.WaitGroup
	for i, se := range sessions {
		calls.Go(func() { errs[i] = do(se) })
	}
	calls.Wait()
	var first error
	for _, err := range errs {
		if errors.Is(err, store.ErrSessionLost) {
			return err
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// end records that the group has ended, and reports whether this call ended it.
func (g *group) end(why error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended != nil {
		return false
	}
	g.ended = why
	return true
}

// lose ends the group because one of its sessions was lost.
func (g *group) lose(lost *session, cause error) {
	if !g.end(cause) {
		return
	}
	g.mu.Lock()
	sessions := slices.Clone(g.sessions)
	g.mu.Unlock()
	for _, se := range sessions {
		if se != lost {
			se.abandon(cause)
		}
	}
	if g.opts.Lost != nil {
		g.opts.Lost(cause)
	}
}

// assignSession finds one session with room for all the entries, opening one if there is none, and
// registers them in their lines there.
func (g *group) assignSession(ctx context.Context, entries ...*entry) error {
	for {
		o, err := g.tryPlace(entries)
		if o == nil {
			return err
		}
		select {
		case <-o.done:
			if o.err != nil {
				return g.store.wrapErr(furtherSession, o.err)
			}
		case <-ctx.Done():
			return g.store.wrapErr(furtherSession, attempts.WithContextErr(ctx, context.Cause(ctx)))
		case <-g.first.life.Context().Done():
			return g.first.life.Err()
		}
	}
}

const furtherSession = "open a further session, for more entries than one can have"

// tryPlace is assignSession, but if a further session must be opened first it returns that opening.
func (g *group) tryPlace(entries []*entry) (*opening, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended != nil {
		return nil, g.ended
	}
	size := int64(0)
	for _, e := range entries {
		size += g.store.sizeOf(e)
	}
	for _, se := range g.sessions[:g.usable] {
		if n := se.bytes.Load(); n > 0 && n+size > g.store.sessionBytes {
			continue
		}
		for _, e := range entries {
			if err := se.join(e, g.store.sizeOf(e)); err != nil {
				return nil, err // the session has ended, and the entries before this one with it
			}
		}
		return nil, nil
	}
	if g.opening == nil {
		g.opening = &opening{done: make(chan struct{})}
		g.first.life.Start(g.openFurther)
	}
	return g.opening, nil
}

// openFurther opens a further session, and retries until the group ends or the servers refuse.
//
// A confirmation of the group counts from its beginning. A confirmation that began before this
// session was part of the group proves nothing about it. So the session is confirmed by itself
// before it is used.
func (g *group) openFurther() {
	se := newSession(g)
	err := se.open(g.first.life.Context(), g.first.ttl)
	if err == nil {
		err = g.add(se)
	}
	if err == nil {
		err = se.Confirm(g.first.life.Context())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		g.usable = len(g.sessions)
	}
	g.opening.err = err
	close(g.opening.done)
	g.opening = nil
}

// add adds a session to the group.
func (g *group) add(se *session) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended != nil {
		go se.client.shut()
		return g.ended
	}
	g.sessions = append(g.sessions, se)
	return nil
}

// leaving reports whether an entry was created by this group and is being removed, so that no line
// follows it any more.
func (g *group) leaving(dir string, holder store.Entry) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, se := range g.sessions {
		if se.ID() == holder.Session {
			w := se.lineOf(dir)
			return w == nil || !w.stands(holder.Order)
		}
	}
	return false
}
