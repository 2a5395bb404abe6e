package stile

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// A set is one call of LockAll on a store that adds several entries in one step. These rules keep sets
// from waiting for each other in a circle; see line/sets_explore_test.go:
//
//   - A set joins the local queues of all its names in one step, and has no entry in the store until it
//     is the head of all of them.
//   - Then it adds fresh entries for all names in one step of the store.
//   - If it loses one of them while it waits, it withdraws all, and adds fresh ones in one step.
//
// So an entry waits only for entries with smaller orders, and a place that waits locally has none.
type set struct {
	client *Client
	places []*Place // sorted by name
	try    bool

	call *call
}

// takeTogether takes the locks on a store that adds several entries in one step. On failure the ones
// that it has taken must be given up.
func (m *MultiHold) takeTogether(ctx context.Context, c *Client, names []string, try bool) (err error) {
	s := &set{client: c, try: try}
	err = errUnfinished // if a hook or the logger panics
	defer func() { endAttempts(s.places, err) }()
	for _, name := range names {
		s.places = append(s.places, newPlace(ctx, locker{client: c, name: name, ownEntry: true}, try))
	}
	holds, failure := s.obtain(ctx, names)
	if failure != nil {
		return failure
	}
	return m.deliver(holds)
}

// endAttempts ends the attempts that are open, also if a hook panics.
func endAttempts(places []*Place, err error) {
	if len(places) == 0 {
		return
	}
	defer endAttempts(places[1:], err)
	places[0].attempt.end(err)
}

// obtain gets a hold for each place. On failure all places have left their queues, or leave them once
// their entries are withdrawn.
func (s *set) obtain(ctx context.Context, names []string) (holds []*Hold, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for i, p := range s.places {
		own := p.attempt.ctx // deliver sets another, while the function below may still run
		if outer := outerHold(own, s.client, names[i]); outer != nil && !s.try {
			return nil, reentrantError(names[i], outer)
		}
		defer context.AfterFunc(own, func() { cancel(context.Cause(own)) })()
	}
	if s.call, err = s.client.track(ctx); err != nil {
		return nil, lockError(names[0], err)
	}
	defer s.call.done()
	if err := s.client.joinAll(names, s.places); err != nil {
		return nil, err
	}
	obtained := false
	defer func() {
		for _, p := range s.places {
			if !obtained { // also if the logger panicked
				p.abandon()
			}
		}
	}()
	for i, p := range s.places {
		if err := s.awaitTurn(ctx, p); err != nil {
			return nil, lockError(names[i], err)
		}
	}
	for {
		failed, err := s.acquire(ctx)
		if err == nil {
			holds, failed, err = s.lend()
		}
		switch {
		case err == nil:
			obtained = true
			return holds, nil
		case !errors.Is(err, errRejoin):
			return nil, lockError(failed.name, s.call.withCause(err))
		}
		failed.logRejoin(err)
		s.withdraw()
	}
}

// awaitTurn waits until a place is the head of its queue.
func (s *set) awaitTurn(ctx context.Context, p *Place) error {
	select {
	case <-p.turn:
		return nil
	default:
	}
	defer announceWait(ctx, p.queue.name)()
	select {
	case <-p.turn:
		return nil
	case <-s.call.ctx.Done():
		return s.call.withCause(s.call.ctx.Err())
	}
}

// acquire adds fresh entries and waits until holds can be lent from all of them. On failure it returns
// the queue of the lock that was the reason, and entries may be in the line.
func (s *set) acquire(ctx context.Context) (failed *queue, err error) {
	if failed, err = s.enter(); err != nil {
		return failed, err
	}
	for i, p := range s.places {
		if err := s.awaitAdmission(ctx, i); err != nil {
			return p.queue, err
		}
	}
	errs := make([]error, len(s.places))
	var preparing sync.WaitGroup
	for i, p := range s.places {
		preparing.Go(func() { errs[i] = p.entered.prepare(s.call.ctx, s.try) }) // side by side: each may wait for Options.LockDelay
	}
	preparing.Wait()
	for i, p := range s.places {
		if errs[i] != nil {
			return p.queue, errs[i]
		}
		p.entered.subscribe()
	}
	return nil, nil
}

