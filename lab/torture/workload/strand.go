package workload

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
)

// strand does one thing after another: it has one lock at a time.
type strand struct {
	*worker
	chance *rand.Rand
}

// upTo returns a time from zero to d.
func (s *strand) upTo(d time.Duration) time.Duration { return time.Duration(s.chance.Int64N(int64(d))) }

// any returns one of the locks.
func (s *strand) any() string { return s.locks[s.chance.IntN(len(s.locks))] }

// wait asks for a lock and waits until ctx ends. It returns nil if it was not had.
func (s *strand) wait(ctx context.Context, lock string) *held {
	a := &history.Acquire{Lock: lock, Grant: s.newGrant()}
	s.say(history.Event{Asked: &history.Asked{Lock: lock, Grant: a.Grant}})
	return s.ask(ctx, a, s.locker.Lock)
}

// try asks for a lock without waiting. It returns nil if it was not had.
func (s *strand) try(ctx context.Context, lock string) *held {
	return s.ask(ctx, &history.Acquire{Lock: lock, Grant: s.newGrant()}, s.locker.TryLock)
}

func (s *strand) ask(ctx context.Context, a *history.Acquire, how func(context.Context, string) (locker.Hold, error)) *held {
	a.Call = history.Now()
	h, err := how(ctx, a.Lock)
	a.Return = history.Now()
	switch {
	case err == nil:
		a.Outcome = history.OK
		return s.hold(a, h)
	case errors.Is(err, locker.ErrTryUnsupported):
		return nil // nobody was asked
	case errors.Is(err, locker.ErrUnknownOutcome):
		a.Outcome = history.Unknown
	default:
		a.Outcome = history.Failed
		a.GaveUp = errors.Is(err, locker.ErrTaken) || ctx.Err() != nil
	}
	a.Err = err.Error()
	s.say(history.Event{At: a.Return, Acquire: a})
	return nil
}

// pause is what a call that failed is followed by.
func (s *strand) pause(ctx context.Context) { sleep(ctx, s.upTo(50*time.Millisecond)) }

// hot: a lock that everybody wants.
func (s *strand) hot(ctx context.Context) error {
	return s.doOne(ctx, s.any(), 1+s.chance.IntN(5), 0)
}

// many: one of many locks.
func (s *strand) many(ctx context.Context) error {
	popular := rand.NewZipf(s.chance, 1.1, 1, uint64(len(s.locks)-1))
	return s.doOne(ctx, s.locks[popular.Uint64()], 1+s.chance.IntN(3), 0)
}

// long: longer than the session would live without being renewed.
func (s *strand) long(ctx context.Context) error {
	pace := s.config.holdUnit()
	return s.doOne(ctx, s.any(), 1, 3*pace+s.upTo(pace))
}

// doOne waits for a lock, works under it and releases it, and then does something else: were it to ask again at once, nobody
// else would ever have a lock that is not fair.
func (s *strand) doOne(ctx context.Context, lock string, rounds int, atLeast time.Duration) error {
	err := s.under(ctx, s.wait(ctx, lock), rounds, atLeast)
	sleep(ctx, s.upTo(thinking))
	return err
}

// under works under a lock, if there is one, and releases it.
func (s *strand) under(ctx context.Context, t *held, rounds int, atLeast time.Duration) error {
	if t == nil {
		s.pause(ctx)
		return nil
	}
	defer t.release()
	return t.work(ctx, rounds, atLeast)
}

// storm: trying, or waiting for a moment only.
func (s *strand) storm(ctx context.Context) error {
	var t *held
	if s.chance.IntN(2) == 0 {
		t = s.try(ctx, s.any())
	} else {
		moment, cancel := context.WithTimeout(ctx, 10*time.Millisecond+s.upTo(40*time.Millisecond))
		defer cancel()
		t = s.wait(moment, s.any())
	}
	return s.under(ctx, t, 1+s.chance.IntN(2), 0)
}

// churn: a session for a few locks. Now and then it is closed while it has one, or abandoned: rarely, because nobody can have
// the lock then for a TTL.
func (s *strand) churn(ctx context.Context) error {
	left := false
	for n := 1 + s.chance.IntN(3); n > 0 && !left && ctx.Err() == nil; n-- {
		t := s.wait(ctx, s.any())
		if left = t != nil && s.chance.IntN(4) == 0; !left {
			if err := s.under(ctx, t, 1, 0); err != nil {
				return err
			}
			continue
		}
		err := t.work(ctx, 1, 0)
		t.end(func(context.Context) (history.Outcome, error) {
			if s.chance.IntN(20) == 0 {
				s.abandon()
				return history.Unknown, errors.New("the session was abandoned instead")
			}
			s.close()
			return history.Unknown, errors.New("the session was closed instead")
		})
		if err != nil {
			return err
		}
	}
	s.close()
	return s.connect(ctx)
}

// final: the last attempt at one lock.
func (s *strand) final(ctx context.Context) error {
	i := int(s.tried.Add(1)) - 1
	if i >= len(s.config.Locks) {
		return errDone
	}
	f := &history.Final{Lock: s.config.Locks[i], Outcome: history.OK}
	limited, cancel := context.WithTimeout(ctx, s.config.finalTimeout())
	defer cancel()
	h, err := s.locker.Lock(limited, f.Lock)
	switch {
	case errors.Is(err, locker.ErrUnknownOutcome):
		f.Outcome = history.Unknown
	case err != nil:
		f.Outcome = history.Failed
	}
	f.Err = text(err)
	s.say(history.Event{Final: f})
	if err == nil {
		_ = h.Release(limited)
	}
	return nil
}
