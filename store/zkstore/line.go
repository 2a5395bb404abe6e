package zkstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/work"
)

const (
	// recheckInterval is how often a waiter asks whether its line has changed, although no event was received.
	// One that is far back asks less often.
	recheckInterval = 2 * time.Second
	// maxWatchedAhead is how many of the entries ahead an entry watches. They show when it is next,
	// and for the first few in a line also that it has moved up. More watches would wake waiters in
	// vain.
	maxWatchedAhead = 8
	// maxInFlight bounds the requests in flight of a kind that is made for many entries at once.
	// After a reconnection there may be thousands, and a confirmation must not wait behind all of
	// them.
	maxInFlight = 16
)

// lineWatch follows one line for a session's entries in it.
type lineWatch struct {
	session *session
	name    string
	dir     string
	ctx     context.Context // ends when the watch is dropped, or with the session
	stop    context.CancelFunc
	wakeup  work.Signal // wakes the goroutine that follows the line

	mu         sync.Mutex
	mine       map[*entry]struct{} // the session's entries that are joining or standing
	following  bool                // the goroutine has been started
	stale      bool                // the line must be read
	unreadable bool                // some entries may not be read
	watched    bool                // the directory has a watch
	readings   int                 // how many reads have begun
	limit      int                 // the operator's limit of slots, the last known; zero if there is none
	limitStale bool                // the limit must be read

	// seen identifies the state of the directory that the entries know (its pzxid, the number of the transaction
	// that last created or deleted a node in it), except for what events have told since; zero if it is unknown.
	seen      int64
	unsure    bool      // an event may have been missed: the directory's state must be asked for
	rechecked time.Time // when that was last begun, or nothing waited

	blockersChecked time.Time // when the leader was last asked for the entries ahead, or nothing waited
}

// join registers an entry that is about to be created. It adds size bytes to the transaction that
// ends the session.
func (se *session) join(e *entry, size int64) error {
	se.mu.Lock()
	defer se.mu.Unlock()
	if err := se.life.Err(); err != nil {
		return err
	}
	dir := se.store.paths.dir(e.req.Name)
	e.session = se
	se.bytes.Add(size)
	e.bytes.Store(size)
	w := se.lines[dir]
	if w == nil {
		w = &lineWatch{
			session: se, name: e.req.Name, dir: dir,
			wakeup: work.NewSignal(),
			mine:   make(map[*entry]struct{}),

			limitStale: true, rechecked: time.Now(), blockersChecked: time.Now(),
		}
		w.ctx, w.stop = context.WithCancel(se.life.Context())
		se.lines[dir] = w
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mine[e] = struct{}{}
	e.line = w
	return nil
}

// markInLine records that an entry is in the line, because its node has been created, and
// delivers its standing. It returns false if the session has ended meanwhile.
func (w *lineWatch) markInLine(e *entry, ahead []listedEntry, limit int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.includeLocked(e, ahead, limit) {
		return false
	}
	e.delivery.Begin()
	return true
}

// include is the first part of markInLine: it delivers nothing. The entry is exclusive.
func (w *lineWatch) include(e *entry, ahead []listedEntry) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.includeLocked(e, ahead, 0)
}

// begin is the second part of markInLine: it delivers the entry's standing.
func (w *lineWatch) begin(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.delivery.Begin()
}

func (w *lineWatch) includeLocked(e *entry, ahead []listedEntry, limit int) bool {
	if e.state != joining {
		return false
	}
	if e.req.Mode.Slots() > 0 && limit != w.limit {
		w.limit, w.limitStale = limit, true // for the entries that joined before
		w.wakeLocked()
	}
	if w.standsLocked() && w.seen != e.seen {
		w.seen = 0
	} else {
		w.seen = e.seen
	}
	e.state, e.arrived, e.ahead = inLine, w.readings+1, ahead
	w.session.requestOwnWatch(e.path())
	w.deliverLocked(e)
	if e.blocking() > 0 {
		// The directory's watch may be older than the entry, so no event would show which entries
		// left meanwhile.
		_, everything := w.wantedLocked()
		w.stale = w.stale || everything
		w.followLocked()
	}
	return true
}

