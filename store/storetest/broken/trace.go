package broken

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func traceBugs() []Bug {
	const (
		refused  = "trace/an entry can leave a trace or that is refused with ErrUnsupported"
		stays    = "trace/a trace stays until it is forgotten"
		notThere = "trace/forgetting what is not there does nothing"
	)
	return []Bug{
		{
			Name:   "knows no traces and says that one was left",
			Caught: refused,
			Plant: func(m *memstore.Store) store.Store {
				return traceless(wholeStore{Store: m, forgetTraces: func(context.Context, string, []uint64) error {
					return store.ErrUnsupported
				}})
			},
		},
		{
			Name:   "knows no traces and says that they were forgotten",
			Caught: refused,
			Plant: func(m *memstore.Store) store.Store {
				return traceless(withLeaveTrace(m, func(context.Context, store.Ticket, store.Request) ([]store.Entry, error) {
					return nil, store.ErrUnsupported
				}))
			},
		},
		{
			Name:   "keeps the traces of entries that are withdrawn",
			Caught: "trace/an entry that is withdrawn leaves no trace",
			Plant: func(m *memstore.Store) store.Store {
				return haunted(m, func(inner store.Ticket, haunt func()) ticket {
					traced := false
					return ticket{
						Ticket: inner,
						leaveTrace: func(ctx context.Context) ([]store.Entry, error) {
							traced = true
							return inner.LeaveTrace(ctx)
						},
						withdraw: func(ctx context.Context) error {
							if traced {
								haunt()
							}
							return inner.Withdraw(ctx)
						},
					}
				})
			},
		},
		{
			Name:   "does away with the traces of a session that is closed",
			Caught: "trace/an entry whose session is closed leaves its trace",
			Plant:  tracesOf(func(closed map[string]bool, session string) bool { return !closed[session] }),
		},
		{
			Name:   "does away with the traces of a session that expires",
			Caught: "trace/an entry whose session expires leaves its trace",
			Plant:  tracesOf(func(closed map[string]bool, session string) bool { return closed[session] }),
		},
		{
			Name:   "takes the trace out with the entry that is broken",
			Caught: "trace/an entry that is broken leaves its trace, also for its own session",
			Plant: func(m *memstore.Store) store.Store {
				return withBreak(m, func(ctx context.Context, name string, order uint64) (store.Entry, error) {
					e, err := m.Break(ctx, name, order)
					if err == nil {
						err = m.ForgetTraces(ctx, name, []uint64{order})
					}
					return e, err
				})
			},
		},
		{
			Name:   "has every entry leave a trace",
			Caught: "trace/an entry of which no trace was asked leaves none",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if err == nil {
						_, err = t.LeaveTrace(ctx)
					}
					return t, err
				})
			},
		},
		{
			Name:   "has an entry leave a trace though there are others",
			Caught: "trace/who finds a trace leaves none",
			Plant: func(m *memstore.Store) store.Store {
				return haunted(m, func(inner store.Ticket, haunt func()) ticket {
					return ticket{Ticket: inner, leaveTrace: func(ctx context.Context) ([]store.Entry, error) {
						vanished, err := inner.LeaveTrace(ctx)
						if len(vanished) > 0 {
							defer haunt()
						}
						return vanished, err
					}}
				})
			},
		},
		{
			Name:   "forgets traces when it has told of them",
			Caught: stays,
			Plant: func(m *memstore.Store) store.Store {
				return withLeaveTrace(m, func(ctx context.Context, inner store.Ticket, req store.Request) ([]store.Entry, error) {
					vanished, err := inner.LeaveTrace(ctx)
					for _, e := range vanished {
						_ = m.ForgetTraces(ctx, req.Name, []uint64{e.Order})
					}
					return vanished, err
				})
			},
		},
		{
			Name:   "forgets no traces",
			Caught: stays,
			Plant: func(m *memstore.Store) store.Store {
				return withForgetTraces(m, func(context.Context, string, []uint64) error { return nil })
			},
		},
		{
			Name:   "forgets the traces with the given orders whatever the lock",
			Caught: "trace/forgetting a trace spares those of other locks",
			Plant:  forgettingUnderAllNames,
		},
		{
			Name:   "forgets all the traces of a lock together",
			Caught: "trace/of several traces each is forgotten by itself",
			Plant: func(m *memstore.Store) store.Store {
				return withForgetTraces(m, func(ctx context.Context, name string, orders []uint64) error {
					for order := range uint64(100) {
						orders = append(orders, order)
					}
					return m.ForgetTraces(ctx, name, orders)
				})
			},
		},
		{
			Name:   "cannot forget a trace that is not there",
			Caught: notThere,
			Plant: func(m *memstore.Store) store.Store {
				return withForgetTraces(m, func(ctx context.Context, name string, orders []uint64) error {
					if slices.Contains(orders, store.MaxOrder) {
						return store.ErrGone
					}
					return m.ForgetTraces(ctx, name, orders)
				})
			},
		},
		{
			Name:   "takes no orders for all of them",
			Caught: notThere,
			Plant: func(m *memstore.Store) store.Store {
				return withForgetTraces(m, func(ctx context.Context, name string, orders []uint64) error {
					for order := range uint64(100) {
						if len(orders) == 0 {
							_ = m.ForgetTraces(ctx, name, []uint64{order})
						}
					}
					return m.ForgetTraces(ctx, name, orders)
				})
			},
		},
		{
			Name:   "tells of the traces of locks whose names go on",
			Caught: "trace/a trace is told to those of its own lock only",
			Plant:  tellingOfLocksBelow,
		},
		{
			Name:   "says that an entry that has gone has left a trace",
			Caught: "trace/an entry that has gone leaves no trace",
			Plant: func(m *memstore.Store) store.Store {
				return withLeaveTrace(m, func(ctx context.Context, inner store.Ticket, _ store.Request) ([]store.Entry, error) {
					vanished, err := inner.LeaveTrace(ctx)
					if errors.Is(err, store.ErrGone) {
						return nil, nil
					}
					return vanished, err
				})
			},
		},
		{
			Name:   "keeps the traces of entries that are let go later",
			Caught: "trace/an entry that is let go later leaves no trace",
			Plant: func(m *memstore.Store) store.Store {
				return haunted(m, func(inner store.Ticket, haunt func()) ticket {
					return ticket{Ticket: inner, withdrawAfter: func(ctx context.Context, d time.Duration) error {
						haunt()
						return inner.WithdrawAfter(ctx, d)
					}}
				})
			},
		},
		{
			Name:   "tells of the traces of entries that stand",
			Caught: "trace/a trace is told to nobody while its entry stands",
			Plant: func(m *memstore.Store) store.Store {
				return withLeaveTrace(m, func(ctx context.Context, inner store.Ticket, req store.Request) ([]store.Entry, error) {
					vanished, err := inner.LeaveTrace(ctx)
					if l, _ := m.Line(ctx, req.Name); len(l.Entries) > 1 {
						vanished = append(vanished, l.Entries[0])
					}
					return vanished, err
				})
			},
		},
		{
			Name:   "does not tell whose a trace is",
			Caught: "trace/a trace tells whose it is",
			Plant: func(m *memstore.Store) store.Store {
				return withLeaveTrace(m, func(ctx context.Context, inner store.Ticket, _ store.Request) ([]store.Entry, error) {
					vanished, err := inner.LeaveTrace(ctx)
					for i := range vanished {
						vanished[i].Owner = store.Owner{}
					}
					return vanished, err
				})
			},
		},
		{
			Name:   "takes the entry's own trace for another's",
			Caught: "trace/a trace can be left twice and is one",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
					left := false
					return ticket{Ticket: inner, leaveTrace: func(ctx context.Context) ([]store.Entry, error) {
						vanished, err := inner.LeaveTrace(ctx)
						if left {
							vanished = append(vanished, store.Entry{Order: 1})
						}
						left = err == nil && len(vanished) == 0
						return vanished, err
					}}
				})
			},
		},
		{
			Name:   "leaves traces that were asked for in vain when their entries have gone",
			Caught: "trace/an entry leaves no trace that is withdrawn when leaving one was given up",
			Plant: func(m *memstore.Store) store.Store {
				return haunted(m, func(inner store.Ticket, haunt func()) ticket {
					return ticket{Ticket: inner, leaveTrace: func(ctx context.Context) ([]store.Entry, error) {
						vanished, err := inner.LeaveTrace(ctx)
						if err != nil {
							haunt()
						}
						return vanished, err
					}}
				})
			},
		},
		{
			Name:   "takes traces away only if the store answers at once",
			Caught: "trace/an entry that is withdrawn during an outage leaves no trace",
			Plant: func(m *memstore.Store) store.Store {
				return haunted(m, func(inner store.Ticket, haunt func()) ticket {
					return ticket{Ticket: inner, withdraw: func(ctx context.Context) error {
						err := inner.Withdraw(ctx)
						if err != nil {
							haunt()
						}
						return err
					}}
				})
			},
		},
	}
}

