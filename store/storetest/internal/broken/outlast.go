package broken

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func outlastBugs() []Bug {
	const (
		closed = "outlast/an entry outlasts its closed session for the given time"
		behind = "outlast/the session waits behind its own outlasting entry"
	)
	return []Bug{
		{
			Name:   "withdraws an entry when its time is over if the session still lives then",
			Caught: closed,
			Plant: func(m *memstore.Store) store.Store {
				return withWithdrawAfter(m, func(_ context.Context, inner store.Ticket, _ store.Request, d time.Duration) error {
					time.AfterFunc(d, func() { _ = inner.Withdraw(context.Background()) })
					return nil
				})
			},
		},
		{
			Name:   "lets an entry go a little early",
			Caught: closed,
			Plant: func(m *memstore.Store) store.Store {
				return withWithdrawAfter(m, func(ctx context.Context, inner store.Ticket, _ store.Request, d time.Duration) error {
					return inner.Extensions().WithdrawAfter(ctx, d-d/10)
				})
			},
		},
		{
			Name:   "sees to the entries that are to go later when their session is closed",
			Caught: "outlast/an entry outlasts its expired session for the given time",
			Plant:  outlastingOnlyClose,
		},
		{
			Name:   "counts the time of an entry from the end of its session",
			Caught: "outlast/an entry goes after the given time though its session lives",
			Plant: func(m *memstore.Store) store.Store {
				return withWithdrawAfter(m, func(ctx context.Context, inner store.Ticket, _ store.Request, d time.Duration) error {
					if d > 0 {
						d += time.Hour
					}
					return inner.Extensions().WithdrawAfter(ctx, d)
				})
			},
		},
		{
			Name:   "takes waiters out that are to go later",
			Caught: "outlast/a waiter withdrawn with a delay keeps its place until then",
			Plant: func(m *memstore.Store) store.Store {
				return withWithdrawAfter(m, func(ctx context.Context, inner store.Ticket, req store.Request, d time.Duration) error {
					if l, err := m.Line(ctx, req.Name); err == nil && len(l.Entries) > 2 {
						d = 0
					}
					return inner.Extensions().WithdrawAfter(ctx, d)
				})
			},
		},
		{
			Name:   "tells who has let an entry go later that its time is over",
			Caught: "outlast/Notify is not called after WithdrawAfter",
			Plant: func(m *memstore.Store) store.Store {
				return withWithdrawAfter(m, func(ctx context.Context, inner store.Ticket, req store.Request, d time.Duration) error {
					time.AfterFunc(d, func() { req.Notify(store.Standing{State: store.Gone, Cause: store.ErrGone}) })
					return inner.Extensions().WithdrawAfter(ctx, d)
				})
			},
		},
		{
			Name:   "forgets the owner of an entry that outlasts its session",
			Caught: "outlast/a line returns an outlasting entry unchanged",
			Plant: func(m *memstore.Store) store.Store {
				return wholeStore{Store: m, line: func(ctx context.Context, name string) (store.Line, error) {
					l, err := m.Line(ctx, name)
					for i, e := range l.Entries {
						if outlasting(e) {
							l.Entries[i].Owner = store.Owner{}
						}
					}
					return l, err
				}}
			},
		},
		{
			Name:   "says of entries that have gone that they will go",
			Caught: "outlast/WithdrawAfter of an entry that has gone returns ErrGone",
			Plant: func(m *memstore.Store) store.Store {
				return withWithdrawAfter(m, func(ctx context.Context, inner store.Ticket, _ store.Request, d time.Duration) error {
					if err := inner.Extensions().WithdrawAfter(ctx, d); !errors.Is(err, store.ErrGone) {
						return err
					}
					return nil
				})
			},
		},
		{
			Name:   "puts an entry that was broken in again to let it go later",
			Caught: "outlast/WithdrawAfter of a broken entry returns ErrGone",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if err != nil {
						return nil, err
					}
					return ticket{Ticket: t, withdrawAfter: func(ctx context.Context, d time.Duration) error {
						err := t.Extensions().WithdrawAfter(ctx, d)
						if !errors.Is(err, store.ErrGone) {
							return err
						}
						_, err = inner.Enqueue(ctx, store.Request{Name: req.Name, Mode: req.Mode})
						return err
					}}, nil
				})
			},
		},
		{
			Name:   "takes no time for the least one",
			Caught: "outlast/WithdrawAfter with zero or less is a withdrawal",
			Plant: func(m *memstore.Store) store.Store {
				return withWithdrawAfter(m, func(ctx context.Context, inner store.Ticket, _ store.Request, d time.Duration) error {
					return inner.Extensions().WithdrawAfter(ctx, max(d, 2*time.Minute))
				})
			},
		},
		{
			Name:   "takes the session's entry that is to go later for a leftover",
			Caught: behind,
			Plant: func(m *memstore.Store) store.Store {
				return withLatest(m, func(ctx context.Context, inner store.Session, req store.Request, latest store.Ticket) (store.Ticket, error) {
					if latest != nil {
						_ = latest.Withdraw(ctx)
					}
					return inner.Enqueue(ctx, req)
				})
			},
		},
		{
			Name:   "refuses a session another entry while one of it is to go later",
			Caught: behind,
			Plant: func(m *memstore.Store) store.Store {
				return withLatest(m, func(ctx context.Context, inner store.Session, req store.Request, latest store.Ticket) (store.Ticket, error) {
					if l, err := m.Line(ctx, req.Name); err == nil && latest != nil && len(l.Entries) > 0 && !req.Try {
						return nil, fmt.Errorf("session %s stands in the line of lock %q already", inner.ID(), req.Name)
					}
					return inner.Enqueue(ctx, req)
				})
			},
		},
		{
			Name:   "breaks no entry that outlasts its session",
			Caught: "outlast/an outlasting entry can be broken",
			Plant: func(m *memstore.Store) store.Store {
				return withBreak(m, func(ctx context.Context, name string, order uint64) (store.Entry, error) {
					l, _ := m.Line(ctx, name)
					for _, e := range l.Entries {
						if e.Order == order && outlasting(e) {
							return store.Entry{}, store.ErrGone
						}
					}
					return m.Break(ctx, name, order)
				})
			},
		},
		{
			Name:   "withdraws nothing that is to go later",
			Caught: "outlast/an outlasting entry can be withdrawn early",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
					later := false
					return ticket{
						Ticket: inner,
						withdraw: func(ctx context.Context) error {
							if later {
								return store.ErrGone
							}
							return inner.Withdraw(ctx)
						},
						withdrawAfter: func(ctx context.Context, d time.Duration) error {
							later = true
							return inner.Extensions().WithdrawAfter(ctx, d)
						},
					}
				})
			},
		},
		{
			Name:   "withdraws what the session has under the name if the entry's time is over",
			Caught: "outlast/a withdrawal after the given time returns ErrGone and keeps the session's next entry",
			Plant: func(m *memstore.Store) store.Store {
				return byName(m, func(ctx context.Context, own, latest store.Ticket) error {
					err := own.Withdraw(ctx)
					if errors.Is(err, store.ErrGone) {
						_ = latest.Withdraw(ctx)
					}
					return err
				})
			},
		},
		{
			Name:   "sets the time of an entry once",
			Caught: "outlast/the time of an outlasting entry can be changed",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
					set := false
					return ticket{Ticket: inner, withdrawAfter: func(ctx context.Context, d time.Duration) error {
						if set {
							return nil
						}
						set = true
						return inner.Extensions().WithdrawAfter(ctx, d)
					}}
				})
			},
		},
		{
			Name:   "does not let an entry go later if the context has ended",
			Caught: "outlast/WithdrawAfter is carried out though its context has ended",
			Plant: func(m *memstore.Store) store.Store {
				return withWithdrawAfter(m, func(ctx context.Context, inner store.Ticket, _ store.Request, d time.Duration) error {
					if err := ctx.Err(); err != nil {
						return err
					}
					return inner.Extensions().WithdrawAfter(ctx, d)
				})
			},
		},
		{
			Name:   "asks once that an entry may go later and leaves it at that",
			Caught: "outlast/an unanswered WithdrawAfter is carried out after the outage",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if err != nil {
						return nil, err
					}
					return ticket{Ticket: t, withdrawAfter: func(ctx context.Context, d time.Duration) error {
						// A request of the same session: it shows whether one would arrive.
						if err := inner.Confirm(ctx); errors.Is(err, context.DeadlineExceeded) {
							return err
						}
						return t.Extensions().WithdrawAfter(ctx, d)
					}}, nil
				})
			},
		},
	}
}

