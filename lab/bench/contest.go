package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// outcome is what has come of one slice of a contest.
type outcome struct {
	acquired   []int // by client
	handOvers  []time.Duration
	violations int
	givenUp    int
}

// fight lets the clients take one lock in turns for the duration of a slice. What is still under way then is carried to its
// end and not counted.
func runContest(ctx context.Context, clients []client, name string, hold, slice time.Duration) (outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		inside, violations, givenUp atomic.Int64
		releasedBy                  atomic.Int64 // by whom the lock was released last,
		releasedAt                  atomic.Int64 // and when; only who is inside the lock uses these
		acquired                    = make([]int, len(clients))
		handOvers                   = make([][]time.Duration, len(clients))
		workers                     sync.WaitGroup
		startSignal                 = make(chan struct{})
		start                       time.Time
	)
	releasedBy.Store(-1)
	acquireLoop := func(i int, c client) error {
		for {
			requestedAt := time.Since(start)
			if requestedAt >= slice {
				return nil
			}
			unlock, err := lockWithin(ctx, c, name, slice-requestedAt+callTimeout)
			if err != nil {
				return fmt.Errorf("lock: %w", err)
			}
			acquiredAt := time.Since(start)
			if unlock == nil {
				givenUp.Add(1)
				continue
			}
			if inside.Add(1) != 1 {
				violations.Add(1)
			}
			if acquiredAt < slice {
				acquired[i]++
				by, at := releasedBy.Load(), time.Duration(releasedAt.Load())
				// A hand-over is from one to another who stood waiting.
				if by >= 0 && by != int64(i) && at > requestedAt {
					handOvers[i] = append(handOvers[i], acquiredAt-at)
				}
			}
			time.Sleep(hold)
			inside.Add(-1)
			releasedBy.Store(int64(i))
			releasedAt.Store(int64(time.Since(start)))
			if err := unlock(); err != nil {
				return fmt.Errorf("unlock: %w", err)
			}
		}
	}
	for i, c := range clients {
		workers.Go(func() {
			<-startSignal
			if err := acquireLoop(i, c); err != nil {
				cancel(err)
			}
		})
	}
	start = time.Now()
	close(startSignal)
	workers.Wait()
	if ctx.Err() != nil {
		return outcome{}, context.Cause(ctx)
	}
	o := outcome{acquired: acquired, violations: int(violations.Load()), givenUp: int(givenUp.Load())}
	for _, times := range handOvers {
		o.handOvers = append(o.handOvers, times...)
	}
	return o, nil
}