// standsLocked reports whether any entry of this session is in the line.
func (w *lineWatch) standsLocked() bool {
	for e := range w.mine {
		if e.state == inLine {
			return true
		}
	}
	return false
}

// stands reports whether an entry of this session is in the line.
func (w *lineWatch) stands(order uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for e := range w.mine {
		if e.state == inLine && e.order == order {
			return true
		}
	}
	return false
}

// detach ends deliveries to an entry that its owner has withdrawn.
func (w *lineWatch) detach(e *entry) {
	se := w.session
	se.mu.Lock()
	defer se.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropEntryLocked(e)
	w.retireLocked()
}

// dropEntryLocked removes an entry from the watch.
func (w *lineWatch) dropEntryLocked(e *entry) {
	if e.state == inLine {
		w.session.own.forget(e.path())
	}
	e.state, e.contended = over, nil
	e.delivery.Silence()
	delete(w.mine, e)
}

// retireLocked drops a watch without entries. The caller holds the mutexes of the session and
// the watch.
func (w *lineWatch) retireLocked() {
	if len(w.mine) > 0 {
		return
	}
	w.stop()
	if w.session.lines[w.dir] == w {
		delete(w.session.lines, w.dir)
	}
}

// close ends the watch with its session. If that was lost, the owners of the entries are
// notified.
func (w *lineWatch) close(cause error, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop()
	for e := range w.mine {
		if lost {
			w.goneLocked(e, cause)
		} else {
			w.dropEntryLocked(e)
		}
	}
}

// blocking returns how many entries must leave before the entry is next. An admitted entry stays
// admitted, also if the limit of slots is lowered.
func (e *entry) blocking() int {
	if e.delivery.Admitted() {
		return 0
	}
	return line.Blocking(e.req.Mode.Within(e.line.limit), modes(e.ahead))
}

// deliverLocked delivers an entry's standing.
func (w *lineWatch) deliverLocked(e *entry) {
	now := store.Standing{State: store.Admitted, Order: e.order}
	if n := e.blocking(); n > 0 {
		now.State, now.Ahead = store.Waiting, n
	}
	e.delivery.Deliver(now)
}

// advanceLocked is deliverLocked for an entry that has fewer entries ahead than before. If the
// entry is next, the server is asked whether it still exists before that is delivered: one
// transaction may delete all nodes of a line, and the server sends the events one after another.
// fromRead is set if the change comes from a read, which may have used another connection and shown
// an old state.
func (w *lineWatch) advanceLocked(e *entry, fromRead bool) {
	if e.blocking() > 0 || e.delivery.Admitted() {
		w.deliverLocked(e)
		return
	}
	if !e.verifying {
		e.verifying = true
		connection := w.session.connection.Load()
		w.session.life.Start(func() { w.verifyTurn(e, fromRead, connection) })
	}
}

// verifyTurn delivers that an entry is next, if its node exists. On the connection on which the
// event of the last departure came, the server replies after the whole transaction that the
// departure was part of. Another server may lag behind and must catch up first. It may also follow
// a leader that the others have left, at which a session with waiters only is confirmed; see
// session.checkAlive.
// So this takes a transaction, like the confirmations that come after.
func (w *lineWatch) verifyTurn(e *entry, fromRead bool, connection int64) {
	se := w.session
	var there bool
	for {
		var err error
		there, err = withSem(se, se.asks, func() (bool, error) {
			if fromRead {
				if err := se.client.commitEmpty(); err != nil {
					return false, err
				}
			}
			there, _, err := se.client.Exists(join(w.dir, e.node.name))
			return there, err
		})
		now := se.connection.Load()
		if se.life.Err() != nil {
			return // the end of the session notifies the owner
		}
		if err == nil && now == connection {
			break
		}
		fromRead, connection = true, now
		if err != nil {
			attempts.Sleep(se.life.Context(), firstPause)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	e.verifying = false
	switch {
	case e.state != inLine:
	case !there:
		w.goneLocked(e, w.evictedErr())
	default:
		w.deliverLocked(e)
	}
}

// setOrder sets the order of an entry. The session may end at the same time, and goneLocked then reads the order.
func (w *lineWatch) setOrder(e *entry, order uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.order = order
}

// goneLocked ends an entry that is no longer in the line, and delivers that.
func (w *lineWatch) goneLocked(e *entry, cause error) {
	e.recordEnding(removedByOther)
	if e.number.mayExist() {
		w.session.life.Start(e.removeClaim) // the client that removed the entry may have left it
	}
	e.delivery.Deliver(store.Standing{State: store.Gone, Order: e.order, Cause: cause})
	w.dropEntryLocked(e)
}

func (w *lineWatch) evictedErr() error {
	return fmt.Errorf("%s: %w: another client removed it, as stile break does, or its session ended", w.session.store, store.ErrGone)
}

// lineOf returns the watch of the directory dir; nil if the session has no entry there.
func (se *session) lineOf(dir string) *lineWatch {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.lines[dir]
}

// holds reports whether one of the session's entries is admitted, or may be because it is being
// created.
func (se *session) holds() bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	for _, w := range se.lines {
		if w.holds() {
			return true
		}
	}
	return false
}

func (w *lineWatch) holds() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for e := range w.mine {
		if e.state == joining || e.delivery.Admitted() || e.verifying {
			return true
		}
	}
	return false
}

