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
	// WatchChanges spends at most one part in so many of the time on readings of all lines: of those that
	// follow a notification that any line may have changed, and of those without a notification.
	fullReadingShare, resyncShare = 10, 1000
	// maxReadingPause limits the pause after a slow reading: a busy machine makes it slow, not expensive.
	maxReadingPause = 30 * time.Second
	// changeReaders is the number of lines that WatchChanges reads at the same time.
	changeReaders = 8
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
	return watch(ctx, c, prefix, store.CheckPrefix(prefix), false, func(ctx context.Context, _ []string) ([]Line, error) {
		return c.Lines(ctx, prefix)
	})
}

// WatchLine is [Client.WatchLines] for a single name. It accepts every name that [Client.Lines]
// returns.
func (c *Client) WatchLine(ctx context.Context, name string) iter.Seq2[Line, error] {
	return watch(ctx, c, name, nil, false, func(ctx context.Context, _ []string) (Line, error) {
		return c.Line(ctx, name)
	})
}

// A Change is what [Client.WatchChanges] yields: lines that have been read, because they may have
// changed.
type Change struct {
	// Lines are the lines that were read, sorted by name. Unless All is set, a line without holders
	// and waiters is one that was found empty. They must not be modified if Exact is set.
	Lines []Line `json:"lines"`
	// All is true if all lines were read. A name with the prefix that is not in Lines has no holders
	// and waiters then.
	All bool `json:"all"`
	// At is when the reading began. Each [Entry.Remaining] was true at that time or later, except that it
	// may not show a renewal in the second before.
	At time.Time `json:"at"`
	// Exact is true if the store itself has reported the lines, as etcd does: Lines are then all that one step in the
	// store has changed, unless All is set, and At is when this client received them. A client of another store
	// reads the lines that may have changed, and may miss what was undone before. Remaining of an exact change is
	// zero; [Client.Line] has it.
	Exact bool `json:"exact"`
}

// WatchChanges is [Client.WatchLines] for watching many lines: it yields all of them at first, and
// afterwards only those that have changed. So what a change costs does not depend on the number
// of lines.
//
// On etcd and in memory it yields every state of every line, in order, and nothing is read for a change. Some states
// are left out while the body of the loop is too slow, after an outage, and of a line with more than
// [store.MaxFollowed] entries, which is yielded at most ten times a second. See [Change.Exact].
//
// On other stores the lines that may have changed are read, at most ten times a second. All lines are read again
// when the store cannot tell which have changed, as after an outage, and every ten seconds. If that takes long,
// it is done less often: readings after an outage take at most a tenth of the time, with pauses of at most 30
// seconds; the regular ones take at most a thousandth. Changes that the store reports by name are not delayed by
// that. Redis and Redlock report neither entries that expire nor what other
// lockers do, and ZooKeeper
// does not report a changed owner, so these stores say every few seconds that any line may have changed.
//
// After an error all lines are read, so the next Change makes up for what was missed.
func (c *Client) WatchChanges(ctx context.Context, prefix string) iter.Seq2[Change, error] {
	if c.caps.Follow != nil {
		return c.followChanges(ctx, prefix)
	}
	return watch(ctx, c, prefix, store.CheckPrefix(prefix), true, func(ctx context.Context, names []string) (Change, error) {
		at := time.Now()
		if names == nil {
			lines, err := c.Lines(ctx, prefix)
			return Change{Lines: lines, All: true, At: at}, err
		}
		lines, err := c.readLines(ctx, names)
		return Change{Lines: lines, At: at}, err
	})
}

// followChanges is WatchChanges on a store that reports the lines themselves.
func (c *Client) followChanges(ctx context.Context, prefix string) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		if err := store.CheckPrefix(prefix); err != nil {
			yield(Change{}, fmt.Errorf("stile: %w", err))
			return
		}
		if err := c.check(); err != nil {
			yield(Change{}, err)
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(c.life, cancel)()
		left := false
		err := c.caps.Follow(ctx, prefix, func(found store.Changes) {
			if ctx.Err() != nil {
				return
			}
			change, err := Change{Lines: make([]Line, 0, len(found.Lines)), All: found.All, At: found.At, Exact: true}, found.Err
			if err != nil {
				change, err = Change{}, fmt.Errorf("stile: watch %q: %w", prefix, err)
			}
			for _, l := range found.Lines {
				change.Lines = append(change.Lines, lineOf(l))
			}
			if !yield(change, err) {
				left = true
				cancel()
			}
		})
		switch closed := c.check(); {
		case left:
		case closed != nil:
			yield(Change{}, closed)
		case ctx.Err() == nil:
			yield(Change{}, fmt.Errorf("stile: watch %q: %w", prefix, err))
		}
	}
}

