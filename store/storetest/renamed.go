package storetest

import (
	"context"
	"errors"
	"strings"

	"github.com/stilelock/stile/store"
)

// Renamed returns a store that keeps each lock in st under its name with prefix before it, and otherwise is st. The suite
// has to accept it if it accepts st: so it shows that no ability of st goes past what a wrapper does to names.
//
// It is also an example of a wrapper. Everything that has a name in it is wrapped, one field after the other, and what it
// does not know it does not pass on. Tickets have no names, so they can be returned as they are.
//
// Names become longer by the prefix, so st must bear names that are so much longer than [store.MaxNameBytes].
func Renamed(st store.Store, prefix string) store.Store { return &renamed{st, prefix} }

type renamed struct {
	inner  store.Store
	prefix string
}

func (r *renamed) Capabilities() store.Capabilities {
	inner := r.inner.Capabilities()
	c := store.Capabilities{
		Kind: inner.Kind, Fair: inner.Fair, SharedModes: inner.SharedModes, Fencing: inner.Fencing,
		ReleaseAfter: inner.ReleaseAfter, OwnerUpdates: inner.OwnerUpdates, Contention: inner.Contention,
		MinTTL: inner.MinTTL, MaxTTL: inner.MaxTTL,
	}
	if inner.ClearMarks != nil {
		c.ClearMarks = func(ctx context.Context, name string, orders []uint64) error {
			return inner.ClearMarks(ctx, r.prefix+name, orders)
		}
	}
	return c
}

func (r *renamed) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	inner, err := r.inner.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &renamedSession{inner, r.prefix}, nil
}

func (r *renamed) Line(ctx context.Context, name string) (store.Line, error) {
	l, err := r.inner.Line(ctx, r.prefix+name)
	l.Name = strings.TrimPrefix(l.Name, r.prefix)
	return l, err
}

func (r *renamed) Lines(ctx context.Context, prefix string) ([]store.Line, error) {
	lines, err := r.inner.Lines(ctx, r.prefix+prefix)
	for i := range lines {
		lines[i].Name = strings.TrimPrefix(lines[i].Name, r.prefix)
	}
	return lines, err
}

func (r *renamed) Watch(ctx context.Context, prefix string, changed func()) error {
	return r.inner.Watch(ctx, r.prefix+prefix, changed)
}

func (r *renamed) Break(ctx context.Context, name string, order uint64) (store.Entry, error) {
	return r.inner.Break(ctx, r.prefix+name, order)
}

type renamedSession struct {
	store.Session
	prefix string
}

func (s *renamedSession) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	req.Name = s.prefix + req.Name
	t, err := s.Session.Enqueue(ctx, req)
	if held, ok := errors.AsType[*store.HeldError](err); ok {
		err = &store.HeldError{Name: strings.TrimPrefix(held.Name, s.prefix), Holder: held.Holder}
	}
	return t, err
}
