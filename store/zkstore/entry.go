package zkstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/delivery"
)

// entry is an entry in a line, and its ticket.
type entry struct {
	session *session
	line    *lineWatch
	req     store.Request
	guid    string
	data    []byte

	// bytes is the entry's part of the session's bytes. It is zero once the entry has left, or is
	// known never to enter.
	bytes atomic.Int64

	// node and order are set when the entry's node has been created.
	node  listedEntry
	order uint64

	// ended is an [ending]. unanswered counts the requests to delete the node whose outcome is
	// unknown.
	ended      atomic.Int32
	unanswered atomic.Int32
	version    atomic.Int32 // of the node's data, the last known
	number     claimState
	records    recordState

	// The fields below are guarded by the line's mutex.
	state     entryState
	arrived   int           // the number of the first read of the line that must include the entry
	ahead     []listedEntry // the entries ahead, as far as is known
	seen      int64         // the state of the directory from which it knows them; see lineWatch
	delivery  delivery.Delivery
	verifying bool   // a request for whether the entry exists is in flight
	contended func() // called when another entry waits behind this one
}

type entryState uint8

const (
	joining entryState = iota // its node is being created
	inLine                    // in its line
	over                      // withdrawn, gone, or never put in
)

// ending is how an entry has ended, as far as is known.
type ending int32

const (
	notEnded       ending = iota // not known to have ended
	withdrawn                    // a request of this client removed it
	removedByOther               // another client removed it
	either                       // one of these
)

// Enqueue implements [store.Session].
func (g *group) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	op := "join the line"
	e, err := newEntry(req)
	if err != nil {
		return nil, g.store.wrapErr(op, err)
	}
	if err := g.assignSession(ctx, e); err != nil {
		return nil, err
	}
	se := e.session
	bounded, cancel := se.life.Within(ctx)
	defer cancel()

	err = e.enter(bounded)
	if err != nil {
		e.line.detach(e)
		if held, ok := errors.AsType[*store.HeldError](err); ok {
			return nil, held
		}
		return nil, se.wrapErr(ctx, op, err)
	}
	return e, nil
}

func newEntry(req store.Request) (*entry, error) {
	data, err := json.Marshal(value{Stile: valueFormat, Mode: req.Mode, Owner: req.Owner})
	if err != nil {
		return nil, err
	}
	return &entry{req: req, guid: newGUID(), data: data, delivery: delivery.New(req.Notify), number: newClaimState()}, nil
}

// enter creates the entry's node and reads the line. On failure the node does not exist, or is
// being deleted.
func (e *entry) enter(ctx context.Context) error {
	if e.req.Try {
		if err := e.checkFree(ctx); err != nil {
			e.releaseBytes()
			return err
		}
	}
	children, err := e.createNode(ctx)
	if err != nil {
		return err
	}
	ahead, err := e.entriesAhead(ctx, children)
	limit := 0
	if err == nil {
		limit, err = e.readLimit(ctx)
	}
	switch {
	case err != nil:
	case e.refusedBy(ahead, limit):
		e.undo(ctx) // first: the entry must not delay others
		return e.refusalErr(ctx, ahead)
	case !e.line.markInLine(e, ahead, limit):
		err = e.session.life.Err() // the session was lost meanwhile, and the entry with it
	}
	if err != nil {
		e.undo(ctx)
	}
	return err
}

// refusedBy reports whether the entry must leave the line that it has joined because of the entries
// ahead: they are of another kind; or it is a try, and another client was faster since the line was
// free.
func (e *entry) refusedBy(ahead []listedEntry, limit int) bool {
	return e.otherKind(ahead) || e.req.Try && !line.Admits(e.req.Mode.Within(limit), modes(ahead))
}

// refusalErr returns the error of an entry that refusedBy has refused.
func (e *entry) refusalErr(ctx context.Context, ahead []listedEntry) error {
	if e.otherKind(ahead) {
		return e.kindErr(ctx, ahead[0])
	}
	_, held := e.heldBy(ctx, ahead)
	return held
}

