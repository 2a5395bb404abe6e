package broken

import (
	"context"
	"sync"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func limitBugs() []Bug {
	return []Bug{
		{
			Name:   "ignores limits",
			Caught: "limit/no more slots are admitted than the limit allows",
			Plant: withSetLimit(func(context.Context, *memstore.Store, string, int) error {
				return nil
			}),
		},
		{
			Name:   "does not admit waiters when the limit is raised",
			Caught: "limit/raising the limit admits waiters",
			Plant:  onlyFirstLimit(func(limit int) bool { return limit > 0 }),
		},
		{
			Name:   "keeps limits that are removed",
			Caught: "limit/removing the limit admits waiters",
			Plant:  onlyFirstLimit(func(limit int) bool { return limit == 0 }),
		},
		{
			Name:   "breaks entries when the limit is lowered",
			Caught: "limit/lowering the limit removes no entry",
			Plant: withSetLimit(func(ctx context.Context, m *memstore.Store, name string, limit int) error {
				l, err := m.Line(ctx, name)
				for i := limit; i < len(l.Entries) && err == nil; i++ {
					_, err = m.Break(ctx, name, l.Entries[i].Order)
				}
				if err != nil {
					return err
				}
				return m.Capabilities().SetLimit(ctx, name, limit)
			}),
		},
		{
			Name:   "ignores a limit that is set while entries wait",
			Caught: "limit/a waiter obeys a limit that was lowered",
			Plant: withSetLimit(func(ctx context.Context, m *memstore.Store, name string, limit int) error {
				if l, err := m.Line(ctx, name); err != nil || limit == 1 && len(l.Entries) > 3 {
					return err
				}
				return m.Capabilities().SetLimit(ctx, name, limit)
			}),
		},
		{
			Name:   "admits as many slots as a limit above their number allows",
			Caught: "limit/a limit above the number of slots has no effect",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					if l, err := m.Line(ctx, req.Name); err == nil && l.Limit > req.Mode.Slots() && req.Mode.Slots() > 0 {
						req.Mode = line.Slot(l.Limit)
					}
					return inner.Enqueue(ctx, req)
				})
			},
		},
		{
			Name:   "does not show limits",
			Caught: "limit/a line shows its limit, also without entries",
			Plant: func(m *memstore.Store) store.Store {
				return wholeStore{Store: m, line: func(ctx context.Context, name string) (store.Line, error) {
					l, err := m.Line(ctx, name)
					l.Limit = 0
					return l, err
				}}
			},
		},
		{
			Name:   "removes a limit with the last entry",
			Caught: "limit/a limit outlasts all sessions",
			Plant: func(m *memstore.Store) store.Store {
				var mu sync.Mutex
				limited := make(map[string]bool)
				return wholeStore{
					Store: m,
					setLimit: func(ctx context.Context, name string, limit int) error {
						mu.Lock()
						defer mu.Unlock()
						limited[name] = true
						return m.Capabilities().SetLimit(ctx, name, limit)
					},
					line: func(ctx context.Context, name string) (store.Line, error) {
						l, err := m.Line(ctx, name)
						mu.Lock()
						defer mu.Unlock()
						if limited[name] && err == nil && len(l.Entries) == 0 {
							l.Limit = 0
							err = m.Capabilities().SetLimit(ctx, name, 0)
						}
						return l, err
					},
				}
			},
		},
		{
			Name:   "applies a limit to the names below",
			Caught: "limit/a limit does not concern other modes and names",
			Plant: withSetLimit(func(ctx context.Context, m *memstore.Store, name string, limit int) error {
				if err := m.Capabilities().SetLimit(ctx, name+"/below", limit); err != nil {
					return err
				}
				return m.Capabilities().SetLimit(ctx, name, limit)
			}),
		},
		{
			Name:   "admits tries beyond the limit",
			Caught: "limit/a try beyond the limit returns a HeldError",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					l, err := m.Line(ctx, req.Name)
					if err != nil || !req.Try || l.Limit == 0 {
						return inner.Enqueue(ctx, req)
					}
					set := m.Capabilities().SetLimit
					if err := set(ctx, req.Name, 0); err != nil {
						return nil, err
					}
					t, err := inner.Enqueue(ctx, req)
					if back := set(ctx, req.Name, l.Limit); err == nil {
						err = back
					}
					return t, err
				})
			},
		},
		{
			Name:   "gives numbers beyond the limit",
			Caught: "limit/claimed numbers are within the limit",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, req store.Request) ticket {
					return ticket{Ticket: inner, claimNumber: func(ctx context.Context) (int, uint64, error) {
						if err := m.Capabilities().SetLimit(ctx, req.Name, 0); err != nil {
							return 0, 0, err
						}
						return inner.Extensions().ClaimNumber(ctx)
					}}
				})
			},
		},
	}
}

// withSetLimit returns a store with set in place of SetLimit.
func withSetLimit(set func(ctx context.Context, m *memstore.Store, name string, limit int) error) func(*memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store {
		return wholeStore{Store: m, setLimit: func(ctx context.Context, name string, limit int) error { return set(ctx, m, name, limit) }}
	}
}

// onlyFirstLimit returns a store that ignores a new limit of a name that has one, if ignores says so.
func onlyFirstLimit(ignores func(limit int) bool) func(*memstore.Store) store.Store {
	return withSetLimit(func(ctx context.Context, m *memstore.Store, name string, limit int) error {
		if l, err := m.Line(ctx, name); err != nil || l.Limit > 0 && ignores(limit) {
			return err
		}
		return m.Capabilities().SetLimit(ctx, name, limit)
	})
}
