package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// MaxTogether is how many locks a client can take in one step. Each takes two operations of one
// transaction, and a server allows 128 by default (--max-txn-ops).
const MaxTogether = 60

// enqueueAll is [store.Capabilities.EnqueueAll]. One transaction inserts all entries. Their keys contain
// nonces, so no other entry ever has one of them. All have the same order, the transaction's revision.
func (s *Store) enqueueAll(ctx context.Context, opened store.Session, reqs []store.Request) ([]store.Ticket, error) {
	op := "join several lines"
	se, ok := opened.(*session)
	switch {
	case !ok || se.store != s:
		return nil, fmt.Errorf("%s: %s: session %s was not opened by this store", s, op, opened.ID())
	case len(reqs) > MaxTogether:
		return nil, fmt.Errorf("%s: %s: etcd can take %d locks in one step, not %d: take fewer at once, "+
			"or one lock for several of them", s, op, MaxTogether, len(reqs))
	}
	set := make(entrySet, 0, len(reqs))
	for _, req := range reqs {
		if err := s.keys.check(req.Name); err != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
		e, err := newEntry(se, req)
		if err != nil {
			return nil, s.wrapErr(op, err)
		}
		e.fresh = true
		set = append(set, e)
	}
	for i, e := range set {
		if err := se.join(e); err != nil {
			set[:i].detach()
			return nil, err
		}
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()

	results, err := set.insert(bounded)
	mayBeIn := err == nil || errors.Is(err, rpctypes.ErrNoSpace) || slices.ContainsFunc(set, func(e *entry) bool {
		return e.inDoubt.Load() || e.mayBeIn.Load()
	})
	if err == nil {
		err = set.markInLine(results)
	}
	if err != nil {
		set.detach()
		if mayBeIn {
			set.abort(bounded)
		}
		if _, held := errors.AsType[*store.HeldError](err); held {
			return nil, err
		}
		return nil, se.wrapErr(ctx, op, err)
	}
	tickets := make([]store.Ticket, 0, len(set))
	for _, e := range set {
		tickets = append(tickets, e)
	}
	return tickets, nil
}

// An entrySet is the entries of one call of EnqueueAll.
type entrySet []*entry

func (set entrySet) detach() {
	for _, e := range set {
		e.line.detach(e)
	}
}

// markInLine marks the inserted entries as standing and delivers their standings, unless one of them is
// refused or the session has ended.
func (set entrySet) markInLine(results []insertion) error {
	for i, e := range set {
		e.line.mu.Lock() // the session may be lost at this moment
		e.order = results[i].order
		e.line.mu.Unlock()
		switch {
		case e.order > store.MaxOrder:
			return beyondMaxOrder(e.order)
		case results[i].otherKind(e) != nil:
			return results[i].otherKind(e)
		case e.req.Try && results[i].blocking(e) > 0:
			// Another entry was inserted after the line was read.
			return results[i].heldBy(e)
		}
	}
	for i, e := range set {
		if !e.line.markInLine(e, results[i]) {
			return e.session.life.Err() // the session was lost, and the entries with it
		}
	}
	return nil
}

// insert repeats attempts to insert the entries until one is answered; see [entry.insert].
func (set entrySet) insert(ctx context.Context) ([]insertion, error) {
	se := set[0].session
	ifEmpty := true
	for n := 0; ; n++ {
		if n > 1 { // one repetition is normal; more are caused by other clients
			attempts.Sleep(ctx, firstPause)
		}
		var resp *clientv3.TxnResponse
		before := se.seenRevision.Load()
		err := se.store.attempt(ctx, func(ctx context.Context) (err error) {
			resp, err = set.insertTxn(ctx, ifEmpty)
			if err != nil && !refused(err) {
				set.doubt()
			}
			return err
		})
		if err == nil {
			err = se.checkRevision(before, resp.Header)
		}
		if err != nil {
			return nil, err
		}
		results, err := set.insertOutcome(ctx, resp, ifEmpty)
		if results != nil || err != nil {
			return results, err
		}
		ifEmpty = false
	}
}

// doubt records that the entries may be inserted, or be inserted later.
func (set entrySet) doubt() {
	for _, e := range set {
		e.inDoubt.Store(true)
	}
}

// insertTxn is one attempt. The first one puts nothing if one of the lines has an entry: a try must not, and
// otherwise it costs less if all locks are free.
//
//	ifEmpty:   if no line has a key            put all entries
//	otherwise: if none of the entries is there read the lines, and put all entries
//	           else                            read the entries and the epoch key
//
// Neither puts an entry if the epoch key has changed.
func (set entrySet) insertTxn(ctx context.Context, ifEmpty bool) (*clientv3.TxnResponse, error) {
	se := set[0].session
	conditions := []clientv3.Cmp{se.sameEpoch()}
	var puts, reads, gets []clientv3.Op
	for _, e := range set {
		free := clientv3.Compare(clientv3.CreateRevision(e.key), "=", 0)
		if ifEmpty {
			from, end := se.store.keys.entries(e.req.Name)
			free = clientv3.Compare(clientv3.CreateRevision(from), "=", 0).WithRange(end)
		}
		conditions = append(conditions, free)
		puts = append(puts, clientv3.OpPut(e.key, e.value, clientv3.WithLease(se.lease)))
		reads = e.withReadsAtJoin(reads)
		gets = append(gets, clientv3.OpGet(e.key))
	}
	txn := se.store.cli.Txn(ctx).If(conditions...)
	if ifEmpty {
		return txn.Then(puts...).Commit()
	}
	return txn.Then(append(reads, puts...)...).
		Else(append(gets, clientv3.OpGet(se.epochKey(), clientv3.WithKeysOnly()))...).
		Commit()
}

// insertOutcome interprets the response to an attempt. It returns nothing if an attempt with ifEmpty
// unset is needed.
func (set entrySet) insertOutcome(ctx context.Context, resp *clientv3.TxnResponse, ifEmpty bool) ([]insertion, error) {
	switch {
	case resp.Succeeded && ifEmpty:
		return set.each(func(int, *entry) (insertion, bool, error) {
			return insertion{order: uint64(resp.Header.Revision)}, true, nil
		})
	case resp.Succeeded:
		reads := resp.Responses
		return set.each(func(i int, e *entry) (insertion, bool, error) {
			a, err := e.inserted(ctx, uint64(resp.Header.Revision), reads[i:i+1])
			return a, true, err
		})
	case ifEmpty && !set[0].req.Try:
		return nil, nil
	case ifEmpty:
		return set.each(func(_ int, e *entry) (insertion, bool, error) { return e.tryNonEmpty(ctx) })
	}
	gets := resp.Responses
	set[0].session.readEpoch(gets[len(set)].GetResponseRange().Kvs, resp.Header.Revision)
	return set.each(func(i int, e *entry) (insertion, bool, error) {
		switch mine := gets[i].GetResponseRange().Kvs; {
		case len(mine) == 0:
			return insertion{}, false, nil
		case string(mine[0].Value) != e.value:
			return insertion{}, false, e.line.evictedErr()
		default: // an earlier attempt has inserted it
			return e.alreadyInserted(ctx, uint64(mine[0].CreateRevision))
		}
	})
}

// each returns the insertions of all entries, or nothing if none was inserted. All were inserted in one
// step; so if only some are there, another client has removed the others.
func (set entrySet) each(find func(int, *entry) (a insertion, there bool, err error)) ([]insertion, error) {
	var all []insertion
	for i, e := range set {
		a, there, err := find(i, e)
		if err != nil {
			return nil, err
		}
		if there {
			all = append(all, a)
		}
	}
	if n := len(all); n > 0 && n < len(set) {
		return nil, set[0].line.evictedErr()
	}
	return all, nil
}

// abort deletes the entries and voids the attempts that are still in flight, if any. It returns when the entries
// that are there were deleted, or when ctx ends, and continues in the background.
func (set entrySet) abort(ctx context.Context) {
	se := set[0].session
	names := make([]string, 0, len(set))
	deletes := make([]clientv3.Op, 0, len(set))
	for _, e := range set {
		names = append(names, e.req.Name)
		deletes = append(deletes, clientv3.OpDelete(e.key))
	}
	done := make(chan struct{})
	se.life.Start(func() {
		a := abandoned{names: strings.Join(names, ", "), deletes: deletes}
		if !set[0].inDoubt.Load() {
			se.deleteInserted(a)
			close(done)
			return
		}
		_ = se.deleteOnce(se.life.Context(), a)
		close(done)
		se.abortInsert(a)
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}
