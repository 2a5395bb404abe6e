package workload

import (
	"context"
	"errors"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
)

// A stileLock acquires a lock with Stile's own interface, as one of [stile.RWMutex] does.
type stileLock func(context.Context) (*stile.Hold, error)

// stileFunc returns a stileLock as a lockFunc, and what it returned last.
func stileFunc(lock stileLock, got **stile.Hold) lockFunc {
	return func(ctx context.Context, _ string) (locker.Hold, error) {
		h, err := lock(ctx)
		if err != nil {
			return nil, err
		}
		*got = h
		return locker.HoldOf(h), nil
	}
}

// readWrite uses a read-write lock: in six of ten cases it reads.
func (s *sequence) readWrite(ctx context.Context) error {
	lock := s.pickLock()
	client, caps := locker.ClientOf(s.locker)
	m := client.RWMutex(lock)
	write, read := &history.Acquire{Lock: lock}, &history.Acquire{Lock: lock, Mode: history.Shared}
	var h *stile.Hold
	var err error
	switch s.rng.IntN(10) {
	case 0:
		err = s.workAndRelease(ctx, s.waitWith(ctx, write, stileFunc(m.Lock, &h)), 1+s.rng.IntN(3), 0)
	case 1:
		t := s.waitWith(ctx, write, stileFunc(m.Lock, &h))
		if t == nil || !caps.Downgrades {
			err = s.workAndRelease(ctx, t, 1, 0)
			break
		}
		err = s.workAndDowngrade(ctx, t, h)
	case 2:
		t := s.waitWith(ctx, write, stileFunc(m.Lock, &h))
		if t == nil {
			s.pause(ctx)
			break
		}
		err = t.work(ctx, 1, 0)
		if t = s.yield(ctx, t, h, *write, (*stile.Hold).Yield); t != nil {
			err = errors.Join(err, s.workAndRelease(ctx, t, 1, 0))
		}
	case 3:
		if s.rng.IntN(2) == 0 {
			err = s.workAndRelease(ctx, s.tryWith(ctx, write, stileFunc(m.TryLock, &h)), 1, 0)
		} else {
			err = s.readAndRelease(ctx, s.tryWith(ctx, read, stileFunc(m.TryRLock, &h)), 1)
		}
	default:
		if s.rng.IntN(3) == 0 { // this reader gets an entry of its own
			m = m.With(stile.LockOptions{Reason: "torture"})
		}
		err = s.readAndRelease(ctx, s.waitWith(ctx, read, stileFunc(m.RLock, &h)), 1+s.rng.IntN(3))
	}
	sleep(ctx, s.randomUpTo(2*maxThinkTime))
	return err
}

// readAndRelease reads under a lock, if it was acquired, and releases it.
func (s *sequence) readAndRelease(ctx context.Context, t *activeHold, rounds int) error {
	if t == nil {
		s.pause(ctx)
		return nil
	}
	defer t.release()
	return t.read(ctx, rounds)
}

// downgradedRounds are the rounds for which a writer reads on after a downgrade. They last for about
// a quarter of a second, so that readers who wait get the lock beside it, on a busy machine too.
const downgradedRounds = 25

// workAndDowngrade writes, becomes a reader, reads on, and releases the lock.
func (s *sequence) workAndDowngrade(ctx context.Context, t *activeHold, h *stile.Hold) error {
	defer t.release()
	if err := t.work(ctx, 1, 0); err != nil {
		return err
	}
	d := history.Downgrade{Grant: t.grant, Call: history.Now()}
	before := d
	s.say(history.Event{At: d.Call, Downgrade: &before})
	limited, cancel := context.WithTimeout(ctx, s.config.Locker.TTL)
	defer cancel()
	err := h.Downgrade(limited)
	d.Return, d.Outcome, d.Err = history.Now(), endOutcome(err), errText(err)
	s.say(history.Event{At: d.Return, Downgrade: &d})
	if err != nil {
		return nil
	}
	return t.read(ctx, downgradedRounds)
}

// yield yields a hold with yieldHold, and waits for the next one. It returns nil if there is none. a
// has the lock and the mode.
func (s *sequence) yield(ctx context.Context, t *activeHold, h *stile.Hold, a history.Acquire,
	yieldHold func(*stile.Hold, context.Context) (*stile.Hold, error),
) *activeHold {
	e := t.beginEnd()
	a = history.Acquire{Lock: a.Lock, Mode: a.Mode, Grant: s.newGrant(), Yielded: t.grant, Call: history.Now()}
	s.say(history.Event{At: a.Call, Asked: &history.Asked{Lock: a.Lock, Grant: a.Grant, Mode: a.Mode}})
	next, err := yieldHold(h, ctx)
	a.Return = history.Now()
	switch {
	case err == nil:
		t.recordEnd(e, a.Return, history.OK, nil)
		a.Outcome = history.OK
		return s.startHold(&a, locker.HoldOf(next))
	case errors.Is(err, stile.ErrLost):
		t.recordEnd(e, a.Return, history.Failed, err)
	default:
		t.recordEnd(e, a.Return, history.Unknown, err)
	}
	fail(ctx, &a, err)
	s.say(history.Event{At: a.Return, Acquire: &a})
	return nil
}
