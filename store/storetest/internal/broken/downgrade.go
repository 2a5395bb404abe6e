package broken

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func downgradeBugs() []Bug {
	const (
		admits = "downgrade/a downgrade admits the readers directly behind and nobody else"
		keeps  = "downgrade/a downgraded entry keeps its order, session and owner"
		others = "downgrade/a downgrade does not change the entries of others"
	)
	return []Bug{
		{
			Name:   "wakes nobody after a downgrade",
			Caught: admits,
			Plant:  wakingNobody,
		},
		{
			Name:   "admits a waiting writer beside a downgraded entry",
			Caught: others,
			Plant: func(m *memstore.Store) store.Store {
				return withWaiters(m, func(t store.Ticket, req store.Request, admit func(line.Mode)) func(context.Context) error {
					return func(ctx context.Context) error {
						err := t.Extensions().Downgrade(ctx)
						admit(line.Exclusive)
						return err
					}
				})
			},
		},
		{
			Name:   "admits all readers of the line after a downgrade",
			Caught: admits,
			Plant: func(m *memstore.Store) store.Store {
				return withWaiters(m, func(t store.Ticket, req store.Request, admit func(line.Mode)) func(context.Context) error {
					return func(ctx context.Context) error {
						err := t.Extensions().Downgrade(ctx)
						admit(line.Shared)
						return err
					}
				})
			},
		},
		{
			Name:   "downgrades an entry by enqueueing again",
			Caught: keeps,
			Plant:  downgradingAgain(func(_ context.Context, se store.Session) (store.Session, error) { return se, nil }),
		},
		{
			Name:   "keeps a downgraded entry under another session",
			Caught: "downgrade/a downgraded entry ends with its session",
			Plant: func(m *memstore.Store) store.Store {
				return downgradingAgain(func(ctx context.Context, _ store.Session) (store.Session, error) {
					return m.Open(ctx, store.SessionOptions{TTL: memstore.MaxTTL})
				})(m)
			},
		},
		{
			Name:   "calls Notify when an entry is downgraded",
			Caught: keeps,
			Plant: func(m *memstore.Store) store.Store {
				return withDowngrade(m, func(ctx context.Context, t store.Ticket, req store.Request) error {
					err := t.Extensions().Downgrade(ctx)
					if l, _ := m.Line(ctx, req.Name); err == nil && len(l.Entries) > 0 {
						req.Notify(store.Standing{State: store.Admitted, Order: l.Entries[0].Order})
					}
					return err
				})
			},
		},
		{
			Name:   "downgrades the entry of another session too",
			Caught: others,
			Plant:  downgradingNext,
		},
		{
			Name:   "refuses readers after a downgrade",
			Caught: "downgrade/an entry that joins after a downgrade finds a reader",
			Plant: func(m *memstore.Store) store.Store {
				var mu sync.Mutex
				downgraded := make(map[string]bool)
				return withEnqueue(m, func(ctx context.Context, se store.Session, req store.Request) (store.Ticket, error) {
					mu.Lock()
					refused := downgraded[req.Name] && req.Try
					mu.Unlock()
					if refused {
						return nil, &store.HeldError{Name: req.Name}
					}
					t, err := se.Enqueue(ctx, req)
					if err != nil {
						return nil, err
					}
					return ticket{Ticket: t, downgrade: func(ctx context.Context) error {
						mu.Lock()
						downgraded[req.Name] = true
						mu.Unlock()
						return t.Extensions().Downgrade(ctx)
					}}, nil
				})
			},
		},
		{
			Name:   "does not report a downgrade to watches",
			Caught: "downgrade/a watch reports a downgrade",
			Plant:  silentDowngrades,
		},
		{
			Name:   "refuses to downgrade an entry again",
			Caught: "downgrade/a downgrade can be repeated",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(t store.Ticket, _ store.Request) ticket {
					done := false
					return ticket{Ticket: t, downgrade: func(ctx context.Context) error {
						if done {
							return store.ErrGone
						}
						done = true
						return t.Extensions().Downgrade(ctx)
					}}
				})
			},
		},
		{
			Name:   "writes the original mode when an owner is changed",
			Caught: "downgrade/a change of the owner does not undo a downgrade",
			Plant:  writingOriginalMode,
		},
		{
			Name:   "enqueues a withdrawn entry again in Downgrade",
			Caught: "downgrade/Downgrade does not restore a withdrawn entry",
			Plant:  revivingInDowngrade(func(withdrawn bool) bool { return withdrawn }),
		},
		{
			Name:   "enqueues a broken entry again in Downgrade",
			Caught: "downgrade/Downgrade does not restore a broken entry",
			Plant:  revivingInDowngrade(func(withdrawn bool) bool { return !withdrawn }),
		},
		{
			Name:   "reports success of Downgrade for an entry of a closed session",
			Caught: "downgrade/Downgrade does not restore an entry of a closed session",
			Plant: func(m *memstore.Store) store.Store {
				return withDowngrade(m, func(ctx context.Context, t store.Ticket, _ store.Request) error {
					if err := t.Extensions().Downgrade(ctx); !errors.Is(err, store.ErrSessionLost) {
						return err
					}
					return nil
				})
			},
		},
		{
			Name:   "reports success of Downgrade after WithdrawAfter",
			Caught: "downgrade/Downgrade does not change an entry after WithdrawAfter",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
					later := false
					return ticket{
						Ticket: inner,
						withdrawAfter: func(ctx context.Context, d time.Duration) error {
							later = true
							return inner.Extensions().WithdrawAfter(ctx, d)
						},
						downgrade: func(ctx context.Context) error {
							if later {
								return nil
							}
							return inner.Extensions().Downgrade(ctx)
						},
					}
				})
			},
		},
		{
			Name:   "withdraws an entry whose Downgrade is canceled",
			Caught: "downgrade/an abandoned Downgrade does no harm",
			Plant: func(m *memstore.Store) store.Store {
				return withDowngrade(m, func(ctx context.Context, t store.Ticket, _ store.Request) error {
					if ctx.Err() != nil {
						_ = t.Withdraw(context.WithoutCancel(ctx))
						return ctx.Err()
					}
					return t.Extensions().Downgrade(ctx)
				})
			},
		},
		{
			Name:   "reports success of an unanswered Downgrade",
			Caught: "downgrade/a Downgrade can be repeated after an outage",
			Plant: func(m *memstore.Store) store.Store {
				return withDowngrade(m, func(ctx context.Context, t store.Ticket, _ store.Request) error {
					if err := t.Extensions().Downgrade(ctx); !errors.Is(err, context.DeadlineExceeded) {
						return err
					}
					return nil
				})
			},
		},
		{
			Name:   "does not notify downgraded holders of waiters",
			Caught: "downgrade/a downgraded holder is notified when a writer waits",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(t store.Ticket, _ store.Request) ticket {
					downgraded := false
					return ticket{
						Ticket: t,
						notifyContended: func(f func()) {
							t.Extensions().NotifyContended(func() {
								if !downgraded {
									f()
								}
							})
						},
						downgrade: func(ctx context.Context) error {
							downgraded = true
							return t.Extensions().Downgrade(ctx)
						},
					}
				})
			},
		},
	}
}

