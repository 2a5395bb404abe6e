package broken

import (
	"context"
	"sync"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func contendedBugs() []Bug {
	const once = "contended/a holder is notified once when others wait"
	return []Bug{
		{
			Name:   "never notifies holders of waiters",
			Caught: once,
			Plant: func(m *memstore.Store) store.Store {
				return withContended(m, func(store.Ticket, store.Request, func()) {})
			},
		},
		{
			Name:   "notifies holders before others wait",
			Caught: once,
			Plant: func(m *memstore.Store) store.Store {
				return withContended(m, func(_ store.Ticket, _ store.Request, f func()) { f() })
			},
		},
		{
			Name:   "notifies holders twice",
			Caught: once,
			Plant: func(m *memstore.Store) store.Store {
				return withContended(m, func(inner store.Ticket, _ store.Request, f func()) {
					inner.Extensions().NotifyContended(func() { f(); f() })
				})
			},
		},
		{
			Name:   "does not notify a holder of existing waiters",
			Caught: "contended/a holder is notified at once if others already wait",
			Plant: func(m *memstore.Store) store.Store {
				return withContended(m, func(inner store.Ticket, req store.Request, f func()) {
					if l, err := m.Line(context.Background(), req.Name); err == nil && len(l.Entries) < 2 {
						inner.Extensions().NotifyContended(f)
					}
				})
			},
		},
		{
			Name:   "notifies holders of a of waiters for a/b",
			Caught: "contended/a holder is not notified of waiters for other names",
			Plant:  alsoContended(func(m *memstore.Store, name string) bool { return hasWaiter(m, name+"/") }),
		},
		{
			Name:   "notifies holders of entries that do not wait",
			Caught: "contended/an entry admitted beside the holder is not a waiter",
			Plant: alsoContended(func(m *memstore.Store, name string) bool {
				l, err := m.Line(context.Background(), name)
				return err == nil && len(l.Entries) > 1
			}),
		},
		{
			Name:   "notifies holders after their withdrawal",
			Caught: "contended/a holder is not notified after its withdrawal",
			Plant:  alsoContended(hasWaiter),
		},
		{
			Name:   "notifies only holders that were admitted at once",
			Caught: "contended/the next holder is notified of its own waiters",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					l, _ := m.Line(ctx, req.Name)
					t, err := inner.Enqueue(ctx, req)
					if err != nil || len(l.Entries) == 0 {
						return t, err
					}
					return ticket{Ticket: t, notifyContended: func(func()) {}}, nil
				})
			},
		},
	}
}

func withContended(m *memstore.Store, f func(inner store.Ticket, req store.Request, f func())) store.Store {
	return withTickets(m, func(inner store.Ticket, req store.Request) ticket {
		return ticket{Ticket: inner, notifyContended: func(g func()) { f(inner, req, g) }}
	})
}

// alsoContended also notifies holders if waits returns true after any entry is enqueued.
func alsoContended(waits func(m *memstore.Store, name string) bool) func(*memstore.Store) store.Store {
	type holder struct {
		name   string
		notify func()
	}
	return func(m *memstore.Store) store.Store {
		var mu sync.Mutex
		var holders []holder
		return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
			t, err := inner.Enqueue(ctx, req)
			mu.Lock()
			defer mu.Unlock()
			for _, h := range holders {
				if waits(m, h.name) {
					h.notify()
				}
			}
			if err != nil {
				return nil, err
			}
			return ticket{Ticket: t, notifyContended: func(f func()) {
				once := sync.OnceFunc(f)
				t.Extensions().NotifyContended(once)
				mu.Lock()
				defer mu.Unlock()
				holders = append(holders, holder{req.Name, once})
			}}, nil
		})
	}
}

// hasWaiter reports whether there is a waiter in a line whose name begins with prefix.
func hasWaiter(m *memstore.Store, prefix string) bool {
	ls, _ := store.CollectLines(m.Lines(context.Background(), prefix))
	for _, l := range ls {
		for _, e := range l.Entries {
			if !e.Admitted {
				return true
			}
		}
	}
	return false
}
