package broken

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// A requeuer is [store.Extensions.Requeue] of the entry inner, which req has added to a line.
type requeuer func(
	ctx context.Context, se store.Session, inner store.Ticket, req, again store.Request,
) (store.Ticket, error)

func requeueBugs() []Bug {
	return []Bug{
		{
			Name:   "keeps the place of a requeued entry",
			Caught: "requeue/a requeued entry is behind all waiters",
			Plant:  withRequeue(keepPlace),
		},
		{
			Name:   "keeps the place of a requeued waiter",
			Caught: "requeue/a waiter can be requeued",
			Plant:  withRequeue(keepPlace),
		},
		{
			Name:   "keeps the order of a requeued entry",
			Caught: "requeue/a requeued entry alone is admitted at once, with a larger order",
			Plant: func(m *memstore.Store) store.Store {
				orders := make(map[string]uint64) // by session
				return withEnqueueRequeue(m, func(
					ctx context.Context, se store.Session, inner store.Ticket, _, again store.Request,
				) (store.Ticket, error) {
					notify := again.Notify
					again.Notify = func(st store.Standing) {
						st.Order = orders[se.ID()]
						notify(st)
					}
					return inner.Extensions().Requeue(ctx, again.Owner, again.Notify)
				}, func(se store.Session, req *store.Request) {
					notify := req.Notify
					req.Notify = func(st store.Standing) {
						orders[se.ID()] = st.Order
						notify(st)
					}
				})
			},
		},
		{
			Name:   "leaves the old entry in the line after a requeue",
			Caught: "requeue/the old entry is gone after a requeue",
			Plant: withRequeue(func(ctx context.Context, se store.Session, _ store.Ticket, _, again store.Request) (store.Ticket, error) {
				return se.Enqueue(ctx, again)
			}),
		},
		{
			Name:   "releases an entry before it joins again",
			Caught: "requeue/nobody finds the line empty during a requeue",
			Plant: withRequeue(func(ctx context.Context, se store.Session, inner store.Ticket, _, again store.Request) (store.Ticket, error) {
				if err := inner.Withdraw(ctx); err != nil {
					return nil, err
				}
				time.Sleep(5 * time.Millisecond)
				return se.Enqueue(ctx, again)
			}),
		},
		{
			Name:   "adds an entry in place of one that is gone",
			Caught: "requeue/a requeue of a broken entry returns an error and adds nothing",
			Plant: withRequeue(func(ctx context.Context, se store.Session, inner store.Ticket, _, again store.Request) (store.Ticket, error) {
				t, err := inner.Extensions().Requeue(ctx, again.Owner, again.Notify)
				if errors.Is(err, store.ErrGone) {
					return se.Enqueue(ctx, again)
				}
				return t, err
			}),
		},
		{
			Name:   "keeps the owner of a requeued entry",
			Caught: "requeue/a requeued entry has its own owner",
			Plant: withRequeue(func(ctx context.Context, _ store.Session, inner store.Ticket, req, again store.Request) (store.Ticket, error) {
				return inner.Extensions().Requeue(ctx, req.Owner, again.Notify)
			}),
		},
		{
			Name:   "adds requeued entries to a session of their own",
			Caught: "requeue/a requeued entry ends with its session",
			Plant: func(m *memstore.Store) store.Store {
				return withRequeue(func(ctx context.Context, _ store.Session, inner store.Ticket, _, again store.Request) (store.Ticket, error) {
					other, err := m.Open(ctx, store.SessionOptions{TTL: memstore.MaxTTL})
					if err != nil {
						return nil, err
					}
					if err := inner.Withdraw(ctx); err != nil {
						return nil, err
					}
					return other.Enqueue(ctx, again)
				})(m)
			},
		},
		keepsPlaceIn(line.Exclusive), keepsPlaceIn(line.Shared), keepsPlaceIn(line.Slot(2)),
		{
			Name:   "leaves the marker of a requeued entry",
			Caught: "requeue/a requeue removes the marker",
			Plant: func(m *memstore.Store) store.Store {
				return withRequeue(func(ctx context.Context, se store.Session, inner store.Ticket, req, again store.Request) (store.Ticket, error) {
					l, err := m.Line(ctx, req.Name)
					if err != nil {
						return nil, err
					}
					for _, e := range l.Entries {
						if e.Session == se.ID() {
							if _, err := m.Break(ctx, req.Name, e.Order); err != nil {
								return nil, err
							}
						}
					}
					return se.Enqueue(ctx, again)
				})(m)
			},
		},
		{
			Name:   "keeps the numbers of requeued entries",
			Caught: "requeue/a requeue frees the number",
			Plant: func(m *memstore.Store) store.Store {
				var requeued atomic.Bool
				return withEnqueue(m, func(ctx context.Context, se store.Session, req store.Request) (store.Ticket, error) {
					inner, err := se.Enqueue(ctx, req)
					if err != nil {
						return nil, err
					}
					return ticket{
						Ticket: inner,
						claimNumber: func(ctx context.Context) (int, uint64, error) {
							if requeued.Load() {
								return 0, 0, store.ErrNoNumber
							}
							return inner.Extensions().ClaimNumber(ctx)
						},
						extend: setRequeue(se, inner, req, func(ctx context.Context, _ store.Session, inner store.Ticket, _, again store.Request) (store.Ticket, error) {
							requeued.Store(true)
							return inner.Extensions().Requeue(ctx, again.Owner, again.Notify)
						}),
					}, nil
				})
			},
		},
		{
			Name:   "gives numbers to entries that were requeued",
			Caught: "requeue/an entry that was requeued cannot claim a number",
			Plant:  withClaim(claimWhenGone),
		},
		{
			Name:   "ignores the limit for requeued entries",
			Caught: "requeue/the limit counts for requeued entries",
			Plant: withRequeue(func(ctx context.Context, _ store.Session, inner store.Ticket, _, again store.Request) (store.Ticket, error) {
				t, err := inner.Extensions().Requeue(ctx, again.Owner, again.Notify)
				if err == nil {
					again.Notify(store.Standing{State: store.Admitted, Order: 1})
				}
				return t, err
			}),
		},
		{
			Name:   "does not notify holders of requeued entries",
			Caught: "requeue/the next holder is notified of the requeued entry",
			Plant: func(m *memstore.Store) store.Store {
				var requeuing atomic.Bool
				quiet := func(ctx context.Context, _ store.Session, inner store.Ticket, _, again store.Request) (store.Ticket, error) {
					requeuing.Store(true)
					defer requeuing.Store(false)
					return inner.Extensions().Requeue(ctx, again.Owner, again.Notify)
				}
				return withTicketsIn(m, func(se store.Session, inner store.Ticket, req store.Request) ticket {
					return ticket{
						Ticket: inner,
						extend: setRequeue(se, inner, req, quiet),
						notifyContended: func(f func()) {
							inner.Extensions().NotifyContended(func() {
								if !requeuing.Load() {
									f()
								}
							})
						},
					}
				})
			},
		},
		{
			Name:   "leaves the entry if its requeue is canceled",
			Caught: "requeue/a requeue canceled at any moment leaves no entry",
			Plant: withRequeue(func(ctx context.Context, _ store.Session, inner store.Ticket, _, again store.Request) (store.Ticket, error) {
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				return inner.Extensions().Requeue(ctx, again.Owner, again.Notify)
			}),
		},
		{
			Name:   "continues a requeue that has returned an error",
			Caught: "requeue/an unanswered requeue leaves no entry",
			Plant: withRequeue(func(ctx context.Context, se store.Session, inner store.Ticket, _, again store.Request) (store.Ticket, error) {
				t, err := inner.Extensions().Requeue(ctx, again.Owner, again.Notify)
				if errors.Is(err, context.DeadlineExceeded) {
					go keepEnqueueing(se, again)
				}
				return t, err
			}),
		},
	}
}

