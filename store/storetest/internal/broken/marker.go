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

func markerBugs() []Bug {
	const (
		stays    = "marker/a marker stays until it is cleared"
		notThere = "marker/clearing unknown markers does nothing"
	)
	return []Bug{
		{
			Name:   "keeps the markers of entries that are withdrawn",
			Caught: "marker/a withdrawn entry leaves no marker",
			Plant: func(m *memstore.Store) store.Store {
				return haunted(m, func(inner store.Ticket, haunt func()) ticket {
					marked := false
					return ticket{
						Ticket: inner,
						mark: func(ctx context.Context) ([]store.Entry, error) {
							marked = true
							return inner.Extensions().Mark(ctx)
						},
						withdraw: func(ctx context.Context) error {
							if marked {
								haunt()
							}
							return inner.Withdraw(ctx)
						},
					}
				})
			},
		},
		{
			Name:   "removes the markers of a session that is closed",
			Caught: "marker/an entry of a closed session leaves its marker",
			Plant:  markersOf(func(closed map[string]bool, session string) bool { return !closed[session] }),
		},
		{
			Name:   "removes the markers of a session that expires",
			Caught: "marker/an entry of an expired session leaves its marker",
			Plant:  markersOf(func(closed map[string]bool, session string) bool { return closed[session] }),
		},
		{
			Name:   "takes the marker out with the entry that is broken",
			Caught: "marker/a broken entry leaves its marker, also for its own session",
			Plant: func(m *memstore.Store) store.Store {
				return withBreak(m, func(ctx context.Context, name string, order uint64) (store.Entry, error) {
					e, err := m.Break(ctx, name, order)
					if err == nil {
						err = m.Capabilities().ClearMarks(ctx, name, []uint64{order})
					}
					return e, err
				})
			},
		},
		{
			Name:   "has every entry leave a marker",
			Caught: "marker/an entry without Mark leaves no marker",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if err == nil {
						_, err = t.Extensions().Mark(ctx)
					}
					return t, err
				})
			},
		},
		{
			Name:   "has an entry leave a marker though there are others",
			Caught: "marker/an entry that finds a marker leaves none",
			Plant: func(m *memstore.Store) store.Store {
				return haunted(m, func(inner store.Ticket, haunt func()) ticket {
					return ticket{Ticket: inner, mark: func(ctx context.Context) ([]store.Entry, error) {
						unreleased, err := inner.Extensions().Mark(ctx)
						if len(unreleased) > 0 {
							defer haunt()
						}
						return unreleased, err
					}}
				})
			},
		},
		{
			Name:   "clears markers when it has told of them",
			Caught: stays,
			Plant: func(m *memstore.Store) store.Store {
				return withMark(m, func(ctx context.Context, inner store.Ticket, req store.Request) ([]store.Entry, error) {
					unreleased, err := inner.Extensions().Mark(ctx)
					for _, e := range unreleased {
						_ = m.Capabilities().ClearMarks(ctx, req.Name, []uint64{e.Order})
					}
					return unreleased, err
				})
			},
		},
		{
			Name:   "clears no markers",
			Caught: stays,
			Plant: func(m *memstore.Store) store.Store {
				return withClearMarks(m, func(context.Context, string, []uint64) error { return nil })
			},
		},
		{
			Name:   "clears the markers with the given orders whatever the lock",
			Caught: "marker/clearing a marker spares those of other locks",
			Plant:  clearingUnderAllNames,
		},
		{
			Name:   "clears all the markers of a lock together",
			Caught: "marker/several markers are cleared independently",
			Plant: func(m *memstore.Store) store.Store {
				return withClearMarks(m, func(ctx context.Context, name string, orders []uint64) error {
					for order := range uint64(100) {
						orders = append(orders, order)
					}
					return m.Capabilities().ClearMarks(ctx, name, orders)
				})
			},
		},
		{
			Name:   "cannot clear a marker that is not there",
			Caught: notThere,
			Plant: func(m *memstore.Store) store.Store {
				return withClearMarks(m, func(ctx context.Context, name string, orders []uint64) error {
					if slices.Contains(orders, store.MaxOrder) {
						return store.ErrGone
					}
					return m.Capabilities().ClearMarks(ctx, name, orders)
				})
			},
		},
		{
			Name:   "takes no orders for all of them",
			Caught: notThere,
			Plant: func(m *memstore.Store) store.Store {
				return withClearMarks(m, func(ctx context.Context, name string, orders []uint64) error {
					for order := range uint64(100) {
						if len(orders) == 0 {
							_ = m.Capabilities().ClearMarks(ctx, name, []uint64{order})
						}
					}
					return m.Capabilities().ClearMarks(ctx, name, orders)
				})
			},
		},
		{
			Name:   "tells of the markers of locks whose names go on",
			Caught: "marker/a marker is found only under its own name",
			Plant:  tellingOfLocksBelow,
		},
		{
			Name:   "says that an entry that has gone has left a marker",
			Caught: "marker/an entry that has gone cannot be marked",
			Plant: func(m *memstore.Store) store.Store {
				return withMark(m, func(ctx context.Context, inner store.Ticket, _ store.Request) ([]store.Entry, error) {
					unreleased, err := inner.Extensions().Mark(ctx)
					if errors.Is(err, store.ErrGone) {
						return nil, nil
					}
					return unreleased, err
				})
			},
		},
		{
			Name:   "keeps the markers of entries that are let go later",
			Caught: "marker/an entry released with a delay leaves no marker",
			Plant: func(m *memstore.Store) store.Store {
				return haunted(m, func(inner store.Ticket, haunt func()) ticket {
					return ticket{Ticket: inner, withdrawAfter: func(ctx context.Context, d time.Duration) error {
						haunt()
						return inner.Extensions().WithdrawAfter(ctx, d)
					}}
				})
			},
		},
		{
			Name:   "tells of the markers of entries that stand",
			Caught: "marker/a marker is not found while its entry exists",
			Plant: func(m *memstore.Store) store.Store {
				return withMark(m, func(ctx context.Context, inner store.Ticket, req store.Request) ([]store.Entry, error) {
					unreleased, err := inner.Extensions().Mark(ctx)
					if l, _ := m.Line(ctx, req.Name); len(l.Entries) > 1 {
						unreleased = append(unreleased, l.Entries[0])
					}
					return unreleased, err
				})
			},
		},
		{
			Name:   "does not tell whose a marker is",
			Caught: "marker/a marker names the owner of its entry",
			Plant: func(m *memstore.Store) store.Store {
				return withMark(m, func(ctx context.Context, inner store.Ticket, _ store.Request) ([]store.Entry, error) {
					unreleased, err := inner.Extensions().Mark(ctx)
					for i := range unreleased {
						unreleased[i].Owner = store.Owner{}
					}
					return unreleased, err
				})
			},
		},
		{
			Name:   "takes the entry's own marker for another's",
			Caught: "marker/marking twice leaves one marker",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
					left := false
					return ticket{Ticket: inner, mark: func(ctx context.Context) ([]store.Entry, error) {
						unreleased, err := inner.Extensions().Mark(ctx)
						if left {
							unreleased = append(unreleased, store.Entry{Order: 1})
						}
						left = err == nil && len(unreleased) == 0
						return unreleased, err
					}}
				})
			},
		},
		{
			Name:   "leaves markers that were asked for in vain when their entries have gone",
			Caught: "marker/an entry withdrawn after an abandoned Mark leaves no marker",
			Plant: func(m *memstore.Store) store.Store {
				return haunted(m, func(inner store.Ticket, haunt func()) ticket {
					return ticket{Ticket: inner, mark: func(ctx context.Context) ([]store.Entry, error) {
						unreleased, err := inner.Extensions().Mark(ctx)
						if err != nil {
							haunt()
						}
						return unreleased, err
					}}
				})
			},
		},
		{
			Name:   "takes markers away only if the store answers at once",
			Caught: "marker/an entry withdrawn during an outage leaves no marker",
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

func withMark(
	m *memstore.Store, f func(ctx context.Context, inner store.Ticket, req store.Request) ([]store.Entry, error),
) store.Store {
	return withTickets(m, func(inner store.Ticket, req store.Request) ticket {
		return ticket{Ticket: inner, mark: func(ctx context.Context) ([]store.Entry, error) { return f(ctx, inner, req) }}
	})
}

func withClearMarks(
	m *memstore.Store, f func(ctx context.Context, name string, orders []uint64) error,
) store.Store {
	return wholeStore{Store: m, clearMarks: f}
}

// haunted returns the store with the bug that is in the tickets which wrap returns. When they call haunt, there is a
// marker under their name for good.
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
		t.mark = func(ctx context.Context) ([]store.Entry, error) {
			mu.Lock()
			ghost := names[req.Name]
			mu.Unlock()
			unreleased, err := buggy.Extensions().Mark(ctx)
			if ghost && err == nil {
				unreleased = append(unreleased, store.Entry{Order: store.MaxOrder})
			}
			return unreleased, err
		}
		return t
	})
}

