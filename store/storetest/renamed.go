package storetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/stilelock/stile/store"
)

// Renamed returns a store that behaves like st, but keeps each lock under prefix + name. If the
// suite accepts st, it must accept the renamed store too, which shows that no method or extension
// of st bypasses a wrapper's change of names.
//
// Renamed is also an example of a wrapper. It wraps every field and method that takes or returns a
// name, and does not pass on Capabilities that it does not know. Tickets contain no names and are
// returned unchanged.
//
// The prefix makes names longer, so st must accept names of [store.MaxNameBytes] plus the length of
// prefix.
func Renamed(st store.Store, prefix string) store.Store { return &renamed{st, prefix} }

type renamed struct {
	inner  store.Store
	prefix string
}

func (r *renamed) Capabilities() store.Capabilities {
	inner := r.inner.Capabilities()
	c := store.Capabilities{
		Kind: inner.Kind, Fair: inner.Fair, SharedModes: inner.SharedModes, Fencing: inner.Fencing,
		ReleaseAfter: inner.ReleaseAfter, OwnerUpdates: inner.OwnerUpdates, Downgrades: inner.Downgrades, Contention: inner.Contention, Requeue: inner.Requeue,
		SlotNumbers: inner.SlotNumbers,
		MinTTL:      inner.MinTTL, MaxTTL: inner.MaxTTL,
	}
	if inner.ClearMarks != nil {
		c.ClearMarks = func(ctx context.Context, name string, orders []uint64) error {
			return inner.ClearMarks(ctx, r.prefix+name, orders)
		}
	}
	if inner.SetLimit != nil {
		c.SetLimit = func(ctx context.Context, name string, limit int) error {
			return inner.SetLimit(ctx, r.prefix+name, limit)
		}
	}
	if inner.EnqueueAll != nil {
		c.EnqueueAll = func(ctx context.Context, session store.Session, requests []store.Request) ([]store.Ticket, error) {
			se, ok := session.(*renamedSession)
			if !ok {
				return nil, fmt.Errorf("storetest: session %s was not opened by this store", session.ID())
			}
			inRenamed := slices.Clone(requests)
			for i := range inRenamed {
				inRenamed[i].Name = r.prefix + inRenamed[i].Name
			}
			tickets, err := inner.EnqueueAll(ctx, se.Session, inRenamed)
			return tickets, se.rename(err)
		}
	}
	if inner.Record != nil {
		c.Record = func(ctx context.Context, name string) ([]byte, error) { return inner.Record(ctx, r.prefix+name) }
	}
	if inner.Follow != nil {
		c.Follow = func(ctx context.Context, prefix string, changed func(store.Changes)) error {
			return inner.Follow(ctx, r.prefix+prefix, func(ch store.Changes) {
				ch.Lines = slices.Clone(ch.Lines)
				for i := range ch.Lines {
					ch.Lines[i].Name = strings.TrimPrefix(ch.Lines[i].Name, r.prefix)
				}
				changed(ch)
			})
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

func (r *renamed) Lines(ctx context.Context, prefix string) iter.Seq2[store.Line, error] {
	return func(yield func(store.Line, error) bool) {
		for l, err := range r.inner.Lines(ctx, r.prefix+prefix) {
			l.Name = strings.TrimPrefix(l.Name, r.prefix)
			if !yield(l, err) {
				return
			}
		}
	}
}

func (r *renamed) Watch(ctx context.Context, prefix string, changed func(names []string)) error {
	return r.inner.Watch(ctx, r.prefix+prefix, func(names []string) {
		var short []string
		for _, name := range names {
			short = append(short, strings.TrimPrefix(name, r.prefix))
		}
		changed(short)
	})
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
	return t, s.rename(err)
}

// rename returns the error with the name that the caller knows.
func (s *renamedSession) rename(err error) error {
	if held, ok := errors.AsType[*store.HeldError](err); ok {
		return &store.HeldError{Name: strings.TrimPrefix(held.Name, s.prefix), Holder: held.Holder}
	}
	if kind, ok := errors.AsType[*store.KindError](err); ok {
		return &store.KindError{Name: strings.TrimPrefix(kind.Name, s.prefix), Mode: kind.Mode, Other: kind.Other}
	}
	return err
}
