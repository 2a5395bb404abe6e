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
			Name:   "looks whether a lock is free before it puts an entry in, and not again",
			Caught: "concurrency/holds of many sessions never overlap and their orders increase",
			Plant: func(m *memstore.Store) store.Store {
				return checkingFirst(m, func(mode line.Mode) bool { return mode == line.Exclusive })
			},
		},
		{
			Name:   "looks whether a reader or a slot may enter before it puts an entry in, and not again",
			Caught: "concurrency/conflicting holds of many sessions never overlap",
			Plant: func(m *memstore.Store) store.Store {
				return checkingFirst(m, func(mode line.Mode) bool { return mode != line.Exclusive })
			},
		},
		{
			Name:   "wakes nobody when a session is closed",
			Caught: "concurrency/no waiter is stranded when sessions open and close",
			Plant:  closingSilently,
		},
	}
}

// checkingFirst admits an entry of the modes concerned if it would have been admitted a moment before.
func checkingFirst(m *memstore.Store, concerned func(line.Mode) bool) store.Store {
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		l, err := m.Line(ctx, req.Name)
		var ahead []line.Mode
		for _, e := range l.Entries {
			ahead = append(ahead, e.Mode)
		}
		time.Sleep(500 * time.Microsecond) // long enough for others to get in between, every time
		if err == nil && concerned(req.Mode) && line.Admits(req.Mode, ahead) {
			req.Notify = admitting(req.Notify)
		}
		return inner.Enqueue(ctx, req)
	})
}

// closingSilently does not tell those that they are admitted whose turn comes while a session is being closed.
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
