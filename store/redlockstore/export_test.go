package redlockstore

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store"
)

// Scripts are all scripts that the store runs at a master.
var Scripts = []*rueidis.Lua{
	takeScript, recordOrderScript, restoreScript, renewScript, keepScript, leaveScript, readScript, namesScript,
}

// Renew renews entries of a session, as does a confirmation that has begun before they were
// withdrawn.
func Renew(ctx context.Context, se store.Session, tickets ...store.Ticket) error {
	var all []*entry
	for _, t := range tickets {
		all = append(all, t.(*entry))
	}
	return se.(*session).renew(ctx, all)
}