// markersOf returns a store that tells only of those markers whose session, known to be closed or not, is kept.
func markersOf(keep func(closed map[string]bool, session string) bool) func(*memstore.Store) store.Store {
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
					return ticket{Ticket: t, mark: func(ctx context.Context) ([]store.Entry, error) {
						unreleased, err := t.Extensions().Mark(ctx)
						mu.Lock()
						defer mu.Unlock()
						return slices.DeleteFunc(unreleased, func(e store.Entry) bool { return !keep(closed, e.Session) }), err
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

func clearingUnderAllNames(m *memstore.Store) store.Store {
	known := &names{seen: make(map[string]bool)}
	inner := withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		known.add(req.Name)
		return inner.Enqueue(ctx, req)
	})
	return wholeStore{Store: inner, clearMarks: func(ctx context.Context, _ string, orders []uint64) error {
		for _, name := range known.all() {
			if err := m.Capabilities().ClearMarks(ctx, name, orders); err != nil {
				return err
			}
		}
		return nil
	}}
}

func tellingOfLocksBelow(m *memstore.Store) store.Store {
	marked := &names{seen: make(map[string]bool)}
	return withMark(m, func(ctx context.Context, inner store.Ticket, req store.Request) ([]store.Entry, error) {
		unreleased, err := inner.Extensions().Mark(ctx)
		for _, name := range marked.all() {
			if strings.HasPrefix(name, req.Name+"/") {
				unreleased = append(unreleased, store.Entry{Order: 1})
			}
		}
		marked.add(req.Name)
		return unreleased, err
	})
}
