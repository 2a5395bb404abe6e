// Package broken has stores that consist of memstore and one deliberate bug each. They test package
// storetest, which must reject every one of them: a suite that has never failed proves nothing.
package broken

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// Bug is one deliberate defect of a store.
type Bug struct {
	// Name describes what the store does, as in "a store that" Name.
	Name string
	// Caught is the test of the suite that must fail: topic, slash, test name.
	Caught string
	// Plant returns m with the bug.
	Plant func(m *memstore.Store) store.Store
}

// Bugs returns all bugs.
func Bugs() []Bug {
	return slices.Concat(
		admissionBugs(), tryBugs(), kindBugs(), orderBugs(), withdrawBugs(), outlastBugs(), markerBugs(), ownerBugs(), downgradeBugs(), extensionBugs(), lifeBugs(), notifyBugs(),
		breakBugs(), cancelBugs(), closeBugs(), lineBugs(), watchBugs(), contendedBugs(), requeueBugs(), numberBugs(), limitBugs(), enqueueAllBugs(), recordBugs(), followBugs(), concurrencyBugs(), sessionBugs(), outageBugs(),
	)
}

// The types below wrap a store, its sessions and its tickets. Each method calls the function field
// with its name, or the wrapped method if that field is nil.

type wholeStore struct {
	store.Store
	capabilities func() store.Capabilities
	open         func(context.Context, store.SessionOptions) (store.Session, error)
	line         func(ctx context.Context, name string) (store.Line, error)
	lines        func(ctx context.Context, prefix string) ([]store.Line, error)
	watch        func(ctx context.Context, prefix string, changed func([]string)) error
	breakEntry   func(ctx context.Context, name string, order uint64) (store.Entry, error)
	clearMarks   func(ctx context.Context, name string, orders []uint64) error
	setLimit     func(ctx context.Context, name string, limit int) error
	enqueueAll   func(ctx context.Context, se store.Session, reqs []store.Request) ([]store.Ticket, error)
	record       func(ctx context.Context, name string) ([]byte, error)
	follow       func(ctx context.Context, prefix string, changed func(store.Changes)) error
}

func (s wholeStore) Capabilities() store.Capabilities {
	c := s.Store.Capabilities()
	if s.capabilities != nil {
		c = s.capabilities()
	}
	if s.clearMarks != nil {
		c.ClearMarks = s.clearMarks
	}
	if s.setLimit != nil {
		c.SetLimit = s.setLimit
	}
	inner := c.EnqueueAll
	if s.enqueueAll != nil {
		inner = s.enqueueAll
	}
	c.EnqueueAll = func(ctx context.Context, se store.Session, reqs []store.Request) ([]store.Ticket, error) {
		if wrapped, ok := se.(session); ok {
			se = wrapped.Session
		}
		return inner(ctx, se, reqs)
	}
	if s.record != nil {
		c.Record = s.record
	}
	if s.follow != nil {
		c.Follow = s.follow
	}
	return c
}

func (s wholeStore) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	if s.open == nil {
		return s.Store.Open(ctx, opts)
	}
	return s.open(ctx, opts)
}

func (s wholeStore) Line(ctx context.Context, name string) (store.Line, error) {
	if s.line == nil {
		return s.Store.Line(ctx, name)
	}
	return s.line(ctx, name)
}

func (s wholeStore) Lines(ctx context.Context, prefix string) iter.Seq2[store.Line, error] {
	if s.lines == nil {
		return s.Store.Lines(ctx, prefix)
	}
	return func(yield func(store.Line, error) bool) {
		lines, err := s.lines(ctx, prefix)
		if err != nil {
			yield(store.Line{}, err)
			return
		}
		for _, l := range lines {
			if !yield(l, nil) {
				return
			}
		}
	}
}

func (s wholeStore) Watch(ctx context.Context, prefix string, changed func([]string)) error {
	if s.watch == nil {
		return s.Store.Watch(ctx, prefix, changed)
	}
	return s.watch(ctx, prefix, changed)
}

