package redisstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/stilelock/stile/store"
)

// requeue is [store.Extensions.Requeue]. One call of the script does it. The ids of both entries are
// never used again, so a request that is carried out late does nothing once one of them has left.
func (e *entry) requeue(ctx context.Context, owner store.Owner, notify func(store.Standing)) (store.Ticket, error) {
	se := e.session
	op := "requeue the entry"
	e.silence()
	se.markLeaving(e)
	switch err := se.life.Err(); {
	case err != nil:
		return nil, err
	case e.removed.Load():
		return nil, fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, op, store.ErrGone)
	}
	next, err := se.newEntry(store.Request{Name: e.req.Name, Mode: e.req.Mode, Owner: owner, Notify: notify}, "")
	if err == nil {
		next.replaces = e
		err = se.add(next)
	}
	if err != nil {
		e.discard()
		return nil, se.wrapErr(ctx, op, err)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	err = next.join(bounded)
	if err == nil {
		e.removed.Store(true)
		se.remove(e)
		return next, nil
	}
	next.undoJoin()
	if errors.Is(err, store.ErrGone) || errors.Is(err, store.ErrNotKnown) {
		e.removed.Store(true)
		se.remove(e)
		return nil, fmt.Errorf("%s: %s: %w", se.store, op, err)
	}
	e.discard()
	return nil, se.wrapErr(ctx, op, err)
}

// absentErr is the error of a request that has found neither the entry nor the one that replaces it.
func (e *entry) absentErr(next *entry) error {
	if next.mayBeIn() {
		return errUnanswered
	}
	return errRemovedByOther
}
