package memstore

import (
	"context"
	"errors"

	"github.com/stilelock/stile/store"
)

// requeue is [store.Extensions.Requeue].
func (e *entry) requeue(ctx context.Context, owner store.Owner, notify func(store.Standing)) (store.Ticket, error) {
	se := e.session
	s := se.store
	req := store.Request{Name: e.req.Name, Mode: e.req.Mode, Owner: owner, Notify: notify}
	s.mu.Lock()
	e.delivery.Silence()
	s.mu.Unlock()

	var next *entry
	err := se.request(ctx, Call{Op: Requeue, Session: se.id, Name: req.Name}, func() error {
		switch err := se.aliveLocked(); {
		case err != nil:
			return err
		case e.gone:
			return e.goneErr()
		}
		next = se.addLocked(req)
		if err := e.leaveLocked(); err != nil { // the line has next by now, so it is never empty
			return err
		}
		for _, other := range s.lines[req.Name] {
			other.notifyContendedLocked()
		}
		next.delivery.Begin()
		s.deliverLocked(next)
		return nil
	}, func() { _ = next.withdraw() })
	switch {
	case err == nil:
		return next, nil
	case !errors.Is(err, store.ErrGone) && !errors.Is(err, store.ErrSessionLost):
		go e.withdrawInBackground(e.leaveLocked)
	}
	return nil, err
}
