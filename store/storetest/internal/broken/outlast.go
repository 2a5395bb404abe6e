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
			Name:   "withdraws an entry after the given time only if its session is alive",
			Caught: closed,
			Plant: func(m *memstore.Store) store.Store {
				return withWithdrawAfter(m, func(_ context.Context, inner store.Ticket, _ store.Request, d time.Duration) error {
					time.AfterFunc(d, func() { _ = inner.Withdraw(context.Background()) })
					return nil
				})
			},
		},
		{
			Name:   "withdraws an entry early",
			Caught: closed,
			Plant: func(m *memstore.Store) store.Store {
				return withWithdrawAfter(m, func(ctx context.Context, inner store.Ticket, _ store.Request, d time.Duration) error {
					return inner.Extensions().WithdrawAfter(ctx, d-d/10)
				})
			},
		},
		{
			Name:   "keeps entries after WithdrawAfter only if their session is closed",
			Caught: "outlast/an entry outlasts its expired session for the given time",
			Plant:  outlastingOnlyClose,
		},
		{
			Name:   "counts the given time from the end of the session",
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
			Name:   "withdraws waiters at once",
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
			Name:   "notifies an entry of its delayed withdrawal",
			Caught: "outlast/Notify is not called after WithdrawAfter",
			Plant: func(m *memstore.Store) store.Store {
				return withWithdrawAfter(m, func(ctx context.Context, inner store.Ticket, req store.Request, d time.Duration) error {
					time.AfterFunc(d, func() { req.Notify(store.Standing{State: store.Gone, Cause: store.ErrGone}) })
					return inner.Extensions().WithdrawAfter(ctx, d)
				})
			},
		},
		{
			Name:   "drops the owner of an outlasting entry",
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
			Name:   "reports success of WithdrawAfter for entries that have gone",
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
			Name:   "enqueues a broken entry again in WithdrawAfter",
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
			Name:   "treats a time of zero as the shortest possible",
			Caught: "outlast/WithdrawAfter with zero or less is a withdrawal",
			Plant: func(m *memstore.Store) store.Store {
				return withWithdrawAfter(m, func(ctx context.Context, inner store.Ticket, _ store.Request, d time.Duration) error {
					return inner.Extensions().WithdrawAfter(ctx, max(d, 2*time.Minute))
				})
			},
		},
		{
			Name:   "does not know the outcome of WithdrawAfter with zero or less",
			Caught: "outlast/WithdrawAfter with zero or less is a withdrawal",
			Plant: func(m *memstore.Store) store.Store {
				return withWithdrawAfter(m, func(ctx context.Context, inner store.Ticket, _ store.Request, d time.Duration) error {
					if err := inner.Extensions().WithdrawAfter(ctx, d); err != nil || d > 0 {
						return err
					}
					return store.ErrNotKnown
				})
			},
		},
		{
			Name:   "withdraws the session's outlasting entry on the next Enqueue",
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
			Name:   "rejects another entry of the session beside an outlasting one",
			Caught: behind,
			Plant: func(m *memstore.Store) store.Store {
				return withLatest(m, func(ctx context.Context, inner store.Session, req store.Request, latest store.Ticket) (store.Ticket, error) {
					if l, err := m.Line(ctx, req.Name); err == nil && latest != nil && len(l.Entries) > 0 && !req.Try {
						return nil, fmt.Errorf("session %s already has an entry for lock %q", inner.ID(), req.Name)
					}
					return inner.Enqueue(ctx, req)
				})
			},
		},
		{
			Name:   "does not break outlasting entries",
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
			Name:   "does not withdraw outlasting entries early",
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
			Name:   "withdraws the session's next entry after the given time",
			Caught: "outlast/a withdrawal after the given time returns ErrGone and keeps the session's next entry",
			Plant: func(m *memstore.Store) store.Store {
				return withLatestTicket(m, func(ctx context.Context, own, latest store.Ticket) error {
					err := own.Withdraw(ctx)
					if errors.Is(err, store.ErrGone) {
						_ = latest.Withdraw(ctx)
					}
					return err
				})
			},
		},
		{
			Name:   "does not change the time of an outlasting entry",
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
			Name:   "does nothing in WithdrawAfter if the context has ended",
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
			Name:   "does not repeat an unanswered WithdrawAfter",
			Caught: "outlast/an unanswered WithdrawAfter is carried out after the outage",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if err != nil {
						return nil, err
					}
					return ticket{Ticket: t, withdrawAfter: func(ctx context.Context, d time.Duration) error {
						// Tests with another request of the session whether it is connected.
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

// outlasting reports whether an entry belongs to another session than the one that made it. It
// relies on the suite numbering owners as memstore numbers sessions. It is wrong for sessions
// opened after a WithdrawAfter.
func outlasting(e store.Entry) bool { return e.Session != fmt.Sprintf("m%d", e.Owner.PID) }

// outlastingOnlyClose applies WithdrawAfter only when the session is closed.
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

// withLatest passes to enqueue the ticket of the session's last WithdrawAfter for the name, or nil.
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