func (s wholeStore) Break(ctx context.Context, name string, order uint64) (store.Entry, error) {
	if s.breakEntry == nil {
		return s.Store.Break(ctx, name, order)
	}
	return s.breakEntry(ctx, name, order)
}

type session struct {
	store.Session
	id      func() string
	terms   func() store.Terms
	confirm func(context.Context) error
	enqueue func(context.Context, store.Request) (store.Ticket, error)
	close   func(context.Context) error
}

func (s session) ID() string {
	if s.id == nil {
		return s.Session.ID()
	}
	return s.id()
}

func (s session) Terms() store.Terms {
	if s.terms == nil {
		return s.Session.Terms()
	}
	return s.terms()
}

func (s session) Confirm(ctx context.Context) error {
	if s.confirm == nil {
		return s.Session.Confirm(ctx)
	}
	return s.confirm(ctx)
}

func (s session) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	if s.enqueue == nil {
		return s.Session.Enqueue(ctx, req)
	}
	return s.enqueue(ctx, req)
}

func (s session) Close(ctx context.Context) error {
	if s.close == nil {
		return s.Session.Close(ctx)
	}
	return s.close(ctx)
}

type ticket struct {
	store.Ticket
	withdraw        func(context.Context) error
	withdrawAfter   func(context.Context, time.Duration) error
	mark            func(context.Context) ([]store.Entry, error)
	setOwner        func(context.Context, store.Owner) error
	downgrade       func(context.Context) error
	notifyContended func(func())
	claimNumber     func(context.Context) (int, uint64, error)
	setRecord       func(context.Context, []byte) error
	extend          func(*store.Extensions)
}

func (t ticket) Withdraw(ctx context.Context) error {
	if t.withdraw == nil {
		return t.Ticket.Withdraw(ctx)
	}
	return t.withdraw(ctx)
}

func (t ticket) Extensions() store.Extensions {
	e := t.Ticket.Extensions()
	if t.withdrawAfter != nil {
		e.WithdrawAfter = t.withdrawAfter
	}
	if t.mark != nil {
		e.Mark = t.mark
	}
	if t.setOwner != nil {
		e.SetOwner = t.setOwner
	}
	if t.downgrade != nil {
		e.Downgrade = t.downgrade
	}
	if t.notifyContended != nil {
		e.NotifyContended = t.notifyContended
	}
	if t.claimNumber != nil {
		e.ClaimNumber = t.claimNumber
	}
	if t.setRecord != nil {
		e.SetRecord = t.setRecord
	}
	if t.extend != nil {
		t.extend(&e)
	}
	return e
}

// withSessions returns m with the sessions that wrap returns.
func withSessions(m *memstore.Store, wrap func(store.Session) session) store.Store {
	return wholeStore{Store: m, open: func(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
		inner, err := m.Open(ctx, opts)
		if err != nil {
			return nil, err
		}
		return wrap(inner), nil
	}}
}

// withEnqueue returns m with enqueue in place of Session.Enqueue.
func withEnqueue(
	m *memstore.Store, enqueue func(context.Context, store.Session, store.Request) (store.Ticket, error),
) store.Store {
	return withSessions(m, func(inner store.Session) session {
		return session{Session: inner, enqueue: func(ctx context.Context, req store.Request) (store.Ticket, error) {
			return enqueue(ctx, inner, req)
		}}
	})
}

// withTickets returns m with the tickets that wrap returns.
func withTickets(m *memstore.Store, wrap func(store.Ticket, store.Request) ticket) store.Store {
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		t, err := inner.Enqueue(ctx, req)
		if err != nil {
			return nil, err
		}
		return wrap(t, req), nil
	})
}

// withNotify returns m with the Notify functions that wrap returns. wrap is called once for each
// entry. Like any Notify function, the result is not called concurrently and must not call the
// store.
func withNotify(m *memstore.Store, wrap func(store.Request) func(store.Standing)) store.Store {
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		req.Notify = wrap(req)
		return inner.Enqueue(ctx, req)
	})
}
