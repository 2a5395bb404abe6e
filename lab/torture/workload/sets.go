package workload

import (
	"context"
	"fmt"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
)

// several uses several locks at once, or one of them.
func (s *sequence) several(ctx context.Context) error {
	client, caps := locker.ClientOf(s.locker)
	lock := s.pickLock()
	var h *stile.Hold
	var err error
	switch s.rng.IntN(10) {
	case 0, 1:
		err = s.workAndRelease(ctx, s.wait(ctx, lock), 1, 0)
	case 2:
		err = s.workAndRelease(ctx, s.try(ctx, lock), 1, 0)
	case 3:
		if caps.SharedModes {
			read := &history.Acquire{Lock: lock, Mode: history.Shared}
			err = s.readAndRelease(ctx, s.waitWith(ctx, read, stileFunc(client.RWMutex(lock).RLock, &h)), 1)
		}
	case 4:
		err = s.workAndReleaseAll(ctx, s.acquireAll(ctx, true, client.TryLockAll))
	default:
		err = s.workAndReleaseAll(ctx, s.acquireAll(ctx, false, client.LockAll))
	}
	sleep(ctx, s.randomUpTo(2*maxThinkTime))
	return err
}

// activeSet is several locks that are held together.
type activeSet struct {
	*stile.MultiHold
	holds []*activeHold
}

// acquireAll acquires two or three of the locks, in any order. It returns nil if they were not
// acquired. Each of them is recorded as a call, and as a hold.
func (s *sequence) acquireAll(ctx context.Context, try bool, lockAll func(context.Context, ...string) (*stile.MultiHold, error)) *activeSet {
	set := s.newGrant()
	var names []string
	var calls []*history.Acquire
	call := history.Now()
	for _, i := range s.rng.Perm(len(s.locks))[:2+s.rng.IntN(2)] {
		a := &history.Acquire{Lock: s.locks[i], Grant: fmt.Sprintf("%s/%d", set, i), Set: set, Call: call}
		names, calls = append(names, a.Lock), append(calls, a)
		if !try {
			s.say(history.Event{At: call, Asked: &history.Asked{Lock: a.Lock, Grant: a.Grant, Set: set}})
		}
	}
	m, err := lockAll(ctx, names...)
	back := history.Now()
	got := &activeSet{MultiHold: m}
	for _, a := range calls {
		a.Return = back
		if err != nil {
			fail(ctx, a, err)
			s.say(history.Event{At: back, Acquire: a})
			continue
		}
		a.Outcome = history.OK
		got.holds = append(got.holds, s.startHold(a, locker.HoldOfSet(m, a.Lock)))
	}
	if err != nil {
		return nil
	}
	return got
}

// workAndReleaseAll works under several locks, if they were acquired, and releases them.
func (s *sequence) workAndReleaseAll(ctx context.Context, set *activeSet) (err error) {
	if set == nil {
		s.pause(ctx)
		return nil
	}
	for _, t := range set.holds {
		if err = t.work(ctx, 1, 0); err != nil {
			break
		}
	}
	ends := make([]history.End, len(set.holds))
	for i, t := range set.holds {
		ends[i] = t.beginEnd()
	}
	limited, cancel := context.WithTimeout(context.Background(), s.config.Locker.TTL)
	defer cancel()
	releaseErr := set.Release(limited)
	back := history.Now()
	outcome := history.OK
	if releaseErr != nil {
		outcome = history.Unknown // some of them may have been released
	}
	for i, t := range set.holds {
		t.recordEnd(ends[i], back, outcome, releaseErr)
	}
	return err
}
