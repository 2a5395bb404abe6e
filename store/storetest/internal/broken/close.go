package broken

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func closeBugs() []Bug {
	return []Bug{
		{
			Name:   "leaves the entries of a closed session to expire",
			Caught: "close/closing a session removes its holds at once",
			Plant:  func(m *memstore.Store) store.Store { return closingWith(m, func(store.Session) error { return nil }) },
		},
		{
			Name:   "removes the holds of a closed session but not its waiters",
			Caught: "close/closing a session removes its waiters",
			Plant:  keepingWaiters,
		},
		{
			Name:   "closes every session of the store",
			Caught: "close/closing a session leaves other sessions alone",
			Plant: func(m *memstore.Store) store.Store {
				return closingWith(m, func(store.Session) error {
					for _, id := range m.Sessions() {
						m.Expire(id)
					}
					return nil
				})
			},
		},
		{
			Name:   "lets a closed session be confirmed",
			Caught: "close/a closed session cannot be confirmed or used",
			Plant: func(m *memstore.Store) store.Store {
				return withSessions(m, func(inner store.Session) session {
					var closed atomic.Bool
					return session{
						Session: inner,
						confirm: func(ctx context.Context) error {
							if closed.Load() {
								return nil
							}
							return inner.Confirm(ctx)
						},
						close: func(ctx context.Context) error {
							closed.Store(true)
							return inner.Close(ctx)
						},
					}
				})
			},
		},
		{
			Name:   "fails to close a session twice",
			Caught: "close/closing a closed session does nothing",
			Plant: func(m *memstore.Store) store.Store {
				return withSessions(m, func(inner store.Session) session {
					var closed atomic.Bool
					return session{Session: inner, close: func(ctx context.Context) error {
						if closed.Swap(true) {
							return fmt.Errorf("%w: closed", store.ErrSessionLost)
						}
						return inner.Close(ctx)
					}}
				})
			},
		},
		{
			Name:   "fails to close a session that has expired",
			Caught: "close/closing a session that has expired does nothing",
			Plant: func(m *memstore.Store) store.Store {
				return withSessions(m, func(inner store.Session) session {
					var closed atomic.Bool
					return session{Session: inner, close: func(ctx context.Context) error {
						if err := inner.Confirm(ctx); errors.Is(err, store.ErrSessionLost) && !closed.Swap(true) {
							return err
						}
						return inner.Close(ctx)
					}}
				})
			},
		},
		{
			Name:   "calls Lost for closed sessions",
			Caught: "close/Lost is not called for a closed session",
			Plant: func(m *memstore.Store) store.Store {
				return wholeStore{Store: m, open: func(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
					inner, err := m.Open(ctx, opts)
					if err != nil {
						return nil, err
					}
					return session{Session: inner, close: func(ctx context.Context) error {
						if opts.Lost != nil {
							time.AfterFunc(time.Millisecond, func() { opts.Lost(store.ErrSessionLost) })
						}
						return inner.Close(ctx)
					}}, nil
				}}
			},
		},
	}
}

// closingWith closes sessions with the function end. Their callers see them as closed.
func closingWith(m *memstore.Store, end func(store.Session) error) store.Store {
	return withSessions(m, func(inner store.Session) session {
		var mu sync.Mutex
		closed := false
		alive := func() error {
			mu.Lock()
			defer mu.Unlock()
			if closed {
				return fmt.Errorf("%w: closed", store.ErrSessionLost)
			}
			return nil
		}
		return session{
			Session: inner,
			confirm: func(ctx context.Context) error {
				if err := alive(); err != nil {
					return err
				}
				return inner.Confirm(ctx)
			},
			enqueue: func(ctx context.Context, req store.Request) (store.Ticket, error) {
				if err := alive(); err != nil {
					return nil, err
				}
				return inner.Enqueue(ctx, req)
			},
			close: func(context.Context) error {
				if alive() != nil {
					return nil
				}
				mu.Lock()
				closed = true
				mu.Unlock()
				return end(inner)
			},
		}
	})
}

// keepingWaiters removes only the admitted entries of a closed session.
func keepingWaiters(m *memstore.Store) store.Store {
	return closingWith(m, func(inner store.Session) error {
		ls, err := store.CollectLines(m.Lines(context.Background(), ""))
		for _, l := range ls {
			for _, e := range l.Entries {
				if e.Admitted && e.Session == inner.ID() {
					_, _ = m.Break(context.Background(), l.Name, e.Order)
				}
			}
		}
		return err
	})
}
