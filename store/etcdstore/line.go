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

// times is what a store does by the clock. Tests of what is done without the clock set others than [ordinary].
type times struct {
	// lateWatch is how long a lock is held before its entry is watched. Short holds need no watch, which would cost more
	// than they do.
	lateWatch time.Duration
	// linger is how long the watch of a line stays open when none of the session's entries is in it: who contends for
	// a lock is soon back.
	linger time.Duration
	// recheck is how soon a line with waiters is read although nothing was heard: in case the watch is silent because
	// something between here and the cluster is. It is read again more and more rarely; see follower.pause.
	recheck time.Duration
	// overdue is how long a watch may take to begin.
	overdue time.Duration
	// lookAgain is how often a watch of the lines says that there may have been a change although it has heard of none: in
	// case it is silent because something between here and the cluster is.
	lookAgain time.Duration
	// again is how long the first attempt to delete an entry may take before another is made.
	again time.Duration
	// lastWord is how long the attempts to delete an entry are waited for that have not been answered when another has not
	// found it. It is rarely waited for: only if the answer of the one that has deleted the entry is lost, and the connection stands.
	lastWord time.Duration
}

var ordinary = times{
	lateWatch: 200 * time.Millisecond,
	linger:    5 * time.Second,
	recheck:   2 * time.Second,
	overdue:   2 * time.Second,
	lookAgain: 5 * time.Second,
	again:     attempts.Shortest,
	lastWord:  attempts.Longest,
}

// follower is what one session knows of one line in which it has entries.
type follower struct {
	session *session
	name    string
	ctx     context.Context // ends with the line's usefulness, or the session
	stop    context.CancelFunc
	kick    work.Signal // asks the watching goroutine to read the line
	quiet   int         // readings in vain since the watch was last found to be silent; belongs to that goroutine

	mu       sync.Mutex
	mine     map[*entry]struct{} // joining or standing
	watching bool                // the goroutine has been started
	open     int                 // number of the watch that is open and complete; zero for none
	opened   int                 // number of the last one
	idle     *time.Timer         // runs while mine is empty and watching is set
}

// join notes that an entry is about to be put in: from here on it is told who leaves.
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
	// Named as other clients do, unless the session may have another entry of that name.
	e.key = se.store.keys.entry(w.name, se.lease, "")
	if e.req.Mode != line.Exclusive || se.outlast || w.hasKey(e.key) {
		e.key = se.store.keys.entry(w.name, se.lease, e.says.Nonce)
	}
	w.mine[e] = struct{}{}
	e.line, e.watch = w, w.open
	if w.idle != nil {
		w.idle.Stop()
	}
	return nil
}

// hasKey reports whether an entry of the session that is joining or standing has a key. It is called with w.mu held.
func (w *follower) hasKey(key string) bool {
	for e := range w.mine {
		if e.key == key {
			return true
		}
	}
	return false
}

// arrive notes that an entry has been put in, and tells how it stands. It reports false if the session has ended while
// the entry was joining.
func (w *follower) arrive(e *entry, a arrival) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.state != joining {
		return false
	}
	e.state = standing
	e.delivery.Begin()
	e.place = line.NewPlace(line.Entry{ID: e.key, Order: a.order, Mode: e.req.Mode}, entries(a.others))
	left := e.left
	e.left = nil
	for together := range atOnce(left) {
		w.theyLeft(e, together)
	}
	if e.state == standing {
		w.tell(e)
	}
	if e.state == standing && !e.place.Admitted() && (e.watch == 0 || e.watch != w.open) {
		w.startWatching()
	}
	return true
}

// part notes that nobody wants to hear of an entry any more.
func (w *follower) part(e *entry) {
	se := w.session
	se.mu.Lock()
	defer se.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settle(e)
	w.retire()
}

// settle ends an entry's part in the line. It is called with w.mu held.
func (w *follower) settle(e *entry) {
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

// retire lets go of a line without entries: at once if it is not watched, otherwise when it has lingered. It is called
// with the mutexes of the session and the line held.
func (w *follower) retire() {
	switch {
	case len(w.mine) > 0 || w.session.life.EndedLocked():
	case !w.watching:
		w.drop()
	default:
		w.lingering()
	}
}

// lingering sets the end of a line without entries. It is called with w.mu held.
func (w *follower) lingering() {
	linger := w.session.store.times.linger
	if w.idle == nil {
		w.idle = time.AfterFunc(linger, w.dropIfIdle)
		return
	}
	w.idle.Reset(linger)
}

func (w *follower) dropIfIdle() {
	w.session.mu.Lock()
	defer w.session.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.mine) == 0 {
		w.drop()
	}
}

func (w *follower) drop() {
	w.stop()
	if w.session.lines[w.name] == w {
		delete(w.session.lines, w.name)
	}
}

// close ends the line with its session; if that was lost, its entries hear of it.
func (w *follower) close(cause error, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop()
	if w.idle != nil {
		w.idle.Stop()
	}
	for e := range w.mine {
		if lost {
			w.gone(e, cause)
		} else {
			w.settle(e)
		}
	}
}

// tell delivers an entry's standing, and reports whether it is news. An entry that was admitted stays so, even if another's
// is overwritten and its mode is not known any more. It is called with w.mu held.
func (w *follower) tell(e *entry) (news bool) {
	now := store.Standing{State: store.Admitted, Order: e.order}
	if n := e.place.Blocking(); n > 0 {
		now.State, now.Ahead = store.Waiting, n
	}
	if news = e.delivery.Deliver(now); news && now.State == store.Admitted {
		e.late = time.AfterFunc(w.session.store.times.lateWatch, func() { w.watchHeld(e) })
	}
	return news
}

