package zkstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// maxSetBytes bounds the request that adds several entries in one step. A server closes the connection
// on a request that is larger than jute.maxbuffer (a megabyte by default), so the request would be
// repeated in vain. The transaction that it becomes is a little larger. The bound is half of that
// megabyte.
const maxSetBytes = 512 << 10

// A set is the entries of one call of [store.Capabilities.EnqueueAll]. One transaction creates their
// nodes, so all have the same order, and in every line the next number. They are in one ZooKeeper
// session, because another session has another connection.
type set []*entry

// enqueueAll is [store.Capabilities.EnqueueAll].
func (s *Store) enqueueAll(ctx context.Context, opened store.Session, reqs []store.Request) ([]store.Ticket, error) {
	g, ok := opened.(*group)
	switch {
	case !ok || g.store != s:
		return nil, fmt.Errorf("%s: session %s was not opened by this store", s, opened.ID())
	case len(reqs) == 0:
		return nil, nil
	}
	op := "join several lines"
	entries, err := s.newSet(reqs)
	if err != nil {
		return nil, s.wrapErr(op, err)
	}
	if err := g.assignSession(ctx, entries...); err != nil {
		return nil, err
	}
	se := entries[0].session
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	if err := entries.enter(bounded); err != nil {
		for _, e := range entries {
			e.line.detach(e)
		}
		if held, ok := errors.AsType[*store.HeldError](err); ok {
			return nil, held
		}
		return nil, se.wrapErr(ctx, op, err)
	}
	tickets := make([]store.Ticket, 0, len(entries))
	for _, e := range entries {
		tickets = append(tickets, e)
	}
	return tickets, nil
}

// newSet returns the entries for the requests, if one request to the servers can add all of them.
func (s *Store) newSet(reqs []store.Request) (set, error) {
	entries := make(set, 0, len(reqs))
	size, fit := requestHeader+multiHeader, 0
	for _, req := range reqs {
		e, err := newEntry(req)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
		prefix := join(s.paths.dir(req.Name), nodePrefix(e.guid, req.Mode, s.readWrite))
		if size += s.createBytes(prefix, e.data); size <= maxSetBytes {
			fit = len(entries)
		}
	}
	if fit < len(entries) {
		return nil, fmt.Errorf("the request for %d locks has %d bytes, and may have %d: the first %d of these locks fit, and more if their names are shorter",
			len(entries), size, maxSetBytes, fit)
	}
	return entries, nil
}

// multiHeader is the size of the header of each operation in a multi, and of its end: type, done and
// error.
const multiHeader = 4 + 1 + 4

// createBytes is the size of the creation of an entry's node in a multi.
func (s *Store) createBytes(prefix string, data []byte) int {
	n := multiHeader + 4 + len(prefix) + 4 + len(data) + 4 + 4 // and the number of ACLs, and flags
	for _, a := range s.acl {
		n += 4 + 4 + len(a.Scheme) + 4 + len(a.ID)
	}
	return n
}

// enter creates the nodes and reads the lines. On failure no node exists, or all are being deleted,
// and nothing was delivered to any owner.
func (s set) enter(ctx context.Context) error {
	if s[0].req.Try {
		if err := each(len(s), func(i int) error { return s[i].checkFree(ctx) }); err != nil {
			s.releaseBytes()
			return err
		}
	}
	if err := s.createNodes(ctx); err != nil {
		return err
	}
	ahead, err := s.entriesAhead(ctx)
	if err != nil {
		s.undo(ctx)
		return err
	}
	for i, e := range s {
		if e.refusedBy(ahead[i], 0) {
			s.undo(ctx)
			return e.refusalErr(ctx, ahead[i])
		}
	}
	if !s.markInLine(ahead) {
		s.undo(ctx)
		return s[0].session.life.Err() // the session was lost meanwhile, and the entries with it
	}
	return nil
}

// createNodes repeats the transaction that creates all nodes until an attempt is answered. On failure
// no node exists, or all are being deleted.
func (s set) createNodes(ctx context.Context) error {
	se := s[0].session
	for {
		if ctx.Err() != nil {
			s.releaseBytes()
			return context.Cause(ctx)
		}
		made := s.create()
		var c createdSet
		select {
		case c = <-made:
		case <-ctx.Done(): // the attempt continues
			se.life.Start(func() { s.abandon(<-made) })
			return context.Cause(ctx)
		}
		switch {
		case c.err == nil:
			err := s.setNodes(c.names)
			if err != nil {
				se.life.Start(s.abort)
			}
			return err
		case errors.Is(c.err, zk.ErrNoNode):
			// The servers tell only the first that is missing.
			if err := s[max(0, c.refusedAt):].makeDirs(ctx); err != nil {
				s.releaseBytes()
				return err
			}
			continue
		case refused(c.err):
			s.releaseBytes()
			return s[max(0, c.refusedAt)].named(c.err)
		case errors.Is(c.err, zk.ErrNoServer): // the request was not sent
		default:
			// The connection was lost. If the session lives on, the nodes may exist.
			if exist, err := s.recover(ctx); exist || err != nil {
				return err
			}
		}
		attempts.Sleep(ctx, firstPause)
	}
}

// createdSet is the outcome of one attempt to create the nodes.
type createdSet struct {
	names     []string
	refusedAt int // the index of the entry that was refused; -1 if it is not known
	err       error
}

