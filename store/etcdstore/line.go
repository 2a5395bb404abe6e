package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/work"
)

// times are the delays and timeouts of a store: [defaultTimes], unless a test sets others.
type times struct {
	// heldWatchDelay is how long a lock is held before its key is watched. For a shorter hold the
	// watch would cost more than the hold.
	heldWatchDelay time.Duration
	// idleTimeout is how long the watch of a line stays open without an entry of the session in the
	// line. A client that contends for a lock often joins again within it.
	idleTimeout time.Duration
	// recheckInterval is how long the watch of a line with waiters may be silent before the line is
	// read, in case the watch has stopped delivering events. The interval grows; see
	// lineWatch.recheckDelay.
	recheckInterval time.Duration
	// watchTimeout is how long a watch may take to start.
	watchTimeout time.Duration
	// resyncInterval is how long the watch of [Store.Watch] may deliver no events before another replaces
	// it, and how often a limit is read again: a watch may have stopped. If etcd does not say that it has caught
	// up, the next watch may take twice as long; see [prefixWatch].
	resyncInterval time.Duration
	// verifyInterval is the minimum time between two comparisons of the lines that followLines keeps with etcd's keys.
	verifyInterval time.Duration
	// retryDelay is how long the first attempt to delete an entry may take before another is made.
	retryDelay time.Duration
	// removalPlace is how long an attempt to delete an entry counts towards maxRemovals if it is not answered. So a silent
	// member of the cluster does not keep others from deleting entries.
	removalPlace time.Duration
	// answerTimeout is how long in-flight attempts to delete an entry are awaited after another
	// attempt has not found it. It elapses only if the reply to the attempt that deleted the entry
	// is lost and the connection stays open.
	answerTimeout time.Duration
	// batchDelay is how long a request may wait for others that it is sent with; see batcher. It bounds what
	// batches add to the time of a request.
	batchDelay time.Duration
	// epochPause is the shortest pause between two writes of the epoch key; see writeEpochs.
	epochPause time.Duration
}

var defaultTimes = times{
	heldWatchDelay:  200 * time.Millisecond,
	idleTimeout:     5 * time.Second,
	recheckInterval: 2 * time.Second,
	watchTimeout:    2 * time.Second,
	resyncInterval:  5 * time.Second,
	verifyInterval:  time.Minute,
	retryDelay:      attempts.MinTimeout,
	removalPlace:    time.Second,
	answerTimeout:   attempts.MaxTimeout,
	batchDelay:      5 * time.Millisecond,
	epochPause:      100 * time.Millisecond,
}

// lineWatch tracks one line for the entries that one session has in it.
type lineWatch struct {
	session *session
	name    string

	// Set by prepareLocked.
	ctx       context.Context // ends when the line need not be followed any more, or with the session
	stop      context.CancelFunc
	rereadNow work.Signal // makes the watching goroutine read the line

	crowded    bool // more than keepWatchLimit entries were ahead of one of mine when it joined; guarded by mu
	emptyReads int  // consecutive periodic reads that found nothing new; used only by the watching goroutine

	mu       sync.Mutex
	mine     map[*entry]struct{} // joining or in the line
	watching bool                // the goroutine has been started
	open     int                 // number of the watch that is open and complete; zero if none is
	puts     bool                // that watch, or the one being opened, delivers puts
	opened   int                 // number of the last one
	idle     *time.Timer         // runs while mine is empty and watching is set

	limit          int   // the operator's limit of slots, the last known; zero if there is none
	limitAt        int64 // the revision at which it was read; zero if it was not
	followingLimit bool  // the goroutine that follows the limit has been started
}

