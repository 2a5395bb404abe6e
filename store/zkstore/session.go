package zkstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/lifetime"
)

// session is a ZooKeeper session, with a connection of its own, and the entries in it.
type session struct {
	store *Store
	group *group

	// client, id and ttl are set by begin.
	client *client
	id     int64
	ttl    time.Duration

	life *lifetime.Life

	// connection counts the connections on which the session has been.
	connection atomic.Int64

	// bytes is what the session's entries add to the transaction of its end: those that stand in lines, and those that may.
	bytes atomic.Int64

	// own are the nodes of entries that have to be watched. readings and asks have a place taken for each request that is
	// made for entries that follow their lines. All are the session's alone: another of its group has another connection.
	own            *ownNodes
	readings, asks chan struct{}

	// mu is taken before the mutex of a line, and after that of the group.
	mu      sync.Mutex
	lines   map[string]*follower // by directory
	watched map[string]bool      // nodes ahead of entries, of whose end the server will tell, or is being asked to; by path
	until   time.Time            // when the session ends if it is not confirmed again
	expiry  *time.Timer          // looks whether it is that late
	over    bool                 // it is gone, or goes by itself: there is nothing more to close
}

func newSession(g *group) *session {
	se := &session{
		store: g.store, group: g,
		lines:   make(map[string]*follower),
		watched: make(map[string]bool),
		own:     newOwnNodes(), readings: make(chan struct{}, parallel), asks: make(chan struct{}, parallel),
	}
	se.life = lifetime.New(context.Background(), &se.mu, func(cause error) { g.lose(se, cause) })
	return se
}

// open opens the session in ZooKeeper, for a TTL that the servers must grant. They may grant more.
func (se *session) open(ctx context.Context, ttl time.Duration) error {
	sent := time.Now()
	c, err := se.store.connect(ttl, true, se.handle)
	if err != nil {
		return err
	}
	if err := c.await(ctx); err != nil {
		go c.shut() // which may take a second
		return err
	}
	id, granted := c.link.terms()
	if granted < ttl {
		go c.shut()
		return fmt.Errorf("a TTL of %v: the servers grant none above %v: ask for that or less", ttl, granted)
	}
	se.begin(c, id, granted, sent)
	return nil
}

// begin completes the session when the server has granted it. The request was sent at the given time.
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

// ID returns the session's id, as ZooKeeper's own tools write it.
func (se *session) ID() string { return sessionText(se.id) }

func sessionText(id int64) string { return "0x" + strconv.FormatUint(uint64(id), 16) }

