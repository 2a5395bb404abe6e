package cli

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/store"
)

// stoppable is a store under whose sessions a command can be stopped in time. How much time that leaves is known when a
// session has been granted: a store may end it early, by a third of its TTL on ZooKeeper (see [store.Terms]). With so much
// less to share, a command that takes its quarter of the TTL to end would be told to before a server that hangs is given up
// for another; and one that takes three eighths before the first renewal.
type stoppable struct {
	store.Store

	killAfter time.Duration // how long the command may take to end
	asked     bool          // by the user; otherwise less will do

	fitting atomic.Int64 // how long it may take under the last session, in nanoseconds
}

// Open implements [store.Store]. It refuses to wait for a lock under which the command could not be stopped as was asked.
func (s *stoppable) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	session, err := s.Store.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	granted := session.Terms()
	certain := granted.TTL - granted.Slack
	fitting, longest := s.killAfter, mostKillAfter(certain)
	switch {
	case !s.asked:
		fitting = min(fitting, usualKillAfter(certain))
	case s.killAfter > longest:
		_ = session.Close(ctx) // without entries: it may as well end by itself
		return nil, fmt.Errorf("--kill-after %s is too long for --ttl %s on this store, which may end a session after %s: "+
			"use at most %s, or a longer --ttl", brief(s.killAfter), brief(granted.TTL), brief(round(certain)), brief(longest.Truncate(time.Millisecond)))
	}
	s.fitting.Store(int64(fitting))
	return session, nil
}
