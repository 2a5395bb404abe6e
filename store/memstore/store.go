package memstore

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// Store is a [store.Store] in memory. It is safe for concurrent use. The zero value is not ready: use [New].
type Store struct {
	mu       sync.Mutex
	faults   func(Call) Fault
	sessions map[string]*session
	lines    map[string][]*entry // in order; no empty lines
	markers  map[string][]*entry // by the names of their lines: those that have left a marker
	watches  map[*watch]struct{}
	order    uint64
	opened   int
}

var _ store.Store = (*Store)(nil)

// New returns an empty store without faults.
func New() *Store {
	return &Store{
		sessions: make(map[string]*session),
		lines:    make(map[string][]*entry),
		markers:  make(map[string][]*entry),
		watches:  make(map[*watch]struct{}),
	}
}

// MinTTL and MaxTTL bound the TTL of a session. The lower one keeps mistakes of units out, nothing else.
const (
	MinTTL = 10 * time.Millisecond
	MaxTTL = 24 * time.Hour
)

// Capabilities implements [store.Store]: memory can do everything.
func (s *Store) Capabilities() store.Capabilities {
	return store.Capabilities{
		Kind: "memory", Fair: true, SharedModes: true, Fencing: true,
		ReleaseAfter: true, OwnerUpdates: true, Contention: true, ClearMarks: s.clearMarks,
		MinTTL: MinTTL, MaxTTL: MaxTTL,
	}
}

// Open implements [store.Store].
func (s *Store) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	var se *session
	err := s.request(ctx, Call{Op: Open}, func() error {
		se = s.begin(opts)
		return nil
	}, func() { s.drop(se) })
	if err != nil {
		return nil, err
	}
	return se, nil
}

// Line implements [store.Store].
func (s *Store) Line(ctx context.Context, name string) (store.Line, error) {
	var l store.Line
	err := s.request(ctx, Call{Op: Read, Name: name}, func() error {
		l = s.read(name)
		return nil
	}, nil)
	return l, err
}

// Lines implements [store.Store].
func (s *Store) Lines(ctx context.Context, prefix string) ([]store.Line, error) {
	var lines []store.Line
	err := s.request(ctx, Call{Op: Read, Name: prefix}, func() error {
		for name := range s.lines {
			if strings.HasPrefix(name, prefix) {
				lines = append(lines, s.read(name))
			}
		}
		sort.Slice(lines, func(i, j int) bool { return lines[i].Name < lines[j].Name })
		return nil
	}, nil)
	return lines, err
}

// Break implements [store.Store].
func (s *Store) Break(ctx context.Context, name string, order uint64) (store.Entry, error) {
	var broken store.Entry
	err := s.request(ctx, Call{Op: Break, Name: name}, func() error {
		i := slices.IndexFunc(s.lines[name], func(e *entry) bool { return e.order == order })
		if i < 0 {
			return fmt.Errorf("%w: there is none with order %d", store.ErrGone, order)
		}
		broken = s.read(name).Entries[i]
		s.remove(s.lines[name][i], fmt.Errorf("%w: it was broken", store.ErrGone))
		return nil
	}, nil)
	return broken, err
}

// Expire ends a session at once, as a store does that breaks its promise. Its entries go and hear of it, like any
// entry that is removed (a fault on [Notify] delays that); the session hears of it when it asks for something
// next. It does nothing if there is no such session.
func (s *Store) Expire(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if se := s.sessions[id]; se != nil {
		s.end(se)
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

// The methods below are called with s.mu held.

// begin adds a session.
func (s *Store) begin(opts store.SessionOptions) *session {
	s.opened++
	se := &session{store: s, id: fmt.Sprintf("m%d", s.opened), opts: opts}
	se.life, se.endLife = context.WithCancel(context.Background())
	s.sessions[se.id] = se
	se.expires = time.Now().Add(opts.TTL)
	se.timer = time.AfterFunc(opts.TTL, func() { s.expire(se) })
	return se
}

func (s *Store) read(name string) store.Line {
	l := store.Line{Name: name, Entries: []store.Entry{}}
	admitted := s.admitted(name)
	for i, e := range s.lines[name] {
		l.Entries = append(l.Entries, store.Entry{
			Order:     e.order,
			Mode:      e.req.Mode,
			Admitted:  admitted[i],
			Session:   e.under.id,
			Owner:     e.owner,
			Remaining: time.Until(e.under.expires),
		})
	}
	return l
}

func (s *Store) admitted(name string) []bool {
	entries := make([]line.Entry, 0, len(s.lines[name]))
	for _, e := range s.lines[name] {
		entries = append(entries, line.Entry{Order: e.order, Mode: e.req.Mode})
	}
	return line.Admitted(entries)
}

// inTheWay returns the entry that a person should be told of who asks why e is not admitted: the first one that
// alone would keep it waiting, or, where it takes several, the first of all.
func (s *Store) inTheWay(e *entry) store.Entry {
	entries := s.read(e.req.Name).Entries
	for _, other := range entries {
		if other.Order < e.order && !line.Admits(e.req.Mode, []line.Mode{other.Mode}) {
			return other
		}
	}
	return entries[0]
}

// remove takes an entry out and lets the others move up. The entry itself hears of it if there is a cause.
func (s *Store) remove(e *entry, cause error) {
	s.removeFrom(e.req.Name, cause, func(other *entry) bool { return other == e })
}

// forget takes a session away, and leaves its entries.
func (s *Store) forget(se *session) {
	delete(s.sessions, se.id)
	se.timer.Stop()
}

// end takes a session and its entries away.
func (s *Store) end(se *session) {
	s.forget(se)
	cause := fmt.Errorf("%w: %s", store.ErrSessionLost, se.id)
	for name := range s.lines {
		s.removeFrom(name, cause, func(e *entry) bool { return e.under == se })
	}
}

// removeFrom takes the entries that match out of a line. Nobody hears of it before all of them are out: otherwise
// the second entry of a dead session would be admitted for the moment between.
func (s *Store) removeFrom(name string, cause error, match func(*entry) bool) {
	var stay, gone []*entry
	for _, e := range s.lines[name] {
		if match(e) {
			e.gone, e.cause = true, cause
			e.goes()
			gone = append(gone, e)
			if e.under != e.session {
				s.forget(e.under) // it was there for this entry alone
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
	if cause != nil {
		for _, e := range gone {
			s.tell(e)
		}
	}
	for _, e := range stay {
		s.tell(e)
	}
	s.changed(name)
}

// tell delivers an entry's standing to its owner, now or after the delay that the faults ask for.
func (s *Store) tell(e *entry) {
	f := s.fault(Call{Op: Notify, Session: e.session.id, Name: e.req.Name})
	if f.Delay <= 0 {
		e.delivery.Deliver(e.standing())
		return
	}
	time.AfterFunc(f.Delay, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		e.delivery.Deliver(e.standing())
	})
}

// The methods below take s.mu themselves.

// expire is called when a session has not been confirmed for its TTL.
func (s *Store) expire(se *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[se.id] != se {
		return
	}
	if time.Until(se.expires) > 0 {
		return // the timer fired just before a confirmation moved the end, and set it again
	}
	s.end(se)
	if se.opts.Lost != nil && !se.closed {
		se.opts.Lost(fmt.Errorf("%w: %s was not confirmed for %v", store.ErrSessionLost, se.id, se.opts.TTL))
	}
}

func (s *Store) drop(se *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(se)
}
