package broken

import (
	"context"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func extensionBugs() []Bug {
	const matches = "extensions/tickets have exactly the extensions that the capabilities report"
	var bugs []Bug
	for _, ability := range []struct {
		what string
		deny func(*store.Capabilities)
		lack func(*store.Extensions)
	}{
		{"WithdrawAfter", func(c *store.Capabilities) { c.ReleaseAfter = false }, func(e *store.Extensions) { e.WithdrawAfter = nil }},
		{"Mark", func(c *store.Capabilities) { c.ClearMarks = nil }, func(e *store.Extensions) { e.Mark = nil }},
		{"SetOwner", func(c *store.Capabilities) { c.OwnerUpdates = false }, func(e *store.Extensions) { e.SetOwner = nil }},
		{"Downgrade", func(c *store.Capabilities) { c.Downgrades = false }, func(e *store.Extensions) { e.Downgrade = nil }},
		{"NotifyContended", func(c *store.Capabilities) { c.Contention = false }, func(e *store.Extensions) { e.NotifyContended = nil }},
		{"Requeue", func(c *store.Capabilities) { c.Requeue = false }, func(e *store.Extensions) { e.Requeue = nil }},
		{"ClaimNumber", func(c *store.Capabilities) { c.SlotNumbers = false }, func(e *store.Extensions) { e.ClaimNumber = nil }},
	} {
		bugs = append(bugs, Bug{
			Name:   "does not report the capability for " + ability.what,
			Caught: matches,
			Plant:  func(m *memstore.Store) store.Store { return withCapabilities(m, ability.deny) },
		}, Bug{
			Name:   "reports the capability for " + ability.what + " but lacks it",
			Caught: matches,
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
					return ticket{Ticket: inner, extend: ability.lack}
				})
			},
		})
	}
	return append(bugs, Bug{
		Name:   "has Downgrades without SharedModes",
		Caught: matches,
		Plant: func(m *memstore.Store) store.Store {
			return withCapabilities(m, func(c *store.Capabilities) { c.SharedModes = false })
		},
	}, Bug{
		Name:   "has ClearMarks without Fencing",
		Caught: matches,
		Plant: func(m *memstore.Store) store.Store {
			return withCapabilities(m, func(c *store.Capabilities) { c.Fencing = false })
		},
	}, Bug{
		Name:   "returns no extensions after the withdrawal",
		Caught: matches,
		Plant: func(m *memstore.Store) store.Store {
			return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
				gone := false
				return ticket{
					Ticket: inner,
					withdraw: func(ctx context.Context) error {
						gone = true
						return inner.Withdraw(ctx)
					},
					extend: func(e *store.Extensions) {
						if gone {
							*e = store.Extensions{}
						}
					},
				}
			})
		},
	})
}
