package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// outcome is the result of one slice of a contest.
type outcome struct {
	acquired   []int // by client
	handOvers  []time.Duration
	violations int
	givenUp    int
}

// runContest lets the clients acquire and release one lock in a loop for the duration of a slice.
// Calls that are under way when the slice ends are completed, but not counted.
func runContest(ctx context.Context, clients []client, name string, hold, slice time.Duration) (outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		inside, violations, givenUp atomic.Int64
		releasedBy                  atomic.Int64 // the client that released last, -1 before the first release,
		releasedAt                  atomic.Int64 // and when; only the lock's holder reads and writes these two
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
				// A hand-over goes from one client to another that was already waiting.
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
