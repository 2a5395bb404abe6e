package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/work"
)

// times are the delays and timeouts of a store. The default is [ordinary]; tests set others.
type times struct {
	// heldWatchDelay is how long a lock is held before its entry is watched. A watch would cost more than a short hold does.
	heldWatchDelay time.Duration
	// idleTimeout is how long the watch of a line stays open when none of the session's entries is in the line: a client
	// that contends for a lock is soon back.
	idleTimeout time.Duration
	// recheckInterval is after how much silence a line with waiters is read, in case something between here and the cluster
	// keeps the watch silent. The interval grows; see follower.pause.
	recheckInterval time.Duration
	// watchTimeout is how long a watch may take to begin.
	watchTimeout time.Duration
	// resyncInterval is how often [Store.Watch] reports a possible change although it has received none, for the same reason.
	resyncInterval time.Duration
	// retryDelay is how long the first attempt to delete an entry may take before another is made.
	retryDelay time.Duration
	// answerTimeout is how long unanswered attempts to delete an entry are waited for when another has not found the entry.
	// It rarely passes: only if the answer of the attempt that deleted the entry is lost, and the connection stands.
	answerTimeout time.Duration
}

var ordinary = times{
	heldWatchDelay:  200 * time.Millisecond,
	idleTimeout:     5 * time.Second,
	recheckInterval: 2 * time.Second,
	watchTimeout:    2 * time.Second,
	resyncInterval:  5 * time.Second,
	retryDelay:      attempts.Shortest,
	answerTimeout:   attempts.Longest,
}

// follower follows one line for the entries that one session has in it.
type follower struct {
	session *session
	name    string
	ctx     context.Context // ends when the line need not be followed any more, or with the session
	stop    context.CancelFunc
	kick    work.Signal // makes the watching goroutine read the line
	quiet   int         // readings in vain since the watch was last found to be silent; only that goroutine uses it

	mu       sync.Mutex
	mine     map[*entry]struct{} // joining or standing
	watching bool                // the goroutine has been started
	open     int                 // number of the watch that is open and complete; zero for none
	opened   int                 // number of the last one
	idle     *time.Timer         // runs while mine is empty and watching is set
}

// join adds an entry that is about to be put in. From here on it learns of those who leave.
func (se *session) join(e *entry) error {
	se.mu.Lock()
	defer se.mu.Unlock()
	if err := se.life.Err(); err != nil {
		return err
	}
	w := se.lines[e.req.Name]
	if w == nil {
		w = &follower{
			session: se,
			name:    e.req.Name,
			kick:    work.NewSignal(),
			mine:    make(map[*entry]struct{}),
		}
		w.ctx, w.stop = context.WithCancel(se.life.Context())
		se.lines[e.req.Name] = w
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// The key is the one that other clients would choose, unless the session may have another entry under that key.
	e.key = se.store.keys.entry(w.name, se.lease, "")
	if e.req.Mode != line.Exclusive || se.outlast || w.hasKeyLocked(e.key) {
		e.key = se.store.keys.entry(w.name, se.lease, e.says.Nonce)
	}
	w.mine[e] = struct{}{}
	e.line, e.watch = w, w.open
	if w.idle != nil {
		w.idle.Stop()
	}
	return nil
}

// hasKeyLocked reports whether a joining or standing entry of the session has the key.
func (w *follower) hasKeyLocked(key string) bool {
	for e := range w.mine {
		if e.key == key {
			return true
		}
	}
	return false
}

// arrive marks an entry as standing, because it has been put in, and delivers how it stands. It reports false if the session
// has ended meanwhile.
func (w *follower) arrive(e *entry, a arrival) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.state != joining {
		return false
	}
	e.state = standing
	e.delivery.Begin()
	e.place = line.NewTracker(line.Entry{ID: e.key, Order: a.order, Mode: e.req.Mode}, entries(a.others))
	left := e.left
	e.left = nil
	for together := range atOnce(left) {
		w.theyLeftLocked(e, together)
	}
	if e.state == standing {
		w.tellLocked(e)
	}
	if e.state == standing && !e.place.Admitted() && (e.watch == 0 || e.watch != w.open) {
		w.watchLocked()
	}
	return true
}

// part ends the delivery to an entry that its owner has withdrawn.
func (w *follower) part(e *entry) {
	se := w.session
	se.mu.Lock()
	defer se.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settleLocked(e)
	w.retireLocked()
}

// settleLocked removes an entry from the follower and stops what was done for it.
func (w *follower) settleLocked(e *entry) {
	e.state = over
	e.delivery.Silence()
	delete(w.mine, e)
	if e.late != nil {
		e.late.Stop()
	}
	if e.watched != nil {
		e.watched()
	}
	if e.contended != nil {
		e.contended()
	}
}

// retireLocked drops a follower without entries: at once if the line is not watched, otherwise after the idle timeout. It is
// called with the mutexes of the session and the follower held.
func (w *follower) retireLocked() {
	switch {
	case len(w.mine) > 0 || w.session.life.EndedLocked():
	case !w.watching:
		w.dropLocked()
	default:
		w.idleLocked()
	}
}

