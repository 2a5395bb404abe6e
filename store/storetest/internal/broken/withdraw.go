package broken

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func withdrawBugs() []Bug {
	return []Bug{
		{
			Name:   "withdraws the session's latest entry for the name",
			Caught: "withdraw/a second withdrawal keeps the session's next entry",
			Plant: func(m *memstore.Store) store.Store {
				return withLatestTicket(m, func(ctx context.Context, _ store.Ticket, latest store.Ticket) error { return latest.Withdraw(ctx) })
			},
		},
		{
			Name:   "withdraws the session's latest entry if its own is gone",
			Caught: "withdraw/withdrawing a broken entry returns ErrGone and keeps the session's next entry",
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
			Name:   "withdraws the first entry of the line",
			Caught: "withdraw/a second withdrawal keeps the next holder",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, req store.Request) ticket {
					return ticket{Ticket: inner, withdraw: func(ctx context.Context) error {
						err := inner.Withdraw(ctx)
						if l, e := m.Line(ctx, req.Name); e == nil && len(l.Entries) > 0 && errors.Is(err, store.ErrGone) {
							_, _ = m.Break(ctx, req.Name, l.Entries[0].Order)
						}
						return err
					}}
				})
			},
		},
		{
			Name:   "withdraws all entries of the session for the name",
			Caught: "withdraw/withdrawing one of a session's entries leaves the other",
			Plant: func(m *memstore.Store) store.Store {
				return withLatestTicket(m, func(ctx context.Context, own, latest store.Ticket) error {
					err := own.Withdraw(ctx)
					if err == nil && latest != own {
						_ = latest.Withdraw(ctx)
					}
					return err
				})
			},
		},
		{
			Name:   "reports success for every withdrawal",
			Caught: "withdraw/a second withdrawal returns ErrGone",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
					return ticket{Ticket: inner, withdraw: func(ctx context.Context) error {
						if err := inner.Withdraw(ctx); !errors.Is(err, store.ErrGone) {
							return err
						}
						return nil
					}}
				})
			},
		},
		{
			Name:   "reports success for entries that went with their session",
			Caught: "withdraw/withdrawing an entry of an expired session returns ErrGone",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if err != nil {
						return nil, err
					}
					return ticket{Ticket: t, withdraw: func(ctx context.Context) error {
						err := t.Withdraw(ctx)
						if errors.Is(inner.Confirm(ctx), store.ErrSessionLost) {
							return nil
						}
						return err
					}}, nil
				})
			},
		},
		{
			Name:   "does not release holds",
			Caught: "withdraw/withdrawing a hold removes it from the line",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
					return ticket{Ticket: inner, withdraw: func(context.Context) error { return nil }}
				})
			},
		},
		{
			Name:   "withdraws waiters only when they are admitted",
			Caught: "withdraw/entries behind a withdrawn waiter move up",
			Plant:  withdrawingLate,
		},
		{
			Name:   "abandons a withdrawal when its context has ended",
			Caught: "withdraw/a withdrawal whose context has ended is carried out",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
					return ticket{Ticket: inner, withdraw: func(ctx context.Context) error {
						if err := ctx.Err(); err != nil {
							return err
						}
						return inner.Withdraw(ctx)
					}}
				})
			},
		},
	}
}

// withLatestTicket passes to withdraw the session's latest ticket for the name.
func withLatestTicket(m *memstore.Store, withdraw func(ctx context.Context, own, latest store.Ticket) error) store.Store {
	return withSessions(m, func(inner store.Session) session {
		var mu sync.Mutex
		latest := make(map[string]store.Ticket)
		return session{Session: inner, enqueue: func(ctx context.Context, req store.Request) (store.Ticket, error) {
			own, err := inner.Enqueue(ctx, req)
			if err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			latest[req.Name] = own
			return ticket{Ticket: own, withdraw: func(ctx context.Context) error {
				mu.Lock()
				target := latest[req.Name]
				mu.Unlock()
				return withdraw(ctx, own, target)
			}}, nil
		}}
	})
}

// withdrawingLate leaves a withdrawn waiter in the line until it is admitted.
func withdrawingLate(m *memstore.Store) store.Store {
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		var mu sync.Mutex
		withdrawn, waits := false, false
		var t store.Ticket
		notify := req.Notify
		req.Notify = func(st store.Standing) {
			mu.Lock()
			waits = st.State == store.Waiting
			silent, leave := withdrawn, withdrawn && st.State == store.Admitted
			mu.Unlock()
			if leave {
				time.AfterFunc(0, func() { _ = t.Withdraw(context.Background()) })
			}
			if !silent {
				notify(st)
			}
		}
		t, err := inner.Enqueue(ctx, req)
		if err != nil {
			return nil, err
		}
		return ticket{Ticket: t, withdraw: func(ctx context.Context) error {
			mu.Lock()
			lazy := waits && req.Mode == line.Exclusive
			withdrawn = true
			mu.Unlock()
			if lazy {
				return nil
			}
			return t.Withdraw(ctx)
		}}, nil
	})
}
