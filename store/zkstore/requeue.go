package zkstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/delivery"
)

// requeue is [store.Extensions.Requeue]. One transaction creates the node of the new entry and deletes
// the old one.
func (e *entry) requeue(ctx context.Context, owner store.Owner, notify func(store.Standing)) (store.Ticket, error) {
	se := e.session
	op := "requeue the entry"
	data, err := json.Marshal(value{Stile: valueFormat, Mode: e.req.Mode, Owner: owner})
	if err != nil {
		e.line.detach(e)
		se.life.Start(e.retryRemoval)
		return nil, se.store.wrapErr(op, err)
	}
	next := &entry{
		req:  store.Request{Name: e.req.Name, Mode: e.req.Mode, Owner: owner, Notify: notify},
		guid: newGUID(), data: data, delivery: delivery.New(notify), number: newClaimState(),
	}
	// The same session, even if its bytes are used up: one node replaces another of the same size.
	err = se.join(next, next.sizeIn(e.line.dir, se.store.readWrite))
	e.line.detach(e) // after join: the line is still followed
	if err != nil {
		return nil, err
	}
	if ending(e.ended.Load()) != notEnded {
		next.releaseBytes()
		e.line.detach(next)
		return nil, fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, op, store.ErrGone)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	err = e.replaceBy(bounded, next)
	if e.number.mayExist() {
		se.life.Start(e.removeClaim) // another entry that claims the number waits for that
	}
	if err == nil {
		if err = next.stand(bounded); err != nil {
			next.undo(bounded)
		}
	}
	switch {
	case err == nil:
		return next, nil
	case errors.Is(err, store.ErrNotKnown):
		err = fmt.Errorf("%s: %s: %w", se.store, op, err)
	case !errors.Is(err, store.ErrGone):
		err = se.wrapErr(ctx, op, err)
	}
	e.line.detach(next)
	return nil, err
}

// replaceBy repeats the transaction until an attempt is answered. On failure neither node exists, or
// both are being removed. If neither existed when an attempt arrived, the error matches
// [store.ErrGone], or [store.ErrNotKnown] if an earlier attempt may have been carried out, and another
// client may have deleted the new node since.
func (e *entry) replaceBy(ctx context.Context, next *entry) error {
	se := e.session
	abort := func() {
		e.retryRemoval() // from then on no attempt can create the new node
		next.abortEnqueue()
	}
	for unanswered := false; ; {
		if ctx.Err() != nil {
			se.life.Start(abort)
			return context.Cause(ctx)
		}
		replaced := e.requestReplacement(next)
		var c created
		select {
		case c = <-replaced:
		case <-ctx.Done(): // the attempt continues
			se.life.Start(func() { <-replaced; abort() })
			return context.Cause(ctx)
		}
		switch {
		case c.err == nil:
			e.recordEnding(withdrawn)
			err := next.setNode(c)
			if err != nil {
				se.life.Start(next.abortEnqueue)
			}
			return err
		case errors.Is(c.err, zk.ErrNoNode):
			next.releaseBytes()
			if unanswered {
				e.recordEnding(either)
				return fmt.Errorf("%w: an earlier request was not answered, and now there is no entry", store.ErrNotKnown)
			}
			e.recordEnding(removedByOther)
			return e.line.evictedErr()
		case refused(c.err):
			next.releaseBytes()
			se.life.Start(e.retryRemoval)
			return c.err
		case errors.Is(c.err, zk.ErrNoServer): // the request was not sent
		default:
			// The connection was lost. If the session lives on, the new node may exist.
			unanswered = true
			found, err := next.recover(ctx)
			if err != nil {
				se.life.Start(abort)
				return err
			}
			if found {
				e.recordEnding(withdrawn)
				return nil
			}
		}
		attempts.Sleep(ctx, firstPause)
	}
}

// requestReplacement makes one attempt. The new node is created before the old one is deleted, because
// a reader may see the line between the two changes.
func (e *entry) requestReplacement(next *entry) <-chan created {
	client := e.session.client
	replaced := make(chan created, 1)
	go func() {
		results, err := client.Multi(
			&zk.CreateRequest{Path: next.prefix(), Data: next.data, Acl: e.session.store.acl, Flags: zk.FlagEphemeralSequential},
			&zk.DeleteRequest{Path: e.path(), Version: -1},
		)
		c := created{err: err}
		if err == nil {
			_, c.name = split(results[0].String)
		}
		replaced <- c
	}()
	return replaced
}

// stand reads the line after the entry's node was created, and delivers its standing.
func (e *entry) stand(ctx context.Context) error {
	ahead, err := e.entriesAhead(ctx, nil)
	limit := 0
	if err == nil {
		limit, err = e.readLimit(ctx)
	}
	switch {
	case errors.Is(err, store.ErrGone), errors.Is(err, zk.ErrNoNode):
		return fmt.Errorf("%w: the new entry was removed at once", store.ErrNotKnown)
	case err == nil && !e.line.markInLine(e, ahead, limit):
		return e.session.life.Err() // the session was lost meanwhile, and the entry with it
	}
	return err
}