// gone tells an entry's owner that the entry is not in the line any more. It is called with w.mu held.
func (w *follower) gone(e *entry, cause error) {
	e.out.Store(true)
	e.delivery.Deliver(store.Standing{State: store.Gone, Order: e.order, Cause: cause})
	w.settle(e)
	if len(w.mine) == 0 {
		w.lingering()
	}
	if e.doubt.Load() {
		w.session.life.Start(e.clear)
	}
}

// theyLeft lets an entry know who has left in one revision: others, itself, or both. An entry that is gone is told so, and
// never that it is its turn because the others went with it. It is called with w.mu held.
func (w *follower) theyLeft(e *entry, together []departure) {
	switch {
	case e.state == joining:
		e.left = append(e.left, together...)
	case e.state != standing:
	case slices.ContainsFunc(together, func(d departure) bool { return d.id == e.key && d.at > e.order }):
		w.gone(e, w.evicted())
	default:
		nearer := false
		for _, d := range together {
			nearer = e.place.Left(d.id, d.at) || nearer
		}
		if nearer {
			w.tell(e)
		}
	}
}

// vanished notes that an entry is not in the line any more.
func (w *follower) vanished(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.state == standing {
		w.gone(e, w.evicted())
	}
}

// overwritten ends an entry whose key somebody has written to. That took the key off its lease, so its owner has to delete it.
// It is called with w.mu held.
func (w *follower) overwritten(e *entry) {
	w.gone(e, fmt.Errorf("%s: %w: somebody has overwritten the entry for lock %q, key %q, which took it off its lease",
		w.session.store, store.ErrGone, w.name, e.key))
	w.session.deleteOverwritten(e)
}

func (w *follower) evicted() error {
	return fmt.Errorf("%s: %w: the entry for lock %q was taken out: broken by somebody, or its lease ended",
		w.session.store, store.ErrGone, w.name)
}

// startWatching starts the goroutine that watches, or makes it read the line once more. It is called with w.mu held.
func (w *follower) startWatching() {
	if !w.watching {
		w.watching = true
		w.session.life.Start(w.run)
		return
	}
	w.kick.Set()
}

// run watches the line until it is of no more use.
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
			stream++ // that is probably what is silent
			// Whatever becomes of the next watch, those who wait must not depend on it.
			if _, err := w.reread(w.ctx); err != nil {
				w.session.store.logger.LogAttrs(w.ctx, slog.LevelDebug, "line could not be read",
					slog.String("lock", w.name), slog.Any("error", err))
			}
		}
		return nil
	})
}

// onStream returns a context for watches that are not to share the stream of those with another number. Those with the
// same one share it for as long as one of them is open: the etcd client keeps a stream for each kind of metadata.
func onStream(ctx context.Context, n int) context.Context {
	if n == 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "stile-watch", strconv.Itoa(n))
}

var (
	// errSilent is why a watch is given up that did not begin, or missed something.
	errSilent = errors.New("the watch is silent")
	// errEnded is why another watch is opened if etcd gave no reason for the end of one.
	errEnded = errors.New("the watch ended")
)

// openWatch opens a watch of the keys that begin with prefix, from the present on, and waits until it stands. cancel ends
// ctx, and with it the watch; if the watch takes too long to stand, that is done.
func (s *Store) openWatch(
	ctx context.Context, cancel context.CancelFunc, prefix string, opts ...clientv3.OpOption,
) (clientv3.WatchChan, error) {
	late := time.AfterFunc(s.times.overdue, cancel)
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
// What happened before it began is in the reading that follows. From then on the order is: event or reading, one at a
// time, by this goroutine. A reading is newer than every event that was handled before it, so it can replace what is
// known; an event that it includes already does no harm when it comes.
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

// opening marks the watch as open: an entry that joins from here on misses nothing. One that joined before and arrives
// after the reading asks for another.
func (w *follower) opening() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opened++
	w.open = w.opened
}

// haveLeft takes in what the watch has said at once. etcd never divides a revision between two answers, unless the watch
// asks for fragments, which this one does not.
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
			w.theyLeft(e, together)
		}
	}
}

// pause returns after how much silence the line is to be read. Each reading in vain doubles it: a watch that has worked for
// long is rarely the one that falls silent, and where many wait for long, looking is all that the cluster would do. But who
// is next soon wants to know, and is the one who can be let in: for each who is ahead it is four times the shortest pause at
// most.
func (w *follower) pause() time.Duration {
	const most = 32
	times := min(1<<min(w.quiet, 5), 4*max(w.ahead(), 1), most)
	return time.Duration(times) * w.session.store.times.recheck
}

// ahead returns how many must leave before it is the turn of the next of the session's entries that wait; zero if none
// does.
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
			continue // it will be told by its own arrival, and ask for a reading if it has to
		}
		lease, there := leases[line.Entry{ID: e.key, Order: e.order}]
		switch {
		case e.order > uint64(resp.Header.Revision):
			// It was put in after the reading, and knows more than that.
		case !there:
			changed = true
			w.gone(e, w.evicted())
		case lease != w.session.lease:
			changed = true
			w.overwritten(e)
		default:
			e.place.Reread(others)
			changed = w.tell(e) || changed
		}
	}
	return changed, nil
}