// join adds an entry that is about to be inserted. From then on deletions in the line are delivered
// to it.
func (se *session) join(e *entry) error {
	se.mu.Lock()
	defer se.mu.Unlock()
	if err := se.life.Err(); err != nil {
		return err
	}
	w := se.lines[e.req.Name]
	if w == nil {
		w = &lineWatch{
			session: se,
			name:    e.req.Name,
			mine:    make(map[*entry]struct{}),
		}
		se.lines[e.req.Name] = w
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// Use the key that other clients would use, unless the session may have another entry under it.
	e.key = se.store.keys.entry(w.name, se.lease, "")
	if e.fresh || e.req.Mode != line.Exclusive || se.outlast || w.hasKeyLocked(e.key) || se.leaving[e.key] > 0 {
		e.key = se.store.keys.entry(w.name, se.lease, e.current.Nonce)
	}
	w.mine[e] = struct{}{}
	e.line, e.watch = w, w.open
	if w.idle != nil {
		w.idle.Stop()
	}
	return nil
}

// prepareLocked sets what goroutines that follow the line need. It is called before the first of them starts,
// while an entry of the session is in the line: most entries come and go without one.
func (w *lineWatch) prepareLocked() {
	if w.ctx == nil {
		w.ctx, w.stop = context.WithCancel(w.session.life.Context())
		w.rereadNow = work.NewSignal()
	}
}

// stopLocked ends the goroutines that follow the line.
func (w *lineWatch) stopLocked() {
	if w.stop != nil {
		w.stop()
	}
}

// hasKeyLocked reports whether a joining or standing entry of the session has the key.
func (w *lineWatch) hasKeyLocked(key string) bool {
	for e := range w.mine {
		if e.key == key {
			return true
		}
	}
	return false
}

// reserveKey keeps a key from being used for an entry until freeKey is called.
func (se *session) reserveKey(key string) {
	se.mu.Lock()
	defer se.mu.Unlock()
	se.leaving[key]++
}

func (se *session) freeKey(key string) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.leaving[key]--; se.leaving[key] == 0 {
		delete(se.leaving, key)
	}
}

// markInLine marks an inserted entry as standing and delivers its standing. It reports false if
// the session has ended.
func (w *lineWatch) markInLine(e *entry, a insertion) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.state != joining {
		return false
	}
	e.state = inLine
	e.delivery.Begin()
	if e.aheadBound = a.aheadBound; e.aheadBound == 0 {
		e.tracker = line.NewTracker(line.Entry{ID: e.key, Order: a.order, Mode: e.req.Mode}, entries(a.others))
		w.noteLimitLocked(a.limit, a.limitAt)
		e.tracker.SetLimit(w.limit)
	}
	w.crowded = e.aheadBound > w.session.store.sizes.keepWatchLimit
	changes := e.changes
	e.changes = nil
	for together := range byRevision(changes) {
		w.handleChangesLocked(e, together)
	}
	if e.state == inLine {
		w.deliverLocked(e)
	}
	if e.state == inLine && e.blockingLocked() > 0 && (e.watch == 0 || e.watch != w.open || e.tracker == nil || w.lacksPutsLocked()) {
		w.watchLocked()
	}
	if e.state == inLine && e.blockingLocked() > 0 && e.req.Mode.Slots() > 0 {
		w.followLimitLocked()
	}
	return true
}

// detach stops the notifications to an entry that its owner has withdrawn.
func (w *lineWatch) detach(e *entry) {
	se := w.session
	se.mu.Lock()
	defer se.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropEntryLocked(e)
	w.retireLocked()
}

// dropEntryLocked removes an entry from the lineWatch and stops its timer and watches.
func (w *lineWatch) dropEntryLocked(e *entry) {
	e.state = over
	e.delivery.Silence()
	delete(w.mine, e)
	if e.heldWatchTimer != nil {
		e.heldWatchTimer.Stop()
	}
	w.session.store.heldKeys.remove(e)
	if e.contended != nil {
		e.contended()
	}
}

// retireLocked drops a lineWatch without entries: at once if the line is not watched, otherwise
// after the idle timeout. The session's mutex must be held too.
func (w *lineWatch) retireLocked() {
	switch {
	case len(w.mine) > 0 || w.session.life.EndedLocked():
	case !w.watching || w.crowded:
		w.dropLocked()
	default:
		w.idleLocked()
	}
}

// idleLocked starts the idle timeout.
func (w *lineWatch) idleLocked() {
	timeout := w.session.store.times.idleTimeout
	if w.idle == nil {
		w.idle = time.AfterFunc(timeout, w.dropIfIdle)
		return
	}
	w.idle.Reset(timeout)
}

func (w *lineWatch) dropIfIdle() {
	w.session.mu.Lock()
	defer w.session.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.mine) == 0 {
		w.dropLocked()
	}
}

