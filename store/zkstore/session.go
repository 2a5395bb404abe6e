package zkstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/lifetime"
)

// session is a ZooKeeper session, with its own connection, and its entries.
type session struct {
	store *Store
	group *group

	// client, id and ttl are set by begin.
	client *client
	id     int64
	ttl    time.Duration

	life *lifetime.Life

	// connection counts the session's connections.
	connection atomic.Int64

	// bytes is what the session's entries add to the transaction of its end: those in lines, and
	// those that may be.
	bytes atomic.Int64

	// own are the nodes of entries that need a watch. readings and asks bound the requests in
	// flight for entries in lines: each has one element for each request. A further session of the
	// group has its own, because it has its own connection.
	own            *ownNodes
	readings, asks chan struct{}

	checkingBlockers atomic.Bool // a check of blockers is running

	// mu is locked before the mutex of a line, and after that of the group.
	mu      sync.Mutex
	lines   map[string]*lineWatch // by directory
	watched map[string]bool       // nodes ahead of entries with a watch set or requested; by path
	until   time.Time             // when the session ends if it is not confirmed again
	expiry  *time.Timer           // calls expire at until
	over    bool                  // there is nothing to close: it has ended, or ends by itself

	serverLeft time.Time // when a server was last left because its data differs from the leader's
}

func newSession(g *group) *session {
	se := &session{
		store: g.store, group: g,
		lines:   make(map[string]*lineWatch),
		watched: make(map[string]bool),
		own:     newOwnNodes(), readings: make(chan struct{}, maxInFlight), asks: make(chan struct{}, maxInFlight),
	}
	se.life = lifetime.New(context.Background(), &se.mu, func(cause error) { g.lose(se, cause) })
	return se
}

// open opens the session in ZooKeeper, with a TTL that the servers must grant. They may grant more.
func (se *session) open(ctx context.Context, ttl time.Duration) error {
	sent := time.Now()
	c, err := se.store.connect(ttl, true, se.handle)
	if err != nil {
		return err
	}
	if err := c.await(ctx); err != nil {
		go c.shut() // it may take a second
		return err
	}
	id, granted := c.transport.terms()
	if granted < ttl {
		go c.shut()
		return fmt.Errorf("TTL %v: the servers grant at most %v", ttl, granted)
	}
	se.begin(c, id, granted, sent)
	return nil
}

// begin completes the session when the server has granted it. sent is when the request was sent.
func (se *session) begin(c *client, id int64, ttl time.Duration, sent time.Time) {
	se.mu.Lock()
	defer se.mu.Unlock()
	se.client, se.id, se.ttl = c, id, ttl
	if se.life.EndedLocked() { // already
		go c.shut()
		return
	}
	se.until = sent.Add(ttl)
	se.expiry = time.AfterFunc(time.Until(se.until), se.expire)
}

// ID returns the session's id, as ZooKeeper's own tools print it.
func (se *session) ID() string { return sessionText(se.id) }

func sessionText(id int64) string { return "0x" + strconv.FormatUint(uint64(id), 16) }

// Confirm implements [store.Session] for one ZooKeeper session. It asks the leader, which first
// checks that the session exists. (Followers answer pings alone, even a follower that the leader
// has long lost.) Then it sets the missing watches of entries, so that the confirmation covers them
// too.
//
// Requests that were lost with their connection are repeated. A late reply is no reason to repeat
// one: the server answers in order. See [serverConn] for when a server is abandoned.
func (se *session) Confirm(ctx context.Context) error {
	if err := se.life.Err(); err != nil {
		return err
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	sent := time.Now()
	_, err := attempt(bounded, se.client, func(int) (struct{}, error) {
		if err := se.checkAlive(); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, se.watchOwn(bounded)
	})
	switch {
	case err != nil:
		return se.wrapErr(ctx, "renew the session", err)
	case !se.confirmed(sent):
		return se.life.Err()
	}
	return nil
}

// checkAlive returns nil if the session lives. A sync asks only the leader, and a leader that the
// others have left for another also answers it, for as long as its syncLimit, while the session
// ends at the other. So a session with holds needs a transaction, which only a leader with a
// majority can answer. A transaction costs more, and a session with waiters does not need it,
// because no entry is admitted without a majority. But one may be admitted while a sync is in
// flight.
func (se *session) checkAlive() error {
	if !se.holds() {
		if _, err := se.client.Sync(se.store.paths.top()); err != nil || !se.holds() {
			return err
		}
	}
	return se.client.commitEmpty()
}

// confirmed extends the session. It returns false if the session has ended.
func (se *session) confirmed(sent time.Time) bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.life.EndedLocked() {
		return false
	}
	se.until = sent.Add(se.ttl)
	se.expiry.Reset(time.Until(se.until))
	return true
}

// expire ends a session that was not confirmed for its TTL. The servers might keep it, because the
// library sends pings for as long as the process lives.
func (se *session) expire() {
	se.mu.Lock()
	early := time.Now().Before(se.until) // a confirmation came after the timer had fired
	se.mu.Unlock()
	if early {
		return
	}
	se.lose(fmt.Errorf("%s: %w: session %s was not confirmed for %v", se.store, store.ErrSessionLost, se.ID(), se.ttl))
}

