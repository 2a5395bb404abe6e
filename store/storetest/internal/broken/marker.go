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
			Name:   "keeps the markers of withdrawn entries",
			Caught: "marker/a withdrawn entry leaves no marker",
			Plant: func(m *memstore.Store) store.Store {
				return withStaleMarkers(m, func(inner store.Ticket, keepMarker func()) ticket {
					marked := false
					return ticket{
						Ticket: inner,
						mark: func(ctx context.Context) ([]store.Entry, error) {
							marked = true
							return inner.Extensions().Mark(ctx)
						},
						withdraw: func(ctx context.Context) error {
							if marked {
								keepMarker()
							}
							return inner.Withdraw(ctx)
						},
					}
				})
			},
		},
		{
			Name:   "removes the markers of a closed session",
			Caught: "marker/an entry of a closed session leaves its marker",
			Plant:  markersOf(func(closed map[string]bool, session string) bool { return !closed[session] }),
		},
		{
			Name:   "removes the markers of an expired session",
			Caught: "marker/an entry of an expired session leaves its marker",
			Plant:  markersOf(func(closed map[string]bool, session string) bool { return closed[session] }),
		},
		{
			Name:   "removes the marker of a broken entry",
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
			Name:   "marks every entry",
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
			Name:   "marks an entry though it found markers",
			Caught: "marker/an entry that finds a marker leaves none",
			Plant: func(m *memstore.Store) store.Store {
				return withStaleMarkers(m, func(inner store.Ticket, keepMarker func()) ticket {
					return ticket{Ticket: inner, mark: func(ctx context.Context) ([]store.Entry, error) {
						unreleased, err := inner.Extensions().Mark(ctx)
						if len(unreleased) > 0 {
							defer keepMarker()
						}
						return unreleased, err
					}}
				})
			},
		},
		{
			Name:   "clears markers that Mark has returned",
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
			Name:   "clears the markers with the given orders under all names",
			Caught: "marker/clearing a marker spares those of other locks",
			Plant:  clearingUnderAllNames,
		},
		{
			Name:   "clears all markers of a lock together",
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
			Name:   "fails to clear a missing marker",
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
			Name:   "treats an empty list of orders as all",
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
			Name:   "returns the markers of names below the lock's",
			Caught: "marker/a marker is found only under its own name",
			Plant:  findingMarkersBelow,
		},
		{
			Name:   "reports success for Mark of an entry that has gone",
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
			Name:   "keeps the markers of entries released with a delay",
			Caught: "marker/an entry released with a delay leaves no marker",
			Plant: func(m *memstore.Store) store.Store {
				return withStaleMarkers(m, func(inner store.Ticket, keepMarker func()) ticket {
					return ticket{Ticket: inner, withdrawAfter: func(ctx context.Context, d time.Duration) error {
						keepMarker()
						return inner.Extensions().WithdrawAfter(ctx, d)
					}}
				})
			},
		},
		{
			Name:   "returns the markers of existing entries",
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
			Name:   "returns markers without an owner",
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
			Name:   "returns the entry's own marker",
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
			Name:   "keeps the marker of an entry withdrawn after an abandoned Mark",
			Caught: "marker/an entry withdrawn after an abandoned Mark leaves no marker",
			Plant: func(m *memstore.Store) store.Store {
				return withStaleMarkers(m, func(inner store.Ticket, keepMarker func()) ticket {
					return ticket{Ticket: inner, mark: func(ctx context.Context) ([]store.Entry, error) {
						unreleased, err := inner.Extensions().Mark(ctx)
						if err != nil {
							keepMarker()
						}
						return unreleased, err
					}}
				})
			},
		},
		{
			Name:   "removes the marker only if the first withdrawal is answered",
			Caught: "marker/an entry withdrawn during an outage leaves no marker",
			Plant: func(m *memstore.Store) store.Store {
				return withStaleMarkers(m, func(inner store.Ticket, keepMarker func()) ticket {
					return ticket{Ticket: inner, withdraw: func(ctx context.Context) error {
						err := inner.Withdraw(ctx)
						if err != nil {
							keepMarker()
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

// withStaleMarkers returns m with the tickets that wrap returns. A ticket that calls keepMarker
// leaves a permanent marker under its name.
func withStaleMarkers(m *memstore.Store, wrap func(inner store.Ticket, keepMarker func()) ticket) store.Store {
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
			stale := names[req.Name]
			mu.Unlock()
			unreleased, err := buggy.Extensions().Mark(ctx)
			if stale && err == nil {
				unreleased = append(unreleased, store.Entry{Order: store.MaxOrder})
			}
			return unreleased, err
		}
		return t
	})
}

// markersOf returns a store whose Mark returns only the markers of the sessions for which keep
// returns true. closed has the sessions that were closed.
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

// names are the names under which entries were enqueued.
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

func findingMarkersBelow(m *memstore.Store) store.Store {
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