// create makes one attempt to create the nodes.
func (s set) create() <-chan createdSet {
	se := s[0].session
	requests := make([]any, 0, len(s))
	for _, e := range s {
		requests = append(requests, &zk.CreateRequest{Path: e.prefix(), Data: e.data, Acl: se.store.acl, Flags: zk.FlagEphemeralSequential})
	}
	made := make(chan createdSet, 1)
	go func() {
		replies, err := se.client.Multi(requests...)
		c := createdSet{err: err, refusedAt: slices.IndexFunc(replies, func(r zk.MultiResponse) bool { return r.Error != nil })}
		for _, r := range replies {
			_, name := split(r.String)
			c.names = append(c.names, name)
		}
		made <- c
	}()
	return made
}

// setNodes records the names of the nodes.
func (s set) setNodes(names []string) error {
	if len(names) != len(s) {
		return fmt.Errorf("%d nodes were created, want %d", len(names), len(s))
	}
	for i, e := range s {
		if err := e.setNode(created{name: names[i]}); err != nil {
			return e.named(err)
		}
	}
	return nil
}

// makeDirs creates the directories of the entries, as far as they are missing. ZooKeeper may delete
// them again, if they have been empty for a while.
func (s set) makeDirs(ctx context.Context) error {
	return each(len(s), func(i int) error {
		e := s[i]
		if err := e.session.store.makeDir(ctx, e.session.client, e.line.dir); err != nil {
			return e.named(err)
		}
		return nil
	})
}

// recover is [entry.recover] for all entries. The transaction created all nodes or none. So if only
// some exist, another client has removed the others: they are deleted too, and the error matches
// [store.ErrGone].
func (s set) recover(ctx context.Context) (exist bool, err error) {
	found := make([]bool, len(s))
	err = each(len(s), func(i int) (err error) {
		found[i], err = s[i].recover(ctx)
		return err
	})
	if err != nil {
		s[0].session.life.Start(s.abort)
		return false, err
	}
	missing := slices.Index(found, false)
	if missing < 0 || !slices.Contains(found, true) {
		return missing < 0, nil
	}
	s.undo(ctx)
	return false, s[missing].named(s[missing].line.evictedErr())
}

// entriesAhead returns the entries ahead of each entry, and completes what is known of the entries.
// The requests follow that of the creation on its connection, so the replies include the entries.
func (s set) entriesAhead(ctx context.Context) ([][]listedEntry, error) {
	se := s[0].session
	children := make([][]string, len(s))
	var created *zk.Stat
	err := each(len(s)+1, func(i int) (err error) {
		if i == 0 {
			created, err = attempt(ctx, se.client, func(int) (*zk.Stat, error) {
				_, st, err := se.client.Get(s[0].path()) // the others have the same czxid and owner
				return st, err
			})
			if errors.Is(err, zk.ErrNoNode) {
				err = s[0].line.evictedErr()
			}
			if err != nil {
				err = s[0].named(err)
			}
			return err
		}
		children[i-1], err = se.children(ctx, s[i-1].line.dir, false)
		if err != nil && !errors.Is(err, zk.ErrNoNode) { // without children entry.entriesAhead lists them again
			return s[i-1].named(err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	ahead := make([][]listedEntry, len(s))
	for i, e := range s {
		err := e.check(stat{czxid: created.Czxid, owner: created.EphemeralOwner})
		if err == nil {
			ahead[i], err = e.entriesAhead(ctx, children[i])
		}
		if err != nil {
			return nil, e.named(err)
		}
	}
	return ahead, nil
}

// markInLine is [lineWatch.markInLine] for all entries. It delivers nothing until all are in their
// lines: if it returns false, no owner has been told that its entry is admitted.
func (s set) markInLine(ahead [][]listedEntry) bool {
	for i, e := range s {
		if !e.line.include(e, ahead[i]) {
			return false
		}
	}
	for _, e := range s {
		e.line.begin(e) // if the session has ended meanwhile, this delivers that
	}
	return true
}

// undo deletes the nodes that were just created, in the background if ctx ends. Other clients may have
// deleted some.
func (s set) undo(ctx context.Context) {
	se := s[0].session
	requests := make([]any, 0, len(s))
	for _, e := range s {
		if e.node.name != "" {
			requests = append(requests, &zk.DeleteRequest{Path: e.path(), Version: -1})
		}
	}
	_, err := attempt(ctx, se.client, func(int) (struct{}, error) {
		_, err := se.client.Multi(requests...)
		return struct{}{}, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		err = each(len(s), func(i int) error {
			if s[i].node.name == "" {
				return nil
			}
			return s[i].remove(ctx, s[i].node.name)
		})
	}
	if err != nil {
		se.life.Start(s.abort)
		return
	}
	for _, e := range s {
		e.recordEnding(withdrawn)
	}
}

// abandon deletes what an attempt has created whose caller has given up.
func (s set) abandon(c createdSet) {
	switch {
	case c.err == nil && s.setNodes(c.names) == nil:
		s.undo(s[0].session.life.Context())
	case c.err != nil && refused(c.err):
		s.releaseBytes()
	default:
		s.abort()
	}
}

// abort is [entry.abortEnqueue] for all entries.
func (s set) abort() {
	inParallel(len(s), func(i int) { s[i].abortEnqueue() })
}

// releaseBytes is [entry.releaseBytes] for all entries.
func (s set) releaseBytes() {
	for _, e := range s {
		e.releaseBytes()
	}
}

// named adds the name of the entry's lock to an error.
func (e *entry) named(err error) error { return fmt.Errorf("lock %q: %w", e.req.Name, err) }

// each calls do for each number below n, some at a time. It returns the error of the first number that
// has one.
func each(n int, do func(i int) error) error {
	errs := make([]error, n)
	inParallel(n, func(i int) { errs[i] = do(i) })
	return cmp.Or(errs...)
}
