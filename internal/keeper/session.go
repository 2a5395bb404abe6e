package keeper

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/store"
)

// Watcher hears of the life of a session. Any of the functions may be nil. They are called one at a time; but for
// Opened, from the session's own goroutine, possibly before [Open] has returned. They must not block: the next renewal waits for them.
type Watcher struct {
	// Opened is called before all others, and before Open returns, with the session's ID in the store.
	Opened func(id string)
	// Confirmed is called after each renewal, with the time from request to reply and the time left until the deadline.
	Confirmed func(roundTrip, left time.Duration)
	// Unconfirmed is called after each failed attempt at a renewal, with the time left until the deadline.
	Unconfirmed func(err error, left time.Duration)
	// AtRisk is called when renewal becomes overdue, with what was last heard (nil if no attempt failed yet) and
	// the time left until the deadline.
	AtRisk func(err error, left time.Duration)
	// Recovered is called when a session at risk is confirmed again.
	Recovered func()
	// Lost is called once, at the end of a session that was not closed; the session's context has ended by then.
	Lost func(*LostError)
}

// Session keeps one session of a store alive until it is closed or lost. It is safe for concurrent use.
type Session struct {
	store   store.Session
	terms   Terms
	watcher Watcher

	// life ends when the session is closed, valid when it is closed or lost.
	life    context.Context
	close   context.CancelFunc
	valid   context.Context
	invalid context.CancelCauseFunc

	ended chan error    // what the store said of the session's end
	done  chan struct{} // closed when run has returned

	mu      sync.Mutex
	lease   Lease
	lastErr error // of the last attempt; nil if it was confirmed
	lost    *LostError
	onLoss  map[*func(*LostError)]struct{}
}

// Open opens a session and begins to keep it. The deadline of the new session counts from before the store was
// asked. ctx bounds the opening, not the session. opts.Lost is not used: w.Lost tells.
func Open(ctx context.Context, st store.Store, opts store.SessionOptions, w Watcher) (*Session, error) {
	ended := make(chan error, 1)
	opts.Lost = func(err error) { tell(ended, err) }

	sent := bootclock.Now()
	inner, err := st.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	s := &Session{
		store:   inner,
		terms:   TermsFor(inner.Terms()),
		watcher: w,
		ended:   ended,
		done:    make(chan struct{}),
		onLoss:  make(map[*func(*LostError)]struct{}),
	}
	s.life, s.close = context.WithCancel(context.Background())
	s.valid, s.invalid = context.WithCancelCause(context.Background())
	s.lease = Granted(s.terms, sent, bootclock.Now())
	if w.Opened != nil {
		w.Opened(inner.ID())
	}
	go s.run()
	return s, nil
}

// Store returns the session to enqueue with. Do not confirm or close it.
func (s *Session) Store() store.Session { return s.store }

// Context ends when what is held under the session does. Its cause is a [*LostError].
func (s *Session) Context() context.Context { return s.valid }

// OnLoss has f called once when what is held under the session is lost: at once if it is. All who have asked for it
// have been called, and have returned, before the store is told of the loss, and so before the store can let others
// in because of it; a goroutine started by the end of Context might come later. f must not block. forget takes the
// wish back; f may be called all the same if the loss is under way.
func (s *Session) OnLoss(f func(*LostError)) (forget func()) {
	s.mu.Lock()
	lost := s.lost
	if lost == nil {
		s.onLoss[&f] = struct{}{}
	}
	s.mu.Unlock()
	if lost != nil {
		f(lost)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.onLoss, &f)
	}
}

// Ended tells the session what the store has said in answer to another request than those of the keeper, with an error
// matching [store.ErrSessionLost]: that the session has ended. What is held under it is lost soon after.
func (s *Session) Ended(err error) { tell(s.ended, err) }

// tell sends err unless somebody has told already.
func tell(ended chan<- error, err error) {
	select {
	case ended <- err:
	default:
	}
}

// Reason returns why what is held is lost; zero if it is held. It is as exact as [Session.Valid].
func (s *Session) Reason() Reason {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease.Look(bootclock.Now())
	return s.lease.Reason()
}

// Done is closed when the session has come to its end and nothing is done for it any more.
func (s *Session) Done() <-chan struct{} { return s.done }

// Valid reports whether what is held under the session is held now. Once false it stays false. It looks at the
// clock itself, so it tells the truth even where a timer is late: after a suspend, or a pause of the process.
func (s *Session) Valid() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.ValidAt(bootclock.Now())
}

// Deadline is until when what is held is valid if nothing more is heard from the store. It moves on with each
// renewal.
func (s *Session) Deadline() Instant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.Deadline()
}

