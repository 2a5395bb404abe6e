package broken

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func outageBugs() []Bug {
	const unanswered = "outage/an unanswered confirmation proves nothing and does no harm"
	return []Bug{
		{
			Name:   "treats a timeout as a confirmation",
			Caught: unanswered,
			Plant: func(m *memstore.Store) store.Store {
				return withConfirm(m, func(ctx context.Context, inner store.Session) error {
					if err := inner.Confirm(ctx); !errors.Is(err, context.DeadlineExceeded) {
						return err
					}
					return nil
				})
			},
		},
		{
			Name:   "treats a timeout as the end of the session",
			Caught: unanswered,
			Plant: func(m *memstore.Store) store.Store {
				return withConfirm(m, func(ctx context.Context, inner store.Session) error {
					err := inner.Confirm(ctx)
					if errors.Is(err, context.DeadlineExceeded) {
						err = fmt.Errorf("%w: %w", store.ErrSessionLost, err)
					}
					return err
				})
			},
		},
		{
			Name:   "continues an enqueue that has returned an error",
			Caught: "outage/an unanswered enqueue leaves no entry",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if errors.Is(err, context.DeadlineExceeded) {
						go keepEnqueueing(inner, req)
					}
					return t, err
				})
			},
		},
		{
			Name:   "does not repeat an unanswered withdrawal",
			Caught: "outage/an unanswered withdrawal is carried out after the outage",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if err != nil {
						return nil, err
					}
					return ticket{Ticket: t, withdraw: func(ctx context.Context) error {
						// Tests with another request of the session whether it is connected.
						if err := inner.Confirm(ctx); errors.Is(err, context.DeadlineExceeded) {
							return err
						}
						return t.Withdraw(ctx)
					}}, nil
				})
			},
		},
		{
			Name:   "reports success for an entry that has gone after an unanswered withdrawal",
			Caught: "outage/an unanswered withdrawal does not report success after a break",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
					var unanswered atomic.Bool
					return ticket{Ticket: inner, withdraw: func(ctx context.Context) error {
						err := inner.Withdraw(ctx)
						if errors.Is(err, store.ErrGone) && unanswered.Load() {
							return nil
						}
						unanswered.Store(unanswered.Load() || errors.Is(err, context.DeadlineExceeded))
						return err
					}}
				})
			},
		},
		{
			Name:   "does not read a line again after an outage",
			Caught: "outage/a waiter admitted during an outage is notified after it",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					notify := req.Notify
					req.Notify = func(st store.Standing) {
						if st.State == store.Admitted {
							time.AfterFunc(0, func() { notifyIfConnected(inner, notify, st) })
							return
						}
						notify(st)
					}
					return inner.Enqueue(ctx, req)
				})
			},
		},
		{
			Name:   "does not expire disconnected sessions",
			Caught: "outage/an outage longer than the TTL ends the session and admits others",
			Plant: func(m *memstore.Store) store.Store {
				return withRealTTL(m, func(time.Duration) time.Duration { return memstore.MaxTTL })
			},
		},
	}
}

// keepEnqueueing repeats the request until it is answered.
func keepEnqueueing(inner store.Session, req store.Request) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		_, err := inner.Enqueue(ctx, req)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			return
		}
	}
}

// notifyIfConnected delivers a standing only if the session can be confirmed now.
func notifyIfConnected(inner store.Session, notify func(store.Standing), st store.Standing) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if !errors.Is(inner.Confirm(ctx), context.DeadlineExceeded) {
		notify(st)
	}
}