// nodeGone handles the deletion of a node; read is as for handleRemoval.
func (se *session) nodeGone(path string, read bool) {
	dir, name := split(path)
	se.mu.Lock()
	delete(se.watched, path)
	w := se.lines[dir]
	se.mu.Unlock()
	if w != nil {
		w.handleRemoval(name, read)
	}
}

// watchFired handles an event that has fired the watch of an existing node: its data has changed.
func (se *session) watchFired(path string) {
	dir, name := split(path)
	se.mu.Lock()
	delete(se.watched, path)
	w := se.lines[dir]
	se.mu.Unlock()
	if w != nil {
		w.watchFired(name)
	}
}

// watchFired requests a new watch of a node, if an entry needs it.
func (w *lineWatch) watchFired(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for e := range w.mine {
		if e.state == inLine && e.node.name == name {
			w.session.requestOwnWatch(e.path())
		}
	}
	w.wakeLocked()
}

// childrenChanged handles that an entry has joined or left a line.
func (se *session) childrenChanged(dir string) {
	if w := se.lineOf(dir); w != nil {
		w.mu.Lock()
		w.watched, w.stale = false, true
		w.mu.Unlock()
		w.wake()
	}
}

// reconnected restores what was lost with a connection: all entries are watched again, and lines
// are read whose changes may concern an entry.
func (se *session) reconnected() {
	se.mu.Lock()
	clear(se.watched)
	lines := make([]*lineWatch, 0, len(se.lines))
	for _, w := range se.lines {
		lines = append(lines, w)
	}
	se.mu.Unlock()
	for _, w := range lines {
		w.reconnected()
	}
}

// reconnected is [session.reconnected] for one line. For an admitted entry it reads nothing: only
// the entry's own node matters.
func (w *lineWatch) reconnected() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watched, w.limitStale = false, true
	for e := range w.mine {
		if e.state != inLine {
			continue
		}
		w.session.requestOwnWatch(e.path())
		w.stale = w.stale || w.unreadable || e.contended != nil || !e.delivery.Admitted()
	}
	w.wakeLocked()
}

// handleRemoval updates the entries after a departure, of another entry or their own. No entry
// can join ahead of an entry. So an entry that knows all entries ahead is next when all have left,
// and the line need not be read. read is set if a request found the departure, which may then be
// old; an event is new.
func (w *lineWatch) handleRemoval(name string, read bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for e := range w.mine {
		if e.state != inLine {
			continue
		}
		if e.node.name == name {
			w.goneLocked(e, w.evictedErr())
			continue
		}
		at := slices.IndexFunc(e.ahead, func(c listedEntry) bool { return c.name == name })
		switch {
		case at < 0:
		case e.ahead[at].mayBeReplaced():
			w.stale = true
		default:
			e.ahead = slices.Delete(e.ahead, at, at+1)
			w.advanceLocked(e, read)
			// Others may have left before it, and none of them was watched. One listing shows all of that.
			w.stale = w.stale || read && e.blocking() > 0
		}
	}
	w.wakeLocked()
}