func withWithdrawAfter(
	m *memstore.Store, f func(ctx context.Context, inner store.Ticket, req store.Request, d time.Duration) error,
) store.Store {
	return withTickets(m, func(inner store.Ticket, req store.Request) ticket {
		return ticket{Ticket: inner, withdrawAfter: func(ctx context.Context, d time.Duration) error {
			return f(ctx, inner, req, d)
		}}
	})
}

// outlasting reports whether an entry stands under another session than it was made by. The suite numbers the owners of
// its sessions as memstore does the sessions; it is wrong about sessions that are opened after an entry has been let go.
func outlasting(e store.Entry) bool { return e.Session != fmt.Sprintf("m%d", e.Owner.PID) }

// outlastingOnlyClose lets entries go later when their session is closed, and until then keeps them in it.
func outlastingOnlyClose(m *memstore.Store) store.Store {
	return withSessions(m, func(inner store.Session) session {
		var mu sync.Mutex
		atClose := make(map[store.Ticket]time.Time)
		return session{
			Session: inner,
			enqueue: func(ctx context.Context, req store.Request) (store.Ticket, error) {
				t, err := inner.Enqueue(ctx, req)
				if err != nil {
					return nil, err
				}
				return ticket{Ticket: t, withdrawAfter: func(_ context.Context, d time.Duration) error {
					mu.Lock()
					defer mu.Unlock()
					atClose[t] = time.Now().Add(d)
					return nil
				}}, nil
			},
			close: func(ctx context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				for t, until := range atClose {
					_ = t.Extensions().WithdrawAfter(ctx, time.Until(until))
				}
				return inner.Close(ctx)
			},
		}
	})
}

// withLatest lets enqueue know the latest ticket that the session has let go later under the name, if there is one.
func withLatest(
	m *memstore.Store,
	enqueue func(ctx context.Context, inner store.Session, req store.Request, latest store.Ticket) (store.Ticket, error),
) store.Store {
	return withSessions(m, func(inner store.Session) session {
		var mu sync.Mutex
		latest := make(map[string]store.Ticket)
		return session{Session: inner, enqueue: func(ctx context.Context, req store.Request) (store.Ticket, error) {
			mu.Lock()
			defer mu.Unlock()
			var old store.Ticket
			if req.Mode == line.Exclusive {
				old = latest[req.Name]
			}
			t, err := enqueue(ctx, inner, req, old)
			if err != nil {
				return nil, err
			}
			return ticket{Ticket: t, withdrawAfter: func(ctx context.Context, d time.Duration) error {
				mu.Lock()
				defer mu.Unlock()
				latest[req.Name] = t
				return t.Extensions().WithdrawAfter(ctx, d)
			}}, nil
		}}
	})
}
