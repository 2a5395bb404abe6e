package broken

import (
	"context"
	"errors"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func breakBugs() []Bug {
	return []Bug{
		{
			Name:   "breaks the first entry, regardless of the order",
			Caught: "break/breaking an unknown order returns ErrGone and changes nothing",
			Plant: func(m *memstore.Store) store.Store {
				return withBreak(m, func(ctx context.Context, name string, order uint64) (store.Entry, error) {
					if l, err := m.Line(ctx, name); err == nil && len(l.Entries) > 0 {
						order = l.Entries[0].Order
					}
					return m.Break(ctx, name, order)
				})
			},
		},
		{
			Name:   "breaks a later entry of the session that had the order",
			Caught: "break/breaking a released order returns ErrGone and keeps the session's next hold",
			Plant: func(m *memstore.Store) store.Store {
				return withBreak(m, func(ctx context.Context, name string, order uint64) (store.Entry, error) {
					l, err := m.Line(ctx, name)
					if err == nil && len(l.Entries) == 1 && order < l.Entries[0].Order && order > 0 {
						order = l.Entries[0].Order
					}
					return m.Break(ctx, name, order)
				})
			},
		},
		{
			Name:   "breaks the next entry if the order is gone",
			Caught: "break/an entry can be broken only once",
			Plant: func(m *memstore.Store) store.Store {
				return withBreak(m, func(ctx context.Context, name string, order uint64) (store.Entry, error) {
					e, err := m.Break(ctx, name, order)
					if errors.Is(err, store.ErrGone) {
						return m.Break(ctx, name, order+1)
					}
					return e, err
				})
			},
		},
		{
			Name:   "returns no error for a break of an unknown order",
			Caught: "break/breaking an unknown order returns ErrGone and changes nothing",
			Plant: func(m *memstore.Store) store.Store {
				return withBreak(m, func(ctx context.Context, name string, order uint64) (store.Entry, error) {
					e, err := m.Break(ctx, name, order)
					if errors.Is(err, store.ErrGone) {
						err = nil
					}
					return e, err
				})
			},
		},
		{
			Name:   "reports a break without breaking anything",
			Caught: "break/breaking a hold admits the next waiter",
			Plant: func(m *memstore.Store) store.Store {
				return withBreak(m, func(ctx context.Context, name string, order uint64) (store.Entry, error) {
					l, err := m.Line(ctx, name)
					for _, e := range l.Entries {
						if e.Order == order {
							return e, err
						}
					}
					return m.Break(ctx, name, order)
				})
			},
		},
		{
			Name:   "does not return the entry that it broke",
			Caught: "break/breaking an entry returns it as it was",
			Plant: func(m *memstore.Store) store.Store {
				return withBreak(m, func(ctx context.Context, name string, order uint64) (store.Entry, error) {
					_, err := m.Break(ctx, name, order)
					return store.Entry{Order: order}, err
				})
			},
		},
		{
			Name:   "breaks the order under any name",
			Caught: "break/breaking under another name returns ErrGone and changes nothing",
			Plant: func(m *memstore.Store) store.Store {
				return withBreak(m, func(ctx context.Context, _ string, order uint64) (store.Entry, error) {
					ls, _ := store.CollectLines(m.Lines(ctx, ""))
					for _, l := range ls {
						if e, err := m.Break(ctx, l.Name, order); err == nil {
							return e, nil
						}
					}
					return store.Entry{}, store.ErrGone
				})
			},
		},
		{
			Name:   "ends the session whose entry it breaks",
			Caught: "break/a session continues after its entry is broken",
			Plant: func(m *memstore.Store) store.Store {
				return withBreak(m, func(ctx context.Context, name string, order uint64) (store.Entry, error) {
					e, err := m.Break(ctx, name, order)
					if err == nil {
						m.Expire(e.Session)
					}
					return e, err
				})
			},
		},
	}
}

func withBreak(m *memstore.Store, f func(ctx context.Context, name string, order uint64) (store.Entry, error)) store.Store {
	return wholeStore{Store: m, breakEntry: f}
}
