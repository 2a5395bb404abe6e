package broken

import (
	"context"
	"errors"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func cancelBugs() []Bug {
	return []Bug{
		{
			Name:   "leaves the entry of a canceled enqueue in the line",
			Caught: "cancel/an enqueue canceled at any moment leaves no entry",
			Plant: func(m *memstore.Store) store.Store {
				return leaking(m, func(ctx context.Context, req store.Request) bool { return !req.Try })
			},
		},
		{
			Name:   "leaves the entry of a canceled try in the line",
			Caught: "cancel/a try canceled at any moment leaves no entry",
			Plant: func(m *memstore.Store) store.Store {
				return leaking(m, func(ctx context.Context, req store.Request) bool { return req.Try })
			},
		},
		{
			Name:   "enqueues although the context has ended before",
			Caught: "cancel/an enqueue whose context has ended leaves no entry",
			Plant:  func(m *memstore.Store) store.Store { return ignoringContext(m, false) },
		},
		{
			Name:   "tries although the context has ended before",
			Caught: "cancel/a try whose context has ended leaves no entry",
			Plant:  func(m *memstore.Store) store.Store { return ignoringContext(m, true) },
		},
		{
			Name:   "returns an error that does not match the context's",
			Caught: "cancel/an enqueue whose context has ended leaves no entry",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if err != nil && ctx.Err() != nil {
						err = errors.New("request failed")
					}
					return t, err
				})
			},
		},
		{
			Name:   "leaves the entry of a canceled enqueue behind others in the line",
			Caught: "cancel/canceling an enqueue at any moment does not block later entries",
			Plant: func(m *memstore.Store) store.Store {
				return leaking(m, func(_ context.Context, req store.Request) bool {
					l, err := m.Line(context.Background(), req.Name)
					return err == nil && len(l.Entries) > 0
				})
			},
		},
		{
			Name:   "withdraws an entry when the context of its Enqueue ends",
			Caught: "cancel/an entry outlives the context of its Enqueue",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if err != nil {
						return nil, err
					}
					if _, bounded := ctx.Deadline(); bounded {
						return t, nil // the deadline of every call; the bug is about cancellation
					}
					context.AfterFunc(ctx, func() {
						_ = t.Withdraw(context.Background())
						req.Notify(store.Standing{State: store.Gone, Cause: store.ErrGone})
					})
					return t, nil
				})
			},
		},
		{
			Name:   "ends a session when the context of its Open ends",
			Caught: "cancel/a session outlives the context of its Open",
			Plant: func(m *memstore.Store) store.Store {
				return wholeStore{Store: m, open: func(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
					inner, err := m.Open(ctx, opts)
					if err != nil {
						return nil, err
					}
					if _, bounded := ctx.Deadline(); !bounded {
						context.AfterFunc(ctx, func() { m.Expire(inner.ID()) })
					}
					return inner, nil
				}}
			},
		},
	}
}

// leaking leaves the entry in the line if the context ends during Enqueue and leaks returns true.
func leaking(m *memstore.Store, leaks func(context.Context, store.Request) bool) store.Store {
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		if ctx.Err() != nil || !leaks(ctx, req) {
			return inner.Enqueue(ctx, req)
		}
		// The delays give the suite time to cancel the request.
		time.Sleep(time.Millisecond)
		t, err := inner.Enqueue(context.WithoutCancel(ctx), req)
		time.Sleep(time.Millisecond)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return t, err
	})
}

// ignoringContext enqueues although the context has ended.
func ignoringContext(m *memstore.Store, try bool) store.Store {
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		if ctx.Err() == nil || req.Try != try {
			return inner.Enqueue(ctx, req)
		}
		_, _ = inner.Enqueue(context.WithoutCancel(ctx), req)
		return nil, ctx.Err()
	})
}