// undo deletes the node that was just created, in the background if ctx ends.
func (e *entry) undo(ctx context.Context) {
	if err := e.remove(ctx, e.node.name); err != nil {
		e.session.life.Start(e.abortEnqueue)
	}
}

// maxRereads is how often a try reads the line again while entries that block it are leaving. That
// takes some round trips, unless the servers refuse to delete an entry, or other entries join and
// leave all the time.
const maxRereads = 10

// checkFree refuses a try for a lock that is held. It writes nothing and disturbs no other client.
func (e *entry) checkFree(ctx context.Context) error {
	for n := 0; ; n++ {
		exact := n > 0 // a server that lags may show an entry that has left
		cs, err := e.session.list(ctx, e.line.dir, exact)
		if err != nil {
			return err
		}
		limit, err := e.readLimit(ctx)
		if err != nil || line.Admits(e.req.Mode.Within(limit), modes(cs)) {
			return err
		}
		if !exact {
			continue
		}
		if e.otherKind(cs) {
			return e.kindErr(ctx, cs[0])
		}
		leaving, held := e.heldBy(ctx, cs)
		if !leaving || n >= maxRereads {
			return held
		}
		attempts.Sleep(ctx, firstPause)
	}
}

// list lists a line. An exact listing includes everything that had happened when list was called. A
// directory that does not exist is an empty line.
func (se *session) list(ctx context.Context, dir string, exact bool) ([]listedEntry, error) {
	children, err := se.children(ctx, dir, exact)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return contenders(children), err
}

// children returns the children of a node; see list.
func (se *session) children(ctx context.Context, dir string, exact bool) ([]string, error) {
	return attempt(ctx, se.client, func(int) ([]string, error) {
		connection := se.connection.Load()
		if exact {
			if _, err := se.client.Sync(dir); err != nil {
				return nil, err
			}
		}
		children, _, err := se.client.Children(dir)
		if exact && se.connection.Load() != connection {
			err = errMoved
		}
		return children, err
	})
}

var errMoved = errors.New("the connection was lost between two requests that must reach the same server")

// heldBy returns the error of a try that entries ahead block: it names the first entry that alone
// would block it, or else the first. leaving reports whether that entry has left meanwhile, or is
// being removed because the call of this session that created it was given up.
func (e *entry) heldBy(ctx context.Context, ahead []listedEntry) (leaving bool, err error) {
	held := &store.HeldError{Name: e.req.Name}
	first := slices.IndexFunc(ahead, func(c listedEntry) bool { return !line.Admits(e.req.Mode, []line.Mode{c.mode}) })
	who := ahead[max(0, first)]
	holder, err := readEntry(ctx, e.session.client, e.line.dir, who)
	switch {
	case ctx.Err() != nil:
		return false, err
	case errors.Is(err, zk.ErrNoNode):
		return true, held
	case err == nil: // otherwise the client may not read it
		held.Holder = &holder
		leaving = e.session.group.leaving(e.line.dir, holder)
	}
	return leaving, held
}

// otherKind reports whether the first entry of the line is of another kind than this one.
func (e *entry) otherKind(ahead []listedEntry) bool {
	return len(ahead) > 0 && !line.SameKind(e.req.Mode, ahead[0].mode)
}

// kindErr returns the error of an entry that is refused because of the first entry of the line, with
// what can be read of that entry.
func (e *entry) kindErr(ctx context.Context, first listedEntry) error {
	other, err := readEntry(ctx, e.session.client, e.line.dir, first)
	if err != nil {
		other = store.Entry{Mode: first.mode, Foreign: !first.ours()}
	}
	return &store.KindError{Name: e.req.Name, Mode: e.req.Mode, Other: other}
}

