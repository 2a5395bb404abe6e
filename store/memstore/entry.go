package memstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/delivery"
)

// entry is one place in a line, and the ticket to it. Its fields are guarded by the store's mutex.
type entry struct {
	session *session // that made it
	under   *session // whose end takes it out: the same, or one of the entry's own
	req     store.Request
	order   uint64
	owner   store.Owner

	gone  bool
	cause error
	out   context.Context // ends when the entry goes
	goes  context.CancelFunc

	delivery    delivery.Delivery
	onContended func()
}

func (se *session) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	s := se.store
	var e *entry
	err := se.request(ctx, Call{Op: Enqueue, Session: se.id, Name: req.Name}, func() error {
		if err := se.alive(); err != nil {
			return err
		}
		s.order++
		e = &entry{session: se, under: se, req: req, order: s.order, owner: req.Owner, delivery: delivery.New(req.Notify)}
		e.out, e.goes = context.WithCancel(context.Background())
		s.lines[req.Name] = append(s.lines[req.Name], e)
		if req.Try && e.standing().State != store.Admitted {
			holder := s.inTheWay(e)
			s.remove(e, nil)
			return &store.HeldError{Name: req.Name, Holder: &holder}
		}
		for _, other := range s.lines[req.Name] {
			other.contended()
		}
		e.delivery.Begin()
		s.tell(e)
		s.changed(req.Name)
		return nil
	}, func() { _ = e.withdraw() })
	if err != nil {
		return nil, err
	}
	return e, nil
}

// The methods of entry that begin in lower case are called with the store's mutex held, but for the last three.

func (e *entry) standing() store.Standing {
	if e.gone {
		return store.Standing{State: store.Gone, Order: e.order, Cause: e.cause}
	}
	var ahead []line.Mode
	for _, other := range e.session.store.lines[e.req.Name] {
		if other == e {
			break
		}
		ahead = append(ahead, other.req.Mode)
	}
	if n := line.Blocking(e.req.Mode, ahead); n > 0 {
		return store.Standing{State: store.Waiting, Ahead: n, Order: e.order}
	}
	return store.Standing{State: store.Admitted, Order: e.order}
}

// contended tells the entry's owner that somebody behind it waits, if so, and if the owner asked and was not told.
func (e *entry) contended() {
	if e.onContended == nil || e.gone {
		return
	}
	entries := e.session.store.lines[e.req.Name]
	for i, admitted := range e.session.store.admitted(e.req.Name) {
		if entries[i].order > e.order && !admitted {
			e.onContended()
			e.onContended = nil
			return
		}
	}
}

func (e *entry) notifyContended(f func()) {
	s := e.session.store
	s.mu.Lock()
	defer s.mu.Unlock()
	e.onContended = f
	e.contended()
}

func (e *entry) Extensions() store.Extensions {
	return store.Extensions{
		WithdrawAfter: e.withdrawAfter, Mark: e.mark, SetOwner: e.setOwner, NotifyContended: e.notifyContended,
	}
}

// setOwner is [store.Extensions.SetOwner].
func (e *entry) setOwner(ctx context.Context, owner store.Owner) error {
	s := e.session.store
	return e.session.request(ctx, Call{Op: SetOwner, Session: e.session.id, Name: e.req.Name}, func() error {
		if e.gone || e.delivery.Over() {
			return e.goneAlready()
		}
		e.owner = owner
		s.changed(e.req.Name)
		return nil
	}, nil)
}

func (e *entry) Withdraw(ctx context.Context) error { return e.depart(ctx, e.leave) }

func (e *entry) withdrawAfter(ctx context.Context, d time.Duration) error {
	until := time.Now().Add(d)
	return e.depart(ctx, func() error { return e.leaveAt(until) })
}

// depart calls leave, with the store's mutex held, when the owner has been silenced.
func (e *entry) depart(ctx context.Context, leave func() error) error {
	s := e.session.store
	s.mu.Lock()
	e.delivery.Silence()
	request := e.session.request
	if e.under != e.session {
		request = s.request // its session has no part in it any more, and may have ended
	}
	s.mu.Unlock()

	err := request(ctx, Call{Op: Withdraw, Session: e.session.id, Name: e.req.Name}, leave, nil)
	switch {
	case err == nil || errors.Is(err, store.ErrGone):
		return err
	case errors.Is(err, store.ErrSessionLost) && e.left():
		return fmt.Errorf("%w with its session: %w", store.ErrGone, err)
	}
	go e.keepDeparting(leave)
	return err
}

func (e *entry) left() bool {
	e.session.store.mu.Lock()
	defer e.session.store.mu.Unlock()
	return e.gone
}

func (e *entry) leave() error {
	if e.gone {
		return e.goneAlready()
	}
	e.session.store.unmark(e.req.Name, []uint64{e.order})
	e.session.store.remove(e, nil)
	return nil
}

// leaveAt lets the entry stand until a certain time, under a session of its own that nobody confirms.
func (e *entry) leaveAt(until time.Time) error {
	d := time.Until(until)
	if d <= 0 || e.gone {
		return e.leave()
	}
	s := e.session.store
	if e.under != e.session {
		s.forget(e.under) // of an earlier call
	}
	e.under = s.begin(store.SessionOptions{TTL: d})
	s.unmark(e.req.Name, []uint64{e.order})
	return nil
}

// withdraw takes the entry out without asking the faults.
func (e *entry) withdraw() error {
	e.session.store.mu.Lock()
	defer e.session.store.mu.Unlock()
	e.delivery.Silence()
	return e.leave()
}

// keepDeparting asks once a second until the faults let a request through, or the entry is gone with its session.
func (e *entry) keepDeparting(leave func() error) {
	s := e.session.store
	attempts.UntilDone(e.out, 0, func() error {
		ctx, cancel := context.WithTimeout(e.out, time.Second)
		defer cancel()
		err := s.request(ctx, Call{Op: Withdraw, Session: e.session.id, Name: e.req.Name}, leave, nil)
		if err != nil {
			<-ctx.Done()
		}
		return err
	})
}