// keepPlace returns the ticket of the old entry as that of the new one.
func keepPlace(_ context.Context, _ store.Session, inner store.Ticket, _, again store.Request) (store.Ticket, error) {
	again.Notify(store.Standing{State: store.Admitted, Order: 1})
	return inner, nil
}

// keepsPlaceIn is keepPlace in one mode only.
func keepsPlaceIn(mode line.Mode) Bug {
	return Bug{
		Name:   "keeps the place of requeued entries in mode " + mode.String(),
		Caught: "requeue/a requeue in mode " + mode.String() + " hands over to a waiter",
		Plant: withRequeue(func(ctx context.Context, se store.Session, inner store.Ticket, req, again store.Request) (store.Ticket, error) {
			if req.Mode == mode {
				return keepPlace(ctx, se, inner, req, again)
			}
			return inner.Extensions().Requeue(ctx, again.Owner, again.Notify)
		}),
	}
}

// withRequeue returns a function that plants requeue in place of [store.Extensions.Requeue].
func withRequeue(requeue requeuer) func(m *memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store {
		return withEnqueueRequeue(m, requeue, func(store.Session, *store.Request) {})
	}
}

// withEnqueueRequeue is withRequeue, and calls before with the request of each Enqueue.
func withEnqueueRequeue(m *memstore.Store, requeue requeuer, before func(store.Session, *store.Request)) store.Store {
	return withEnqueue(m, func(ctx context.Context, se store.Session, req store.Request) (store.Ticket, error) {
		before(se, &req)
		inner, err := se.Enqueue(ctx, req)
		if err != nil {
			return nil, err
		}
		return ticket{Ticket: inner, extend: setRequeue(se, inner, req, requeue)}, nil
	})
}

// withTicketsIn is withTickets, and passes the session of each ticket.
func withTicketsIn(m *memstore.Store, wrap func(store.Session, store.Ticket, store.Request) ticket) store.Store {
	return withEnqueue(m, func(ctx context.Context, se store.Session, req store.Request) (store.Ticket, error) {
		inner, err := se.Enqueue(ctx, req)
		if err != nil {
			return nil, err
		}
		return wrap(se, inner, req), nil
	})
}

func setRequeue(se store.Session, inner store.Ticket, req store.Request, requeue requeuer) func(*store.Extensions) {
	return func(e *store.Extensions) {
		e.Requeue = func(ctx context.Context, owner store.Owner, notify func(store.Standing)) (store.Ticket, error) {
			again := store.Request{Name: req.Name, Mode: req.Mode, Owner: owner, Notify: notify}
			return requeue(ctx, se, inner, req, again)
		}
	}
}