// createNode repeats the creation of the node until an attempt is answered. It returns a listing of
// the line that includes the entry, if it has one already.
func (e *entry) createNode(ctx context.Context) (children []string, err error) {
	for {
		if ctx.Err() != nil {
			e.releaseBytes()
			return nil, context.Cause(ctx)
		}
		made := e.create()
		var c created
		select {
		case c = <-made:
		case <-ctx.Done(): // the attempt continues
			e.session.life.Start(func() {
				if c := <-made; c.err != nil && refused(c.err) {
					e.releaseBytes()
					return
				}
				e.abortEnqueue()
			})
			return nil, context.Cause(ctx)
		}
		switch {
		case c.err == nil:
			if err = e.setNode(c); err == nil {
				e.seen = c.seen
				return c.children, nil
			}
		case errors.Is(c.err, zk.ErrNoNode):
			err = e.session.store.makeDir(ctx, e.session.client, e.line.dir)
		case refused(c.err):
			e.releaseBytes()
			return nil, c.err
		default:
			// The connection was lost. If the session lives on, the node may exist.
			var found bool
			if found, err = e.recover(ctx); found {
				return nil, nil
			}
			attempts.Sleep(ctx, firstPause)
		}
		if err != nil {
			e.session.life.Start(e.abortEnqueue)
			return nil, err
		}
	}
}

// prefix is the path of the entry's node up to the number that ZooKeeper appends.
func (e *entry) prefix() string {
	return join(e.line.dir, nodePrefix(e.guid, e.req.Mode, e.session.store.readWrite))
}

// path is the path of the entry's node, once that has been created.
func (e *entry) path() string { return join(e.line.dir, e.node.name) }

// created is the outcome of one attempt to create an entry's node.
type created struct {
	name     string
	stat     stat     // zero if it is not known
	children []string // nil if the line could not be listed
	seen     int64    // the state of the directory in that listing; see lineWatch
	err      error
}

// create makes one attempt to create the entry's node. After sending that request it sends another,
// for a listing: a session's requests are processed in order, so the listing includes the entry and
// needs no further round trip.
func (e *entry) create() <-chan created {
	client, dir := e.session.client, e.line.dir
	pc, forget := client.transport.registerCreate(e.prefix())
	listed := make(chan created, 1)
	go func() {
		<-pc.sent
		var l created
		if children, st, err := client.Children(dir); err == nil { // the outcome of the create says more
			l.children, l.seen = children, st.Pzxid
		}
		listed <- l
	}()
	made := make(chan created, 1)
	go func() {
		path, err := client.Create(e.prefix(), e.data, zk.FlagEphemeralSequential, e.session.store.acl)
		forget()
		c := created{err: err}
		if err == nil {
			_, c.name = split(path)
			select {
			case c.stat = <-pc.stats:
			default:
			}
			l := <-listed
			c.children, c.seen = l.children, l.seen
		}
		made <- c
	}()
	return made
}

// setNode records what is known of a node that was created.
func (e *entry) setNode(c created) error {
	n, ok := parseNode(c.name)
	if !ok {
		return fmt.Errorf("unexpected node name %q", c.name)
	}
	e.node = listedEntry{n, c.name}
	if c.stat == (stat{}) {
		return nil // see entriesAhead
	}
	return e.check(c.stat)
}

// check verifies what the entry depends on.
func (e *entry) check(st stat) error {
	switch {
	case st.owner != e.session.id:
		return fmt.Errorf("the entry belongs to session %s, and not to %s", sessionText(st.owner), e.session.ID())
	case e.node.sequence < 0 || e.node.sequence >= sequenceEnd:
		return fmt.Errorf("the sequence numbers of %s are used up, so all new entries would get the same one; "+
			"when the line is empty, delete the node to restart them", e.line.dir)
	case st.czxid <= 0 || st.czxid > store.MaxOrder:
		return fmt.Errorf("the ensemble's transaction number is %#x, beyond %#x, the largest from which a fencing token can be made",
			st.czxid, uint64(store.MaxOrder))
	}
	e.line.setOrder(e, uint64(st.czxid))
	return nil
}

