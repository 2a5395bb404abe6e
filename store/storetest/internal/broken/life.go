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

func lifeBugs() []Bug {
	const deadHold = "life/a session that is never confirmed ends one TTL after Open"
	return []Bug{
		{
			Name:   "never ends a session that is not confirmed",
			Caught: deadHold,
			Plant: func(m *memstore.Store) store.Store {
				return withRealTTL(m, func(time.Duration) time.Duration { return memstore.MaxTTL })
			},
		},
		{
			Name:   "ends sessions a tenth of the TTL early",
			Caught: deadHold,
			Plant: func(m *memstore.Store) store.Store {
				return withRealTTL(m, func(ttl time.Duration) time.Duration { return ttl - ttl/10 })
			},
		},
		{
			Name:   "ends sessions half a TTL late",
			Caught: deadHold,
			Plant: func(m *memstore.Store) store.Store {
				return withRealTTL(m, func(ttl time.Duration) time.Duration { return ttl + ttl/2 })
			},
		},
		{
			Name:   "grants a longer TTL than it keeps",
			Caught: deadHold,
			Plant: func(m *memstore.Store) store.Store {
				return withTerms(m, func(t store.Terms) store.Terms { return store.Terms{TTL: 2 * t.TTL} })
			},
		},
		{
			Name:   "grants a shorter TTL than requested",
			Caught: "life/the terms grant at least the requested TTL and a smaller slack",
			Plant: func(m *memstore.Store) store.Store {
				return withTerms(m, func(t store.Terms) store.Terms { return store.Terms{TTL: t.TTL / 2} })
			},
		},
		{
			Name:   "grants a slack as long as the TTL",
			Caught: "life/the terms grant at least the requested TTL and a smaller slack",
			Plant: func(m *memstore.Store) store.Store {
				return withTerms(m, func(t store.Terms) store.Terms { return store.Terms{TTL: t.TTL, Slack: t.TTL} })
			},
		},
		{
			Name:   "confirms without a request",
			Caught: "life/an expired session cannot be confirmed or used",
			Plant: func(m *memstore.Store) store.Store {
				return withConfirm(m, func(context.Context, store.Session) error { return nil })
			},
		},
		{
			Name:   "confirms from a cache if the last confirmation was recent",
			Caught: "life/a confirmation keeps a hold for another TTL",
			Plant:  cachingConfirm,
		},
		{
			Name:   "reports every other confirmation as failed",
			Caught: "life/the terms grant at least the requested TTL and a smaller slack",
			Plant: func(m *memstore.Store) store.Store {
				var calls atomic.Int64
				return withConfirm(m, func(ctx context.Context, s store.Session) error {
					if err := s.Confirm(ctx); err != nil || calls.Add(1)%2 == 0 {
						return err
					}
					return errors.New("no answer")
				})
			},
		},
		{
			Name:   "confirms sessions that have ended",
			Caught: "life/an expired session that was confirmed before cannot be confirmed again",
			Plant: func(m *memstore.Store) store.Store {
				return withSessions(m, func(inner store.Session) session {
					var closed atomic.Bool
					return session{
						Session: inner,
						confirm: func(ctx context.Context) error {
							if err := inner.Confirm(ctx); closed.Load() || !errors.Is(err, store.ErrSessionLost) {
								return err
							}
							return nil
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
			Name:   "checks that the session is alive without extending it",
			Caught: "life/a confirmation just before the end counts in full",
			Plant: func(m *memstore.Store) store.Store {
				return withConfirm(m, func(ctx context.Context, inner store.Session) error {
					_, err := inner.Enqueue(ctx, store.Request{Name: "alive/" + inner.ID(), Try: true})
					if err != nil && !errors.Is(err, store.ErrSessionLost) && ctx.Err() == nil {
						return nil // its entry exists, so the session is alive
					}
					return err
				})
			},
		},
		{
			Name:   "ends a session whose confirmation is canceled",
			Caught: "life/an abandoned confirmation does not end the session",
			Plant: func(m *memstore.Store) store.Store {
				return withConfirm(m, func(ctx context.Context, inner store.Session) error {
					err := inner.Confirm(ctx)
					if ctx.Err() != nil {
						m.Expire(inner.ID())
						return fmt.Errorf("%w: %w", store.ErrSessionLost, err)
					}
					return err
				})
			},
		},
		{
			Name:   "ends sessions without entries",
			Caught: "life/a session without entries stays alive",
			Plant: func(m *memstore.Store) store.Store {
				return withConfirm(m, func(ctx context.Context, inner store.Session) error {
					ls, err := store.CollectLines(m.Lines(ctx, ""))
					if err != nil {
						return err
					}
					for _, l := range ls {
						for _, e := range l.Entries {
							if e.Session == inner.ID() {
								return inner.Confirm(ctx)
							}
						}
					}
					m.Expire(inner.ID())
					return inner.Confirm(ctx)
				})
			},
		},
		{
			Name:   "does not remove the waiters of an expired session",
			Caught: "life/all entries of an expired session go, holds and waiters",
			Plant:  immortalWaiters,
		},
	}
}

// withRealTTL opens sessions whose actual TTL is kept(ttl) while they report the requested one.
func withRealTTL(m *memstore.Store, kept func(ttl time.Duration) time.Duration) store.Store {
	return wholeStore{Store: m, open: func(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
		asked := opts.TTL
		if asked >= memstore.MinTTL && asked <= memstore.MaxTTL {
			opts.TTL = kept(asked)
		}
		inner, err := m.Open(ctx, opts)
		if err != nil {
			return nil, err
		}
		return session{Session: inner, terms: func() store.Terms { return store.Terms{TTL: asked} }}, nil
	}}
}

func withTerms(m *memstore.Store, terms func(store.Terms) store.Terms) store.Store {
	return withSessions(m, func(inner store.Session) session {
		return session{Session: inner, terms: func() store.Terms { return terms(inner.Terms()) }}
	})
}

func withConfirm(m *memstore.Store, confirm func(context.Context, store.Session) error) store.Store {
	return withSessions(m, func(inner store.Session) session {
		return session{Session: inner, confirm: func(ctx context.Context) error { return confirm(ctx, inner) }}
	})
}

// cachingConfirm sends a confirmation only if the last one was at least half a TTL ago.
func cachingConfirm(m *memstore.Store) store.Store {
	return withSessions(m, func(inner store.Session) session {
		var asked time.Time
		return session{Session: inner, confirm: func(ctx context.Context) error {
			if time.Since(asked) < inner.Terms().TTL/2 {
				return ctx.Err()
			}
			err := inner.Confirm(ctx)
			if err == nil {
				asked = time.Now()
			}
			return err
		}}
	})
}

// immortalWaiters enqueues waiters with a session of its own that never expires.
func immortalWaiters(m *memstore.Store) store.Store {
	var once sync.Once
	var immortal store.Session
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		once.Do(func() { immortal, _ = m.Open(context.Background(), store.SessionOptions{TTL: memstore.MaxTTL}) })
		if l, err := m.Line(ctx, req.Name); err == nil && len(l.Entries) == 1 && l.Entries[0].Session != immortal.ID() && !req.Try {
			return immortal.Enqueue(ctx, req)
		}
		return inner.Enqueue(ctx, req)
	})
}
