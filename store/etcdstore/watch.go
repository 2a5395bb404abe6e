package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/watchpump"
)

// Watch implements [store.Store]. It watches every key that begins with the store's prefix and the
// given one. On a cluster with many other keys, use a prefix. Events are drained while changed
// runs, so a slow changed does not make the etcd client buffer them.
func (s *Store) Watch(ctx context.Context, prefix string, changed func(names []string)) error {
	return watchpump.Run(ctx, changed, func(ctx context.Context, notify watchpump.Notify) error {
		c := &prefixWatch{store: s, prefix: prefix, notify: notify}
		return c.run(ctx)
	})
}

// prefixWatch is a watch of the lines whose name begins with a prefix.
type prefixWatch struct {
	store  *Store
	prefix string
	notify watchpump.Notify
}

// run opens one watch after another until ctx ends or reading is not permitted.
func (c *prefixWatch) run(ctx context.Context) error {
	stream := 0
	return attempts.KeepUp(ctx, firstPause, func() error {
		if err := c.checkReadable(ctx); err != nil {
			return c.store.wrapErr(fmt.Sprintf("watch the locks that begin with %q", c.prefix), endedBy(ctx, err))
		}
		err := c.watchOnce(onStream(clientv3.WithRequireLeader(ctx), stream))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.store.logger.LogAttrs(ctx, slog.LevelDebug, "watch of the lines ended; opening another",
			slog.String("prefix", c.prefix), slog.Any("error", err))
		if errors.Is(err, errWatchSilent) {
			stream++
		}
		return nil
	})
}

// checkReadable returns an error if reading the keys is not permitted. It is called before a watch
// is opened, because a watch that is refused ends all others on its gRPC stream, and because the
// reason with which a watch ends may be temporary.
func (c *prefixWatch) checkReadable(ctx context.Context) error {
	return c.store.attempt(ctx, func(ctx context.Context) error {
		_, err := c.store.cli.Get(ctx, c.store.keys.prefix+c.prefix,
			clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
		return err
	})
}

// watchOnce opens one watch and handles its events until it ends.
func (c *prefixWatch) watchOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := c.store.openWatch(ctx, cancel, c.store.keys.prefix+c.prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	c.notify() // there may have been changes before the watch started
	ticker := time.NewTicker(c.store.times.resyncInterval)
	defer ticker.Stop()
	for {
		select {
		case resp, ok := <-events:
			if !ok || resp.Err() != nil {
				return resp.Err()
			}
			if names := c.names(resp.Events); len(names) > 0 {
				c.notify(names...)
			}
		case <-ticker.C:
			c.notify()
		}
	}
}

// names returns the names of the lines with events about a key that may be an entry.
func (c *prefixWatch) names(events []*clientv3.Event) []string {
	var names []string
	for _, ev := range events {
		if name, ok := c.store.keys.name(ev.Kv.Key); ok && strings.HasPrefix(name, c.prefix) {
			names = append(names, name)
		}
	}
	return names
}
