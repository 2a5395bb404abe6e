package redlockstore

import (
	"context"

	"github.com/stilelock/stile/store"
)

// Renew renews entries of a session, as does a confirmation that has begun before they were
// withdrawn.
func Renew(ctx context.Context, se store.Session, tickets ...store.Ticket) error {
	var all []*entry
	for _, t := range tickets {
		all = append(all, t.(*entry))
	}
	return se.(*session).renew(ctx, all)
}