// recover looks for the entry's node after an attempt whose outcome is unknown. The connection of
// that attempt is broken. Before the session reconnected, the server dropped requests that were in
// transit on it, so a listing after a sync is final. The leader must have the node too: the attempt may
// have been part of a transaction that was never committed, and that only this server has kept.
func (e *entry) recover(ctx context.Context) (found bool, err error) {
	cs, err := e.session.list(ctx, e.line.dir, true)
	at := slices.IndexFunc(cs, func(c listedEntry) bool { return c.guid == e.guid })
	if at < 0 || err != nil {
		return false, err
	}
	se, path := e.session, join(e.line.dir, cs[at].name)
	conn := se.client.transport.current()
	_, err = attempt(ctx, se.client, func(int) (int, error) { return se.client.checkExist([]string{path}) })
	switch {
	case errors.Is(err, zk.ErrNoNode): // or another client has removed the entry, and it joins again
		_, _ = se.leaveIfDiverged(conn, blocker{e.req.Name, path})
		return false, nil
	case err != nil && !errors.Is(err, zk.ErrNoAuth):
		return false, err
	}
	e.node = cs[at]
	return true, nil
}

// entriesAhead returns the entries ahead, and completes what is known of the entry itself.
func (e *entry) entriesAhead(ctx context.Context, children []string) ([]listedEntry, error) {
	if e.order == 0 {
		st, err := attempt(ctx, e.session.client, func(int) (*zk.Stat, error) {
			_, st, err := e.session.client.Get(join(e.line.dir, e.node.name))
			return st, err
		})
		if err != nil {
			return nil, err
		}
		if err := e.check(stat{czxid: st.Czxid, owner: st.EphemeralOwner}); err != nil {
			return nil, err
		}
	}
	cs := contenders(children)
	at := e.in(cs)
	if at < 0 {
		var err error
		if cs, err = e.session.list(ctx, e.line.dir, true); err != nil {
			return nil, err
		}
		e.seen = 0
		if at = e.in(cs); at < 0 {
			return nil, e.line.evictedErr()
		}
	}
	for _, c := range cs {
		if c.unseen(e.session.store.readWrite) {
			return nil, e.unseenErr(c)
		}
	}
	return slices.Clone(cs[:at]), nil
}

// unseenErr returns the error of an entry in whose line another client does not see it.
func (e *entry) unseenErr(c listedEntry) error {
	theirs, option := curatorOf(!e.session.store.readWrite)
	return fmt.Errorf("a client uses Curator's %s on %s (%s), which does not see the entries of this store: open the store %s",
		theirs, e.line.dir, c.name, option)
}

// curatorOf returns the recipe of Curator that sees the entries of a store with the given names, and how
// to open one.
func curatorOf(readWrite bool) (recipe, option string) {
	if readWrite {
		return "InterProcessReadWriteLock", "with ReadWrite (names=readwrite in a URL)"
	}
	return "InterProcessMutex", "without ReadWrite (names=mutex in a URL)"
}

// makeDir creates a directory and its parents. They are containers: ZooKeeper deletes them when
// they have been empty for a while, and the numbers in the next one start at zero.
func (s *Store) makeDir(ctx context.Context, c *client, dir string) error {
	_, err := attempt(ctx, c, func(int) (string, error) {
		// Not CreateContainer, which has a data race when the session is closed. See serverConn.
		return c.Create(dir, nil, zk.FlagContainer, s.acl)
	})
	switch {
	case errors.Is(err, zk.ErrNodeExists):
		return nil
	case errors.Is(err, zk.ErrNoNode) && strings.Count(dir, "/") > 1:
		above, _ := split(dir)
		if err := s.makeDir(ctx, c, above); err != nil {
			return err
		}
		return s.makeDir(ctx, c, dir)
	}
	return err
}

