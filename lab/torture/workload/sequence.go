package workload

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
)

// sequence repeats the steps of a workload, one after another. It acquires one lock at a time, except
// in the workload Sets.
type sequence struct {
	*worker
	number int // among those of the worker, from 0
	rng    *rand.Rand
}

// randomUpTo returns a duration from zero to d.
func (s *sequence) randomUpTo(d time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(d)))
}

// pickLock returns one of the locks.
func (s *sequence) pickLock() string { return s.locks[s.rng.IntN(len(s.locks))] }

// wait waits for a lock until ctx ends. It returns nil if the lock was not acquired.
func (s *sequence) wait(ctx context.Context, lock string) *activeHold {
	return s.waitWith(ctx, &history.Acquire{Lock: lock}, s.locker.Lock)
}

// waitWith waits for a lock with lockFunc. a has the lock and the mode.
func (s *sequence) waitWith(ctx context.Context, a *history.Acquire, lockFunc lockFunc) *activeHold {
	a.Grant = s.newGrant()
	s.say(history.Event{Asked: &history.Asked{Lock: a.Lock, Grant: a.Grant, Mode: a.Mode, Client: a.Client}})
	return s.acquire(ctx, a, lockFunc)
}

// try tries for a lock without waiting. It returns nil if the lock was not acquired.
func (s *sequence) try(ctx context.Context, lock string) *activeHold {
	return s.tryWith(ctx, &history.Acquire{Lock: lock}, s.locker.TryLock)
}

// tryWith tries for a lock with lockFunc. a has the lock and the mode.
func (s *sequence) tryWith(ctx context.Context, a *history.Acquire, lockFunc lockFunc) *activeHold {
	a.Grant = s.newGrant()
	return s.acquire(ctx, a, lockFunc)
}

// A lockFunc acquires a lock by its name, as a method of [locker.Locker] does.
type lockFunc func(ctx context.Context, name string) (locker.Hold, error)

func (s *sequence) acquire(ctx context.Context, a *history.Acquire, lockFunc lockFunc) *activeHold {
	a.Call = history.Now()
	h, err := lockFunc(ctx, a.Lock)
	a.Return = history.Now()
	if err == nil {
		a.Outcome = history.OK
		return s.startHold(a, h)
	}
	if !errors.Is(err, locker.ErrTryUnsupported) { // then no request was sent
		fail(ctx, a, err)
		s.say(history.Event{At: a.Return, Acquire: a})
	}
	return nil
}

// fail sets the outcome of a call that has failed.
func fail(ctx context.Context, a *history.Acquire, err error) {
	a.Outcome, a.Err = history.Failed, err.Error()
	if errors.Is(err, locker.ErrUnknownOutcome) {
		a.Outcome = history.Unknown
		return
	}
	a.GaveUp = errors.Is(err, locker.ErrTaken) || errors.Is(err, stile.ErrHeld) || errors.Is(err, stile.ErrClosed) || ctx.Err() != nil
}

// pause waits after a call that failed.
func (s *sequence) pause(ctx context.Context) { sleep(ctx, s.randomUpTo(50*time.Millisecond)) }

// hot uses a lock that all workers want.
func (s *sequence) hot(ctx context.Context) error {
	return s.lockAndWork(ctx, s.pickLock(), 1+s.rng.IntN(5), 0)
}

// many uses one of many locks.
func (s *sequence) many(ctx context.Context) error {
	zipf := rand.NewZipf(s.rng, 1.1, 1, uint64(len(s.locks)-1))
	return s.lockAndWork(ctx, s.locks[zipf.Uint64()], 1+s.rng.IntN(3), 0)
}

// long holds a lock for longer than the session would live without being renewed.
func (s *sequence) long(ctx context.Context) error {
	unit := s.config.holdUnit()
	return s.lockAndWork(ctx, s.pickLock(), 1, 3*unit+s.randomUpTo(unit))
}

// lockAndWork waits for a lock, works under it, releases it and waits for a short time. Without
// that time, no other worker would ever acquire a lock that is not fair.
func (s *sequence) lockAndWork(ctx context.Context, lock string, rounds int, atLeast time.Duration) error {
	err := s.workAndRelease(ctx, s.wait(ctx, lock), rounds, atLeast)
	sleep(ctx, s.randomUpTo(maxThinkTime))
	return err
}

// workAndRelease works under a lock, if it was acquired, and releases it.
func (s *sequence) workAndRelease(ctx context.Context, t *activeHold, rounds int, atLeast time.Duration) error {
	if t == nil {
		s.pause(ctx)
		return nil
	}
	defer t.release()
	return t.work(ctx, rounds, atLeast)
}

// storm tries for a lock, or waits for it only for a short time.
func (s *sequence) storm(ctx context.Context) error {
	var t *activeHold
	if s.rng.IntN(2) == 0 {
		t = s.try(ctx, s.pickLock())
	} else {
		shortCtx, cancel := context.WithTimeout(ctx, 10*time.Millisecond+s.randomUpTo(40*time.Millisecond))
		defer cancel()
		t = s.wait(shortCtx, s.pickLock())
	}
	return s.workAndRelease(ctx, t, 1+s.rng.IntN(2), 0)
}

// churn uses a few locks in one session. Sometimes it closes or abandons the session while it holds
// a lock. It abandons rarely, because then no client can acquire the lock for a TTL.
func (s *sequence) churn(ctx context.Context) error {
	endSession := false
	for n := 1 + s.rng.IntN(3); n > 0 && !endSession && ctx.Err() == nil; n-- {
		t := s.wait(ctx, s.pickLock())
		if endSession = t != nil && s.rng.IntN(4) == 0; !endSession {
			if err := s.workAndRelease(ctx, t, 1, 0); err != nil {
				return err
			}
			continue
		}
		err := t.work(ctx, 1, 0)
		t.endWith(func(context.Context) (history.Outcome, error) {
			if s.rng.IntN(20) == 0 {
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

// final makes the last attempt at one lock.
func (s *sequence) final(ctx context.Context) error {
	i := int(s.finalsStarted.Add(1)) - 1
	if i >= len(s.config.Locks) {
		return errDone
	}
	f := &history.Final{Lock: s.config.Locks[i], Outcome: history.OK}
	limitedCtx, cancel := context.WithTimeout(ctx, s.config.finalTimeout())
	defer cancel()
	h, err := s.locker.Lock(limitedCtx, f.Lock)
	switch {
	case errors.Is(err, locker.ErrUnknownOutcome):
		f.Outcome = history.Unknown
	case err != nil:
		f.Outcome = history.Failed
	}
	f.Err = errText(err)
	s.say(history.Event{Final: f})
	if err == nil {
		_ = h.Release(limitedCtx)
	}
	return nil
}
