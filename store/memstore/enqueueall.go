package memstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/stilelock/stile/store"
)

// enqueueAll is [store.Capabilities.EnqueueAll].
func (s *Store) enqueueAll(ctx context.Context, opened store.Session, reqs []store.Request) ([]store.Ticket, error) {
	se, ok := opened.(*session)
	if !ok || se.store != s {
		return nil, fmt.Errorf("memory store: session %s was not opened by this store", opened.ID())
	}
	names := make([]string, 0, len(reqs))
	for _, req := range reqs {
		names = append(names, req.Name)
	}
	return se.enqueue(ctx, Call{Op: EnqueueAll, Session: se.id, Name: strings.Join(names, " ")}, reqs)
}