func withDowngrade(m *memstore.Store, f func(context.Context, store.Ticket, store.Request) error) store.Store {
	return withTickets(m, func(t store.Ticket, req store.Request) ticket {
		return ticket{Ticket: t, downgrade: func(ctx context.Context) error { return f(ctx, t, req) }}
	})
}

// wakingNobody delivers no admission after a downgrade in the line, until a holder leaves.
func wakingNobody(m *memstore.Store) store.Store {
	var mu sync.Mutex
	silent := make(map[string]bool)
	return withEnqueue(m, func(ctx context.Context, se store.Session, req store.Request) (store.Ticket, error) {
		notify := req.Notify
		req.Notify = func(st store.Standing) {
			mu.Lock()
			drop := silent[req.Name] && st.State == store.Admitted
			mu.Unlock()
			if !drop {
				notify(st)
			}
		}
		t, err := se.Enqueue(ctx, req)
		if err != nil {
			return nil, err
		}
		return ticket{Ticket: t, downgrade: func(ctx context.Context) error {
			mu.Lock()
			silent[req.Name] = true
			mu.Unlock()
			return t.Extensions().Downgrade(ctx)
		}}, nil
	})
}

// withWaiters returns m with the Downgrade functions that wrap returns. They may call admit, which
// reports to all waiters in the given mode that they are admitted.
func withWaiters(
	m *memstore.Store, wrap func(t store.Ticket, req store.Request, admit func(line.Mode)) func(context.Context) error,
) store.Store {
	type waiter struct {
		req   store.Request
		order uint64
	}
	var mu sync.Mutex
	waiters := make(map[*waiter]struct{})
	return withEnqueue(m, func(ctx context.Context, se store.Session, req store.Request) (store.Ticket, error) {
		self, notify := &waiter{req: req}, req.Notify
		req.Notify = func(st store.Standing) {
			mu.Lock()
			if self.order = st.Order; st.State == store.Waiting {
				waiters[self] = struct{}{}
			} else {
				delete(waiters, self)
			}
			mu.Unlock()
			notify(st)
		}
		t, err := se.Enqueue(ctx, req)
		if err != nil {
			return nil, err
		}
		return ticket{Ticket: t, downgrade: wrap(t, req, func(mode line.Mode) {
			mu.Lock()
			defer mu.Unlock()
			for w := range waiters {
				if w.req.Mode == mode {
					w.req.Notify(store.Standing{State: store.Admitted, Order: w.order})
				}
			}
		})}, nil
	})
}

