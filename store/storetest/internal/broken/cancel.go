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
			Name:   "leaves the entry in the line when the context of its enqueue has ended",
			Caught: "cancel/an enqueue canceled at any moment leaves no entry",
			Plant: func(m *memstore.Store) store.Store {
				return leaking(m, func(ctx context.Context, req store.Request) bool { return !req.Try })
			},
		},
		{
			Name:   "leaves the entry in the line when the context of its try has ended",
			Caught: "cancel/a try canceled at any moment leaves no entry",
			Plant: func(m *memstore.Store) store.Store {
				return leaking(m, func(ctx context.Context, req store.Request) bool { return req.Try })
			},
		},
		{
			Name:   "puts an entry in although the context of the enqueue had ended before",
			Caught: "cancel/an enqueue whose context has ended leaves no entry",
			Plant:  func(m *memstore.Store) store.Store { return heedless(m, false) },
		},
		{
			Name:   "puts an entry in although the context of the try had ended before",
			Caught: "cancel/a try whose context has ended leaves no entry",
			Plant:  func(m *memstore.Store) store.Store { return heedless(m, true) },
		},
		{
			Name:   "does not say that it was the context that ended",
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
			Name:   "leaves the entry of a canceled enqueue in the line if others are ahead",
			Caught: "cancel/canceling an enqueue at any moment does not block later entries",
			Plant: func(m *memstore.Store) store.Store {
				return leaking(m, func(_ context.Context, req store.Request) bool {
					l, err := m.Line(context.Background(), req.Name)
					return err == nil && len(l.Entries) > 0
				})
			},
		},
		{
			Name:   "takes an entry out when the context ends that it was put in with",
			Caught: "cancel/an entry outlives the context of its Enqueue",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if err != nil {
						return nil, err
					}
					if _, bounded := ctx.Deadline(); bounded {
						return t, nil // a time limit is over soon; what is meant here is a cancellation
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
			Name:   "ends a session with the context that it was opened with",
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

// leaking does not take an entry out again when the context has ended by the time it is in, if leaks says so.
func leaking(m *memstore.Store, leaks func(context.Context, store.Request) bool) store.Store {
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		if ctx.Err() != nil || !leaks(ctx, req) {
			return inner.Enqueue(ctx, req)
		}
		// The request takes its time, so that there is time to cancel it.
		time.Sleep(time.Millisecond)
		t, err := inner.Enqueue(context.WithoutCancel(ctx), req)
		time.Sleep(time.Millisecond)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return t, err
	})
}

// heedless looks at the context when everything is done.
func heedless(m *memstore.Store, try bool) store.Store {
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		if ctx.Err() == nil || req.Try != try {
			return inner.Enqueue(ctx, req)
		}
		_, _ = inner.Enqueue(context.WithoutCancel(ctx), req)
		return nil, ctx.Err()
	})
}