// idleLocked starts the idle timeout.
func (w *follower) idleLocked() {
	timeout := w.session.store.times.idleTimeout
	if w.idle == nil {
		w.idle = time.AfterFunc(timeout, w.dropIfIdle)
		return
	}
	w.idle.Reset(timeout)
}

func (w *follower) dropIfIdle() {
	w.session.mu.Lock()
	defer w.session.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.mine) == 0 {
		w.dropLocked()
	}
}

// dropLocked is called with the mutexes of the session and the follower held.
func (w *follower) dropLocked() {
	w.stop()
	if w.session.lines[w.name] == w {
		delete(w.session.lines, w.name)
	}
}

// close ends the follower with its session. If that was lost, the owners of the entries are notified.
func (w *follower) close(cause error, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop()
	if w.idle != nil {
		w.idle.Stop()
	}
	for e := range w.mine {
		if lost {
			w.goneLocked(e, cause)
		} else {
			w.settleLocked(e)
		}
	}
}

// tellLocked delivers an entry's standing, and reports whether it is news. An entry that was admitted stays so, even if
// another is overwritten and its mode is not known any more.
func (w *follower) tellLocked(e *entry) (news bool) {
	now := store.Standing{State: store.Admitted, Order: e.order}
	if n := e.place.Blocking(); n > 0 {
		now.State, now.Ahead = store.Waiting, n
	}
	if news = e.delivery.Deliver(now); news && now.State == store.Admitted {
		e.late = time.AfterFunc(w.session.store.times.heldWatchDelay, func() { w.watchHeld(e) })
	}
	return news
}

// goneLocked ends an entry that is not in the line any more, and delivers that.
func (w *follower) goneLocked(e *entry, cause error) {
	e.out.Store(true)
	e.delivery.Deliver(store.Standing{State: store.Gone, Order: e.order, Cause: cause})
	w.settleLocked(e)
	if len(w.mine) == 0 {
		w.idleLocked()
	}
	if e.doubt.Load() {
		w.session.life.Start(e.clear)
	}
}

// theyLeftLocked updates an entry with the departures of one revision: those of others, its own, or both. If its own is
// among them the entry is gone; it never gets its turn because others went with it.
func (w *follower) theyLeftLocked(e *entry, together []departure) {
	switch {
	case e.state == joining:
		e.left = append(e.left, together...)
	case e.state != standing:
	case slices.ContainsFunc(together, func(d departure) bool { return d.id == e.key && d.at > e.order }):
		w.goneLocked(e, w.evicted())
	default:
		nearer := false
		for _, d := range together {
			nearer = e.place.Left(d.id, d.at) || nearer
		}
		if nearer {
			w.tellLocked(e)
		}
	}
}

// vanished ends an entry that a reading has not shown.
func (w *follower) vanished(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.state == standing {
		w.goneLocked(e, w.evicted())
	}
}

// overwrittenLocked ends an entry whose key somebody has overwritten. That took the key off its lease, so the session has to
// delete it.
func (w *follower) overwrittenLocked(e *entry) {
	w.goneLocked(e, fmt.Errorf("%s: %w: somebody has overwritten its key %q, which took it off its lease",
		w.session.store, store.ErrGone, e.key))
	w.session.deleteOverwritten(e)
}

func (w *follower) evicted() error {
	return fmt.Errorf("%s: %w: broken by somebody, or its lease ended", w.session.store, store.ErrGone)
}

// watchLocked starts the goroutine that watches the line, or makes it read the line once more.
func (w *follower) watchLocked() {
	if !w.watching {
		w.watching = true
		w.session.life.Start(w.run)
		return
	}
	w.kick.Set()
}

// run watches the line until the follower is dropped.
func (w *follower) run() {
	stream := 0
	_ = attempts.KeepUp(w.ctx, firstPause, func() error {
		err := w.follow(onStream(w.ctx, stream))
		w.mu.Lock()
		w.open = 0
		w.mu.Unlock()
		if w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		w.session.store.logger.LogAttrs(w.ctx, slog.LevelDebug, "watch of a line ended; opening another",
			slog.String("lock", w.name), slog.Any("error", err))
		if errors.Is(err, errSilent) {
			stream++ // the stream is probably what is silent
			// Whatever becomes of the next watch, the waiters must not depend on it.
			if _, err := w.reread(w.ctx); err != nil {
				w.session.store.logger.LogAttrs(w.ctx, slog.LevelDebug, "line could not be read",
					slog.String("lock", w.name), slog.Any("error", err))
			}
		}
		return nil
	})
}

// onStream returns a context for watches that must not share a stream with those of another number. Watches of one number
// share a stream for as long as one of them is open: the etcd client keeps one for each kind of metadata.
func onStream(ctx context.Context, n int) context.Context {
	if n == 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "stile-watch", strconv.Itoa(n))
}

var (
	// errSilent means that a watch did not begin, or missed something.
	errSilent = errors.New("the watch is silent")
	// errEnded means that a watch ended, and etcd gave no reason.
	errEnded = errors.New("the watch ended")
)

