// Package watchpump decouples a store's source of changes from the callback of Store.Watch.
//
// Neither waits for the other. Changes that arrive while the callback runs are merged into one
// further call, which is enough, because the watcher reads afterwards. One goroutine, the one that
// runs [Run], calls the callback, so there are no concurrent calls, and none after Run has
// returned.
package watchpump

import (
	"context"
	"sync"

	"github.com/stilelock/stile/store/internal/work"
)

// Run calls changed after each call of notify, and returns the error of listen when listen returns.
// listen runs in a goroutine of its own. It may call notify at any time, and must return when its
// ctx ends. Run waits for listen and for a running call of changed before it returns.
func Run(ctx context.Context, changed func(), listen func(ctx context.Context, notify func()) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var (
		err       error
		listening sync.WaitGroup
		changes   = work.NewSignal()
		done      = make(chan struct{})
	)
	listening.Go(func() {
		defer close(done)
		err = listen(ctx, changes.Set)
	})
	defer listening.Wait() // also if changed panics
	defer cancel()
	for {
		select {
		case <-changes:
			changed()
		case <-done:
			return err
		}
	}
}
