package broken

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func ownerBugs() []Bug {
	const (
		shown = "owner/SetOwner changes the owner and nothing else"
		watch = "owner/a watch reports a changed owner"
	)
	return []Bug{
		{
			Name:   "reports a changed owner without changing it",
			Caught: shown,
			Plant: func(m *memstore.Store) store.Store {
				return withSetOwner(m, func(context.Context, store.Session, store.Ticket, store.Request, store.Owner) error { return nil })
			},
		},
		{
			Name:   "calls Notify when an owner is changed",
			Caught: shown,
			Plant: func(m *memstore.Store) store.Store {
				return withSetOwner(m, func(ctx context.Context, _ store.Session, inner store.Ticket, req store.Request, o store.Owner) error {
					err := inner.Extensions().SetOwner(ctx, o)
					if l, _ := m.Line(ctx, req.Name); err == nil && len(l.Entries) > 0 {
						req.Notify(store.Standing{State: store.Admitted, Order: l.Entries[0].Order})
					}
					return err
				})
			},
		},
		{
			Name:   "changes an owner by enqueueing again",
			Caught: "owner/a waiter keeps its place when its owner is changed",
			Plant: func(m *memstore.Store) store.Store {
				return withSetOwner(m, func(ctx context.Context, se store.Session, inner store.Ticket, req store.Request, o store.Owner) error {
					if err := inner.Withdraw(ctx); err != nil {
						return err
					}
					req.Owner = o
					_, err := se.Enqueue(ctx, req)
					return err
				})
			},
		},
		{
			Name:   "does not report a changed owner to watches",
			Caught: watch,
			Plant:  silentChanges,
		},
		{
			Name:   "enqueues a withdrawn entry again in SetOwner",
			Caught: "owner/SetOwner does not restore a withdrawn entry",
			Plant:  reviving(func(c *cause) bool { return c.withdrawn }),
		},
		{
			Name:   "reports success of SetOwner for an entry of a closed session",
			Caught: "owner/SetOwner does not restore an entry of a closed session",
			Plant: func(m *memstore.Store) store.Store {
				return withSetOwner(m, func(ctx context.Context, _ store.Session, inner store.Ticket, _ store.Request, o store.Owner) error {
					if err := inner.Extensions().SetOwner(ctx, o); !errors.Is(err, store.ErrSessionLost) {
						return err
					}
					return nil
				})
			},
		},
		{
			Name:   "enqueues a broken entry again in SetOwner",
			Caught: "owner/SetOwner does not restore a broken entry",
			Plant:  reviving(func(c *cause) bool { return !c.withdrawn }),
		},
		{
			Name:   "withdraws an entry whose SetOwner is canceled",
			Caught: "owner/an abandoned SetOwner does no harm",
			Plant: func(m *memstore.Store) store.Store {
				return withSetOwner(m, func(ctx context.Context, _ store.Session, inner store.Ticket, _ store.Request, o store.Owner) error {
					if ctx.Err() != nil {
						_ = inner.Withdraw(context.WithoutCancel(ctx))
						return ctx.Err()
					}
					return inner.Extensions().SetOwner(ctx, o)
				})
			},
		},
		{
			Name:   "reports success of SetOwner after WithdrawAfter",
			Caught: "owner/SetOwner does not change an entry after WithdrawAfter",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
					later := false
					return ticket{
						Ticket: inner,
						withdrawAfter: func(ctx context.Context, d time.Duration) error {
							later = true
							return inner.Extensions().WithdrawAfter(ctx, d)
						},
						setOwner: func(ctx context.Context, o store.Owner) error {
							if later {
								return nil
							}
							return inner.Extensions().SetOwner(ctx, o)
						},
					}
				})
			},
		},
		{
			Name:   "leaves markers with the original owner",
			Caught: "owner/a marker has the owner at the time of Mark",
			Plant: func(m *memstore.Store) store.Store {
				return withMark(m, func(ctx context.Context, inner store.Ticket, _ store.Request) ([]store.Entry, error) {
					unreleased, err := inner.Extensions().Mark(ctx)
					for i := range unreleased {
						unreleased[i].Owner.Reason = ""
					}
					return unreleased, err
				})
			},
		},
		{
			Name:   "reports success of an unanswered SetOwner",
			Caught: "owner/an unanswered SetOwner does not prevent the release",
			Plant: func(m *memstore.Store) store.Store {
				return withSetOwner(m, func(ctx context.Context, _ store.Session, inner store.Ticket, _ store.Request, o store.Owner) error {
					if err := inner.Extensions().SetOwner(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
						return err
					}
					return nil
				})
			},
		},
	}
}

func withSetOwner(
	m *memstore.Store,
	f func(ctx context.Context, se store.Session, inner store.Ticket, req store.Request, o store.Owner) error,
) store.Store {
	return withEnqueue(m, func(ctx context.Context, se store.Session, req store.Request) (store.Ticket, error) {
		t, err := se.Enqueue(ctx, req)
		if err != nil {
			return nil, err
		}
		return ticket{Ticket: t, setOwner: func(ctx context.Context, o store.Owner) error { return f(ctx, se, t, req, o) }}, nil
	})
}

// cause is the reason why an entry has gone.
type cause struct{ withdrawn bool }

// reviving enqueues entries that have gone again in SetOwner, if revived returns true for the
// cause.
func reviving(revived func(*cause) bool) func(*memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store {
		return withEnqueue(m, func(ctx context.Context, se store.Session, req store.Request) (store.Ticket, error) {
			t, err := se.Enqueue(ctx, req)
			if err != nil {
				return nil, err
			}
			var c cause
			return ticket{
				Ticket:   t,
				withdraw: func(ctx context.Context) error { c.withdrawn = true; return t.Withdraw(ctx) },
				setOwner: func(ctx context.Context, o store.Owner) error {
					err := t.Extensions().SetOwner(ctx, o)
					if errors.Is(err, store.ErrGone) && revived(&c) {
						_, _ = se.Enqueue(ctx, store.Request{Name: req.Name, Owner: o})
					}
					return err
				},
			}, nil
		})
	}
}

// silentChanges changes owners only in the results of Line, without notifying watches.
func silentChanges(m *memstore.Store) store.Store {
	var mu sync.Mutex
	owners := make(map[uint64]store.Owner)
	st := withEnqueue(m, func(ctx context.Context, se store.Session, req store.Request) (store.Ticket, error) {
		var order uint64
		notify := req.Notify
		req.Notify = func(st store.Standing) { order = st.Order; notify(st) }
		t, err := se.Enqueue(ctx, req)
		if err != nil {
			return nil, err
		}
		return ticket{Ticket: t, setOwner: func(_ context.Context, o store.Owner) error {
			mu.Lock()
			defer mu.Unlock()
			owners[order] = o
			return nil
		}}, nil
	})
	return wholeStore{Store: st, line: func(ctx context.Context, name string) (store.Line, error) {
		l, err := m.Line(ctx, name)
		l.Entries = slices.Clone(l.Entries)
		mu.Lock()
		defer mu.Unlock()
		for i, e := range l.Entries {
			if o, ok := owners[e.Order]; ok {
				l.Entries[i].Owner = o
			}
		}
		return l, err
	}}
}
