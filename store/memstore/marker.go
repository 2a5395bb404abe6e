package memstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/stilelock/stile/store"
)

// mark is [store.Extensions.Mark].
func (e *entry) mark(ctx context.Context) ([]store.Entry, error) {
	s := e.session.store
	var unreleased []store.Entry
	err := e.session.request(ctx, Call{Op: Mark, Session: e.session.id, Name: e.req.Name}, func() error {
		if e.gone {
			return e.goneErr()
		}
		unreleased = s.unreleasedLocked(e.req.Name)
		if marked := s.markers[e.req.Name]; len(unreleased) == 0 && !slices.Contains(marked, e) {
			s.markers[e.req.Name] = append(marked, e)
		}
		return nil
	}, nil)
	if err != nil {
		return nil, err
	}
	return unreleased, nil
}

// clearMarks is [store.Capabilities.ClearMarks].
func (s *Store) clearMarks(ctx context.Context, name string, orders []uint64) error {
	return s.request(ctx, Call{Op: ClearMarks, Name: name}, func() error {
		s.unmarkLocked(name, orders)
		return nil
	}, nil)
}

// unreleasedLocked returns the entries that have left a marker and are not in the line.
func (s *Store) unreleasedLocked(name string) []store.Entry {
	var found []store.Entry
	for _, e := range s.markers[name] {
		if e.gone {
			found = append(found, store.Entry{Order: e.order, Mode: e.req.Mode, Session: e.session.id, Owner: e.owner})
		}
	}
	return found
}

func (s *Store) unmarkLocked(name string, orders []uint64) {
	s.markers[name] = slices.DeleteFunc(s.markers[name], func(e *entry) bool { return slices.Contains(orders, e.order) })
	if len(s.markers[name]) == 0 {
		delete(s.markers, name)
	}
}

// goneErr returns the error of a request that comes too late for the entry.
func (e *entry) goneErr() error {
	if e.cause == nil {
		return fmt.Errorf("%w: it had left the line already", store.ErrGone)
	}
	return fmt.Errorf("%w: it had left the line already: %w", store.ErrGone, e.cause)
}
