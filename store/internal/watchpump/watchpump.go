// Package watchpump decouples a store's source of changes from the callback of Store.Watch.
//
// Neither waits for the other. Changes that arrive while the callback runs are merged into one
// further call, which is enough, because the watcher reads afterwards. One goroutine, the one that
// runs [Run], calls the callback, so there are no concurrent calls, and none after Run has
// returned.
package watchpump

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/stilelock/stile/store/internal/work"
)

// MaxNames is the number of names that are kept for a call. If more have changed, the call says
// that any line may have, so a callback that blocks does not let them pile up.
const MaxNames = 1000

// Notify tells that the named lines may have changed or, without names, that any line may have.
type Notify func(names ...string)

// Run calls changed after each call of notify, with the names of the lines that may have changed
// since the previous call, or with nil if any line may have. It returns the error of listen when
// listen returns. listen runs in a goroutine of its own. It may call notify at any time, and must
// return when its ctx ends. Run waits for listen and for a running call of changed before it returns.
func Run(ctx context.Context, changed func(names []string), listen func(ctx context.Context, notify Notify) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var (
		err       error
		listening sync.WaitGroup
		pending   = changes{arrived: work.NewSignal(), names: make(map[string]struct{})}
		done      = make(chan struct{})
	)
	listening.Go(func() {
		defer close(done)
		err = listen(ctx, pending.add)
	})
	defer listening.Wait() // also if changed panics
	defer cancel()
	for {
		select {
		case <-pending.arrived:
			changed(pending.take())
		case <-done:
			return err
		}
	}
}

// changes are the changes of which the callback has not been told yet.
type changes struct {
	arrived work.Signal

	mu    sync.Mutex
	any   bool // any line may have changed
	names map[string]struct{}
}

func (c *changes) add(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		c.names[name] = struct{}{}
	}
	c.any = c.any || len(names) == 0 || len(c.names) > MaxNames
	if c.any {
		clear(c.names)
	}
	c.arrived.Set()
}

// take returns the names in order, or nil if any line may have changed, and forgets them.
func (c *changes) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	if !c.any {
		names = slices.Sorted(maps.Keys(c.names))
	}
	c.any = false
	clear(c.names)
	c.arrived.Clear() // by changes that came since it was received, and are in names
	return names
}
