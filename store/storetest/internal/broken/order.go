package broken

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func orderBugs() []Bug {
	return []Bug{
		{
			Name:   "keeps orders in four bits",
			Caught: "order/orders increase from hold to hold, also across an empty line",
			Plant: func(m *memstore.Store) store.Store {
				return renumbered(m, func(_ string, order uint64) uint64 { return 1 + order%16 })
			},
		},
		{
			Name:   "assigns descending orders",
			Caught: "order/orders increase along a line of waiters",
			Plant: func(m *memstore.Store) store.Store {
				return renumbered(m, func(_ string, order uint64) uint64 { return 1<<40 - order })
			},
		},
		{
			Name:   "has orders too large for a token",
			Caught: "order/orders increase from hold to hold, also across an empty line",
			Plant: func(m *memstore.Store) store.Store {
				return renumbered(m, func(_ string, order uint64) uint64 { return store.MaxOrder + order })
			},
		},
		{
			Name:   "restarts orders after the line was empty",
			Caught: "order/an order is not reused after its session was closed",
			Plant:  restartingOrders,
		},
		{
			Name:   "uses each order twice",
			Caught: "order/orders increase along a line of waiters",
			Plant: func(m *memstore.Store) store.Store {
				return renumbered(m, func(_ string, order uint64) uint64 { return (order + 1) / 2 })
			},
		},
		{
			Name:   "assigns orders to sessions instead of holds",
			Caught: "order/orders increase from hold to hold, also across an empty line",
			Plant: func(m *memstore.Store) store.Store {
				return withSessions(m, func(inner store.Session) session {
					return session{Session: inner, enqueue: func(ctx context.Context, req store.Request) (store.Ticket, error) {
						notify := req.Notify
						req.Notify = func(st store.Standing) {
							_, _ = fmt.Sscanf(inner.ID(), "m%d", &st.Order)
							notify(st)
						}
						return inner.Enqueue(ctx, req)
					}}
				})
			},
		},
		{
			Name:   "gives shared entries the order of the exclusive one before them",
			Caught: "order/orders increase between conflicting modes",
			Plant: func(m *memstore.Store) store.Store {
				return renumbered(m, func(_ string, order uint64) uint64 { return 1 + (order-1)/3 })
			},
		},
		{
			Name:   "returns a different order from Line than from Notify",
			Caught: "order/Line and Notify report the same order",
			Plant: func(m *memstore.Store) store.Store {
				return withNotify(m, func(req store.Request) func(store.Standing) {
					return func(st store.Standing) {
						st.Order += 1000
						req.Notify(st)
					}
				})
			},
		},
		{
			Name:   "takes back one order too many when a try fails",
			Caught: "order/an order is not reused after a failed try",
			Plant:  decrementingOrders,
		},
		{
			Name:   "gives the next holder the order of a broken entry",
			Caught: "order/an order is not reused after its entry was broken",
			Plant:  func(m *memstore.Store) store.Store { return reusingOrders(m, store.ErrGone) },
		},
		{
			Name:   "gives the next holder the order of an expired entry",
			Caught: "order/an order is not reused after its session expired",
			Plant:  func(m *memstore.Store) store.Store { return reusingOrders(m, store.ErrSessionLost) },
		},
	}
}

// decrementingOrders lowers all later orders by two when a try has failed. The try had used one
// order.
func decrementingOrders(m *memstore.Store) store.Store {
	var taken atomic.Uint64
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		notify, less := req.Notify, taken.Load()
		req.Notify = func(st store.Standing) {
			st.Order -= less
			notify(st)
		}
		t, err := inner.Enqueue(ctx, req)
		if isHeld(err) {
			taken.Add(2)
		}
		return t, err
	})
}

// reusingOrders gives the next admitted entry the order of the holder that went because of cause.
func reusingOrders(m *memstore.Store, cause error) store.Store {
	var mu sync.Mutex
	left := make(map[string]uint64)
	return withNotify(m, func(req store.Request) func(store.Standing) {
		return func(st store.Standing) {
			mu.Lock()
			switch order, ok := left[req.Name]; {
			case st.State == store.Gone && errors.Is(st.Cause, cause):
				left[req.Name] = st.Order
			case st.State == store.Admitted && ok:
				st.Order = order
				delete(left, req.Name)
			}
			mu.Unlock()
			req.Notify(st)
		}
	})
}

// renumbered replaces the orders of m with those that number returns, in all methods.
func renumbered(m *memstore.Store, number func(name string, order uint64) uint64) store.Store {
	renumberLine := func(l store.Line) store.Line {
		for i := range l.Entries {
			l.Entries[i].Order = number(l.Name, l.Entries[i].Order)
		}
		return l
	}
	notifying := withNotify(m, func(req store.Request) func(store.Standing) {
		return func(st store.Standing) {
			st.Order = number(req.Name, st.Order)
			req.Notify(st)
		}
	})
	return wholeStore{
		Store: notifying,
		line: func(ctx context.Context, name string) (store.Line, error) {
			l, err := m.Line(ctx, name)
			return renumberLine(l), err
		},
		lines: func(ctx context.Context, prefix string) ([]store.Line, error) {
			ls, err := store.CollectLines(m.Lines(ctx, prefix))
			for i := range ls {
				ls[i] = renumberLine(ls[i])
			}
			return ls, err
		},
		breakEntry: func(ctx context.Context, name string, order uint64) (store.Entry, error) {
			l, err := m.Line(ctx, name)
			if err != nil {
				return store.Entry{}, err
			}
			for _, e := range l.Entries {
				if number(name, e.Order) == order {
					broken, err := m.Break(ctx, name, e.Order)
					broken.Order = order
					return broken, err
				}
			}
			return m.Break(ctx, name, 0)
		},
	}
}

// restartingOrders gives the first entry of an empty line the order 1.
func restartingOrders(m *memstore.Store) store.Store {
	var mu sync.Mutex
	base := make(map[string]uint64)
	st := renumbered(m, func(name string, order uint64) uint64 {
		mu.Lock()
		defer mu.Unlock()
		if base[name] == 0 {
			base[name] = order
		}
		return order - base[name] + 1
	})
	return wholeStore{Store: st, open: func(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
		inner, err := st.Open(ctx, opts)
		if err != nil {
			return nil, err
		}
		return session{Session: inner, enqueue: func(ctx context.Context, req store.Request) (store.Ticket, error) {
			if l, err := m.Line(ctx, req.Name); err == nil && len(l.Entries) == 0 {
				mu.Lock()
				delete(base, req.Name)
				mu.Unlock()
			}
			return inner.Enqueue(ctx, req)
		}}, nil
	}}
}
