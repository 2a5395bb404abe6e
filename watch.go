package stile

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/stilelock/stile/store"
)

const (
	// watchPace is the least time between two readings of a watch.
	watchPace = 100 * time.Millisecond
	// watchRetry is how long after a reading that has failed the next one is tried.
	watchRetry = time.Second
	// watchAnyway is how long after a reading there is another though nothing was heard: so that an outage is noticed.
	watchAnyway = 10 * time.Second
)

// WatchLines yields the lines whose name begins with prefix as they are now, as [Client.Lines] would, and again each time
// something may have changed, until ctx ends or the loop is left. What comes and goes between two readings, of which there
// are at most ten a second, is not seen; that nothing has changed between two readings is possible, and when nothing
// happens there is one every ten seconds.
//
// A reading that fails is yielded as an error; if the loop goes on, so does the watch, with the next reading a second later.
// What cannot pass is the last thing yielded: a bad prefix, a closed client, a watch that the store refuses. The end of ctx
// is not an error: the loop just ends.
func (c *Client) WatchLines(ctx context.Context, prefix string) iter.Seq2[[]Line, error] {
	return watch(ctx, c, prefix, store.CheckPrefix(prefix), func(ctx context.Context) ([]Line, error) {
		return c.Lines(ctx, prefix)
	})
}

// WatchLine yields the line behind name as it is now, and again each time it may have changed. It is [Client.WatchLines] for a
// single name, which may be any that [Client.Lines] returns.
func (c *Client) WatchLine(ctx context.Context, name string) iter.Seq2[Line, error] {
	return watch(ctx, c, name, nil, func(ctx context.Context) (Line, error) {
		return c.Line(ctx, name)
	})
}

// watch yields what read returns, at first and whenever the store says that something with that prefix may have changed.
func watch[T any](
	ctx context.Context, c *Client, prefix string, bad error, read func(context.Context) (T, error),
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		if bad != nil {
			yield(none, fmt.Errorf("stile: %w", bad))
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(c.life, cancel)
		defer stop()

		changes, refused := make(chan struct{}, 1), make(chan error, 1)
		again := func() {
			select {
			case changes <- struct{}{}:
			default: // the reading to come will see this change too
			}
		}
		var watching sync.WaitGroup
		watching.Go(func() { refused <- c.store.Watch(ctx, prefix, again) })
		defer watching.Wait()
		defer cancel()

		// The first reading does not wait for the watch: of a store that cannot be reached one wants to hear.
		for c.check() == nil && ctx.Err() == nil {
			got, err := read(ctx)
			if c.check() != nil || ctx.Err() != nil {
				break // that is why it failed, if it has
			}
			if !yield(got, err) {
				return
			}
			pace := watchPace
			if err != nil {
				pace = watchRetry
				again()
			}
			select {
			case <-time.After(pace):
			case <-ctx.Done():
			}
			select {
			case <-changes:
			case <-time.After(watchAnyway):
			case <-ctx.Done():
			case err := <-refused:
				if ctx.Err() == nil {
					yield(none, fmt.Errorf("stile: watch %q: %w", prefix, err))
					return
				}
			}
		}
		if err := c.check(); err != nil {
			yield(none, err)
		}
	}
}
