package redisstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stilelock/stile/store/internal/attempts"
)

// lookAgain is how often a watch says that there may have been a change although it has heard of none: leases end, and keys
// of other clients come and go, without a word. In a cluster, where such words would go to all servers, none are said.
const lookAgain = 2 * time.Second

// Watch implements [store.Store].
func (s *Store) Watch(ctx context.Context, prefix string, changed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	doing := fmt.Sprintf("watch the locks that begin with %q", prefix)
	news := make(chan struct{}, 1)
	tell := func() {
		select {
		case news <- struct{}{}:
		default:
		}
	}
	pace := lookAgain
	var refusal <-chan struct{}
	var e *ear
	if s.server.cluster {
		if _, err := s.names(ctx, prefix); err != nil { // whether it may
			return s.explain(doing, attempts.EndedBy(ctx, err))
		}
		pace = heartbeat
		tell()
	} else {
		e = s.newEar(s.server.keys.changes(), tell, func(name string) {
			if strings.HasPrefix(name, prefix) {
				tell()
			}
		})
		defer e.stop()
		refusal = e.ready
	}
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for {
		select {
		case <-news:
			changed()
		case <-ticker.C:
			if e == nil || e.listening.Load() {
				tell()
			}
		case <-refusal:
			if refusal = nil; e.err != nil {
				return s.explain(doing, e.err)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
