package broken

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func sessionBugs() []Bug {
	const (
		limits = "sessions/a TTL that cannot be granted is an error that names the limits"
		modes  = "sessions/a mode is supported or refused with ErrUnsupported"
	)
	return []Bug{
		{
			Name:   "has a kind of two words",
			Caught: "sessions/the capabilities make sense",
			Plant: func(m *memstore.Store) store.Store {
				return capable(m, func(c *store.Capabilities) { c.Kind = "memory store" })
			},
		},
		{
			Name:   "says something else each time it is asked what it can do",
			Caught: "sessions/the capabilities make sense",
			Plant: func(m *memstore.Store) store.Store {
				var asked atomic.Int64
				return capable(m, func(c *store.Capabilities) { c.MaxTTL += time.Duration(asked.Add(1)) })
			},
		},
		{
			Name:   "raises a TTL that is too short",
			Caught: limits,
			Plant: func(m *memstore.Store) store.Store {
				return withOptions(m, func(opts *store.SessionOptions) error {
					opts.TTL = max(opts.TTL, memstore.MinTTL)
					return nil
				})
			},
		},
		{
			Name:   "cuts a TTL that is too long",
			Caught: limits,
			Plant: func(m *memstore.Store) store.Store {
				return withOptions(m, func(opts *store.SessionOptions) error {
					opts.TTL = min(opts.TTL, memstore.MaxTTL)
					return nil
				})
			},
		},
		{
			Name:   "refuses a TTL without saying what it may be",
			Caught: limits,
			Plant: func(m *memstore.Store) store.Store {
				return withOptions(m, func(opts *store.SessionOptions) error {
					if opts.TTL < memstore.MinTTL || opts.TTL > memstore.MaxTTL {
						return fmt.Errorf("bad TTL %v", opts.TTL)
					}
					return nil
				})
			},
		},
		{
			Name:   "gives all sessions one ID",
			Caught: "sessions/sessions have IDs of their own",
			Plant: func(m *memstore.Store) store.Store {
				return withSessions(m, func(inner store.Session) session {
					return session{Session: inner, id: func() string { return "client" }}
				})
			},
		},
		{
			Name:   "says that it has no shared modes and has them",
			Caught: modes,
			Plant: func(m *memstore.Store) store.Store {
				return capable(m, func(c *store.Capabilities) { c.SharedModes = false })
			},
		},
		{
			Name:   "says that it has shared modes and has not",
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

func capable(m *memstore.Store, change func(*store.Capabilities)) store.Store {
	return wholeStore{Store: m, capabilities: func() store.Capabilities {
		c := m.Capabilities()
		change(&c)
		return c
	}}
}

func withOptions(m *memstore.Store, change func(*store.SessionOptions) error) store.Store {
	return wholeStore{Store: m, open: func(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
		if err := change(&opts); err != nil {
			return nil, err
		}
		return m.Open(ctx, opts)
	}}
}