// downgradingAgain downgrades an entry by a new one in the session that in returns.
func downgradingAgain(in func(context.Context, store.Session) (store.Session, error)) func(*memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store {
		return withEnqueue(m, func(ctx context.Context, se store.Session, req store.Request) (store.Ticket, error) {
			t, err := se.Enqueue(ctx, req)
			if err != nil {
				return nil, err
			}
			current := t
			return ticket{
				Ticket:   t,
				withdraw: func(ctx context.Context) error { return current.Withdraw(ctx) },
				downgrade: func(ctx context.Context) error {
					if err := t.Withdraw(ctx); err != nil {
						return err
					}
					next, err := in(ctx, se)
					if err != nil {
						return err
					}
					current, err = next.Enqueue(ctx, store.Request{Name: req.Name, Mode: line.Shared, Owner: req.Owner})
					return err
				},
			}, nil
		})
	}
}

// downgradingNext makes the next entry of the line shared as well.
func downgradingNext(m *memstore.Store) store.Store {
	var mu sync.Mutex
	tickets := make(map[string][]store.Ticket) // by lock name
	return withEnqueue(m, func(ctx context.Context, se store.Session, req store.Request) (store.Ticket, error) {
		t, err := se.Enqueue(ctx, req)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		tickets[req.Name] = append(tickets[req.Name], t)
		mu.Unlock()
		return ticket{Ticket: t, downgrade: func(ctx context.Context) error {
			mu.Lock()
			all := slices.Clone(tickets[req.Name])
			mu.Unlock()
			for _, other := range all[:min(2, len(all))] {
				if other != t {
					_ = other.Extensions().Downgrade(ctx)
				}
			}
			return t.Extensions().Downgrade(ctx)
		}}, nil
	})
}

// silentDowngrades shows downgrades only in the results of Line, without notifying watches.
func silentDowngrades(m *memstore.Store) store.Store {
	var mu sync.Mutex
	downgraded := make(map[string]bool)
	st := withDowngrade(m, func(_ context.Context, _ store.Ticket, req store.Request) error {
		mu.Lock()
		defer mu.Unlock()
		downgraded[req.Name] = true
		return nil
	})
	return wholeStore{Store: st, line: func(ctx context.Context, name string) (store.Line, error) {
		l, err := m.Line(ctx, name)
		l.Entries = slices.Clone(l.Entries)
		mu.Lock()
		defer mu.Unlock()
		if downgraded[name] && len(l.Entries) > 0 {
			l.Entries[0].Mode = line.Shared
		}
		return l, err
	}}
}

// writingOriginalMode shows the mode of an entry as it was requested once its owner has been changed
// after the downgrade.
func writingOriginalMode(m *memstore.Store) store.Store {
	var mu sync.Mutex
	downgraded, changed := make(map[string]bool), make(map[string]bool)
	st := withTickets(m, func(t store.Ticket, req store.Request) ticket {
		return ticket{
			Ticket: t,
			downgrade: func(ctx context.Context) error {
				mu.Lock()
				downgraded[req.Name] = true
				mu.Unlock()
				return t.Extensions().Downgrade(ctx)
			},
			setOwner: func(ctx context.Context, o store.Owner) error {
				mu.Lock()
				changed[req.Name] = downgraded[req.Name]
				mu.Unlock()
				return t.Extensions().SetOwner(ctx, o)
			},
		}
	})
	return wholeStore{Store: st, line: func(ctx context.Context, name string) (store.Line, error) {
		l, err := m.Line(ctx, name)
		l.Entries = slices.Clone(l.Entries)
		mu.Lock()
		defer mu.Unlock()
		if changed[name] && len(l.Entries) > 0 {
			l.Entries[0].Mode = line.Exclusive
		}
		return l, err
	}}
}

// revivingInDowngrade enqueues entries that have gone again in Downgrade, if revived returns true.
func revivingInDowngrade(revived func(withdrawn bool) bool) func(*memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store {
		return withEnqueue(m, func(ctx context.Context, se store.Session, req store.Request) (store.Ticket, error) {
			t, err := se.Enqueue(ctx, req)
			if err != nil {
				return nil, err
			}
			withdrawn := false
			return ticket{
				Ticket:   t,
				withdraw: func(ctx context.Context) error { withdrawn = true; return t.Withdraw(ctx) },
				downgrade: func(ctx context.Context) error {
					err := t.Extensions().Downgrade(ctx)
					if errors.Is(err, store.ErrGone) && revived(withdrawn) {
						_, _ = se.Enqueue(ctx, store.Request{Name: req.Name, Mode: line.Shared, Owner: req.Owner})
					}
					return err
				},
			}, nil
		})
	}
}
