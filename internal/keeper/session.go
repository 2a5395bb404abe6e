package keeper

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/store"
)

// Callbacks are called at the events of a session; any of them may be nil. Opened is called by
// [Open], and all others by the session's goroutine, one at a time, possibly before Open has
// returned. They must not block, because the next renewal waits for them.
type Callbacks struct {
	// Opened is called before all others, with the session's ID in the store.
	Opened func(id string)
	// Confirmed is called after each renewal, with its round-trip time and the time left until the
	// deadline.
	Confirmed func(roundTrip, left time.Duration)
	// Unconfirmed is called after each failed attempt to renew, with the time left until the
	// deadline.
	Unconfirmed func(err error, left time.Duration)
	// AtRisk is called when renewal becomes overdue, with the last error (nil if no attempt has
	// failed yet) and the time left until the deadline.
	AtRisk func(err error, left time.Duration)
	// Recovered is called when a session at risk is confirmed again.
	Recovered func()
	// Lost is called once if the session ends other than by Close. The session's context has ended
	// by then.
	Lost func(*LostError)
}

// A Session keeps one session of a store alive until it is closed or lost. It is safe for
// concurrent use.
type Session struct {
	store     store.Session
	schedule  Schedule
	callbacks Callbacks

	// life ends when the session is closed, valid when it is closed or lost.
	life    context.Context
	close   context.CancelFunc
	valid   context.Context
	invalid context.CancelCauseFunc

	ended chan error    // receives the store's report that the session has ended
	done  chan struct{} // closed when run has returned

	mu      sync.Mutex
	lease   Lease
	lastErr error // of the last attempt; nil if it was confirmed
	lost    *LostError

	listeners map[LossListener]struct{} // to notify of a loss
}

// Open opens a session and starts to renew it. The first deadline counts from before the request
// was sent. ctx bounds the call, not the session. opts.Lost is ignored; use callbacks.Lost.
func Open(ctx context.Context, st store.Store, opts store.SessionOptions, callbacks Callbacks) (*Session, error) {
	ended := make(chan error, 1)
	opts.Lost = func(err error) { trySend(ended, err) }

	sent := bootclock.Now()
	inner, err := st.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	s := &Session{
		store:     inner,
		schedule:  ScheduleFor(inner.Terms()),
		callbacks: callbacks,
		ended:     ended,
		done:      make(chan struct{}),
		listeners: make(map[LossListener]struct{}),
	}
	s.life, s.close = context.WithCancel(context.Background())
	s.valid, s.invalid = context.WithCancelCause(context.Background())
	s.lease = NewLease(s.schedule, sent, bootclock.Now())
	if callbacks.Opened != nil {
		callbacks.Opened(inner.ID())
	}
	go s.run()
	return s, nil
}

// Store returns the store's session, to enqueue entries with. The caller must neither confirm nor
// close it.
func (s *Session) Store() store.Session { return s.store }

// Context returns a context that ends when the session is lost or closed. Its cause is a
// [*LostError].
func (s *Session) Context() context.Context { return s.valid }

// A LossListener is notified of the loss of a session.
type LossListener interface {
	// SessionLost is called once when the session is lost or closed. It must not block.
	SessionLost(lost *LostError)
}

// Subscribe adds a listener. It is notified at once if the session is already lost or closed. All
// listeners have returned before the store is asked to end the session, and so before it can admit
// others because of that. (A goroutine that waits for Context could be later.)
func (s *Session) Subscribe(l LossListener) {
	s.mu.Lock()
	lost := s.lost
	if lost == nil {
		s.listeners[l] = struct{}{}
	}
	s.mu.Unlock()
	if lost != nil {
		l.SessionLost(lost)
	}
}

// Unsubscribe removes a listener, if it is there. If the loss is under way, it may still be notified.
func (s *Session) Unsubscribe(l LossListener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, l)
}

// ReportEnded reports that the store has answered another request with err, which matches
// [store.ErrSessionLost]. The session is then lost shortly after.
func (s *Session) ReportEnded(err error) { trySend(s.ended, err) }

// trySend sends err unless the channel is full.
func trySend(ended chan<- error, err error) {
	select {
	case ended <- err:
	default:
	}
}

// Reason returns why the session was lost; zero if it is valid. It is as exact as [Session.Valid].
func (s *Session) Reason() Reason {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease.Advance(bootclock.Now())
	return s.lease.Reason()
}

// Done returns a channel that is closed when the session has ended and its goroutine has returned.
func (s *Session) Done() <-chan struct{} { return s.done }

// Valid reports whether the session's holds are valid now. Once it is false it stays false. It
// reads the clock, so it is right even if a timer is late, after a suspend or a pause of the
// process.
func (s *Session) Valid() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.ValidAt(bootclock.Now())
}

// Healthy reports whether the session is valid now and its renewal is not overdue. It is as exact as [Session.Valid].
// It also returns what it took as now, so that the caller need not read the clock again.
func (s *Session) Healthy() (now Instant, healthy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now = bootclock.Now()
	s.lease.Advance(now)
	return now, s.lease.State() == Held
}

