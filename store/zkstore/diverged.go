package zkstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/line"
)

// A server's data can differ from the leader's for good: after a change of the leader a follower may keep
// ephemeral nodes of transactions that were never committed (ZOOKEEPER-5010). A client that is connected
// there would wait for such an entry forever. No read shows that, not even after a sync, and no client can
// delete the node, because the leader does not have it. So waiting entries ask the leader now and then
// whether the entries that they wait for exist. A transaction is evaluated by the leader, and with its
// reply the server has caught up to it. A server that then still shows an entry that the leader does not
// have is left for another.

const (
	// blockerCheckInterval is the shortest time between two such questions for one line, if the TTL is not
	// less than half of it.
	blockerCheckInterval = 15 * time.Second
	// blockersPerInterval slows the questions of entries far from the head of the line, because there
	// are many of them: with that many entries to wait for, the time is twice the interval.
	blockersPerInterval = 8
	// maxChecksPerTransaction bounds the entries in one question.
	maxChecksPerTransaction = 64
)

// blockerCheckPause returns the time between two checks of an entry with the given number of blockers.
// All waiters of a line together make a number of checks that grows with its logarithm: 2.6 a second for
// a thousand waiters.
func blockerCheckPause(interval time.Duration, blockers int) time.Duration {
	return interval + interval*time.Duration(blockers)/blockersPerInterval
}

// blockerCheckInterval returns the shortest time between two checks. A short TTL means that locks must be free
// soon after a failure.
func (se *session) blockerCheckInterval() time.Duration {
	return min(se.store.blockerCheckInterval, 2*se.ttl)
}

// A blocker is an entry that another entry waits for.
type blocker struct{ lock, path string }

// checkBlockersIfDue starts a check if one is due for the line. It is called at each tick.
func (w *lineWatch) checkBlockersIfDue(now time.Time) {
	se := w.session
	if !w.blockerCheckDue(now) || !se.checkingBlockers.CompareAndSwap(false, true) {
		return
	}
	if !se.life.Start(func() {
		defer se.checkingBlockers.Store(false)
		se.checkBlockers(se.takeBlockers(now))
	}) {
		se.checkingBlockers.Store(false)
	}
}

// blockerCheckDue reports whether a check is due.
func (w *lineWatch) blockerCheckDue(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.blockerCheckDueLocked(now, 1)
}

// blockerCheckDueLocked reports whether the part share of the time between two checks has passed. The time
// begins when an entry waits.
func (w *lineWatch) blockerCheckDueLocked(now time.Time, share float64) bool {
	e := w.foremostWaitingLocked()
	if e == nil {
		w.blockersChecked = now
		return false
	}
	pause := blockerCheckPause(w.session.blockerCheckInterval(), e.blocking())
	return now.Sub(w.blockersChecked) >= time.Duration(share*float64(pause))
}

// foremostWaitingLocked returns the first of the session's entries in the line that waits; nil if none
// does. The entries behind it need no check of their own while it waits: it blocks them, or they wait for
// an entry that it waits for too.
func (w *lineWatch) foremostWaitingLocked() *entry {
	var first *entry
	for e := range w.mine {
		if e.state == inLine && (first == nil || e.node.compare(first.node) < 0) && e.blocking() > 0 {
			first = e
		}
	}
	return first
}

// takeBlockers returns the blockers to check in all lines of the session for which a check is due, or will
// be soon: so a session that waits in many lines makes few transactions.
func (se *session) takeBlockers(now time.Time) []blocker {
	se.mu.Lock()
	lines := make([]*lineWatch, 0, len(se.lines))
	for _, w := range se.lines {
		lines = append(lines, w)
	}
	se.mu.Unlock()
	var all []blocker
	for _, w := range lines {
		all = append(all, w.takeBlockers(now)...)
	}
	return all
}

func (w *lineWatch) takeBlockers(now time.Time) []blocker {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.blockerCheckDueLocked(now, 0.5) {
		return nil
	}
	w.blockersChecked = now
	var bs []blocker
	for _, c := range w.foremostWaitingLocked().decisive() {
		bs = append(bs, blocker{w.name, join(w.dir, c.name)})
	}
	return bs
}