// openWatch opens a watch of the keys that begin with prefix, from the present on, and waits until it stands. It calls cancel,
// which must end ctx and with it the watch, if that takes too long.
func (s *Store) openWatch(
	ctx context.Context, cancel context.CancelFunc, prefix string, opts ...clientv3.OpOption,
) (clientv3.WatchChan, error) {
	late := time.AfterFunc(s.times.watchTimeout, cancel)
	events := s.cli.Watch(ctx, prefix, append(opts, clientv3.WithPrefix(), clientv3.WithCreatedNotify())...)
	created, ok := <-events
	switch {
	case !late.Stop():
		return nil, errSilent
	case ok && created.Created:
		return events, nil
	case created.Err() != nil:
		return nil, created.Err()
	}
	return nil, errEnded
}

// follow opens one watch and follows it to its end.
//
// The watch begins at the present, because one that begins in the past is served by etcd with up to 100 ms delay.
// What happened before it began is in the reading that follows. From then on this goroutine handles events and readings, one
// at a time. A reading is newer than every event that was handled before it, so it replaces what is known; an event that the
// reading includes does no harm when it comes.
func (w *follower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := w.session.store.openWatch(ctx, cancel, w.session.store.keys.line(w.name), clientv3.WithFilterPut())
	if err != nil {
		return err
	}
	if _, err := w.reread(ctx); err != nil {
		return err
	}
	w.opening()
	silence := time.NewTimer(w.pause())
	defer silence.Stop()
	for {
		select {
		case resp, ok := <-events:
			if !ok || resp.Err() != nil {
				return resp.Err()
			}
			w.session.shown(resp.Header)
			w.haveLeft(resp.Events)
			silence.Reset(w.pause())
		case <-w.kick:
			if _, err := w.reread(ctx); err != nil {
				return err
			}
		case <-silence.C:
			if w.ahead() > 0 {
				missed, err := w.reread(ctx)
				switch {
				case err != nil:
					return err
				case missed:
					w.quiet = 0
					return errSilent
				}
				w.quiet++
			}
			silence.Reset(w.pause())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// opening marks the watch as open: an entry that joins from here on misses nothing. An entry that joined before, and arrives
// after the reading, makes the goroutine read the line again.
func (w *follower) opening() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opened++
	w.open = w.opened
}

// haveLeft handles the events of one watch response. etcd never divides a revision between two responses, unless the watch
// allows fragments, which this one does not.
func (w *follower) haveLeft(events []*clientv3.Event) {
	var left []departure
	for _, ev := range events {
		if ev.Type == clientv3.EventTypeDelete {
			left = append(left, departure{id: string(ev.Kv.Key), at: uint64(ev.Kv.ModRevision)})
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for together := range atOnce(left) {
		for e := range w.mine {
			w.theyLeftLocked(e, together)
		}
	}
}

// pause returns after how much silence the line is read. Each reading in vain doubles it: a watch that has worked for long
// rarely falls silent, and where many wait for long the cluster would do nothing but serve readings. But the next in line
// wants to know soon, and is the one that can be admitted: so the pause is at most four times the interval for each entry
// ahead.
func (w *follower) pause() time.Duration {
	const limit = 32
	times := min(1<<min(w.quiet, 5), 4*max(w.ahead(), 1), limit)
	return time.Duration(times) * w.session.store.times.recheckInterval
}

// ahead returns how many entries must leave before the first waiting entry of the session has its turn; zero if none waits.
func (w *follower) ahead() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	least := 0
	for e := range w.mine {
		if e.state != standing {
			continue
		}
		if n := e.place.Blocking(); n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// reread reads the line and puts right what is known of it. It reports whether an entry's standing changed.
func (w *follower) reread(ctx context.Context) (changed bool, err error) {
	var resp *clientv3.GetResponse
	before := w.session.seen.Load()
	err = attempt(ctx, func(ctx context.Context) (err error) {
		resp, err = w.session.store.cli.Get(ctx, w.session.store.keys.line(w.name), clientv3.WithPrefix())
		return err
	})
	if err == nil {
		err = w.session.saw(before, resp.Header)
	}
	if err != nil {
		return false, err
	}
	found, _ := w.session.store.keys.contenders(w.name, resp.Kvs)
	others := entries(found)
	leases := make(map[line.Entry]clientv3.LeaseID, len(others))
	for _, c := range found {
		leases[line.Entry{ID: c.ID, Order: c.Order}] = c.Lease
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	for e := range w.mine {
		if e.state != standing {
			continue // its arrival delivers how it stands, and makes this goroutine read again if necessary
		}
		lease, there := leases[line.Entry{ID: e.key, Order: e.order}]
		switch {
		case e.order > uint64(resp.Header.Revision):
			// It was put in after the reading, so it knows more.
		case !there:
			changed = true
			w.goneLocked(e, w.evicted())
		case lease != w.session.lease:
			changed = true
			w.overwrittenLocked(e)
		default:
			e.place.Reread(others)
			changed = w.tellLocked(e) || changed
		}
	}
	return changed, nil
}