// readLines reads the lines of the names, in their order.
func (c *Client) readLines(ctx context.Context, names []string) ([]Line, error) {
	lines, errs := make([]Line, len(names)), make([]error, len(names))
	var readers sync.WaitGroup
	places := make(chan struct{}, changeReaders)
	for i, name := range names {
		places <- struct{}{}
		readers.Go(func() {
			defer func() { <-places }()
			lines[i], errs[i] = c.Line(ctx, name)
		})
	}
	readers.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return lines, nil
}

// watch yields the results of read: at first, and whenever the store reports that a line with the
// prefix may have changed. If byName is set, read gets the names of these lines, or nil to read all of
// them, which watch then does only for a part of the time. Otherwise read
// always gets nil.
func watch[T any](
	ctx context.Context, c *Client, prefix string, bad error, byName bool,
	read func(ctx context.Context, names []string) (T, error),
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

		// The callback blocks until its names are taken. Meanwhile the store collects further ones.
		p := pacer{changes: make(chan []string), refused: make(chan error, 1)}
		var watching sync.WaitGroup
		watching.Go(func() {
			p.refused <- c.store.Watch(ctx, prefix, func(names []string) {
				if !byName {
					names = nil
				}
				select {
				case p.changes <- names:
				case <-ctx.Done():
				}
			})
		})
		defer watching.Wait()
		defer cancel()

		// The first reading does not wait for the watch, so that the error of an unreachable store
		// is yielded at once.
		var names []string // to be read; nil for all lines
		for c.check() == nil && ctx.Err() == nil {
			began := time.Now()
			got, err := read(ctx, names)
			if c.check() != nil || ctx.Err() != nil {
				break // the end of ctx or of the client is the cause of err
			}
			took := time.Since(began)
			if !yield(got, err) {
				return
			}
			now := time.Now()
			pace := watchInterval
			switch {
			case err != nil:
				pace, p.earliest, p.due = watchRetryInterval, now, now
			case names == nil:
				p.earliest, p.due = now, now.Add(watchResyncInterval)
				if byName {
					p.earliest = now.Add(min((fullReadingShare-1)*took, maxReadingPause))
					p.due = now.Add(max(watchResyncInterval, (resyncShare-1)*took))
				}
			}
			select {
			case <-time.After(pace):
			case <-ctx.Done():
			}
			if names, err = p.next(ctx); err != nil && ctx.Err() == nil {
				yield(none, fmt.Errorf("stile: watch %q: %w", prefix, err))
				return
			}
		}
		if err := c.check(); err != nil {
			yield(none, err)
		}
	}
}

// pacer decides what a watch reads next.
type pacer struct {
	changes chan []string // from the store: the names of lines that may have changed; nil for any
	refused chan error    // the error with which the store's watch has ended

	due      time.Time // of the next reading of all lines
	earliest time.Time // no reading of all lines begins before
}

// next waits until there is something to read. It returns nil if a reading of all lines is due, which
// comes first, or the names of lines that may have changed. It returns the error of the watch if
// that has ended, and nil when ctx ends.
func (p *pacer) next(ctx context.Context) ([]string, error) {
	for {
		if p.due.Before(p.earliest) {
			p.due = p.earliest
		}
		due := time.Until(p.due)
		if due <= 0 {
			select {
			case err := <-p.refused:
				return nil, err
			default:
				return nil, nil
			}
		}
		select {
		case names := <-p.changes:
			if names != nil {
				return names, nil
			}
			p.due = p.earliest
		case <-time.After(due):
			return nil, nil
		case err := <-p.refused:
			return nil, err
		case <-ctx.Done():
			return nil, nil
		}
	}
}
