package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/watchpump"
)

// Watch implements [store.Store]. It watches every key that begins with the store's prefix and the
// given one, and the limits of slots of these lines. On a cluster with many other keys, use a prefix.
// Events are drained while changed runs, so a slow changed does not make the etcd client buffer them.
// After an outage the watch continues where it ended, and names the lines that have changed meanwhile.
func (s *Store) Watch(ctx context.Context, prefix string, changed func(names []string)) error {
	return watchpump.Run(ctx, changed, func(ctx context.Context, notify watchpump.Notify) error {
		lines := &prefixWatch{store: s, prefix: prefix, keys: s.keys.prefix + prefix, to: &notifier{s, prefix, notify}}
		if s.keys.limitsAmong(prefix) {
			return lines.run(ctx)
		}
		limits := &prefixWatch{store: s, prefix: prefix, keys: s.keys.limits(prefix), stream: 1, to: lines.to}
		if err := limits.check(ctx); err != nil {
			return err
		}
		limits.next = limits.checked + 1 // the first call, which is for the lines, covers what was before

		open := make(chan struct{})
		opened := sync.OnceFunc(func() { close(open) })
		lines.to = &notifier{s, prefix, func(names ...string) { notify(names...); opened() }}
		return runBoth(ctx, lines.run, func(ctx context.Context) error {
			select {
			case <-open:
				return limits.run(ctx)
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
}

// runBoth calls both functions at the same time. When one of them returns, it ends the other one's context.
func runBoth(ctx context.Context, a, b func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 2)
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{a, b} {
		running.Go(func() { ended <- run(ctx) })
	}
	err := <-ended
	cancel()
	running.Wait()
	return err
}

// maxCatchUp is the largest number of revisions that a watch catches up with. etcd searches all of them,
// whatever keys they are of, and writes wait meanwhile: for about 10 ms. To catch up with more, all lines
// are read instead.
const maxCatchUp = 10_000

// prefixWatch is a watch of the keys of the lines whose name begins with a prefix, or of their limits. It
// consists of one watch of etcd after another. Each continues where the one before ended, so that the lines
// are known that changed in between.
type prefixWatch struct {
	store  *Store
	prefix string
	keys   string // the prefix of the keys
	stream int    // the number of the gRPC stream: even for lines and odd for limits, so they share none
	to     watchSink

	// next is the revision from which the next watch starts: the sink has all changes before it. If next is zero,
	// the sink begins anew.
	next    int64
	checked int64 // the store's revision at the last check
	passed  int64 // the revision up to which the last quiet watch had delivered all events; zero if not known

	// behind is the number of quiet watches in a row that began in the past, and of which etcd has not said that they
	// have delivered all events.
	behind int
}

// maxBehind is the number of watches after which the interval of the next ones is not doubled any more.
const maxBehind = 3

// watchSink gets what a prefixWatch finds.
type watchSink interface {
	// begin is called before a watch that does not continue where the one before ended. It returns the revision
	// from which the watch starts; zero is the present.
	begin(ctx context.Context) (from int64, err error)
	// opened is called when a watch has started, with anew if begin was called before it.
	opened(anew bool)
	// events gets all events of their revisions, in order.
	events(evs []*clientv3.Event)
	// unknown is called after each failed attempt to start a watch: lines may have changed unseen. If it returns true, the next
	// watch begins anew.
	unknown(err error) (anew bool)
	// verifyIn is how long a watch is open until it calls verify. revision is the one up to which the sink has
	// all events. After an error the watch ends, and after errOutOfStep the next one begins anew.
	verifyIn() time.Duration
	verify(ctx context.Context, revision int64) error
}

// errOutOfStep means that the sink does not have what etcd has.
var errOutOfStep = errors.New("the events were not complete")

// notifier is the sink of Watch. It does not keep what the keys say.
type notifier struct {
	store  *Store
	prefix string
	notify watchpump.Notify
}

func (n *notifier) begin(context.Context) (int64, error) { return 0, nil }

func (n *notifier) opened(anew bool) {
	if anew {
		n.notify() // there may have been changes before the watch started
	}
}

func (n *notifier) unknown(error) bool                  { n.notify(); return false }
func (n *notifier) verifyIn() time.Duration             { return math.MaxInt64 } // the readers read now and then
func (n *notifier) verify(context.Context, int64) error { return nil }

// events notifies of the lines with events about a limit, or a key that may be an entry.
func (n *notifier) events(evs []*clientv3.Event) {
	var names []string
	for _, ev := range evs {
		name, ok := n.store.keys.name(ev.Kv.Key)
		if !ok {
			name, ok = n.store.keys.limitName(ev.Kv.Key)
		}
		if ok && strings.HasPrefix(name, n.prefix) {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		n.notify(names...)
	}
}

// run opens one watch after another until ctx ends or reading is not permitted.
func (c *prefixWatch) run(ctx context.Context) error {
	check := true
	return attempts.KeepUp(ctx, firstPause, func() error {
		if check {
			if err := c.check(ctx); err != nil {
				return err
			}
		}
		err := c.watchOnce(onStream(clientv3.WithRequireLeader(ctx), c.stream))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// Requests and watches use the client's connections in turn. If one of two hangs, a request before
		// each watch would give it to the watch each time.
		silent, quiet := errors.Is(err, errWatchSilent), errors.Is(err, errWatchQuiet)
		check = !silent
		if silent || quiet {
			c.stream += 2 // the gRPC stream may hang
		}
		if silent {
			c.unknown(err) // the next may take long too, for example because etcd checks a password for each stream
		}
		if errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, errOutOfStep) {
			c.beginAnew()
		}
		if !quiet {
			c.store.logger.LogAttrs(ctx, slog.LevelDebug, "watch of the lines ended; opening another",
				slog.String("prefix", c.prefix), slog.Any("error", err))
		}
		return nil
	})
}

// beginAnew makes the next watch begin anew. That one starts at the present, so the watches before it that began in
// the past must not make it longer.
func (c *prefixWatch) beginAnew() { c.next, c.passed, c.behind = 0, 0, 0 }

// unknown tells the sink that no watch has started.
func (c *prefixWatch) unknown(err error) {
	if c.to.unknown(err) {
		c.beginAnew()
	}
}

// check returns an error if reading the keys is not permitted. It is called before a watch is opened,
// because a watch that is refused ends all others on its gRPC stream, and because the reason with
// which a watch ends may be temporary.
//
// It also checks whether the next watch can continue. If the revision is lower than one that was seen
// before, the data were restored from a backup. Then etcd would deliver no events until the revision
// is reached again.
func (c *prefixWatch) check(ctx context.Context) error {
	err := c.store.attempt(ctx, func(ctx context.Context) error {
		resp, err := c.store.cli.Get(ctx, c.keys, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
		switch {
		case err == nil:
			c.checked = resp.Header.Revision
		case !refused(err):
			c.unknown(err)
		}
		return err
	})
	if err != nil {
		return c.store.wrapErr(fmt.Sprintf("watch the locks that begin with %q", c.prefix), endedBy(ctx, err))
	}
	if c.checked < max(c.next-1, c.passed) || c.checked >= c.next+c.store.maxCatchUp {
		c.beginAnew()
	}
	return nil
}

// errWatchQuiet means that a watch has delivered no events for too long. It may have stopped delivering.
var errWatchQuiet = errors.New("the watch is quiet")

// watchOnce opens one watch and handles its events until it ends or is quiet.
func (c *prefixWatch) watchOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	anew := c.next == 0
	if anew {
		from, err := c.to.begin(ctx)
		if err != nil {
			if ctx.Err() == nil {
				c.unknown(err) // check may succeed nevertheless
			}
			return err
		}
		c.next = from
	}
	events, err := c.store.openWatch(ctx, cancel, c.keys, clientv3.WithPrefix(), clientv3.WithRev(c.next))
	if err != nil {
		return err
	}
	if c.next == 0 {
		c.next = c.checked + 1
	}
	c.to.opened(anew)
	verify := time.NewTimer(c.to.verifyIn())
	defer verify.Stop()
	var asked bool
	var progress int64 // the revision up to which all events have been delivered, by etcd's word
	// etcd reads the events of watches that begin in the past every 100 ms, and less often if it has no processor. If
	// each watch were replaced before that, none would deliver any.
	past := c.next <= c.checked
	interval := (c.store.times.resyncInterval / 2) << min(c.behind, maxBehind)
	quiet := time.NewTimer(interval)
	defer quiet.Stop()
	for {
		select {
		case resp, ok := <-events:
			if !ok || resp.Err() != nil {
				return resp.Err()
			}
			if asked && resp.IsProgressNotify() { // one that comes earlier may be another watch's
				progress = resp.Header.Revision
			}
			if n := len(resp.Events); n > 0 { // all events of their revisions: the watch allows no fragments
				c.next = resp.Events[n-1].Kv.ModRevision + 1
				asked, c.behind = false, 0
				quiet.Reset(interval)
				c.to.events(resp.Events)
			}
		case <-quiet.C:
			if asked {
				c.advance(progress, past)
				return errWatchQuiet
			}
			asked = true
			c.requestProgress(ctx, interval)
			quiet.Reset(interval)
		case <-verify.C:
			if err := c.to.verify(ctx, c.next-1); err != nil {
				return err
			}
			verify.Reset(c.to.verifyIn())
		}
	}
}

// requestProgress asks etcd up to which revision it has delivered all events. The reply comes as a response
// of the watch. There is none if the watch has stopped, or starts in the future, because nothing has
// changed.
func (c *prefixWatch) requestProgress(ctx context.Context, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_ = c.store.cli.RequestProgress(ctx) // an error is no reply either
}

// advance sets from where the watch after a quiet one starts, so that etcd does not search all revisions
// since the last event each time. Each revision is asked for by two watches at least: should one lose an
// event, the next delivers it.
func (c *prefixWatch) advance(progress int64, past bool) {
	switch {
	case progress > 0:
		c.next, c.passed, c.behind = max(c.next, c.passed+1), progress, 0
	case past:
		c.behind++
	}
}
