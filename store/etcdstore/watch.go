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

// Watch implements [store.Store]. It watches every key that begins with the store's prefix and the one given, so on a
// cluster that is used for much else a prefix is kinder. What the etcd client has for a watch that nobody reads it keeps in
// memory, so the watch never waits for changed.
func (s *Store) Watch(ctx context.Context, prefix string, changed func()) error {
	return watchpump.Run(ctx, changed, func(ctx context.Context, tell func()) error {
		c := &changes{store: s, prefix: prefix, tell: tell}
		return c.listen(ctx)
	})
}

// changes is the watch of the lines whose name begins with a prefix.
type changes struct {
	store  *Store
	prefix string
	tell   func()
}

// listen opens one watch after the other until ctx ends or the cluster refuses.
func (c *changes) listen(ctx context.Context) error {
	stream := 0
	return attempts.KeepUp(ctx, firstPause, func() error {
		if err := c.checkReadable(ctx); err != nil {
			return c.store.explain(fmt.Sprintf("watch the locks that begin with %q", c.prefix), endedBy(ctx, err))
		}
		err := c.follow(onStream(clientv3.WithRequireLeader(ctx), stream))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.store.logger.LogAttrs(ctx, slog.LevelDebug, "watch of the lines ended; opening another",
			slog.String("prefix", c.prefix), slog.Any("error", err))
		if errors.Is(err, errSilent) {
			stream++
		}
		return nil
	})
}

// checkReadable returns the error if the cluster does not permit reading the keys. It is called before a watch is opened,
// because a watch that is refused would end all others on the same stream, and because the reason that a watch ends with may
// be a passing one.
func (c *changes) checkReadable(ctx context.Context) error {
	return attempt(ctx, func(ctx context.Context) error {
		_, err := c.store.cli.Get(ctx, c.store.keys.prefix+c.prefix,
			clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
		return err
	})
}

// follow opens one watch and follows it to its end.
func (c *changes) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := c.store.openWatch(ctx, cancel, c.store.keys.prefix+c.prefix)
	if err != nil {
		return err
	}
	c.tell() // of what happened before
	ticker := time.NewTicker(c.store.times.resyncInterval)
	defer ticker.Stop()
	for {
		select {
		case resp, ok := <-events:
			if !ok || resp.Err() != nil {
				return resp.Err()
			}
			if c.relevant(resp.Events) {
				c.tell()
			}
		case <-ticker.C:
			c.tell()
		}
	}
}

// relevant reports whether one of the events is about a key that may be an entry.
func (c *changes) relevant(events []*clientv3.Event) bool {
	for _, ev := range events {
		if name, ok := c.store.keys.name(ev.Kv.Key); ok && strings.HasPrefix(name, c.prefix) {
			return true
		}
	}
	return false
}
