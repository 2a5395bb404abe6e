package broken

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// An allEnqueuer is [store.Capabilities.EnqueueAll] of m.
type allEnqueuer func(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error)

func withEnqueueAll(f allEnqueuer) func(*memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store {
		return wholeStore{Store: m, enqueueAll: func(ctx context.Context, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
			return f(ctx, m, se, reqs)
		}}
	}
}

// enqueueEach adds the entries one after another.
func enqueueEach(ctx context.Context, _ *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
	var tickets []store.Ticket
	for _, req := range reqs {
		t, err := se.Enqueue(ctx, req)
		if err != nil {
			for _, t := range tickets {
				_ = t.Withdraw(context.WithoutCancel(ctx))
			}
			return nil, err
		}
		tickets = append(tickets, t)
		time.Sleep(time.Millisecond)
	}
	return tickets, nil
}

func enqueueAllBugs() []Bug {
	all := func(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
		return m.Capabilities().EnqueueAll(ctx, se, reqs)
	}
	return []Bug{
		{
			Name:   "adds several entries one after another",
			Caught: "enqueueall/of two calls that share names, one is ahead in all lines",
			Plant:  withEnqueueAll(enqueueEach),
		},
		{
			Name:   "forgets the last of several requests",
			Caught: "enqueueall/entries of free locks are all admitted",
			Plant: withEnqueueAll(func(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
				tickets, err := all(ctx, m, se, reqs[:len(reqs)-1])
				if err == nil {
					tickets = append(tickets, tickets[0])
				}
				return tickets, err
			}),
		},
		{
			Name:   "returns the tickets of several requests in another order",
			Caught: "enqueueall/entries of free locks are all admitted",
			Plant: withEnqueueAll(func(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
				tickets, err := all(ctx, m, se, reqs)
				slices.Reverse(tickets)
				return tickets, err
			}),
		},
		{
			Name:   "gives out one order to entries of later calls",
			Caught: "enqueueall/the orders are larger than earlier ones and smaller than later ones",
			Plant: withEnqueueAll(func(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
				reqs = slices.Clone(reqs)
				for i := range reqs {
					notify := reqs[i].Notify
					reqs[i].Notify = func(st store.Standing) {
						st.Order = 1
						notify(st)
					}
				}
				return all(ctx, m, se, reqs)
			}),
		},
		{
			Name:   "reports several entries only when all are admitted",
			Caught: "enqueueall/each entry stands for itself",
			Plant: withEnqueueAll(func(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
				reqs = slices.Clone(reqs)
				var admitted atomic.Int32
				for i := range reqs {
					notify := reqs[i].Notify
					reqs[i].Notify = func(st store.Standing) {
						if st.State == store.Admitted && int(admitted.Add(1)) < len(reqs) {
							st = store.Standing{State: store.Waiting, Ahead: 1}
						}
						notify(st)
					}
				}
				return all(ctx, m, se, reqs)
			}),
		},
		{
			Name:   "adds one of several entries twice",
			Caught: "enqueueall/entries wait behind those that came before, and keep later ones waiting",
			Plant: withEnqueueAll(func(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
				tickets, err := all(ctx, m, se, reqs)
				if err == nil {
					again := reqs[len(reqs)-1]
					again.Notify = func(store.Standing) {}
					_, err = se.Enqueue(ctx, again)
				}
				return tickets, err
			}),
		},
		{
			Name:   "lets a try of several locks wait",
			Caught: "enqueueall/a try fails with a HeldError if one lock is held, and leaves no entry",
			Plant: withEnqueueAll(func(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
				reqs = slices.Clone(reqs)
				for i := range reqs {
					reqs[i].Try = false
				}
				return all(ctx, m, se, reqs)
			}),
		},
		{
			Name:   "keeps the free ones of several locks whose try has failed",
			Caught: "enqueueall/a try fails with a HeldError if one lock is held, and leaves no entry",
			Plant: withEnqueueAll(func(ctx context.Context, _ *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
				var tickets []store.Ticket
				for _, req := range reqs {
					t, err := se.Enqueue(ctx, req)
					if err != nil {
						return nil, err
					}
					tickets = append(tickets, t)
				}
				return tickets, nil
			}),
		},
		{
			Name:   "refuses every try of several locks",
			Caught: "enqueueall/a try of free locks is admitted",
			Plant: withEnqueueAll(func(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
				if reqs[0].Try {
					return nil, &store.HeldError{Name: reqs[0].Name}
				}
				return all(ctx, m, se, reqs)
			}),
		},
		{
			Name:   "does not say which of several lines is of another kind",
			Caught: "enqueueall/a call is refused if one line is of another kind, and leaves no entry",
			Plant: withEnqueueAll(func(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
				tickets, err := all(ctx, m, se, reqs)
				if kind, ok := errors.AsType[*store.KindError](err); ok {
					return nil, &store.KindError{Mode: kind.Mode, Other: kind.Other}
				}
				return tickets, err
			}),
		},
		{
			Name:   "keeps several entries whose call was canceled",
			Caught: "enqueueall/an end of the context at any moment leaves no entry",
			Plant: withEnqueueAll(func(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
				within, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
				defer cancel()
				tickets, err := all(within, m, se, reqs)
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				return tickets, err
			}),
		},
		{
			Name:   "adds several entries under a session of their own",
			Caught: "enqueueall/the entries end with their session",
			Plant: withEnqueueAll(func(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
				own, err := m.Open(ctx, store.SessionOptions{TTL: time.Hour})
				if err != nil {
					return nil, err
				}
				return all(ctx, m, own, reqs)
			}),
		},
		{
			Name:   "does not notify several entries when they are broken",
			Caught: "enqueueall/a broken entry is gone, and the others stay",
			Plant: withEnqueueAll(func(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
				reqs = slices.Clone(reqs)
				for i := range reqs {
					notify := reqs[i].Notify
					reqs[i].Notify = func(st store.Standing) {
						if st.State != store.Gone {
							notify(st)
						}
					}
				}
				return all(ctx, m, se, reqs)
			}),
		},
		{
			Name:   "opens a session of its own for several entries of an unknown one",
			Caught: "enqueueall/a session of another store is refused",
			Plant: withEnqueueAll(func(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
				if tickets, err := all(ctx, m, se, reqs); err == nil || errors.Is(err, store.ErrSessionLost) || ctx.Err() != nil {
					return tickets, err
				}
				own, err := m.Open(ctx, store.SessionOptions{TTL: time.Second})
				if err != nil {
					return nil, err
				}
				for i := range reqs {
					reqs[i].Notify = func(store.Standing) {}
				}
				return all(ctx, m, own, reqs)
			}),
		},
		{
			Name:   "adds several entries in the background",
			Caught: "enqueueall/an unanswered call leaves no entry",
			Plant: withEnqueueAll(func(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
				tickets, err := all(ctx, m, se, reqs)
				if err != nil && ctx.Err() != nil {
					late := slices.Clone(reqs)
					for i := range late {
						late[i].Notify = func(store.Standing) {}
					}
					go func() {
						for range 100 {
							within, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
							_, err := all(within, m, se, late)
							cancel()
							if err == nil {
								return
							}
						}
					}()
				}
				return tickets, err
			}),
		},
		{
			Name:   "withdraws an entry of several while its client is away, and adds it again",
			Caught: "enqueueall/an entry is not passed while its client is away",
			Plant:  withEnqueueAll(passedWhileAway),
		},
	}
}

// passedWhileAway adds entries that go to the end of the line when they are next and the holder leaves.
func passedWhileAway(ctx context.Context, m *memstore.Store, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
	outer := reqs
	reqs = slices.Clone(reqs)
	tickets := make([]store.Ticket, len(reqs))
	added := make(chan struct{})
	for i := range reqs {
		waited, moved := false, false
		reqs[i].Notify = func(st store.Standing) {
			switch {
			case moved:
			case st.State == store.Admitted && waited:
				moved = true
				go func() {
					<-added
					_, _ = tickets[i].Extensions().Requeue(context.Background(), outer[i].Owner, outer[i].Notify)
				}()
			default:
				waited = st.State == store.Waiting
				outer[i].Notify(st)
			}
		}
	}
	got, err := m.Capabilities().EnqueueAll(ctx, se, reqs)
	copy(tickets, got)
	close(added)
	return got, err
}
