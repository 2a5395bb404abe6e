package redlockstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stilelock/stile/store/internal/attempts"
)

// lookAgain is how often a watch says that there may have been a change although it has heard of none: nothing is
// published when an entry's time is over, or when a client that is not Stile comes or goes.
const lookAgain = 2 * time.Second

// Watch implements [store.Store].
func (s *Store) Watch(ctx context.Context, prefix string, changed func()) error {
	doing := fmt.Sprintf("watch the locks that begin with %q", prefix)
	within, cancel := context.WithTimeoutCause(ctx, attempts.Patience, errPatience)
	_, err := s.names(within, prefix) // which says whether reading is allowed
	cancel()
	if err != nil && (ctx.Err() != nil || s.refused(err)) {
		return s.explain(doing, attempts.EndedBy(ctx, err))
	}
	heard := make(chan news, 1)
	listening := make(chan news, len(s.masters))
	defer s.hub.listen(topic{channel: s.keys.channels(), pattern: true}, func(n news) {
		to := heard
		switch {
		case n.begun || n.refused != nil:
			to = listening
		case !strings.HasPrefix(n.channel, s.keys.channel(prefix)):
			return
		}
		select {
		case to <- n:
		default: // there is a call to come, and it stands for this as well
		}
	})()
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	begun, refused := make(map[*master]bool), make(map[*master]bool)
	for {
		tell := true
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
			tell = n.begun && len(begun) >= s.quorum
		case <-heard:
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.life.Done():
			return s.explain(doing, errClosed)
		}
		if tell {
			changed()
		}
	}
}
