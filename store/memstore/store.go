package memstore

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// Store is a [store.Store] in memory. It is safe for concurrent use. Make one with [New]; the zero
// value cannot be used. It has no connections and no Close method.
type Store struct {
	mu        sync.Mutex
	faults    func(Call) Fault
	sessions  map[string]*session
	lines     map[string][]*entry // in order; no empty lines
	markers   map[string][]*entry // by line name: the entries that have left a marker
	limits    map[string]int      // by line name: the operator's limits of slots
	records   map[string][]byte   // by line name
	watches   map[*watch]struct{}
	followers map[*follower]struct{}
	order     uint64
	opened    int
}

var _ store.Store = (*Store)(nil)

// New returns an empty store without faults.
func New() *Store {
	return &Store{
		sessions:  make(map[string]*session),
		lines:     make(map[string][]*entry),
		markers:   make(map[string][]*entry),
		limits:    make(map[string]int),
		records:   make(map[string][]byte),
		watches:   make(map[*watch]struct{}),
		followers: make(map[*follower]struct{}),
	}
}

// MinTTL and MaxTTL bound the TTL of a session. A client allows at most stile.MaxTTL, which is less
// than MaxTTL. MinTTL only rejects mistaken units.
const (
	MinTTL = 10 * time.Millisecond
	MaxTTL = 24 * time.Hour
)

// Capabilities implements [store.Store]. The store has all optional features, except entry keys.
func (s *Store) Capabilities() store.Capabilities {
	return store.Capabilities{
		Kind: "memory", Fair: true, SharedModes: true, Fencing: true,
		ReleaseAfter: true, OwnerUpdates: true, Downgrades: true, Contention: true, Requeue: true, SlotNumbers: true, ClearMarks: s.clearMarks,
		SetLimit: s.setLimit, EnqueueAll: s.enqueueAll, Record: s.record, Follow: s.followLines,
		MinTTL: MinTTL, MaxTTL: MaxTTL,
	}
}

// Open implements [store.Store].
func (s *Store) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	var se *session
	err := s.request(ctx, Call{Op: Open}, func() error {
		se = s.openLocked(opts)
		return nil
	}, func() { s.discard(se) })
	if err != nil {
		return nil, err
	}
	return se, nil
}

// Line implements [store.Store].
func (s *Store) Line(ctx context.Context, name string) (store.Line, error) {
	var l store.Line
	err := s.request(ctx, Call{Op: Read, Name: name}, func() error {
		l = s.readLocked(name)
		return nil
	}, nil)
	return l, err
}

// Lines implements [store.Store]. All lines are of the same moment.
func (s *Store) Lines(ctx context.Context, prefix string) iter.Seq2[store.Line, error] {
	return func(yield func(store.Line, error) bool) {
		var lines []store.Line
		err := s.request(ctx, Call{Op: Read, Name: prefix}, func() error {
			for name := range s.lines {
				if strings.HasPrefix(name, prefix) {
					lines = append(lines, s.readLocked(name))
				}
			}
			sort.Slice(lines, func(i, j int) bool { return lines[i].Name < lines[j].Name })
			return nil
		}, nil)
		if err != nil {
			yield(store.Line{}, err)
			return
		}
		for _, l := range lines {
			if !yield(l, nil) {
				return
			}
		}
	}
}

// Break implements [store.Store].
func (s *Store) Break(ctx context.Context, name string, order uint64) (store.Entry, error) {
	var broken store.Entry
	err := s.request(ctx, Call{Op: Break, Name: name}, func() error {
		i := slices.IndexFunc(s.lines[name], func(e *entry) bool { return e.order == order })
		if i < 0 {
			return fmt.Errorf("%w: there is none with order %d", store.ErrGone, order)
		}
		broken = s.readLocked(name).Entries[i]
		s.removeLocked(s.lines[name][i], fmt.Errorf("%w: it was broken", store.ErrGone))
		return nil
	}, nil)
	return broken, err
}

// Expire ends a session before its TTL has passed, as a store would that breaks its promise. The
// owners of its entries are notified that they are gone (a fault on [Notify] delays that). The
// session itself is not notified: its next Confirm or Enqueue returns an error matching [store.ErrSessionLost].
// Expire does nothing if there is no such session.
func (s *Store) Expire(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if se := s.sessions[id]; se != nil {
		s.endLocked(se)
	}
}