// wake wakes the goroutine that follows the line, if it runs.
func (w *lineWatch) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakeLocked()
}

// followLocked starts the goroutine that follows the line, or wakes it.
func (w *lineWatch) followLocked() {
	if !w.following {
		w.following = true
		w.session.life.Start(w.run)
	}
	w.wakeLocked()
}

// wakeLocked wakes the goroutine that follows the line, if it runs.
func (w *lineWatch) wakeLocked() {
	if w.following {
		w.wakeup.Set()
	}
}

// run follows the line until the watch is dropped: it sets the watches that entries need, and
// reads the line if an event may have been missed. The handling of events does not wait for it.
func (w *lineWatch) run() {
	ticker := time.NewTicker(w.session.store.recheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-w.wakeup:
		case <-ticker.C:
			now := time.Now()
			w.recheckIfDue(now)
			w.checkBlockersIfDue(now)
		case <-w.ctx.Done():
			return
		}
		err := w.catchUp()
		if err != nil && w.ctx.Err() == nil {
			w.session.store.logger.LogAttrs(w.ctx, slog.LevelDebug, "following a line failed; retrying",
				slog.String("lock", w.name), slog.Any("error", err))
			attempts.Sleep(w.ctx, firstPause)
			w.wake()
		}
	}
}

func (w *lineWatch) catchUp() error {
	if err := w.recheck(); err != nil {
		return err
	}
	if err := w.reread(); err != nil {
		return err
	}
	if err := w.followLimit(); err != nil {
		return err
	}
	return w.watchNodes()
}

// recheckPause returns the time between two rechecks of an entry with the given number of blockers. All waiters
// of a line together make a number of them that grows with its logarithm: 20 a second for a thousand.
func recheckPause(interval time.Duration, blockers int) time.Duration {
	return interval * time.Duration(max(1, blockers/maxWatchedAhead))
}

// recheckIfDue has the line rechecked if that is due. It is called at each tick.
func (w *lineWatch) recheckIfDue(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	interval := w.session.store.recheckInterval
	switch e := w.foremostWaitingLocked(); {
	case e == nil:
		w.rechecked = now
	case now.Sub(w.rechecked) > recheckPause(interval, e.blocking())-interval/2: // ticks are not exact
		w.rechecked = now
		w.unsure, w.limitStale = true, true
	}
}

// recheck finds out whether the line must be read, because an event may have been missed. While nobody joins
// or leaves, a waiter reads nothing, however long the line is.
func (w *lineWatch) recheck() error {
	w.mu.Lock()
	unsure, seen := w.unsure, w.seen
	w.mu.Unlock()
	if !unsure {
		return nil
	}
	now, err := withSem(w.session, w.session.readings, func() (int64, error) {
		there, st, err := w.session.client.Exists(w.dir)
		if err != nil || !there {
			return 0, err
		}
		return st.Pzxid, nil
	})
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unsure = false
	w.stale = w.stale || now != seen || seen == 0
	return nil
}

// wanted returns the nodes to watch besides the entries' own: the nearest ahead that block an
// entry. everything is set if that is not enough and the directory must be watched.
func (w *lineWatch) wanted() (names []string, everything bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wantedLocked()
}

func (w *lineWatch) wantedLocked() (names []string, everything bool) {
	everything = w.unreadable
	for e := range w.mine {
		if e.state != inLine {
			continue
		}
		everything = everything || e.contended != nil
		if e.blocking() == 0 || w.unreadable {
			continue
		}
		blockers := slices.DeleteFunc(slices.Clone(e.ahead), func(c listedEntry) bool {
			return e.req.Mode.Slots() == 0 && line.Admits(e.req.Mode, []line.Mode{c.mode})
		})
		if over := len(blockers) - maxWatchedAhead; over > 0 {
			blockers = blockers[over:]
			// A slot becomes free when any of the blockers leaves.
			everything = everything || e.req.Mode.Slots() > 0
		}
		for _, c := range blockers {
			names = append(names, c.name)
		}
	}
	return names, everything
}

