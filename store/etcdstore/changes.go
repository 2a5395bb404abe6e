package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store/internal/attempts"
)

// Watch implements [store.Store]. It hears of every key that begins with the store's prefix and the one given, so on a
// cluster that is used for much else a prefix is kinder.
func (s *Store) Watch(ctx context.Context, prefix string, changed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	c := &changes{store: s, prefix: prefix, news: make(chan struct{}, 1)}
	var err error
	var hearing sync.WaitGroup
	over := make(chan struct{})
	hearing.Go(func() {
		defer close(over)
		err = c.hear(ctx)
	})
	defer hearing.Wait()
	defer cancel()
	for {
		select {
		case <-c.news:
			changed()
		case <-over:
			return err
		}
	}
}

// changes hears of what happens to the lines whose name begins with a prefix. It never waits for whoever is told: what
// the etcd client has for a watch that nobody reads, it keeps in memory.
type changes struct {
	store  *Store
	prefix string
	news   chan struct{} // holds one: the next reading will show all that happened before it
}

func (c *changes) tell() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// hear opens one watch after the other until ctx ends or the cluster refuses.
func (c *changes) hear(ctx context.Context) error {
	s := c.store
	pause := firstPause
	for stream := 0; ; {
		if err := c.mayRead(ctx); err != nil {
			return s.explain(fmt.Sprintf("watch the locks that begin with %q", c.prefix), endedBy(ctx, err))
		}
		start := time.Now()
		err := c.follow(onStream(clientv3.WithRequireLeader(ctx), stream))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.logger.LogAttrs(ctx, slog.LevelDebug, "watch of the lines ended; opening another",
			slog.String("prefix", c.prefix), slog.Any("error", err))
		if errors.Is(err, errSilent) {
			stream++
		}
		if time.Since(start) > attempts.LongestPause {
			pause = firstPause
		}
		attempts.Rest(ctx, pause)
		pause = min(2*pause, attempts.LongestPause)
	}
}

// mayRead returns the cluster's refusal to let the keys be read. It is asked before a watch, because one that is refused
// would end all others on the same stream, and because reasons for which a watch ends may pass.
func (c *changes) mayRead(ctx context.Context) error {
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
	ticker := time.NewTicker(c.store.times.lookAgain)
	defer ticker.Stop()
	for {
		select {
		case resp, ok := <-events:
			if !ok || resp.Err() != nil {
				return resp.Err()
			}
			if c.matter(resp.Events) {
				c.tell()
			}
		case <-ticker.C:
			c.tell()
		}
	}
}

// matter reports whether one of the events is about what may be an entry.
func (c *changes) matter(events []*clientv3.Event) bool {
	for _, ev := range events {
		if name, ok := c.store.keys.name(ev.Kv.Key); ok && strings.HasPrefix(name, c.prefix) {
			return true
		}
	}
	return false
}
