package memstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/stilelock/stile/store"
)

// LeaveTrace implements [store.Ticket].
func (e *entry) LeaveTrace(ctx context.Context) ([]store.Entry, error) {
	s := e.session.store
	var vanished []store.Entry
	err := e.session.request(ctx, Call{Op: LeaveTrace, Session: e.session.id, Name: e.req.Name}, func() error {
		if e.gone {
			return e.goneAlready()
		}
		vanished = s.vanished(e.req.Name)
		if traces := s.traces[e.req.Name]; len(vanished) == 0 && !slices.Contains(traces, e) {
			s.traces[e.req.Name] = append(traces, e)
		}
		return nil
	}, nil)
	if err != nil {
		return nil, err
	}
	return vanished, nil
}

// ForgetTraces implements [store.Store].
func (s *Store) ForgetTraces(ctx context.Context, name string, orders []uint64) error {
	return s.request(ctx, Call{Op: ForgetTraces, Name: name}, func() error {
		s.forgetTraces(name, orders)
		return nil
	}, nil)
}

// The functions below are called with s.mu held.

// vanished returns the entries of a line that have left a trace and gone.
func (s *Store) vanished(name string) []store.Entry {
	var found []store.Entry
	for _, e := range s.traces[name] {
		if e.gone {
			found = append(found, store.Entry{Order: e.order, Mode: e.req.Mode, Session: e.session.id, Owner: e.owner})
		}
	}
	return found
}

func (s *Store) forgetTraces(name string, orders []uint64) {
	s.traces[name] = slices.DeleteFunc(s.traces[name], func(e *entry) bool { return slices.Contains(orders, e.order) })
	if len(s.traces[name]) == 0 {
		delete(s.traces, name)
	}
}

// goneAlready is the error of a request that comes too late for the entry.
func (e *entry) goneAlready() error {
	if e.cause == nil {
		return fmt.Errorf("%w: the entry for lock %q had left the line already", store.ErrGone, e.req.Name)
	}
	return fmt.Errorf("%w: the entry for lock %q had left the line already: %w", store.ErrGone, e.req.Name, e.cause)
}
