package redisstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/watchpump"
)

// resyncInterval is the interval at which a watch reports a possible change although nothing was
// published: nothing is published when a lease ends, or when another client sets or deletes a key.
// In a cluster nothing is published for watches at all, because it would go to every node.
const resyncInterval = 2 * time.Second

// Watch implements [store.Store]. Nothing is published when a lease ends or another locker changes a key.
// So it also calls changed every two seconds; in a cluster only that, every second.
func (s *Store) Watch(ctx context.Context, prefix string, changed func(names []string)) error {
	return watchpump.Run(ctx, changed, func(ctx context.Context, notify watchpump.Notify) error {
		return s.watch(ctx, prefix, notify)
	})
}

// watch calls notify after each change until ctx ends or the server refuses.
func (s *Store) watch(ctx context.Context, prefix string, notify watchpump.Notify) error {
	op := fmt.Sprintf("watch the locks that begin with %q", prefix)
	interval := resyncInterval
	var refusal <-chan struct{}
	var sub *subscriber
	if s.server.cluster {
		if _, err := s.names(ctx, prefix); err != nil { // checks the permission
			return s.wrapErr(op, attempts.WithContextErr(ctx, err))
		}
		interval = maxPollInterval
		notify()
	} else {
		sub = s.subscribe(s.server.keys.changes(), func() { notify() }, func(name string) {
			if strings.HasPrefix(name, prefix) {
				notify(name)
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
			notify()
		case <-refusal:
			if refusal = nil; sub.err != nil {
				return s.wrapErr(op, sub.err)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
