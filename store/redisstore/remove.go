package redisstore

import (
	"context"
	"fmt"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

var (
	errTaken      = fmt.Errorf("%w: somebody else has taken the entry out", store.ErrGone)
	errUnanswered = fmt.Errorf("%w: an earlier request was not answered, and now the entry is out", store.ErrNotKnown)
)

// carryOut makes the requests of a departure until one is answered. absent is nil if the entry was there, or why it was not:
// it matches store.ErrGone, or store.ErrNotKnown if a request that was not answered may have taken it out.
//
// A request that is slow is repeated, and waited for all the same: only its own answer tells whether it found the entry.
func (e *entry) carryOut(ctx context.Context, next func() operation) (absent, err error) {
	type answer struct {
		op  string
		n   int64
		err error
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer)
	underWay := 0
	var out, there, lingers bool // out: it is, and requests that may have taken it out are under way
	err = attempt(ctx, func(try context.Context) error {
		o := next()
		underWay++
		go func() {
			patient, cancel := context.WithTimeout(within, attempts.Longest)
			defer cancel()
			n, err := e.session.store.server.eval(patient, o.line, o.op, o.args...).number()
			select {
			case answers <- answer{o.op, n, err}:
			case <-within.Done():
			}
		}()
		for {
			limit := try
			if out {
				limit = ctx
			}
			select {
			case a := <-answers:
				underWay--
				switch {
				case a.err != nil:
					e.asked.Store(e.asked.Load() || !notCarriedOut(a.err))
					if !out && (underWay == 0 || refused(a.err)) {
						return a.err
					}
				case a.n > 0, a.op != "leave": // a request to let it go later takes nothing out
					there, lingers = a.n > 0, a.op != "leave"
					return nil
				default:
					out = true
				}
				if out && underWay == 0 {
					return nil
				}
			case <-limit.Done():
				if out {
					return nil
				}
				return limit.Err()
			}
		}
	})
	if underWay > 0 {
		e.asked.Store(true)
	}
	if err != nil {
		return nil, err
	}
	if !there || !lingers {
		e.out.Store(true)
	}
	e.session.forget(e)
	switch {
	case there:
		return nil, nil
	case e.asked.Load():
		return errUnanswered, nil
	}
	return errTaken, nil
}
