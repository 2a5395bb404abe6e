package redisstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/watchpump"
)

// resyncInterval is how often a watch reports a possible change although nothing was published: nothing is when leases end,
// or when keys of other clients come and go. In a cluster, where it would go to all servers, nothing is published at all.
const resyncInterval = 2 * time.Second

// Watch implements [store.Store].
func (s *Store) Watch(ctx context.Context, prefix string, changed func()) error {
	return watchpump.Run(ctx, changed, func(ctx context.Context, tell func()) error {
		return s.watch(ctx, prefix, tell)
	})
}

// watch calls tell after each change until ctx ends or the server refuses.
func (s *Store) watch(ctx context.Context, prefix string, tell func()) error {
	doing := fmt.Sprintf("watch the locks that begin with %q", prefix)
	interval := resyncInterval
	var refusal <-chan struct{}
	var sub *subscriber
	if s.server.cluster {
		if _, err := s.names(ctx, prefix); err != nil { // whether it may
			return s.explain(doing, attempts.EndedBy(ctx, err))
		}
		interval = longestPoll
		tell()
	} else {
		sub = s.subscribe(s.server.keys.changes(), tell, func(name string) {
			if strings.HasPrefix(name, prefix) {
				tell()
			}
		})
		defer sub.stop()
		refusal = sub.ready
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if sub == nil || sub.listening.Load() {
				tell()
			}
		case <-refusal:
			if refusal = nil; sub.err != nil {
				return s.explain(doing, sub.err)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