// Close stops keeping the session and ends it in the store, with everything it has there. What was held under it
// is lost from here on, with reason [Closed]. ctx bounds the farewell to the store: if that fails, the error says
// so, and the session ends by itself when its TTL has passed. It may be called again, to try again.
func (s *Session) Close(ctx context.Context) error {
	s.close()
	<-s.done
	return s.store.Close(ctx)
}

// longestSleep bounds the time between two looks at the clock. Timers stand still while the machine is suspended
// and would be late by up to a whole renewal afterwards; so a loss is noticed within a second of waking up.
const longestSleep = time.Second

func (s *Session) run() {
	defer close(s.done)
	var asking sync.WaitGroup
	defer asking.Wait()

	answers := make(chan answer, 1)
	timer := time.NewTimer(0)
	defer timer.Stop()

	state := Held
	for {
		s.mu.Lock()
		now := bootclock.Now() // with the lock, here and below: nobody may have looked at a later time before
		s.lease.Look(now)
		if s.lease.Due(now) {
			s.lease.Asked(now)
			asking.Go(func() { answers <- s.ask() })
		}
		lease, lastErr := s.lease, s.lastErr
		s.mu.Unlock()

		before := state
		state = lease.State()
		switch {
		case state == Lost:
			s.end(&LostError{Reason: lease.Reason(), Err: lastErr})
			return
		case state == AtRisk && before == Held && s.watcher.AtRisk != nil:
			s.watcher.AtRisk(lastErr, lease.Deadline().Sub(now))
		case state == Held && before == AtRisk && s.watcher.Recovered != nil:
			s.watcher.Recovered()
		}

		timer.Reset(min(lease.Wake().Sub(now), longestSleep))
		select {
		case <-timer.C:
		case a := <-answers:
			s.heard(a)
		case err := <-s.ended:
			s.mu.Lock()
			s.lastErr = err
			s.lease.End(Expired, bootclock.Now())
			s.mu.Unlock()
		case <-s.life.Done():
			s.mu.Lock()
			s.lease.End(Closed, bootclock.Now())
			lost := &LostError{Reason: s.lease.Reason()}
			if lost.Reason != Closed { // the deadline has passed in the same moment
				lost.Err = s.lastErr
			}
			s.mu.Unlock()
			s.lose(lost)
			return
		}
	}
}

// answer is the outcome of one attempt to confirm.
type answer struct {
	sent Instant
	err  error
}

// ask makes one attempt to confirm the session.
func (s *Session) ask() answer {
	ctx, cancel := context.WithTimeout(s.life, s.terms.Attempt)
	defer cancel()
	sent := bootclock.Now() // before the request: see the package comment
	return answer{sent, s.store.Confirm(ctx)}
}

func (s *Session) heard(a answer) {
	s.mu.Lock()
	now := bootclock.Now()
	s.lastErr = a.err
	switch {
	case a.err == nil:
		s.lease.Answered(a.sent, now)
	case errors.Is(a.err, store.ErrSessionLost):
		s.lease.End(Expired, now)
	default:
		s.lease.Unanswered(now)
	}
	left := max(s.lease.Deadline().Sub(now), 0)
	s.mu.Unlock()

	switch {
	case a.err == nil && s.watcher.Confirmed != nil:
		s.watcher.Confirmed(now.Sub(a.sent), left)
	case a.err != nil && s.watcher.Unconfirmed != nil:
		s.watcher.Unconfirmed(a.err, left)
	}
}

// end carries out a loss: first those who hold are told, then everybody else. The store is told last, so that it
// stops working for the session and lets others in; it may not be within reach, and the session may be gone.
func (s *Session) end(lost *LostError) {
	s.lose(lost)
	if s.watcher.Lost != nil {
		s.watcher.Lost(lost)
	}
	if lost.Reason == Deadline {
		s.sitOutMargin()
	}
	ctx, cancel := context.WithTimeout(s.life, s.store.Terms().TTL)
	defer cancel()
	_ = s.store.Close(ctx) // it ends by itself otherwise
}

// sitOutMargin waits until the store might end the session by itself. A store that is within reach would let others in
// at once, and those who were told at the deadline need the margin to stop what they are doing.
func (s *Session) sitOutMargin() {
	s.mu.Lock()
	confirmed := s.lease.Confirmed()
	s.mu.Unlock()
	granted := s.store.Terms()
	timer := time.NewTimer(confirmed.Add(granted.TTL - granted.Slack).Sub(bootclock.Now()))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.life.Done(): // the client is done with it
	}
}

// lose tells those who hold. It returns when they know.
func (s *Session) lose(lost *LostError) {
	s.mu.Lock()
	s.lost = lost
	told := s.onLoss
	s.onLoss = nil
	s.mu.Unlock()

	for f := range told {
		(*f)(lost)
	}
	s.invalid(lost)
}