// dropLocked removes the lineWatch from the session. The session's mutex must be held too.
func (w *lineWatch) dropLocked() {
	w.stopLocked()
	if w.session.lines[w.name] == w {
		delete(w.session.lines, w.name)
	}
}

// close ends the lineWatch with its session. If the session was lost, the owners of the entries are
// notified.
func (w *lineWatch) close(cause error, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopLocked()
	if w.idle != nil {
		w.idle.Stop()
	}
	for e := range w.mine {
		if lost {
			w.goneLocked(e, cause)
		} else {
			w.dropEntryLocked(e)
		}
	}
}

// deliverLocked delivers an entry's standing, and reports whether it differs from the last one
// delivered. An admitted entry stays admitted, even if an entry ahead is overwritten and its mode
// is therefore unknown.
func (w *lineWatch) deliverLocked(e *entry) (news bool) {
	now := store.Standing{State: store.Admitted, Order: e.order}
	if n := e.blockingLocked(); n > 0 {
		now.State, now.Ahead = store.Waiting, n
	}
	if news = e.delivery.Deliver(now); news && now.State == store.Admitted {
		e.heldWatchTimer = time.AfterFunc(w.session.store.times.heldWatchDelay, func() { w.watchHeld(e) })
	}
	return news
}

// goneLocked delivers that an entry is gone from the line, and drops it.
func (w *lineWatch) goneLocked(e *entry, cause error) {
	e.gone.Store(true)
	e.delivery.Deliver(store.Standing{State: store.Gone, Order: e.order, Cause: cause})
	w.dropEntryLocked(e)
	if len(w.mine) == 0 {
		w.idleLocked()
	}
	if e.inDoubt.Load() {
		w.session.life.Start(e.abortEnqueue)
	}
}

// handleChangesLocked applies the changes of one revision to an entry. If its own key was deleted the
// entry is gone: it must not be admitted because others were deleted in the same revision.
func (w *lineWatch) handleChangesLocked(e *entry, together []change) {
	switch {
	case e.state == joining:
		e.changes = append(e.changes, together...)
	case e.state != inLine:
	case slices.ContainsFunc(together, func(c change) bool { return c.deletes(e) }):
		w.goneLocked(e, w.evictedErr())
	default:
		if e.tracker == nil {
			// Only a read shows how many are ahead now. A goroutine that watches the whole line reads it at
			// once. One that follows an entry does not call this function.
			w.rereadNow.Set()
			return
		}
		nearer := false
		for _, c := range together {
			if c.downgraded > 0 {
				nearer = e.tracker.Downgraded(c.id, c.downgraded) || nearer
			} else {
				nearer = e.tracker.Left(c.id, c.at) || nearer
			}
		}
		if nearer {
			w.deliverLocked(e)
		}
	}
}

// deletes reports whether the change is the deletion of the entry's key.
func (c change) deletes(e *entry) bool {
	return c.id == e.key && c.at > e.order && c.downgraded == 0
}

// vanished reports an entry gone that was missing from a read.
func (w *lineWatch) vanished(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.state == inLine {
		w.goneLocked(e, w.evictedErr())
	}
}

// overwrittenLocked reports an entry gone whose key another client has overwritten. The key is no
// longer attached to the session's lease, so the session must delete it.
func (w *lineWatch) overwrittenLocked(e *entry) {
	w.goneLocked(e, fmt.Errorf("%s: %w: another client overwrote its key %q, which detached it from its lease",
		w.session.store, store.ErrGone, e.key))
	w.session.deleteOverwritten(e)
}

func (w *lineWatch) evictedErr() error {
	return fmt.Errorf("%s: %w: another client removed it, as stile break does, or its lease ended", w.session.store, store.ErrGone)
}

// watchLocked starts the goroutine that watches the line, or makes it read the line again.
func (w *lineWatch) watchLocked() {
	if !w.watching {
		w.watching = true
		w.prepareLocked()
		w.session.life.Start(w.run)
		return
	}
	w.rereadNow.Set()
}