// Sessions returns the ids of the living sessions, the oldest first.
func (s *Store) Sessions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]string, 0, len(s.sessions))
	for id := range s.sessions {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool {
		return len(ids[i]) < len(ids[j]) || len(ids[i]) == len(ids[j]) && ids[i] < ids[j]
	})
	return ids
}

// openLocked adds a session.
func (s *Store) openLocked(opts store.SessionOptions) *session {
	s.opened++
	se := &session{store: s, id: fmt.Sprintf("m%d", s.opened), opts: opts}
	se.life, se.endLife = context.WithCancel(context.Background())
	s.sessions[se.id] = se
	se.expires = time.Now().Add(opts.TTL)
	se.timer = time.AfterFunc(opts.TTL, func() { s.expire(se) })
	return se
}

func (s *Store) readLocked(name string) store.Line {
	l := store.Line{Name: name, Entries: []store.Entry{}, Limit: s.limits[name]}
	for _, e := range s.lines[name] {
		l.Entries = append(l.Entries, store.Entry{
			Order:     e.order,
			Mode:      e.req.Mode,
			Admitted:  e.admitted,
			Session:   e.lifeSession.id,
			Owner:     e.owner,
			Remaining: time.Until(e.lifeSession.expires),
		})
	}
	return l
}

// admitLocked marks the entries of a line that the rules admit, and counts what the others wait for. An admitted
// entry stays admitted. It must be called after each change of the line or its limit.
func (s *Store) admitLocked(name string) {
	entries := make([]line.Entry, 0, len(s.lines[name]))
	for _, e := range s.lines[name] {
		entries = append(entries, line.Entry{Order: e.order, Mode: e.req.Mode})
	}
	for i, blocked := range line.Blocked(entries, s.limits[name]) {
		e := s.lines[name][i]
		e.admitted, e.ahead = e.admitted || blocked == 0, blocked
	}
}

// removeLocked removes an entry and admits the next ones. If cause is not nil, the entry's owner is
// notified.
func (s *Store) removeLocked(e *entry, cause error) {
	s.removeFromLocked(e.req.Name, cause, func(other *entry) bool { return other == e })
}

// forgetLocked deletes a session, but not its entries.
func (s *Store) forgetLocked(se *session) {
	delete(s.sessions, se.id)
	se.timer.Stop()
}

// endLocked deletes a session and its entries.
func (s *Store) endLocked(se *session) {
	s.forgetLocked(se)
	cause := fmt.Errorf("%w: %s", store.ErrSessionLost, se.id)
	for name := range s.lines {
		s.removeFromLocked(name, cause, func(e *entry) bool { return e.lifeSession == se })
	}
}

// removeFromLocked removes the entries that match from a line. All of them are out before any owner
// is notified. Otherwise the second entry of an ended session would be admitted in between.
func (s *Store) removeFromLocked(name string, cause error, match func(*entry) bool) {
	var stay, gone []*entry
	for _, e := range s.lines[name] {
		if match(e) {
			e.gone, e.cause = true, cause
			e.endEntry()
			gone = append(gone, e)
			if e.lifeSession != e.session {
				s.forgetLocked(e.lifeSession) // it existed for this entry alone
			}
		} else {
			stay = append(stay, e)
		}
	}
	if len(gone) == 0 {
		return
	}
	if s.lines[name] = stay; len(stay) == 0 {
		delete(s.lines, name)
	}
	s.admitLocked(name)
	if cause != nil {
		for _, e := range gone {
			s.deliverLocked(e)
		}
	}
	for _, e := range stay {
		s.deliverLocked(e)
	}
	s.changedLocked(name)
}

// deliverLocked delivers an entry's standing to its owner, now or after the delay of a fault on
// [Notify].
func (s *Store) deliverLocked(e *entry) {
	f := s.faultLocked(Call{Op: Notify, Session: e.session.id, Name: e.req.Name})
	if f.Delay <= 0 {
		e.delivery.Deliver(e.standingLocked())
		return
	}
	time.AfterFunc(f.Delay, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		e.delivery.Deliver(e.standingLocked())
	})
}

// expire ends a session that has not been confirmed for its TTL.
func (s *Store) expire(se *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[se.id] != se {
		return
	}
	if time.Until(se.expires) > 0 {
		return // the timer fired just before a confirmation extended the session and reset it
	}
	s.endLocked(se)
	if se.opts.Lost != nil && !se.closed {
		se.opts.Lost(fmt.Errorf("%w: %s was not confirmed for %v", store.ErrSessionLost, se.id, se.opts.TTL))
	}
}

func (s *Store) discard(se *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(se)
}
