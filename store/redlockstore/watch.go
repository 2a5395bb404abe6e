package redlockstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/watchpump"
)

// resyncInterval is the interval at which a watch reports a possible change although nothing was
// published: nothing is published when an entry expires, or when another client sets or deletes a
// key.
const resyncInterval = 2 * time.Second

// Watch implements [store.Store].
func (s *Store) Watch(ctx context.Context, prefix string, changed func(names []string)) error {
	op := fmt.Sprintf("watch the locks that begin with %q", prefix)
	within, cancel := context.WithTimeoutCause(ctx, attempts.MaxDuration, errNoMajority)
	_, err := s.names(within, prefix) // checks the permission
	cancel()
	if err != nil && (ctx.Err() != nil || s.refused(err)) {
		return s.wrapErr(op, attempts.WithContextErr(ctx, err))
	}
	return watchpump.Run(ctx, changed, func(ctx context.Context, notify watchpump.Notify) error {
		return s.watch(ctx, prefix, op, notify)
	})
}

// watch calls notify after each change until ctx ends or a majority of the masters refuses.
func (s *Store) watch(ctx context.Context, prefix, op string, notify watchpump.Notify) error {
	events := make(chan event, len(s.masters))
	// The first call is for all lines. A name that one master reports before is covered by it.
	var mu sync.Mutex
	open := false
	notifyAll := func() {
		mu.Lock()
		defer mu.Unlock()
		open = true
		notify()
	}
	defer s.subscriptions.listen(topic{channel: s.keys.channels(), pattern: true}, func(n event) {
		switch {
		case n.subscribed || n.refused != nil:
			select {
			case events <- n:
			default: // full: a buffered event has the same effect
			}
		case strings.HasPrefix(n.channel, s.keys.channel(prefix)):
			mu.Lock()
			defer mu.Unlock()
			if open {
				notify(s.keys.nameOfChannel(n.channel))
			}
		}
	})()
	ticker := time.NewTicker(resyncInterval)
	defer ticker.Stop()
	begun, refused := make(map[*master]bool), make(map[*master]bool)
	for {
		select {
		case n := <-events:
			if n.refused != nil {
				refused[n.from] = true
			} else {
				begun[n.from] = true
			}
			if len(refused) >= s.quorum {
				return s.wrapErr(op, n.refused)
			}
			// Changes before a majority was subscribed to may have been missed.
			if n.subscribed && len(begun) >= s.quorum {
				notifyAll()
			}
		case <-ticker.C:
			notifyAll()
		case <-ctx.Done():
			return ctx.Err()
		case <-s.life.Done():
			return s.wrapErr(op, errClosed)
		}
	}
}