func withLeaveTrace(
	m *memstore.Store, f func(ctx context.Context, inner store.Ticket, req store.Request) ([]store.Entry, error),
) store.Store {
	return withTickets(m, func(inner store.Ticket, req store.Request) ticket {
		return ticket{Ticket: inner, leaveTrace: func(ctx context.Context) ([]store.Entry, error) { return f(ctx, inner, req) }}
	})
}

func withForgetTraces(
	m *memstore.Store, f func(ctx context.Context, name string, orders []uint64) error,
) store.Store {
	return wholeStore{Store: m, forgetTraces: f}
}

// traceless makes a store say that entries leave no traces.
func traceless(st store.Store) store.Store {
	return wholeStore{Store: st, capabilities: func() store.Capabilities {
		caps := st.Capabilities()
		caps.Traces = false
		return caps
	}}
}

// haunted returns the store with the bug that is in the tickets which wrap returns. When they call haunt, there is a
// trace under their name for good.
func haunted(m *memstore.Store, wrap func(inner store.Ticket, haunt func()) ticket) store.Store {
	var mu sync.Mutex
	names := make(map[string]bool)
	return withTickets(m, func(inner store.Ticket, req store.Request) ticket {
		buggy := wrap(inner, func() {
			mu.Lock()
			defer mu.Unlock()
			names[req.Name] = true
		})
		t := buggy
		t.leaveTrace = func(ctx context.Context) ([]store.Entry, error) {
			mu.Lock()
			ghost := names[req.Name]
			mu.Unlock()
			vanished, err := buggy.LeaveTrace(ctx)
			if ghost && err == nil {
				vanished = append(vanished, store.Entry{Order: store.MaxOrder})
			}
			return vanished, err
		}
		return t
	})
}

