package workload

import (
	"context"
	"fmt"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
)

// slots are the numbers of slots of the semaphores.
var slots = []int{3, 2}

func (s *sequence) semaphore(ctx context.Context) error {
	return s.useSlot(ctx, s.rng.IntN(len(slots)))
}

// batches uses a slot of a semaphore, or one of the other locks, for a moment.
func (s *sequence) batches(ctx context.Context) error {
	if s.rng.IntN(3) == 0 {
		return s.useSlot(ctx, s.rng.IntN(len(slots)))
	}
	return s.lockAndWork(ctx, s.locks[len(slots)+s.rng.IntN(len(s.locks)-len(slots))], 1, 0)
}

// useSlot uses a slot of a semaphore. A slot with a number protects a resource of its own.
func (s *sequence) useSlot(ctx context.Context, i int) error {
	lock, n := s.locks[i], slots[i]
	client, _ := locker.ClientOf(s.locker)
	sem := client.Semaphore(lock, n)
	numbered := s.rng.IntN(2) == 0
	if numbered {
		sem = sem.Numbered()
	}
	a := &history.Acquire{Lock: lock, Mode: history.Slot(n)}
	acquire := func(ctx context.Context, lock stileLock) (locker.Hold, error) {
		h, err := lock(ctx)
		if err != nil {
			return nil, err
		}
		if numbered {
			a.Number, a.NumberToken = h.Slot()+1, h.SlotToken()
		}
		return locker.HoldOf(h), nil
	}
	var t *activeHold
	if s.rng.IntN(8) == 0 {
		t = s.tryWith(ctx, a, func(ctx context.Context, _ string) (locker.Hold, error) { return acquire(ctx, sem.TryAcquire) })
	} else {
		t = s.waitWith(ctx, a, func(ctx context.Context, _ string) (locker.Hold, error) { return acquire(ctx, sem.Acquire) })
	}
	if t == nil {
		s.pause(ctx)
		return nil
	}
	defer sleep(ctx, s.randomUpTo(maxThinkTime))
	defer t.release()
	rounds := 1 + s.rng.IntN(3)
	if !numbered {
		return t.audit(ctx, rounds)
	}
	t.as.Lock, t.as.Token = fmt.Sprintf("%s#%d", lock, a.Number-1), a.NumberToken
	return t.work(ctx, rounds, 0)
}