// run watches the line until the lineWatch is dropped.
func (w *lineWatch) run() {
	stream := 0
	_ = attempts.KeepUp(w.ctx, firstPause, func() error {
		err := w.follow(onStream(w.ctx, stream))
		if w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		w.session.store.logger.LogAttrs(w.ctx, slog.LevelDebug, "watch of a line ended; opening another",
			slog.String("lock", w.name), slog.Any("error", err))
		if errors.Is(err, errWatchSilent) {
			stream++ // the gRPC stream is the likely cause
			// The waiters must not depend on whether the next watch starts.
			if _, err := w.reread(w.ctx); err != nil {
				w.session.store.logger.LogAttrs(w.ctx, slog.LevelDebug, "line could not be read",
					slog.String("lock", w.name), slog.Any("error", err))
			}
		}
		return nil
	})
}

// onStream returns a context for a watch that must not share a gRPC stream with watches of another
// number. The etcd client keeps one stream for each kind of metadata, as long as a watch on it is
// open.
func onStream(ctx context.Context, n int) context.Context {
	if n == 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "stile-watch", strconv.Itoa(n))
}

// A watcher opens watches for a store. The etcd client gets a token for each gRPC stream, and the server checks it
// at each watch on the stream. When the token is stale, all watches must be opened on another stream.
type watcher struct {
	cli    *clientv3.Client
	tokens atomic.Int64 // how many tokens have become stale
}

// watch opens a watch, as the etcd client does. The caller must pass its error to the returned function.
func (w *watcher) watch(ctx context.Context, key string, opts ...clientv3.OpOption) (events clientv3.WatchChan, ended func(error)) {
	n := w.tokens.Load()
	if n > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, "stile-token", strconv.FormatInt(n, 10))
	}
	return w.cli.Watch(ctx, key, opts...), func(err error) {
		if err != nil && staleToken(err.Error()) {
			w.tokens.CompareAndSwap(n, n+1)
		}
	}
}

var (
	// errWatchSilent means that a watch did not start in time, or missed an event.
	errWatchSilent = errors.New("the watch is silent")
	// errWatchEnded means that a watch ended without a reason from etcd.
	errWatchEnded = errors.New("the watch ended")
)

// openWatch opens a watch, of the key and from the present on unless opts say otherwise, and waits
// until it has started. If that takes too long it calls cancel, which must end ctx and with it the watch.
func (s *Store) openWatch(
	ctx context.Context, cancel context.CancelFunc, key string, opts ...clientv3.OpOption,
) (clientv3.WatchChan, error) {
	timer := time.AfterFunc(s.times.watchTimeout, cancel)
	events, ended := s.watcher.watch(ctx, key, append(opts, clientv3.WithCreatedNotify())...)
	created, ok := <-events
	switch {
	case !timer.Stop():
		return nil, errWatchSilent
	case ok && created.Created:
		return events, nil
	case created.Err() != nil:
		ended(created.Err())
		return nil, created.Err()
	}
	return nil, errWatchEnded
}

// watchOnce opens one watch and handles its events until it ends.
//
// The watch starts at the present, because etcd delays the events of a watch that starts at a past
// revision by up to 100 ms. The read that follows covers what happened before it started. From then
// on this goroutine handles events and reads, one at a time. A read is newer than every event
// handled before it, so its result replaces the known state. An event that a read has covered
// already has no effect.
func (w *lineWatch) watchOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, end := w.session.store.keys.entries(w.name)
	opts := []clientv3.OpOption{clientv3.WithRange(end)}
	if !w.choosePuts() {
		opts = append(opts, clientv3.WithFilterPut())
	}
	events, err := w.session.store.openWatch(ctx, cancel, from, opts...)
	if err != nil {
		return err
	}
	if _, err := w.rereadWatched(ctx); err != nil {
		return err
	}
	w.markOpen()
	defer w.markClosed()
	silence := time.NewTimer(w.recheckDelay())
	defer silence.Stop()
	for {
		select {
		case resp, ok := <-events:
			if !ok || resp.Err() != nil {
				return resp.Err()
			}
			w.session.noteRevision(resp.Header)
			w.handleEvents(resp.Events)
			silence.Reset(w.recheckDelay())
		case <-w.rereadNow:
			if _, err := w.rereadWatched(ctx); err != nil {
				return err
			}
		case <-silence.C:
			if w.ahead() > 0 {
				missed, err := w.rereadWatched(ctx)
				switch {
				case err != nil:
					return err
				case missed:
					return errWatchSilent
				}
				w.emptyReads++
			}
			silence.Reset(w.recheckDelay())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// rereadWatched is reread for a goroutine that watches the whole line. It fails with errOtherWatch if the
// session's entries need another watch.
func (w *lineWatch) rereadWatched(ctx context.Context) (changed bool, err error) {
	changed, err = w.reread(ctx)
	if e, _ := w.followingEntry(); err == nil && (e != nil || w.lacksPuts()) {
		err = errOtherWatch
	}
	return changed, err
}

// markOpen marks the watch as open: an entry that joins from now on misses nothing. An entry that
// joined earlier and is inserted after the read makes the goroutine read the line again.
func (w *lineWatch) markOpen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opened++
	w.open = w.opened
}

func (w *lineWatch) markClosed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = 0
}