// abortEnqueue deletes nodes that attempts to create the entry may have left. It retries until that
// is done or the session has ended.
func (e *entry) abortEnqueue() {
	se := e.session
	life := se.life.Context()
	attempts.UntilDone(life, maxPause, func() error {
		cs, err := se.list(life, e.line.dir, true)
		for _, c := range cs {
			if err == nil && c.guid == e.guid {
				err = e.remove(life, c.name)
			}
		}
		switch {
		case err == nil:
			e.releaseBytes()
		case life.Err() == nil:
			se.store.logger.LogAttrs(life, slog.LevelWarn, "could not remove the entry of a failed request; retrying",
				slog.String("lock", e.req.Name), slog.Any("error", err))
		}
		return err
	})
}

// recordEnding records that the entry has left its line, and why. The outcome of this client's own
// request takes precedence.
func (e *entry) recordEnding(why ending) {
	if why == withdrawn {
		e.ended.Store(int32(withdrawn))
	} else {
		e.ended.CompareAndSwap(int32(notEnded), int32(why))
	}
	e.releaseBytes()
}

// releaseBytes subtracts the entry from the size of its session. The entry is known to have left its line,
// or never to enter it.
func (e *entry) releaseBytes() { e.session.bytes.Add(-e.bytes.Swap(0)) }

// remove deletes a node of the entry's, if it exists, and records which client removed the entry.
// No other node ever has that name, because of the GUID in it. A request that was not answered
// leaves no record of whether it was carried out: if the next one finds no node, that request or
// another client may have deleted it.
func (e *entry) remove(ctx context.Context, name string) error {
	client, path := e.session.client, join(e.line.dir, name)
	_, err := attempt(ctx, client, func(int) (struct{}, error) {
		e.unanswered.Add(1)
		err := e.deleteNode(path)
		if err == nil {
			e.recordEnding(withdrawn)
		}
		// After ErrNoServer the request was not sent.
		if err == nil || refused(err) || errors.Is(err, zk.ErrNoServer) {
			e.unanswered.Add(-1)
		}
		if !errors.Is(err, zk.ErrNoNode) {
			return struct{}{}, err
		}
		end := removedByOther
		if e.unanswered.Load() > 0 {
			end = either
		}
		e.recordEnding(end)
		return struct{}{}, nil
	})
	if err == nil && e.number.mayExist() {
		e.session.life.Start(e.removeClaim)
	}
	return err
}

// Extensions implements [store.Ticket]. An entry cannot outlast its session, because its node is
// ephemeral, and so is everything else it could leave.
func (e *entry) Extensions() store.Extensions {
	return store.Extensions{
		SetOwner: e.setOwner, NotifyContended: e.notifyContended, Requeue: e.requeue, ClaimNumber: e.claimNumber,
		SetRecord: e.setRecord, Key: e.path(),
	}
}

// Withdraw implements [store.Ticket].
func (e *entry) Withdraw(ctx context.Context) error {
	se := e.session
	op := "leave the line"
	e.line.detach(e)
	before := ending(e.ended.Load())
	if before == notEnded {
		if err := se.life.Err(); err != nil {
			return fmt.Errorf("%w: %w", store.ErrGone, err) // the servers delete it with the session
		}
		bounded, cancel := se.life.Within(ctx)
		defer cancel()
		if err := e.remove(bounded, e.node.name); err != nil {
			se.life.Start(e.retryRemoval)
			return se.life.RemovedWithSession(ctx, se.wrapErr(ctx, op, err))
		}
	}
	switch ending(e.ended.Load()) {
	case withdrawn:
		if before == withdrawn {
			return fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, op, store.ErrGone)
		}
		return nil
	case either:
		return fmt.Errorf("%s: %s: %w: the first request was not answered and the next found no entry: the first may have "+
			"removed it, or another client had broken it", se.store, op, store.ErrNotKnown)
	default:
		return e.line.evictedErr()
	}
}

// retryRemoval continues a withdrawal that has failed, or whose caller has given up. If the
// servers refuse it, an ACL was changed and may be changed back.
func (e *entry) retryRemoval() {
	life := e.session.life.Context()
	attempts.UntilDone(life, maxPause, func() error { return e.remove(life, e.node.name) })
}
