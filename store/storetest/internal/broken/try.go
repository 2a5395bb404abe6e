package broken

import (
	"context"
	"errors"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func tryBugs() []Bug {
	return []Bug{
		{
			Name:   "leaves the entry of a failed try in the line",
			Caught: "try/a try for a held lock returns a HeldError and leaves no entry",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if isHeld(err) {
						req.Try, req.Notify = false, nil
						_, _ = inner.Enqueue(ctx, req)
					}
					return t, err
				})
			},
		},
		{
			Name:   "leaves the entry of a failed try behind waiters in the line",
			Caught: "try/a failed try does not delay waiters",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if l, e := m.Line(ctx, req.Name); isHeld(err) && e == nil && len(l.Entries) > 1 {
						req.Try, req.Notify = false, nil
						_, _ = inner.Enqueue(ctx, req)
					}
					return t, err
				})
			},
		},
		{
			Name:   "fails every try",
			Caught: "try/a try for a free lock is admitted",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					if req.Try && inner.Confirm(ctx) == nil {
						return nil, &store.HeldError{Name: req.Name}
					}
					return inner.Enqueue(ctx, req)
				})
			},
		},
		{
			Name:   "lets a try take one slot too many",
			Caught: "try/a try takes a slot only if one is free",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if isHeld(err) && req.Mode.Slots() > 0 {
						req.Try, req.Notify = false, admitting(req.Notify)
						return inner.Enqueue(ctx, req)
					}
					return t, err
				})
			},
		},
		{
			Name:   "returns another error than HeldError for a held lock",
			Caught: "try/a try for a held lock returns a HeldError and leaves no entry",
			Plant: func(m *memstore.Store) store.Store {
				return withTryError(m, func(store.Session, error) error { return errors.New("not free") })
			},
		},
		{
			Name:   "names the caller of the try as the holder",
			Caught: "try/a try for a held lock names the holder",
			Plant: func(m *memstore.Store) store.Store {
				return withTryError(m, func(inner store.Session, err error) error {
					held, _ := errors.AsType[*store.HeldError](err)
					return &store.HeldError{Name: held.Name, Holder: &store.Entry{Session: inner.ID()}}
				})
			},
		},
		{
			Name:   "treats a try as an enqueue",
			Caught: "try/at most one of many concurrent tries is admitted",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					req.Try = false
					return inner.Enqueue(ctx, req)
				})
			},
		},
		{
			Name:   "fails a try unless the line is empty",
			Caught: "try/a try is admitted beside compatible holds",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					if l, err := m.Line(ctx, req.Name); err == nil && req.Try && len(l.Entries) > 0 {
						return nil, &store.HeldError{Name: req.Name, Holder: &l.Entries[0]}
					}
					return inner.Enqueue(ctx, req)
				})
			},
		},
		{
			Name:   "lets a try overtake waiters",
			Caught: "try/a try does not overtake waiters",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					if l, err := m.Line(ctx, req.Name); err == nil && req.Try && len(l.Entries) > 1 && l.Entries[0].Mode == line.Shared {
						req.Try, req.Notify = false, admitting(req.Notify)
					}
					return inner.Enqueue(ctx, req)
				})
			},
		},
		{
			Name:   "releases one second after Withdraw has returned",
			Caught: "try/a try succeeds right after a release",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
					return ticket{Ticket: inner, withdraw: func(context.Context) error {
						time.AfterFunc(time.Second, func() { _ = inner.Withdraw(context.Background()) })
						return nil
					}}
				})
			},
		},
	}
}

func isHeld(err error) bool {
	_, ok := errors.AsType[*store.HeldError](err)
	return ok
}

// withTryError replaces the error of a try that failed because the lock is held.
func withTryError(m *memstore.Store, replace func(store.Session, error) error) store.Store {
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		t, err := inner.Enqueue(ctx, req)
		if isHeld(err) {
			err = replace(inner, err)
		}
		return t, err
	})
}