// Deadline returns until when the holds are valid if no further renewal is confirmed. Renewals move
// it forward.
func (s *Session) Deadline() Instant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.Deadline()
}

// Close stops renewing the session and ends it in the store, with all its entries. Its holds are
// lost, with reason [Closed]. ctx bounds the request to the store. If the request fails, Close
// returns the error, and the session ends when its TTL has passed. Close may be called again to
// retry.
func (s *Session) Close(ctx context.Context) error {
	s.close()
	<-s.done
	return s.store.Close(ctx)
}

// maxSleep bounds the time between two readings of the clock. Timers stop while the machine is
// suspended and could be late by a whole renewal interval; with maxSleep, a loss is noticed within
// a second after resuming.
const maxSleep = time.Second

func (s *Session) run() {
	defer close(s.done)
	var inFlight sync.WaitGroup
	defer inFlight.Wait()

	replies := make(chan reply, 1)
	timer := time.NewTimer(0)
	defer timer.Stop()

	state := Held
	for {
		s.mu.Lock()
		now := bootclock.Now() // under the mutex, here and below: no caller can have seen a later time
		s.lease.Advance(now)
		if s.lease.Due(now) {
			s.lease.RequestSent(now)
			inFlight.Go(func() { replies <- s.confirm() })
		}
		lease, lastErr := s.lease, s.lastErr
		s.mu.Unlock()

		before := state
		state = lease.State()
		switch {
		case state == Lost:
			s.end(&LostError{Reason: lease.Reason(), Err: lastErr})
			return
		case state == AtRisk && before == Held && s.callbacks.AtRisk != nil:
			s.callbacks.AtRisk(lastErr, lease.Deadline().Sub(now))
		case state == Held && before == AtRisk && s.callbacks.Recovered != nil:
			s.callbacks.Recovered()
		}

		timer.Reset(min(lease.Wake().Sub(now), maxSleep))
		select {
		case <-timer.C:
		case a := <-replies:
			s.handleReply(a)
		case err := <-s.ended:
			s.mu.Lock()
			s.lastErr = err
			s.lease.End(Expired, bootclock.Now())
			s.mu.Unlock()
		case <-s.life.Done():
			s.mu.Lock()
			s.lease.End(Closed, bootclock.Now())
			lost := &LostError{Reason: s.lease.Reason()}
			if lost.Reason != Closed { // the deadline passed at the same moment
				lost.Err = s.lastErr
			}
			s.mu.Unlock()
			s.lose(lost)
			return
		}
	}
}

// A reply is the outcome of one attempt to confirm.
type reply struct {
	sent Instant
	err  error
}

// confirm makes one attempt to confirm the session.
func (s *Session) confirm() reply {
	ctx, cancel := context.WithTimeout(s.life, s.schedule.AttemptTimeout)
	defer cancel()
	sent := bootclock.Now() // before the request: see the package comment
	return reply{sent, s.store.Confirm(ctx)}
}

func (s *Session) handleReply(a reply) {
	s.mu.Lock()
	now := bootclock.Now()
	s.lastErr = a.err
	switch {
	case a.err == nil:
		s.lease.RequestConfirmed(a.sent, now)
	case errors.Is(a.err, store.ErrSessionLost):
		s.lease.End(Expired, now)
	default:
		s.lease.RequestFailed(now)
	}
	left := max(s.lease.Deadline().Sub(now), 0)
	s.mu.Unlock()

	switch {
	case a.err == nil && s.callbacks.Confirmed != nil:
		s.callbacks.Confirmed(now.Sub(a.sent), left)
	case a.err != nil && s.callbacks.Unconfirmed != nil:
		s.callbacks.Unconfirmed(a.err, left)
	}
}

// end carries out a loss: holders are notified first, then the callbacks, and the store last. The
// store may then admit others. It may be unreachable, and the session may already be gone.
func (s *Session) end(lost *LostError) {
	s.lose(lost)
	if s.callbacks.Lost != nil {
		s.callbacks.Lost(lost)
	}
	if lost.Reason == Deadline {
		s.waitOutMargin()
	}
	ctx, cancel := context.WithTimeout(s.life, s.store.Terms().TTL)
	defer cancel()
	_ = s.store.Close(ctx) // on failure the TTL ends the session
}

// waitOutMargin waits until the store could end the session by itself. If it were ended in the
// store at the deadline, others would be admitted at once; holders notified at the deadline need
// the margin to stop their work.
func (s *Session) waitOutMargin() {
	s.mu.Lock()
	confirmed := s.lease.Confirmed()
	s.mu.Unlock()
	granted := s.store.Terms()
	timer := time.NewTimer(confirmed.Add(granted.TTL - granted.Slack).Sub(bootclock.Now()))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.life.Done(): // the client was closed
	}
}

// lose notifies the listeners and returns when all have returned.
func (s *Session) lose(lost *LostError) {
	s.mu.Lock()
	s.lost = lost
	listeners := s.listeners
	s.listeners = nil
	s.mu.Unlock()

	for l := range listeners {
		l.SessionLost(lost)
	}
	s.invalid(lost)
}
