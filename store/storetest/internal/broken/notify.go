package broken

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func notifyBugs() []Bug {
	return []Bug{
		{
			Name:   "does not deliver the first standing if the entry is admitted at once",
			Caught: "notify/the first standing is delivered: admitted",
			Plant: func(m *memstore.Store) store.Store {
				return hidingStandings(m, func(first bool, st store.Standing) bool { return first && st.State == store.Admitted })
			},
		},
		{
			Name:   "does not deliver the first standing of waiters",
			Caught: "notify/the first standing is delivered: waiting",
			Plant: func(m *memstore.Store) store.Store {
				return hidingStandings(m, func(first bool, st store.Standing) bool { return first && st.State == store.Waiting })
			},
		},
		{
			Name:   "delivers only the first and last standings of waiters",
			Caught: "notify/waiters are notified of each change of Ahead",
			Plant: func(m *memstore.Store) store.Store {
				return hidingStandings(m, func(first bool, st store.Standing) bool { return !first && st.State == store.Waiting })
			},
		},
		{
			Name:   "does not report broken entries",
			Caught: "notify/a holder is notified when its entry is broken",
			Plant: func(m *memstore.Store) store.Store {
				return hidingStandings(m, func(_ bool, st store.Standing) bool { return errors.Is(st.Cause, store.ErrGone) })
			},
		},
		{
			Name:   "reports a broken entry as a lost session",
			Caught: "notify/a holder is notified when its entry is broken",
			Plant: func(m *memstore.Store) store.Store {
				return withNotify(m, func(req store.Request) func(store.Standing) {
					return func(st store.Standing) {
						if st.State == store.Gone {
							st.Cause = store.ErrSessionLost
						}
						req.Notify(st)
					}
				})
			},
		},
		{
			Name:   "reports a broken entry twice",
			Caught: "notify/a holder is notified when its entry is broken",
			Plant: func(m *memstore.Store) store.Store {
				return withNotify(m, func(req store.Request) func(store.Standing) {
					return func(st store.Standing) {
						req.Notify(st)
						if st.State == store.Gone {
							time.AfterFunc(time.Millisecond, func() { req.Notify(st) })
						}
					}
				})
			},
		},
		{
			Name:   "does not notify holders of the end of their session",
			Caught: "notify/a holder is notified when its session expires",
			Plant:  func(m *memstore.Store) store.Store { return hidingLoss(m, store.Admitted) },
		},
		{
			Name:   "does not notify waiters of the end of their session",
			Caught: "notify/a waiter is notified when its session expires",
			Plant:  func(m *memstore.Store) store.Store { return hidingLoss(m, store.Waiting) },
		},
		{
			Name:   "reports a withdrawn entry as gone",
			Caught: "notify/Notify is not called after a hold is withdrawn",
			Plant:  notifyingOwnWithdrawal,
		},
		{
			Name:   "notifies withdrawn waiters of later changes",
			Caught: "notify/Notify is not called after a waiter is withdrawn",
			Plant:  notifyingWithdrawn,
		},
		{
			Name:   "loses every twentieth admission of a waiter",
			Caught: "notify/every waiter of a long line is admitted in turn",
			Plant:  losingAdmissions,
		},
		{
			Name:   "misses changes between the first read of a line and the subscription",
			Caught: "notify/no notification is lost when a release races with an arrival",
			Plant:  subscribingLate,
		},
		{
			Name:   "watches only the entry ahead when it was enqueued",
			Caught: "notify/no notification is lost when a waiter leaves during a release",
			Plant:  watchingOnlyTheNext,
		},
		{
			Name:   "delivers each standing in its own goroutine",
			Caught: "notify/waiters are notified of each change of Ahead",
			Plant: func(m *memstore.Store) store.Store {
				return withNotify(m, func(req store.Request) func(store.Standing) {
					return func(st store.Standing) {
						// The second call comes after those for later changes, in any schedule.
						for _, delay := range []time.Duration{time.Millisecond, 3 * time.Millisecond} {
							time.AfterFunc(delay, func() { req.Notify(st) })
						}
					}
				})
			},
		},
		{
			Name:   "reports entries as waiting after their admission",
			Caught: "notify/waiters are notified of each change of Ahead",
			Plant: func(m *memstore.Store) store.Store {
				return withNotify(m, func(req store.Request) func(store.Standing) {
					var last store.Standing
					return func(st store.Standing) {
						req.Notify(st)
						if st.State == store.Admitted && last.State == store.Waiting && last.Ahead > 0 {
							req.Notify(last)
							req.Notify(st)
						}
						last = st
					}
				})
			},
		},
	}
}

