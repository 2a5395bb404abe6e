package memstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/delivery"
)

// entry is one place in a line, and the ticket to it. Its fields are guarded by the store's mutex.
type entry struct {
	session     *session      // the session that inserted the entry
	lifeSession *session      // whose end removes the entry: session, or one of the entry's own after WithdrawAfter
	req         store.Request // its mode is that after a downgrade
	order       uint64
	owner       store.Owner
	claim       *claim // its slot number, if it has one

	admitted bool
	ahead    int // how many entries must leave before it is admitted
	gone     bool
	cause    error
	out      context.Context // ends when the entry leaves the line
	endEntry context.CancelFunc

	delivery    delivery.Delivery
	onContended func()
}

func (se *session) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	tickets, err := se.enqueue(ctx, Call{Op: Enqueue, Session: se.id, Name: req.Name}, []store.Request{req})
	if err != nil {
		return nil, err
	}
	return tickets[0], nil
}

// enqueue adds an entry for each of the requests, in one step, or none.
func (se *session) enqueue(ctx context.Context, c Call, reqs []store.Request) ([]store.Ticket, error) {
	s := se.store
	var added []*entry
	remove := func() {
		for _, e := range added {
			_ = e.withdraw()
		}
	}
	err := se.request(ctx, c, func() error {
		if err := se.aliveLocked(); err != nil {
			return err
		}
		for _, req := range reqs {
			if err := s.refusalLocked(req); err != nil {
				return err
			}
		}
		for _, req := range reqs {
			added = append(added, se.addLocked(req))
		}
		for _, e := range added {
			for _, other := range s.lines[e.req.Name] {
				other.notifyContendedLocked()
			}
			e.delivery.Begin()
			s.deliverLocked(e)
			s.changedLocked(e.req.Name)
		}
		return nil
	}, remove)
	if err != nil {
		return nil, err
	}
	tickets := make([]store.Ticket, 0, len(added))
	for _, e := range added {
		tickets = append(tickets, e)
	}
	return tickets, nil
}

// refusalLocked returns the error of a request that cannot be carried out, and nil if it can.
func (s *Store) refusalLocked(req store.Request) error {
	others := s.readLocked(req.Name).Entries
	if len(others) > 0 && !line.SameKind(req.Mode, others[0].Mode) {
		return &store.KindError{Name: req.Name, Mode: req.Mode, Other: others[0]}
	}
	ahead := make([]line.Mode, 0, len(others))
	for _, other := range others {
		ahead = append(ahead, other.Mode)
	}
	if !req.Try || line.Admits(req.Mode.Within(s.limits[req.Name]), ahead) {
		return nil
	}
	// The holder to name is the first entry that alone would block this one, or the first of all if it
	// takes several.
	holder := others[max(0, slices.IndexFunc(ahead, func(m line.Mode) bool { return !line.Admits(req.Mode, []line.Mode{m}) }))]
	return &store.HeldError{Name: req.Name, Holder: &holder}
}

// addLocked adds an entry at the end of its line. Nothing is delivered to its owner yet.
func (se *session) addLocked(req store.Request) *entry {
	s := se.store
	s.order++
	e := &entry{session: se, lifeSession: se, req: req, order: s.order, owner: req.Owner, delivery: delivery.New(req.Notify)}
	e.out, e.endEntry = context.WithCancel(context.Background())
	s.lines[req.Name] = append(s.lines[req.Name], e)
	s.admitLocked(req.Name)
	return e
}

func (e *entry) standingLocked() store.Standing {
	if e.gone {
		return store.Standing{State: store.Gone, Order: e.order, Cause: e.cause}
	}
	if e.admitted {
		return store.Standing{State: store.Admitted, Order: e.order}
	}
	return store.Standing{State: store.Waiting, Ahead: e.ahead, Order: e.order}
}

// notifyContendedLocked calls the function that was passed to notifyContended, once, if an entry
// behind this one waits.
func (e *entry) notifyContendedLocked() {
	if e.onContended == nil || e.gone {
		return
	}
	for _, other := range e.session.store.lines[e.req.Name] {
		if other.order > e.order && !other.admitted {
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
	e.notifyContendedLocked()
}

func (e *entry) Extensions() store.Extensions {
	return store.Extensions{
		WithdrawAfter: e.withdrawAfter, Mark: e.mark, SetOwner: e.setOwner, Downgrade: e.downgrade, NotifyContended: e.notifyContended,
		Requeue: e.requeue, ClaimNumber: e.claimNumber, SetRecord: e.setRecord,
	}
}

// setOwner is [store.Extensions.SetOwner].
func (e *entry) setOwner(ctx context.Context, owner store.Owner) error {
	s := e.session.store
	return e.session.request(ctx, Call{Op: SetOwner, Session: e.session.id, Name: e.req.Name}, func() error {
		if e.gone || e.delivery.Over() {
			return e.goneErr()
		}
		e.owner = owner
		s.changedLocked(e.req.Name)
		return nil
	}, nil)
}

func (e *entry) Withdraw(ctx context.Context) error { return e.withdrawWith(ctx, e.leaveLocked) }

func (e *entry) withdrawAfter(ctx context.Context, d time.Duration) error {
	until := time.Now().Add(d)
	return e.withdrawWith(ctx, func() error { return e.leaveAtLocked(until) })
}

// withdrawWith stops the notifications, then calls leave with the store's mutex held. If that fails
// it is retried in the background.
func (e *entry) withdrawWith(ctx context.Context, leave func() error) error {
	s := e.session.store
	s.mu.Lock()
	e.delivery.Silence()
	request := e.session.request
	if e.lifeSession != e.session {
		request = s.request // its first session does not own it any more, and may have ended
	}
	s.mu.Unlock()

	err := request(ctx, Call{Op: Withdraw, Session: e.session.id, Name: e.req.Name}, leave, nil)
	switch {
	case err == nil || errors.Is(err, store.ErrGone):
		return err
	case errors.Is(err, store.ErrSessionLost) && e.isGone():
		return fmt.Errorf("%w with its session: %w", store.ErrGone, err)
	}
	go e.withdrawInBackground(leave)
	return err
}

func (e *entry) isGone() bool {
	e.session.store.mu.Lock()
	defer e.session.store.mu.Unlock()
	return e.gone
}

func (e *entry) leaveLocked() error {
	if e.gone {
		return e.goneErr()
	}
	e.session.store.unmarkLocked(e.req.Name, []uint64{e.order})
	e.session.store.removeLocked(e, nil)
	return nil
}

// leaveAtLocked lets the entry stand until the given time, under a session of its own that is not
// confirmed.
func (e *entry) leaveAtLocked(until time.Time) error {
	d := time.Until(until)
	if d <= 0 || e.gone {
		return e.leaveLocked()
	}
	s := e.session.store
	if e.lifeSession != e.session {
		s.forgetLocked(e.lifeSession) // of an earlier call
	}
	e.lifeSession = s.openLocked(store.SessionOptions{TTL: d})
	s.unmarkLocked(e.req.Name, []uint64{e.order})
	return nil
}

// withdraw removes the entry without applying faults.
func (e *entry) withdraw() error {
	e.session.store.mu.Lock()
	defer e.session.store.mu.Unlock()
	e.delivery.Silence()
	return e.leaveLocked()
}

// withdrawInBackground retries once a second until a request succeeds or the entry is gone with its
// session.
func (e *entry) withdrawInBackground(leave func() error) {
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