// Confirm is as that of [store.Session]. The leader is asked, which looks first whether the session lives. Pings are answered
// by followers alone, even by one that the leader has not heard of for long. Then the watches of entries are set that are
// missing, so that those are covered too.
//
// What was lost with its connection is asked again. That an answer is late is no reason to ask once more: the server answers
// in order. See [wire] for when it is left.
func (se *session) Confirm(ctx context.Context) error {
	if err := se.life.Err(); err != nil {
		return err
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	sent := time.Now()
	_, err := attempt(bounded, se.client, func(int) (struct{}, error) {
		if err := se.prove(); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, se.watchOwn(bounded)
	})
	switch {
	case err != nil:
		return se.explain(ctx, "confirm the session", err)
	case !se.confirmed(sent):
		return se.life.Err()
	}
	return nil
}

// prove returns nil if the session lives. A sync asks no more than the leader: one that the others have left for another
// answers too, for as long as its syncLimit, while the session ends at the other. So as long as something is held it takes
// a transaction, which none but a leader with a majority can answer. That is dearer, and to who only waits it matters
// nothing: nobody's turn comes without a majority. But it may come while a sync is under way.
func (se *session) prove() error {
	if !se.holds() {
		if _, err := se.client.Sync(se.store.paths.top()); err != nil || !se.holds() {
			return err
		}
	}
	return se.client.vote()
}

// confirmed moves the end of the session. It reports false if the session has ended.
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

// expire ends a session that was not confirmed for its TTL. The servers might keep it: the ZooKeeper client sends signs
// of life for as long as the process lives, whether or not anybody uses it.
func (se *session) expire() {
	se.mu.Lock()
	early := time.Now().Before(se.until) // the timer had fired, and then came a confirmation
	se.mu.Unlock()
	if early {
		return
	}
	se.lose(fmt.Errorf("%s: %w: session %s was not confirmed for %v", se.store, store.ErrSessionLost, se.ID(), se.ttl))
}

// handle handles an event. It is called by the goroutines that read from the server, and must not wait for answers.
func (se *session) handle(ev zk.Event) {
	switch {
	case ev.Type == zk.EventSession && ev.State == zk.StateExpired:
		_ = se.gone()
	case ev.Type == zk.EventSession && ev.State == zk.StateHasSession:
		se.connection.Add(1)
		se.checkGranted()
		se.reconnected()
	case ev.Type == zk.EventNodeDeleted:
		se.nodeGone(ev.Path, se.own.asking(ev.Path))
	case ev.Type == zk.EventNodeDataChanged:
		se.unwatched(ev.Path)
	case ev.Type == zk.EventNodeChildrenChanged:
		se.childrenChanged(ev.Path)
	}
}

// checkGranted ends a session that the server it has come to grants less than it was opened with: the servers' bounds are
// others since, and it may expire before those who hold something let go. The server is left to end it, because they are
// to hear of it first.
func (se *session) checkGranted() {
	c := se.begun()
	if c == nil {
		return
	}
	if _, granted := c.link.terms(); granted < se.ttl {
		c.link.stop()
		c.link.drop()
		se.lose(fmt.Errorf("%s: %w: session %s was granted %v, and after a reconnection only %v: ask for that or less",
			se.store, store.ErrSessionLost, se.ID(), se.ttl, granted))
	}
}

// begun returns the session's client, nil if the session has not begun.
func (se *session) begun() *client {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.client
}

// Close is as that of [store.Session].
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
		return se.store.explain("end the session", attempts.EndedBy(ctx, err))
	}
	return nil
}

// endRemote ends the session in ZooKeeper, and the client. Once it has begun there is no second attempt: a client that was
// told to end can do nothing more.
func (se *session) endRemote(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, se.ttl) // after which there is nothing left
	defer cancel()
	for ctx.Err() == nil && se.client.State() != zk.StateHasSession && !se.client.link.hasEnded() {
		attempts.Rest(ctx, firstPause)
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
	case se.client.link.closeConfirmed(), se.client.link.hasEnded():
		return nil
	case ctx.Err() != nil:
		return attempts.GaveUp(ctx, se.client.link.trouble())
	}
	return errors.New("the server has not confirmed it: the entries go when the TTL has passed")
}

// gone notes that the servers have ended the session.
func (se *session) gone() error {
	se.mu.Lock()
	id := se.ID()
	se.mu.Unlock()
	err := fmt.Errorf("%s: %w: session %s has expired, or was ended by somebody", se.store, store.ErrSessionLost, id)
	se.lose(err)
	return se.life.Err()
}

// lose ends a session that was not closed. The client would open another, or go on with this one: it is ended too.
func (se *session) lose(cause error) {
	if !se.finish(cause, true, true) {
		return
	}
	if c := se.begun(); c != nil {
		go c.shut()
	}
}

// abandon ends a session that is well, because another of its group is lost. The servers hear of it with Close, when those who
// hold something have been told; without Close, when nobody has confirmed it for its TTL.
func (se *session) abandon(cause error) {
	if !se.finish(cause, true, false) {
		return
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.expiry = time.AfterFunc(time.Until(se.until), se.client.shut)
}

// finish ends the session once, and reports whether it was this call that did. If the session was lost, everybody is
// notified; if it is over there is nothing to close.
func (se *session) finish(cause error, lost, over bool) bool {
	var lines map[string]*follower
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

// explain is [Store.explain] for calls that were bounded by ctx and by the session's life.
func (se *session) explain(ctx context.Context, doing string, err error) error {
	if errors.Is(err, zk.ErrSessionExpired) {
		return se.gone()
	}
	if ended := se.life.CutShort(ctx); ended != nil {
		return ended
	}
	return se.store.explain(doing, attempts.EndedBy(ctx, err))
}