// handle handles an event. The goroutines that read from the server call it, so it must not wait
// for replies.
func (se *session) handle(ev zk.Event) {
	switch {
	case ev.Type == zk.EventSession && ev.State == zk.StateExpired:
		_ = se.endExpired()
	case ev.Type == zk.EventSession && ev.State == zk.StateHasSession:
		se.connection.Add(1)
		se.checkGranted()
		se.reconnected()
	case strings.HasSuffix(ev.Path, "/"+limitNode):
		dir, _ := split(ev.Path)
		se.limitChanged(dir)
	case ev.Type == zk.EventNodeDeleted:
		se.nodeGone(ev.Path, se.own.asking(ev.Path))
	case ev.Type == zk.EventNodeDataChanged:
		se.watchFired(ev.Path)
	case ev.Type == zk.EventNodeChildrenChanged:
		se.childrenChanged(ev.Path)
	}
}

// checkGranted ends the session if the server of a new connection grants it less than it was opened
// with: the servers' bounds have changed, and it may expire before its holders stop. The servers
// end it, because holders must be notified before.
func (se *session) checkGranted() {
	c := se.currentClient()
	if c == nil {
		return
	}
	if _, granted := c.transport.terms(); granted < se.ttl {
		c.transport.stop()
		c.transport.drop()
		se.lose(fmt.Errorf("%s: %w: session %s had a TTL of %v, and the servers grant only %v after a reconnection: use that or less",
			se.store, store.ErrSessionLost, se.ID(), se.ttl, granted))
	}
}

// currentClient returns the session's client, nil if the session has not begun.
func (se *session) currentClient() *client {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.client
}

// Close implements [store.Session] for one ZooKeeper session.
func (se *session) Close(ctx context.Context) error {
	se.finish(fmt.Errorf("%s: %w: session %s is closed", se.store, store.ErrSessionLost, se.ID()), false, false)
	se.life.AwaitNotified()
	se.mu.Lock()
	over := se.over
	se.over = true
	if se.expiry != nil {
		se.expiry.Stop()
	}
	se.mu.Unlock()
	if over {
		return nil
	}
	err := se.endRemote(ctx)
	if err != nil {
		return se.store.wrapErr("end the session", attempts.WithContextErr(ctx, err))
	}
	return nil
}

// endRemote ends the session in ZooKeeper, and the client. There is no second attempt, because a
// client that was closed can do nothing more.
func (se *session) endRemote(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, se.ttl) // after that the servers have ended it
	defer cancel()
	for ctx.Err() == nil && se.client.State() != zk.StateHasSession && !se.client.transport.hasEnded() {
		attempts.Sleep(ctx, firstPause)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		se.client.shutWithin(ctx)
		se.life.AwaitWork()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	switch {
	case se.client.transport.closeConfirmed(), se.client.transport.hasEnded():
		return nil
	case ctx.Err() != nil:
		return attempts.GaveUp(ctx, se.client.transport.lastErr())
	}
	return errors.New("the server has not confirmed it; the entries end with the TTL")
}

// endExpired records that the servers have ended the session.
func (se *session) endExpired() error {
	se.mu.Lock()
	id := se.ID()
	se.mu.Unlock()
	err := fmt.Errorf("%s: %w: session %s has expired, or was ended by another client", se.store, store.ErrSessionLost, id)
	se.lose(err)
	return se.life.Err()
}

// lose ends a session that was not closed, and its client, which would open another session or
// continue with this one.
func (se *session) lose(cause error) {
	if !se.finish(cause, true, true) {
		return
	}
	if c := se.currentClient(); c != nil {
		go c.shut()
	}
}

// abandon ends a live session because another session of its group is lost. The servers end it with
// Close, after its holders were notified; without Close, when it was not confirmed for its TTL.
func (se *session) abandon(cause error) {
	if !se.finish(cause, true, false) {
		return
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.expiry = time.AfterFunc(time.Until(se.until), se.client.shut)
}

// finish ends the session once, and reports whether this call did. lost means that all owners are
// notified; over means that there is nothing to close.
func (se *session) finish(cause error, lost, over bool) bool {
	var lines map[string]*lineWatch
	return se.life.End(cause, lost, func() {
		se.over = over
		lines, se.lines = se.lines, nil
		if se.expiry != nil {
			se.expiry.Stop()
		}
	}, func() {
		for _, w := range lines {
			w.close(cause, lost)
		}
	})
}

// wrapErr is [Store.wrapErr] for calls that ctx and the session's life bound.
func (se *session) wrapErr(ctx context.Context, op string, err error) error {
	if errors.Is(err, zk.ErrSessionExpired) {
		return se.endExpired()
	}
	if ended := se.life.EndedDuring(ctx); ended != nil {
		return ended
	}
	return se.store.wrapErr(op, attempts.WithContextErr(ctx, err))
}
