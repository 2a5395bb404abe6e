package redlockstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/watchpump"
)

// resyncInterval is how often a watch reports a possible change although nothing was published: nothing is when an entry
// expires, or when a client that is not Stile comes or goes.
const resyncInterval = 2 * time.Second

// Watch implements [store.Store].
func (s *Store) Watch(ctx context.Context, prefix string, changed func()) error {
	doing := fmt.Sprintf("watch the locks that begin with %q", prefix)
	within, cancel := context.WithTimeoutCause(ctx, attempts.Patience, errPatience)
	_, err := s.names(within, prefix) // which says whether reading is allowed
	cancel()
	if err != nil && (ctx.Err() != nil || s.refused(err)) {
		return s.explain(doing, attempts.EndedBy(ctx, err))
	}
	return watchpump.Run(ctx, changed, func(ctx context.Context, tell func()) error {
		return s.watch(ctx, prefix, doing, tell)
	})
}

// watch calls tell after each change until ctx ends or a majority of the masters refuses.
func (s *Store) watch(ctx context.Context, prefix, doing string, tell func()) error {
	listening := make(chan news, len(s.masters))
	defer s.subscriptions.listen(topic{channel: s.keys.channels(), pattern: true}, func(n news) {
		switch {
		case n.begun || n.refused != nil:
			select {
			case listening <- n:
			default: // there is one to come, and it stands for this as well
			}
		case strings.HasPrefix(n.channel, s.keys.channel(prefix)):
			tell()
		}
	})()
	ticker := time.NewTicker(resyncInterval)
	defer ticker.Stop()
	begun, refused := make(map[*master]bool), make(map[*master]bool)
	for {
		select {
		case n := <-listening:
			if n.refused != nil {
				refused[n.from] = true
			} else {
				begun[n.from] = true
			}
			if len(refused) >= s.quorum {
				return s.explain(doing, n.refused)
			}
			// Before a majority is listened to, something might not be heard of.
			if n.begun && len(begun) >= s.quorum {
				tell()
			}
		case <-ticker.C:
			tell()
		case <-ctx.Done():
			return ctx.Err()
		case <-s.life.Done():
			return s.explain(doing, errClosed)
		}
	}
}
