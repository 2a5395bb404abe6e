package broken

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func admissionBugs() []Bug {
	const secondExclusive = "admission/a second exclusive entry of a session waits behind the first"
	return []Bug{
		{
			Name:   "admits an exclusive entry with one entry ahead",
			Caught: "admission/an exclusive entry is not admitted while another is held",
			Plant: func(m *memstore.Store) store.Store {
				return admittingEarly(m, func(mode line.Mode, ahead int) bool { return mode == line.Exclusive && ahead == 1 })
			},
		},
		{
			Name:   "admits one slot too many",
			Caught: "admission/of n slots n are admitted and each withdrawal admits one more",
			Plant: func(m *memstore.Store) store.Store {
				return admittingEarly(m, func(mode line.Mode, ahead int) bool { return mode.Slots() > 0 && ahead == 1 })
			},
		},
		{
			Name:   "lets shared entries overtake an exclusive waiter",
			Caught: "admission/a shared entry does not overtake a waiting exclusive one",
			Plant: func(m *memstore.Store) store.Store {
				return admittingWithHead(m, func(mode, head line.Mode) bool { return mode == line.Shared && head == line.Shared })
			},
		},
		{
			Name:   "admits one shared entry at a time",
			Caught: "admission/shared entries are admitted together",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					if req.Mode == line.Shared {
						req.Mode = line.Exclusive
					}
					return inner.Enqueue(ctx, req)
				})
			},
		},
		{
			Name:   "admits an exclusive entry when one of several shared holders leaves",
			Caught: "admission/an exclusive entry waits for all shared ones ahead",
			Plant: func(m *memstore.Store) store.Store {
				return withNotify(m, func(req store.Request) func(store.Standing) {
					first := 0
					return func(st store.Standing) {
						if first == 0 {
							first = st.Ahead
						}
						if req.Mode == line.Exclusive && first == 2 && st.Ahead == 1 {
							st = store.Standing{State: store.Admitted, Order: st.Order}
						}
						req.Notify(st)
					}
				})
			},
		},
		{
			Name:   "admits waiters in reverse order",
			Caught: "admission/exclusive entries are admitted one at a time in order of arrival",
			Plant:  lastFirst,
		},
		{
			Name:   "returns a session's existing entry instead of a second one",
			Caught: secondExclusive,
			Plant: onSecondExclusive(func(_ context.Context, had store.Ticket, req store.Request) (store.Ticket, error) {
				req.Notify(store.Standing{State: store.Admitted, Order: 1})
				return had, nil
			}),
		},
		{
			Name:   "refuses a session a second exclusive entry in a line",
			Caught: secondExclusive,
			Plant: onSecondExclusive(func(_ context.Context, _ store.Ticket, req store.Request) (store.Ticket, error) {
				return nil, fmt.Errorf("the session already has an entry for lock %q", req.Name)
			}),
		},
		{
			Name:   "withdraws a session's first entry when it enqueues a second",
			Caught: secondExclusive,
			Plant: onSecondExclusive(func(ctx context.Context, had store.Ticket, _ store.Request) (store.Ticket, error) {
				return nil, had.Withdraw(ctx)
			}),
		},
		{
			Name:   "gives a session only one slot",
			Caught: "admission/a session may hold several slots",
			Plant: func(m *memstore.Store) store.Store {
				return withSessions(m, func(inner store.Session) session {
					var mu sync.Mutex
					have := make(map[string]store.Ticket)
					return session{Session: inner, enqueue: func(ctx context.Context, req store.Request) (store.Ticket, error) {
						mu.Lock()
						defer mu.Unlock()
						if had := have[req.Name]; had != nil && req.Mode.Slots() > 0 {
							req.Notify(store.Standing{State: store.Admitted, Order: 1})
							return had, nil
						}
						t, err := inner.Enqueue(ctx, req)
						if err == nil {
							have[req.Name] = t
						}
						return t, err
					}}
				})
			},
		},
		{
			Name:   "admits a waiter of an expired session when the line becomes empty",
			Caught: "admission/a waiter of an expired session is not admitted when others leave",
			Plant:  func(m *memstore.Store) store.Store { return admittingOrphans(m, store.ErrSessionLost) },
		},
		{
			Name:   "admits a broken waiter when the line becomes empty",
			Caught: "admission/a broken waiter is not admitted when others leave",
			Plant:  func(m *memstore.Store) store.Store { return admittingOrphans(m, store.ErrGone) },
		},
		{
			Name:   "admits shared entries beside an exclusive one",
			Caught: "admission/lines of random modes follow the admission rules",
			Plant: func(m *memstore.Store) store.Store {
				return admittingWithHead(m, func(mode, head line.Mode) bool { return mode == line.Shared && head == line.Exclusive })
			},
		},
	}
}