// hidingStandings does not deliver the standings for which hide returns true.
func hidingStandings(m *memstore.Store, hide func(first bool, st store.Standing) bool) store.Store {
	return withNotify(m, func(req store.Request) func(store.Standing) {
		first := true
		return func(st store.Standing) {
			if !hide(first, st) {
				req.Notify(st)
			}
			first = false
		}
	})
}

// hidingLoss does not report the end of a session to entries whose last standing was state.
func hidingLoss(m *memstore.Store, state store.State) store.Store {
	return withNotify(m, func(req store.Request) func(store.Standing) {
		last := store.Gone
		return func(st store.Standing) {
			if last != state || !errors.Is(st.Cause, store.ErrSessionLost) {
				req.Notify(st)
			}
			last = st.State
		}
	})
}

// notifyingOwnWithdrawal reports an entry as gone after its withdrawal has returned.
func notifyingOwnWithdrawal(m *memstore.Store) store.Store {
	return withTickets(m, func(inner store.Ticket, req store.Request) ticket {
		return ticket{Ticket: inner, withdraw: func(ctx context.Context) error {
			err := inner.Withdraw(ctx)
			if err == nil {
				time.AfterFunc(time.Millisecond, func() { req.Notify(store.Standing{State: store.Gone, Cause: store.ErrGone}) })
			}
			return err
		}}
	})
}

// notifyingWithdrawn continues to notify withdrawn entries when other entries of their line leave.
func notifyingWithdrawn(m *memstore.Store) store.Store {
	var mu sync.Mutex
	withdrawn := make(map[string][]func(store.Standing))
	return withTickets(m, func(inner store.Ticket, req store.Request) ticket {
		return ticket{Ticket: inner, withdraw: func(ctx context.Context) error {
			err := inner.Withdraw(ctx)
			mu.Lock()
			defer mu.Unlock()
			for _, notify := range withdrawn[req.Name] {
				notify(store.Standing{State: store.Gone, Cause: store.ErrGone})
			}
			withdrawn[req.Name] = append(withdrawn[req.Name], req.Notify)
			return err
		}}
	})
}

// losingAdmissions does not report every twentieth admission of a waiter.
func losingAdmissions(m *memstore.Store) store.Store {
	var mu sync.Mutex
	admissions := 0
	return withNotify(m, func(req store.Request) func(store.Standing) {
		waited := false
		return func(st store.Standing) {
			mu.Lock()
			if waited && st.State == store.Admitted {
				admissions++
			}
			lost := waited && st.State == store.Admitted && admissions%20 == 0
			mu.Unlock()
			waited = st.State == store.Waiting
			if !lost {
				req.Notify(st)
			}
		}
	})
}

// subscribingLate delivers the first standing, then ignores changes until a moment after Enqueue.
func subscribingLate(m *memstore.Store) store.Store {
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		var mu sync.Mutex
		delivered, subscribed := false, false
		notify := req.Notify
		req.Notify = func(st store.Standing) {
			mu.Lock()
			deliver := !delivered || subscribed
			delivered = true
			mu.Unlock()
			if deliver {
				notify(st)
			}
		}
		t, err := inner.Enqueue(ctx, req)
		time.Sleep(time.Millisecond)
		mu.Lock()
		subscribed = true
		mu.Unlock()
		return t, err
	})
}

// watchingOnlyTheNext reports an admission only if the entry directly ahead left last.
func watchingOnlyTheNext(m *memstore.Store) store.Store {
	return withNotify(m, func(req store.Request) func(store.Standing) {
		first := 0
		last := 0
		return func(st store.Standing) {
			if first == 0 {
				first = st.Ahead
			}
			if st.State != store.Admitted || first < 2 || last != 1 {
				req.Notify(st)
			}
			last = st.Ahead
		}
	})
}
