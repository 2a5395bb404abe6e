package broken

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func concurrencyBugs() []Bug {
	return []Bug{
		{
			Name:   "checks whether a lock is free only before enqueueing",
			Caught: "concurrency/holds of many sessions never overlap and their orders increase",
			Plant: func(m *memstore.Store) store.Store {
				return checkingFirst(m, func(mode line.Mode) bool { return mode == line.Exclusive })
			},
		},
		{
			Name:   "checks whether a shared entry or slot is admitted only before enqueueing",
			Caught: "concurrency/conflicting holds of many sessions never overlap",
			Plant: func(m *memstore.Store) store.Store {
				return checkingFirst(m, func(mode line.Mode) bool { return mode != line.Exclusive })
			},
		},
		{
			Name:   "does not notify waiters when a session is closed",
			Caught: "concurrency/no waiter is stranded when sessions open and close",
			Plant:  closingSilently,
		},
	}
}

// checkingFirst admits an entry of the given modes if it would have been admitted just before.
func checkingFirst(m *memstore.Store, applies func(line.Mode) bool) store.Store {
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		l, err := m.Line(ctx, req.Name)
		var ahead []line.Mode
		for _, e := range l.Entries {
			ahead = append(ahead, e.Mode)
		}
		time.Sleep(500 * time.Microsecond) // long enough for other requests to arrive in between
		if err == nil && applies(req.Mode) && line.Admits(req.Mode, ahead) {
			req.Notify = admitting(req.Notify)
		}
		return inner.Enqueue(ctx, req)
	})
}

// closingSilently does not report admissions while a session is being closed.
func closingSilently(m *memstore.Store) store.Store {
	var closing atomic.Int32
	return withSessions(m, func(inner store.Session) session {
		return session{
			Session: inner,
			enqueue: func(ctx context.Context, req store.Request) (store.Ticket, error) {
				notify := req.Notify
				req.Notify = func(st store.Standing) {
					if st.State != store.Admitted || closing.Load() == 0 {
						notify(st)
					}
				}
				return inner.Enqueue(ctx, req)
			},
			close: func(ctx context.Context) error {
				closing.Add(1)
				defer closing.Add(-1)
				return inner.Close(ctx)
			},
		}
	})
}
