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
			Name:   "does not tell the first standing of those admitted at once",
			Caught: "notify/the first standing is delivered: admitted",
			Plant: func(m *memstore.Store) store.Store {
				return hiding(m, func(first bool, st store.Standing) bool { return first && st.State == store.Admitted })
			},
		},
		{
			Name:   "does not tell waiters that they wait",
			Caught: "notify/the first standing is delivered: waiting",
			Plant: func(m *memstore.Store) store.Store {
				return hiding(m, func(first bool, st store.Standing) bool { return first && st.State == store.Waiting })
			},
		},
		{
			Name:   "tells waiters nothing between the first standing and the last",
			Caught: "notify/waiters are notified of each change of Ahead",
			Plant: func(m *memstore.Store) store.Store {
				return hiding(m, func(first bool, st store.Standing) bool { return !first && st.State == store.Waiting })
			},
		},
		{
			Name:   "does not tell of evictions",
			Caught: "notify/a holder is notified when its entry is broken",
			Plant: func(m *memstore.Store) store.Store {
				return hiding(m, func(_ bool, st store.Standing) bool { return errors.Is(st.Cause, store.ErrGone) })
			},
		},
		{
			Name:   "tells who is evicted that the session is lost",
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
			Name:   "tells who is evicted twice",
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
			Name:   "does not tell holders that their session has ended",
			Caught: "notify/a holder is notified when its session expires",
			Plant:  func(m *memstore.Store) store.Store { return hidingLoss(m, store.Admitted) },
		},
		{
			Name:   "does not tell waiters that their session has ended",
			Caught: "notify/a waiter is notified when its session expires",
			Plant:  func(m *memstore.Store) store.Store { return hidingLoss(m, store.Waiting) },
		},
		{
			Name:   "tells of an entry that it has gone after it was withdrawn",
			Caught: "notify/Notify is not called after a hold is withdrawn",
			Plant:  echoing,
		},
		{
			Name:   "tells those who were withdrawn of the changes that they would have seen",
			Caught: "notify/Notify is not called after a waiter is withdrawn",
			Plant:  neverDeaf,
		},
		{
			Name:   "loses every twentieth wake-up",
			Caught: "notify/every waiter of a long line is admitted in turn",
			Plant:  losingWakeUps,
		},
		{
			Name:   "misses what happens between an arrival and the first look at the line",
			Caught: "notify/no notification is lost when a release races with an arrival",
			Plant:  lookingTooEarly,
		},
		{
			Name:   "watches the one ahead only, and not who was ahead of that",
			Caught: "notify/no notification is lost when a waiter leaves during a release",
			Plant:  watchingOnlyTheNext,
		},
		{
			Name:   "tells each standing in a goroutine of its own",
			Caught: "notify/waiters are notified of each change of Ahead",
			Plant: func(m *memstore.Store) store.Store {
				return withNotify(m, func(req store.Request) func(store.Standing) {
					return func(st store.Standing) {
						// One of them comes after those of the changes that follow, whatever goroutine runs first.
						for _, late := range []time.Duration{time.Millisecond, 3 * time.Millisecond} {
							time.AfterFunc(late, func() { req.Notify(st) })
						}
					}
				})
			},
		},
		{
			Name:   "tells those who are admitted afterwards that they wait",
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

// hiding does not tell the standings for which hide says so.
func hiding(m *memstore.Store, hide func(first bool, st store.Standing) bool) store.Store {
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

// hidingLoss does not tell of the end of a session those of its entries that were last told state.
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

// echoing tells an entry that it has gone when it hears of that, which is after the withdrawal was answered.
func echoing(m *memstore.Store) store.Store {
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

// neverDeaf goes on telling an entry that was withdrawn while it waited when others of its line leave.
func neverDeaf(m *memstore.Store) store.Store {
	var mu sync.Mutex
	deaf := make(map[string][]func(store.Standing))
	return withTickets(m, func(inner store.Ticket, req store.Request) ticket {
		return ticket{Ticket: inner, withdraw: func(ctx context.Context) error {
			err := inner.Withdraw(ctx)
			mu.Lock()
			defer mu.Unlock()
			for _, notify := range deaf[req.Name] {
				notify(store.Standing{State: store.Gone, Cause: store.ErrGone})
			}
			deaf[req.Name] = append(deaf[req.Name], req.Notify)
			return err
		}}
	})
}

// losingWakeUps does not tell every twentieth of those who had to wait that they are admitted.
func losingWakeUps(m *memstore.Store) store.Store {
	var mu sync.Mutex
	wakeUps := 0
	return withNotify(m, func(req store.Request) func(store.Standing) {
		waited := false
		return func(st store.Standing) {
			mu.Lock()
			if waited && st.State == store.Admitted {
				wakeUps++
			}
			lost := waited && st.State == store.Admitted && wakeUps%20 == 0
			mu.Unlock()
			waited = st.State == store.Waiting
			if !lost {
				req.Notify(st)
			}
		}
	})
}

// lookingTooEarly reads how an entry stands, and begins to listen for changes a moment later.
func lookingTooEarly(m *memstore.Store) store.Store {
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		var mu sync.Mutex
		told, listening := false, false
		notify := req.Notify
		req.Notify = func(st store.Standing) {
			mu.Lock()
			tell := !told || listening
			told = true
			mu.Unlock()
			if tell {
				notify(st)
			}
		}
		t, err := inner.Enqueue(ctx, req)
		time.Sleep(time.Millisecond)
		mu.Lock()
		listening = true
		mu.Unlock()
		return t, err
	})
}

// watchingOnlyTheNext tells an entry that it is admitted only if the one ahead of it left last.
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