// handleEvents applies the events of one watch response. etcd never splits a revision between two
// responses unless the watch allows fragments, and this one does not.
func (w *lineWatch) handleEvents(events []*clientv3.Event) {
	var changes []change
	for _, ev := range events {
		c := change{id: string(ev.Kv.Key), at: uint64(ev.Kv.ModRevision)}
		switch {
		case ev.Type == clientv3.EventTypeDelete:
			changes = append(changes, c)
		case ev.IsModify() && isShared(ev.Kv.Value):
			c.downgraded = uint64(ev.Kv.CreateRevision)
			changes = append(changes, c)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for together := range byRevision(changes) {
		for e := range w.mine {
			w.handleChangesLocked(e, together)
		}
	}
}

// recheckDelay returns how long the watch may be silent before the line is read. Each consecutive read that
// finds nothing new doubles it, up to 32 intervals. So if the watch stops, the waiters wait at most about twice as long
// as without that, and a minute longer. With many waiters that have waited for minutes, shorter delays would make the
// reads most of the cluster's load.
func (w *lineWatch) recheckDelay() time.Duration {
	return w.session.store.times.recheckInterval << min(w.emptyReads, 5)
}

// ahead returns how many entries must leave before the session's first waiter is admitted; zero if
// none waits.
func (w *lineWatch) ahead() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	least := 0
	for e := range w.mine {
		if e.state != inLine {
			continue
		}
		if n := e.blockingLocked(); n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// reread reads the line up to the session's last entry and corrects the state of its entries. It
// reports whether any standing changed.
//
// If the session's only entry in the line is an exclusive one, and many are ahead of it, reread
// does not read them all: it selects one for it to follow.
func (w *lineWatch) reread(ctx context.Context) (changed bool, err error) {
	x := w.rereadExtent()
	if x.upTo == 0 {
		return false, nil
	}
	before := w.session.seenRevision.Load()
	read, err := w.session.store.readAhead(ctx, w.name, x)
	if err == nil {
		err = w.session.checkRevision(before, read.header)
	}
	if err != nil {
		return false, err
	}
	others := entries(read.entries)
	leases := make(map[line.Entry]clientv3.LeaseID, len(others))
	for _, c := range read.entries {
		leases[line.Entry{ID: c.ID, Order: c.Order}] = c.Lease
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	for e := range w.mine {
		if e.state != inLine || e.order > x.upTo || !read.complete && e.order != x.upTo {
			// It was not standing when the extent was chosen, so the read need not show it. markInLine
			// delivers its standing, and requests another read if necessary.
			continue
		}
		lease, there := leases[line.Entry{ID: e.key, Order: e.order}]
		switch {
		case !there:
			changed = true
			w.goneLocked(e, w.evictedErr())
		case lease != w.session.lease:
			changed = true
			w.overwrittenLocked(e)
		case read.complete:
			if e.tracker == nil {
				e.tracker = line.NewTracker(line.Entry{ID: e.key, Order: e.order, Mode: e.req.Mode}, others)
				e.tracker.SetLimit(w.limit)
			}
			e.tracker.Reread(others)
			e.aheadBound, e.followed = 0, nil
			changed = w.deliverLocked(e) || changed
		default:
			e.aheadBound = min(e.blockingLocked(), read.keys-1)
			e.tracker, e.followed = nil, &read.entries[len(read.entries)-1]
			changed = w.deliverLocked(e) || changed
		}
	}
	return changed, nil
}
