package zkstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/watchpump"
	"github.com/stilelock/stile/store/internal/work"
)

// resyncInterval is how often a watch reports a possible change although it has received no event:
// one was missed, or an owner has changed. The latter changes the data of a node, which no watch of a
// directory reports.
const resyncInterval = 5 * time.Second

// Watch implements [store.Store]. It has its own connection, and one watch for each directory that
// may have a lock whose name begins with prefix; the client library does not support ZooKeeper's
// recursive watches. So if the ensemble also stores other data, give Stile its own root.
func (s *Store) Watch(ctx context.Context, prefix string, changed func(names []string)) error {
	return watchpump.Run(ctx, changed, func(ctx context.Context, notify watchpump.Notify) error {
		c := &changes{store: s, prefix: prefix, notify: notify, events: work.NewSignal(), dirty: make(map[string]bool)}
		return c.listen(ctx)
	})
}

// changes is the watch of the lines whose name begins with a prefix.
type changes struct {
	store  *Store
	client *client
	prefix string
	notify watchpump.Notify
	events work.Signal // set when dirty is not empty, or all is set

	mu    sync.Mutex
	dirty map[string]bool // directories whose watch has fired
	all   bool            // all watches may be gone

	// watched has the directories that are watched. Only the goroutine that runs listen uses it.
	watched map[string]directory
}

// directory is a watched directory.
type directory struct {
	name  string   // whose directory it is; empty for the top
	below []string // names whose directories are in it
}

// handle records an event.
func (c *changes) handle(ev zk.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case ev.Type == zk.EventSession && ev.State == zk.StateHasSession:
		c.all = true
	case ev.Type == zk.EventNodeChildrenChanged, ev.Type == zk.EventNodeDeleted, ev.Type == zk.EventNodeCreated:
		c.dirty[ev.Path] = true
	default:
		return
	}
	c.events.Set()
}

// listen watches the directories until ctx ends or the servers refuse.
func (c *changes) listen(ctx context.Context) error {
	op := fmt.Sprintf("watch the locks that begin with %q", c.prefix)
	client, err := c.store.connect(readingTTL, false, c.handle)
	if err != nil {
		return c.store.wrapErr(op, err)
	}
	defer func() { go client.shut() }() // it may take a second
	c.client = client
	if err := client.await(ctx); err != nil {
		return c.store.wrapErr(op, attempts.WithContextErr(ctx, err))
	}
	ticker := time.NewTicker(c.store.resyncInterval)
	defer ticker.Stop()
	for {
		select {
		case <-c.events:
			if err := c.catchUp(ctx); err != nil {
				return c.store.wrapErr(op, attempts.WithContextErr(ctx, err))
			}
		case <-ticker.C:
			c.notify()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// catchUp renews the watches that have fired, watches new directories, and calls notify if a line may
// have changed.
func (c *changes) catchUp(ctx context.Context) error {
	c.mu.Lock()
	dirty, all := c.dirty, c.all
	c.dirty, c.all = make(map[string]bool), false
	c.mu.Unlock()
	if all {
		c.watched = make(map[string]directory)
	}
	var names []string
	for path := range dirty {
		// A directory that was deleted is not found by the walk.
		if dir, ok := c.watched[path]; ok && dir.name != "" && strings.HasPrefix(dir.name, c.prefix) {
			names = append(names, dir.name)
		}
		delete(c.watched, path)
	}
	added, err := c.walk(ctx)
	if err != nil {
		return err
	}
	if names = append(names, added...); all {
		c.notify()
	} else if len(names) > 0 {
		c.notify(names...)
	}
	return nil
}

// walk makes sure that all directories are watched that may have a lock whose name begins with the
// prefix. It returns the names of the lines whose directories were not watched until now.
func (c *changes) walk(ctx context.Context) (names []string, err error) {
	for level := []string{""}; len(level) > 0; {
		unwatched := slices.DeleteFunc(slices.Clone(level), func(name string) bool {
			_, watched := c.watched[c.store.dirOf(name)]
			return watched
		})
		children, errs := make([][]string, len(unwatched)), make([]error, len(unwatched))
		inParallel(len(unwatched), func(i int) { children[i], errs[i] = c.watch(ctx, c.store.dirOf(unwatched[i])) })
		for i, name := range unwatched {
			switch err := errs[i]; {
			case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrNoAuth) && name != "":
				// Deleted, which the watch of its parent reports; or not readable.
			case err != nil:
				return nil, err
			default:
				c.watched[c.store.dirOf(name)] = directory{name: name, below: c.store.below(name, c.prefix, children[i])}
			}
			if name != "" && strings.HasPrefix(name, c.prefix) {
				names = append(names, name)
			}
		}
		var below []string
		for _, name := range level {
			below = append(below, c.watched[c.store.dirOf(name)].below...)
		}
		level = below
	}
	return names, nil
}

// watch lists a directory and sets a watch for its changes; for its creation, if it is the top
// directory and does not exist.
func (c *changes) watch(ctx context.Context, dir string) ([]string, error) {
	return attempt(ctx, c.client, func(int) ([]string, error) {
		children, _, err := c.client.Children(watched(dir))
		if errors.Is(err, zk.ErrNoNode) && dir == c.store.paths.top() {
			var there bool
			if there, _, err = c.client.Exists(watched(dir)); err == nil && there {
				children, _, err = c.client.Children(watched(dir))
			}
		}
		return children, err
	})
}
