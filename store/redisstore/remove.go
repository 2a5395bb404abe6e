package redisstore

import (
	"context"
	"fmt"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

var (
	errRemovedByOther = fmt.Errorf("%w: another client removed the entry", store.ErrGone)
	errUnanswered     = fmt.Errorf("%w: an earlier request got no reply, and now the entry is not there", store.ErrNotKnown)
)

// requestRemoval sends the requests of a withdrawal until one is answered. absent is nil if the
// entry was there. Otherwise it says why it was not, and matches store.ErrGone, or
// store.ErrNotKnown if a request without a reply may have removed it.
//
// A slow request is repeated, and its reply is awaited all the same: only that reply tells whether
// the request found the entry.
func (e *entry) requestRemoval(ctx context.Context, next func() operation) (absent, err error) {
	type answer struct {
		op  string
		n   int64
		err error
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer)
	inFlight := 0
	var removed, found, outlasting bool // removed: the entry is out, but a request in flight may have removed it
	err = retry(ctx, func(try context.Context) error {
		o := next()
		inFlight++
		go func() {
			patient, cancel := context.WithTimeout(within, attempts.MaxTimeout)
			defer cancel()
			n, err := e.session.store.server.eval(patient, o.line, o.op, o.args...).number()
			select {
			case answers <- answer{o.op, n, err}:
			case <-within.Done():
			}
		}()
		for {
			limit := try
			if removed {
				limit = ctx
			}
			select {
			case a := <-answers:
				inFlight--
				switch {
				case a.err != nil:
					e.removalInDoubt.Store(e.removalInDoubt.Load() || !notExecuted(a.err))
					if !removed && (inFlight == 0 || refused(a.err)) {
						return a.err
					}
				case a.n > 0, a.op != "leave": // a request to remove it later removes nothing now
					found, outlasting = a.n > 0, a.op != "leave"
					return nil
				default:
					removed = true
				}
				if removed && inFlight == 0 {
					return nil
				}
			case <-limit.Done():
				if removed {
					return nil
				}
				return limit.Err()
			}
		}
	})
	if inFlight > 0 {
		e.removalInDoubt.Store(true)
	}
	if err != nil {
		return nil, err
	}
	if !found || !outlasting {
		e.removed.Store(true)
	}
	e.session.remove(e)
	switch {
	case found:
		return nil, nil
	case e.removalInDoubt.Load():
		return errUnanswered, nil
	}
	return errRemovedByOther, nil
}