// admittingEarly reports waiters as admitted if early returns true.
func admittingEarly(m *memstore.Store, early func(mode line.Mode, ahead int) bool) store.Store {
	return withNotify(m, func(req store.Request) func(store.Standing) {
		return func(st store.Standing) {
			if st.State == store.Waiting && early(req.Mode, st.Ahead) {
				st = store.Standing{State: store.Admitted, Order: st.Order}
			}
			req.Notify(st)
		}
	})
}

// admittingWithHead admits an entry if joins accepts the mode of the head of the line, regardless
// of the entries between.
func admittingWithHead(m *memstore.Store, joins func(mode, head line.Mode) bool) store.Store {
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		if l, err := m.Line(ctx, req.Name); err == nil && len(l.Entries) > 0 && joins(req.Mode, l.Entries[0].Mode) {
			req.Notify = admitting(req.Notify)
		}
		return inner.Enqueue(ctx, req)
	})
}

// admitting reports an entry as admitted whenever it should be reported waiting.
func admitting(notify func(store.Standing)) func(store.Standing) {
	return func(st store.Standing) {
		if st.State == store.Waiting {
			st = store.Standing{State: store.Admitted, Order: st.Order}
		}
		notify(st)
	}
}

// admittingOrphans reports waiters that went because of cause as admitted when an entry of their
// line is withdrawn.
func admittingOrphans(m *memstore.Store, cause error) store.Store {
	var mu sync.Mutex
	orphans := make(map[string][]func(store.Standing))
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		notify, waiting := req.Notify, false
		req.Notify = func(st store.Standing) {
			if waiting && errors.Is(st.Cause, cause) {
				mu.Lock()
				orphans[req.Name] = append(orphans[req.Name], notify)
				mu.Unlock()
			}
			waiting = st.State == store.Waiting
			notify(st)
		}
		t, err := inner.Enqueue(ctx, req)
		if err != nil {
			return nil, err
		}
		return ticket{Ticket: t, withdraw: func(ctx context.Context) error {
			err := t.Withdraw(ctx)
			mu.Lock()
			defer mu.Unlock()
			for _, notify := range orphans[req.Name] {
				notify(store.Standing{State: store.Admitted, Order: 1})
			}
			return err
		}}, nil
	})
}

// onSecondExclusive calls second when a session that has an exclusive entry in a line enqueues
// another. If second returns neither a ticket nor an error, the entry is enqueued.
func onSecondExclusive(
	second func(ctx context.Context, had store.Ticket, req store.Request) (store.Ticket, error),
) func(*memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store {
		return withSessions(m, func(inner store.Session) session {
			have := make(map[string]store.Ticket)
			return session{Session: inner, enqueue: func(ctx context.Context, req store.Request) (store.Ticket, error) {
				if had := have[req.Name]; had != nil && req.Mode == line.Exclusive {
					if t, err := second(ctx, had, req); t != nil || err != nil {
						return t, err
					}
				}
				t, err := inner.Enqueue(ctx, req)
				if err == nil {
					have[req.Name] = t
				}
				return t, err
			}}
		})
	}
}

// lastFirst puts each new entry ahead of the waiters, by withdrawing and enqueueing them again.
func lastFirst(m *memstore.Store) store.Store {
	var mu sync.Mutex
	lines := make(map[string][]*movable) // waiters, in reverse order
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		mu.Lock()
		defer mu.Unlock()
		var waiting []*movable
		for _, other := range lines[req.Name] {
			if other.waits() && other.ticket().Withdraw(ctx) == nil {
				waiting = append(waiting, other)
			}
		}
		mine := &movable{inner: inner, req: req}
		if err := mine.putIn(ctx); err != nil {
			return nil, err
		}
		for _, other := range slices.Backward(waiting) {
			_ = other.putIn(ctx) // fails if its session has ended
		}
		lines[req.Name] = append(waiting, mine)
		return ticket{
			Ticket:   mine.ticket(),
			withdraw: func(ctx context.Context) error { return mine.ticket().Withdraw(ctx) },
		}, nil
	})
}

// movable is an entry that can be enqueued again.
type movable struct {
	inner store.Session
	req   store.Request

	mu     sync.Mutex
	now    store.Ticket
	latest store.State
}

func (e *movable) putIn(ctx context.Context) error {
	req := e.req
	req.Notify = func(st store.Standing) {
		e.mu.Lock()
		e.latest = st.State
		e.mu.Unlock()
		e.req.Notify(st)
	}
	t, err := e.inner.Enqueue(ctx, req)
	if err == nil {
		e.mu.Lock()
		e.now = t
		e.mu.Unlock()
	}
	return err
}

func (e *movable) ticket() store.Ticket {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.now
}

func (e *movable) waits() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.latest == store.Waiting
}
