// Package watchpump stands between what a store hears of changes and whoever watches, for Store.Watch.
//
// The two never wait for each other. What the store hears while the watcher is busy comes to one call, which is enough,
// because the watcher reads afterwards. The watcher is called by one goroutine, the one that runs [Run]; so there is no
// call after Run has returned, and none beside another.
package watchpump

import (
	"context"
	"sync"

	"github.com/stilelock/stile/store/internal/work"
)

// Run calls changed after each call of tell, until listen returns; then it returns the error of listen. listen runs in a
// goroutine of its own, which may call tell at any time and must return when its ctx ends. Run returns only after listen
// has, and after a call of changed that is under way.
func Run(ctx context.Context, changed func(), listen func(ctx context.Context, tell func()) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var (
		err       error
		listening sync.WaitGroup
		news      = work.NewSignal()
		over      = make(chan struct{})
	)
	listening.Go(func() {
		defer close(over)
		err = listen(ctx, news.Set)
	})
	defer listening.Wait() // also if changed panics
	defer cancel()
	for {
		select {
		case <-news:
			changed()
		case <-over:
			return err
		}
	}
}
