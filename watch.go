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
	// watchInterval is the minimum time between two readings.
	watchInterval = 100 * time.Millisecond
	// watchRetryInterval is the time from a failed reading to the next one.
	watchRetryInterval = time.Second
	// watchResyncInterval is the time after which the lines are read again without a notification,
	// so that an outage is noticed.
	watchResyncInterval = 10 * time.Second
)

// WatchLines yields the lines whose name begins with prefix, like [Client.Lines], at once and again
// each time they may have changed, until ctx ends or the loop is left. It reads them at most ten
// times a second and at least every ten seconds. So it can miss a change that is undone between two
// readings, and can yield the same lines twice.
//
// If a reading fails, its error is yielded, and the next reading follows a second later. If the
// prefix is invalid, the client is closed, or the store refuses the watch, that error is yielded last.
// The end of ctx is not an error: the loop just ends.
func (c *Client) WatchLines(ctx context.Context, prefix string) iter.Seq2[[]Line, error] {
	return watch(ctx, c, prefix, store.CheckPrefix(prefix), func(ctx context.Context) ([]Line, error) {
		return c.Lines(ctx, prefix)
	})
}

// WatchLine is [Client.WatchLines] for a single name. It accepts every name that [Client.Lines]
// returns.
func (c *Client) WatchLine(ctx context.Context, name string) iter.Seq2[Line, error] {
	return watch(ctx, c, name, nil, func(ctx context.Context) (Line, error) {
		return c.Line(ctx, name)
	})
}

// watch yields the results of read: at first, and whenever the store reports that a line with the
// prefix may have changed.
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
			default: // the next reading will include this change too
			}
		}
		var watching sync.WaitGroup
		watching.Go(func() { refused <- c.store.Watch(ctx, prefix, again) })
		defer watching.Wait()
		defer cancel()

		// The first reading does not wait for the watch, so that the error of an unreachable store
		// is yielded at once.
		for c.check() == nil && ctx.Err() == nil {
			got, err := read(ctx)
			if c.check() != nil || ctx.Err() != nil {
				break // the end of ctx or of the client is the cause of err
			}
			if !yield(got, err) {
				return
			}
			pace := watchInterval
			if err != nil {
				pace = watchRetryInterval
				again()
			}
			select {
			case <-time.After(pace):
			case <-ctx.Done():
			}
			select {
			case <-changes:
			case <-time.After(watchResyncInterval):
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