// watchNodes sets the missing watches: one for each node, however many entries need it. The client
// library cannot cancel watches, so they stay as long as their nodes, or the connection.
func (w *lineWatch) watchNodes() error {
	names, everything := w.wanted()
	se := w.session
	se.mu.Lock()
	names = slices.DeleteFunc(names, func(name string) bool {
		path := join(w.dir, name)
		if se.watched[path] {
			return true
		}
		se.watched[path] = true
		return false
	})
	se.mu.Unlock()

	errs := make([]error, len(names))
	var asking sync.WaitGroup
	for i, name := range names {
		asking.Go(func() { errs[i] = w.watchNode(name) })
	}
	asking.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	w.mu.Lock()
	again := (everything || w.unreadable) && !w.watched
	w.stale = w.stale || again
	w.mu.Unlock()
	if again {
		return w.reread()
	}
	return nil
}

func (w *lineWatch) watchNode(name string) error {
	path := join(w.dir, name)
	_, err := withSem(w.session, w.session.readings, func() (struct{}, error) {
		// Not exists, which would leave a watch on a deleted node whose name is never used again.
		_, _, err := w.session.client.Get(watched(path))
		return struct{}{}, err
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, zk.ErrNoNode):
		w.session.nodeGone(path, true)
		return nil
	case errors.Is(err, zk.ErrNoAuth):
		// The node cannot be watched either, but the directory may be readable.
		w.mu.Lock()
		w.unreadable = true
		w.mu.Unlock()
		err = nil
	}
	w.session.mu.Lock()
	defer w.session.mu.Unlock()
	delete(w.session.watched, path)
	return err
}

// reread reads the line, if that is necessary, and corrects what is known of it.
func (w *lineWatch) reread() error {
	_, everything := w.wanted()
	w.mu.Lock()
	if !w.stale {
		w.mu.Unlock()
		return nil
	}
	w.stale = false
	w.readings++
	reading, watch := w.readings, everything && !w.watched
	w.watched = w.watched || watch
	w.mu.Unlock()

	path := w.dir
	if watch {
		path = watched(path)
	}
	seen := int64(0)
	children, err := withSem(w.session, w.session.readings, func() ([]string, error) {
		children, st, err := w.session.client.Children(path)
		if err == nil {
			seen = st.Pzxid
		}
		return children, err
	})

	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		w.stale = true
		w.watched = w.watched && !watch
		return err
	}
	w.seen = seen
	w.applyLocked(contenders(children), reading)
	return nil
}

// applyLocked updates the entries with a read of the line. The read says nothing about entries that
// may have been created since it began.
func (w *lineWatch) applyLocked(cs []listedEntry, reading int) {
	for e := range w.mine {
		if e.state != inLine {
			continue
		}
		if e.arrived > reading {
			w.seen = 0
			continue
		}
		at := e.in(cs)
		if at < 0 {
			w.goneLocked(e, w.evictedErr())
			continue
		}
		e.updateAhead(cs[:at])
		w.advanceLocked(e, true)
		if f := e.contended; f != nil && waitsBehind(cs, at) {
			e.contended = nil
			go f()
		}
	}
}

// in returns the entry's index in a read of the line; -1 if it is missing.
func (e *entry) in(cs []listedEntry) int {
	return slices.IndexFunc(cs, func(c listedEntry) bool { return c.name == e.node.name })
}

// updateAhead updates the known entries ahead with a read. The read may be older than the last
// event: it was in flight already, or a server that lags behind answered it after a reconnection.
// But an entry that has left does not come back, and an admitted entry stays admitted.
func (e *entry) updateAhead(ahead []listedEntry) {
	if e.delivery.Admitted() {
		return
	}
	known := make(map[string]bool, len(e.ahead))
	for _, c := range e.ahead {
		known[c.name] = true
	}
	e.ahead = slices.DeleteFunc(slices.Clone(ahead), func(c listedEntry) bool { return !known[c.name] && !c.mayBeReplacement() })
}

// withSem makes a request for an entry in a line when fewer than cap(places) such requests are in
// flight.
func withSem[T any](se *session, sem chan struct{}, request func() (T, error)) (T, error) {
	select {
	case sem <- struct{}{}:
		defer func() { <-sem }()
	case <-se.life.Context().Done(): // ask returns the cause
	}
	return ask(se.life.Context(), request)
}
