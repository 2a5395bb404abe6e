package etcdstore

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
)

// requeue is [store.Extensions.Requeue]. One transaction deletes the entry's key and puts that of the
// new entry. The new key has a nonce, so that no waiter takes it for the old one: a client that waits
// for the deletion of the old key, as etcd's own Mutex does, is admitted by it.
func (e *entry) requeue(ctx context.Context, owner store.Owner, notify func(store.Standing)) (store.Ticket, error) {
	se := e.session
	op := "requeue the entry"
	next, err := newEntry(se, store.Request{Name: e.req.Name, Mode: e.req.Mode, Owner: owner, Notify: notify})
	if err != nil {
		e.line.detach(e)
		se.life.Start(func() { e.leaveInBackground(e.deleteKey) })
		return nil, se.store.wrapErr(op, err)
	}
	next.fresh = true
	err = se.join(next)
	e.line.detach(e) // after join: the watch of the line stays open
	switch {
	case err != nil:
		return nil, err
	case e.gone.Load():
		e.line.detach(next)
		return nil, fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, op, store.ErrGone)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()

	result, err := e.replaceBy(bounded, next)
	e.line.mu.Lock() // the session may be lost at this moment
	next.order = result.order
	e.line.mu.Unlock()
	switch {
	case err != nil:
	case next.order > store.MaxOrder:
		err = beyondMaxOrder(next.order)
	case !e.line.markInLine(next, result):
		err = se.life.Err() // the session was lost, and the entry with it
	}
	switch {
	case err == nil:
		e.gone.Store(true)
		if e.inDoubt.Load() {
			se.life.Start(e.abortEnqueue)
		}
		return next, nil
	case errors.Is(err, store.ErrGone), errors.Is(err, store.ErrNotKnown):
		e.gone.Store(true)
		e.line.detach(next)
		return nil, err
	}
	e.line.detach(next)
	se.life.Start(func() { e.abortRequeue(next) })
	return nil, se.wrapErr(ctx, op, err)
}

// replaceBy replaces the entry's key by that of next. It repeats the transaction until an attempt is
// answered. An attempt that is carried out late does nothing, because the old key never exists again
// with that create revision.
//
//	if the old key is there   delete it, its marker and its claim, read the line, and put the new key
//	else                      read the new key
//
// If neither key is there, the error matches [store.ErrGone], or [store.ErrNotKnown] if an earlier
// attempt may have put the new key, and another client may have deleted it since.
func (e *entry) replaceBy(ctx context.Context, next *entry) (insertion, error) {
	se, s := e.session, e.session.store
	then := append(append(e.deleteMarkerOps(), e.onClaim(deleteOp)...),
		clientv3.OpDelete(e.key))
	deletes := len(then)
	then = next.withReadsAtJoin(then)
	reads := len(then)
	then = append(then, clientv3.OpPut(next.key, next.value, clientv3.WithLease(se.lease)))
	before := se.seenRevision.Load()
	var resp *clientv3.TxnResponse
	err := s.attempt(ctx, func(ctx context.Context) (err error) {
		resp, err = s.cli.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(e.key), "=", int64(e.order))).
			Then(then...).
			Else(clientv3.OpGet(next.key)).
			Commit()
		if err != nil && !refused(err) {
			e.unanswered.Store(true)
		}
		return err
	})
	if err == nil {
		err = se.checkRevision(before, resp.Header)
	}
	if err != nil {
		return insertion{}, err
	}
	if resp.Succeeded {
		e.unanswered.Store(false)
		return next.inserted(ctx, uint64(resp.Header.Revision), resp.Responses[deletes:reads])
	}
	if mine := resp.Responses[0].GetResponseRange().Kvs; len(mine) > 0 {
		result, there, err := next.alreadyInserted(ctx, uint64(mine[0].CreateRevision))
		if err != nil || there {
			e.unanswered.Store(false)
			return result, err
		}
	}
	return insertion{}, e.goneErr("requeue the entry")
}

// abortRequeue removes both entries after a requeue whose outcome is not known. Once the old key is
// gone, no attempt still in flight can put the new one, so that is deleted afterwards.
func (e *entry) abortRequeue(next *entry) {
	e.leaveInBackground(e.deleteKey)
	next.deleteInserted()
}
