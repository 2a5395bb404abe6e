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

func sessionBugs() []Bug {
	const modes = "sessions/a mode is supported or rejected with ErrUnsupported"
	return []Bug{
		{
			Name:   "has a kind of two words",
			Caught: "sessions/the capabilities are valid and constant",
			Plant: func(m *memstore.Store) store.Store {
				return withCapabilities(m, func(c *store.Capabilities) { c.Kind = "memory store" })
			},
		},
		{
			Name:   "returns different capabilities on each call",
			Caught: "sessions/the capabilities are valid and constant",
			Plant: func(m *memstore.Store) store.Store {
				var asked atomic.Int64
				return withCapabilities(m, func(c *store.Capabilities) { c.MaxTTL += time.Duration(asked.Add(1)) })
			},
		},
		{
			Name:   "gives all sessions one ID",
			Caught: "sessions/session IDs are unique",
			Plant: func(m *memstore.Store) store.Store {
				return withSessions(m, func(inner store.Session) session {
					return session{Session: inner, id: func() string { return "client" }}
				})
			},
		},
		{
			Name:   "does not report the capability SharedModes but has it",
			Caught: modes,
			Plant: func(m *memstore.Store) store.Store {
				return withCapabilities(m, func(c *store.Capabilities) { c.SharedModes = false })
			},
		},
		{
			Name:   "reports the capability SharedModes but lacks it",
			Caught: modes,
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					if req.Mode != line.Exclusive {
						return nil, errors.New("exclusive locks only")
					}
					return inner.Enqueue(ctx, req)
				})
			},
		},
	}
}

func withCapabilities(m *memstore.Store, change func(*store.Capabilities)) store.Store {
	return wholeStore{Store: m, capabilities: func() store.Capabilities {
		c := m.Capabilities()
		change(&c)
		return c
	}}
}