// enter adds an entry for each place, in one step. It fails like acquire.
func (s *set) enter() (failed *queue, err error) {
	first := s.places[0].queue
	for _, p := range s.places {
		_ = p.takeKept() // gives it up: a set's entries are fresh
		if err := p.queue.awaitRemovals(s.call.ctx, line.Exclusive, s.try); err != nil {
			return p.queue, err
		}
	}
	session, err := s.client.session(s.call.ctx)
	if err != nil {
		return first, err
	}
	lost := make(chan struct{})
	lose := sync.OnceFunc(func() { close(lost) })
	tenures := make([]*tenure, 0, len(s.places))
	requests := make([]store.Request, 0, len(s.places))
	for _, p := range s.places {
		t := newTenure(p.queue, line.Exclusive, p.owner)
		t.ownEntry = true
		t.session, t.setLost, t.loseSet = session, lost, lose
		t.stampOwner(s.try)
		p.queue.mu.Lock()
		p.tenure = t
		p.queue.mu.Unlock()
		tenures = append(tenures, t)
		requests = append(requests, store.Request{
			Name: p.queue.name, Mode: t.mode, Owner: t.owner, Try: s.try, Notify: t.notify,
		})
	}
	tickets, err := s.client.caps.EnqueueAll(s.call.ctx, session.Store(), requests)
	held, isHeld := errors.AsType[*store.HeldError](err)
	kind, isKind := errors.AsType[*store.KindError](err)
	switch {
	case isHeld:
		return first, heldError(held)
	case isKind:
		return s.queueOf(kind.Name), kind
	case errors.Is(err, store.ErrSessionLost):
		return first, tenures[0].sessionEnded(err)
	case errors.Is(err, store.ErrGone):
		return first, tenures[0].rejoinError(err)
	case err != nil:
		return first, err
	}
	for i, p := range s.places {
		tenures[i].ticket = tickets[i]
		p.entered = tenures[i]
	}
	return nil, nil
}

func (s *set) queueOf(name string) *queue {
	for _, p := range s.places {
		if p.queue.name == name {
			return p.queue
		}
	}
	return s.places[0].queue
}

// awaitAdmission waits until the entry of place i is admitted. Those before it are; so the wait is
// one of theirs too.
func (s *set) awaitAdmission(ctx context.Context, i int) error {
	t := s.places[i].entered
	select {
	case <-t.admission():
		return nil
	default:
	}
	ahead := make([]*tenure, 0, i)
	for _, p := range s.places[:i] {
		ahead = append(ahead, p.entered)
	}
	defer announceWait(ctx, t.queue.name, ahead...)()
	return t.wait(s.call.ctx, t.admission())
}

// lend returns a hold for each place. It fails like [tenure.lend] and returns the queue that was the
// reason.
func (s *set) lend() (holds []*Hold, failed *queue, err error) {
	for _, p := range s.places {
		h, err := p.entered.lend(p)
		if err != nil {
			return nil, p.queue, err // withdraw ends the others
		}
		holds = append(holds, h)
	}
	for _, p := range s.places {
		p.entered = nil
	}
	return holds, nil, nil
}

// withdraw removes all entries, so that the set can add fresh ones.
func (s *set) withdraw() {
	var leaving sync.WaitGroup
	for _, p := range s.places {
		if t := p.entered; t != nil {
			p.entered = nil
			leaving.Go(t.withdraw)
		}
	}
	leaving.Wait()
}

// deliver calls the hooks of all locks. If one was lost before, all are given up and the error matches
// errLostOne. It is the counterpart of [Place.obtain].
func (m *MultiHold) deliver(holds []*Hold) (err error) {
	rest := holds
	defer func() {
		for _, h := range rest { // also if a hook panicked
			h.giveUp()
		}
	}()
	for _, h := range holds {
		rest = rest[1:]                                        // if a hook panics, deliver gives h up
		h.place.attempt.ctx = m.withHolds(h.place.attempt.ctx) //nolint:fatcontext // each has its own
		if !h.deliver() {
			h.giveUp()
			return fmt.Errorf("%w: %w", errLostOne, h.Err())
		}
		m.holds = append(m.holds, h)
	}
	return nil
}