// tracesOf returns a store that tells only of those traces whose session, known to be closed or not, is kept.
func tracesOf(keep func(closed map[string]bool, session string) bool) func(*memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store {
		var mu sync.Mutex
		closed := make(map[string]bool)
		return withSessions(m, func(inner store.Session) session {
			return session{
				Session: inner,
				enqueue: func(ctx context.Context, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if err != nil {
						return nil, err
					}
					return ticket{Ticket: t, leaveTrace: func(ctx context.Context) ([]store.Entry, error) {
						vanished, err := t.LeaveTrace(ctx)
						mu.Lock()
						defer mu.Unlock()
						return slices.DeleteFunc(vanished, func(e store.Entry) bool { return !keep(closed, e.Session) }), err
					}}, nil
				},
				close: func(ctx context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					closed[inner.ID()] = true
					return inner.Close(ctx)
				},
			}
		})
	}
}

// names is the names of the locks for which entries were put in.
type names struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (n *names) add(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen[name] = true
}

func (n *names) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []string
	for name := range n.seen {
		all = append(all, name)
	}
	return all
}

func forgettingUnderAllNames(m *memstore.Store) store.Store {
	known := &names{seen: make(map[string]bool)}
	inner := withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		known.add(req.Name)
		return inner.Enqueue(ctx, req)
	})
	return wholeStore{Store: inner, forgetTraces: func(ctx context.Context, _ string, orders []uint64) error {
		for _, name := range known.all() {
			if err := m.ForgetTraces(ctx, name, orders); err != nil {
				return err
			}
		}
		return nil
	}}
}

func tellingOfLocksBelow(m *memstore.Store) store.Store {
	traced := &names{seen: make(map[string]bool)}
	return withLeaveTrace(m, func(ctx context.Context, inner store.Ticket, req store.Request) ([]store.Entry, error) {
		vanished, err := inner.LeaveTrace(ctx)
		for _, name := range traced.all() {
			if strings.HasPrefix(name, req.Name+"/") {
				vanished = append(vanished, store.Entry{Order: 1})
			}
		}
		traced.add(req.Name)
		return vanished, err
	})
}