// decisive returns the entries ahead on whose departure the entry's next step depends. Each entry ahead
// becomes one of them at last, when those before it have left. Usually it is the first that blocks the
// entry. For a slot it is any of the holders, because the others may stay; of very many, some are chosen.
func (e *entry) decisive() []listedEntry {
	slots := e.req.Mode.Slots()
	if slots == 0 {
		at := slices.IndexFunc(e.ahead, func(c listedEntry) bool { return !line.Admits(e.req.Mode, []line.Mode{c.mode}) })
		return slices.Clone(e.ahead[at : at+1])
	}
	holders := slices.Clone(e.ahead[:min(slots, len(e.ahead))])
	rand.Shuffle(len(holders), func(i, j int) { holders[i], holders[j] = holders[j], holders[i] })
	return holders[:min(len(holders), maxChecksPerTransaction)]
}

// checkBlockers asks the leader whether entries exist, and leaves the server if it shows one that does
// not. A lost connection or a missing right to read an entry changes nothing.
func (se *session) checkBlockers(bs []blocker) {
	se.mu.Lock()
	early := !se.serverLeft.IsZero() && time.Since(se.serverLeft) < se.blockerCheckInterval()
	se.mu.Unlock()
	if early { // the next server shows it too, or there is only one
		return
	}
	for len(bs) > 0 {
		conn := se.client.transport.current()
		chunk := bs[:min(len(bs), maxChecksPerTransaction)]
		paths := make([]string, 0, len(chunk))
		for _, b := range chunk {
			paths = append(paths, b.path)
		}
		refusedAt, err := withSem(se, se.asks, func() (int, error) { return se.client.checkExist(paths) })
		switch {
		case err == nil:
			bs = bs[len(chunk):]
			continue
		case refusedAt < 0:
			return
		case errors.Is(err, zk.ErrNoNode):
			if left, err := se.leaveIfDiverged(conn, chunk[refusedAt]); left || err != nil {
				return
			}
			se.readAgain(path.Dir(chunk[refusedAt].path))
		case !errors.Is(err, zk.ErrNoAuth):
			return
		}
		bs = bs[refusedAt+1:] // those before exist
	}
}

// checkExist asks the leader whether nodes exist. It returns the index of the first node that does not, or
// that the client may not check; a negative number if that is not known.
func (c *client) checkExist(paths []string) (refusedAt int, err error) {
	checks := make([]any, 0, len(paths))
	for _, path := range paths {
		checks = append(checks, &zk.CheckVersionRequest{Path: path, Version: -1})
	}
	replies, err := c.Multi(checks...)
	return slices.IndexFunc(replies, func(r zk.MultiResponse) bool { return r.Error != nil }), err
}

var errDiverged = errors.New("the server has a node that the leader does not have: restart it with an empty data directory")

// leaveIfDiverged leaves the server of a connection on which the leader has reported that a node does not
// exist, if the server shows the node. An entry that has just left is no longer shown. The connection must
// be the one that was current before the leader was asked: another server's reply proves nothing.
func (se *session) leaveIfDiverged(conn *serverConn, b blocker) (left bool, err error) {
	shown, err := withSem(se, se.asks, func() (bool, error) {
		shown, _, err := se.client.Exists(b.path)
		return shown, err
	})
	if err != nil || !shown || !se.client.transport.leave(conn, errDiverged) {
		return false, err
	}
	se.mu.Lock()
	se.serverLeft = time.Now()
	se.mu.Unlock()
	se.store.logger.LogAttrs(context.WithoutCancel(se.life.Context()), slog.LevelWarn,
		"ZooKeeper server has a node that its leader does not have (ZOOKEEPER-5010); going on at another server: "+
			"restart this one with an empty data directory",
		slog.String("lock", b.lock), slog.String("server", conn.RemoteAddr().String()), slog.String("node", b.path))
	return true, nil
}

// readAgain has the line of a directory read, in which an entry was waited for that does not exist any more: the server may have
// left out the event, as when it was repaired.
func (se *session) readAgain(dir string) {
	w := se.lineOf(dir)
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stale = true
	w.followLocked()
}

// current returns the present connection; nil if there is none.
func (l *transport) current() *serverConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}

// leave closes a connection, so that the client goes on at the next server, and reports whether that was
// still the present one.
func (l *transport) leave(w *serverConn, reason error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w == nil || l.conn != w {
		return false
	}
	l.err = fmt.Errorf("%s: %w", w.RemoteAddr(), reason)
	l.dropLocked()
	return true
}
