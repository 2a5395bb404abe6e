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
func fight(ctx context.Context, clients []client, name string, hold, slice time.Duration) (outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		inside, violations, givenUp atomic.Int64
		releasedBy                  atomic.Int64 // by whom the lock was released last,
		releasedAt                  atomic.Int64 // and when; only who is inside the lock uses these
		acquired                    = make([]int, len(clients))
		handOvers                   = make([][]time.Duration, len(clients))
		fighters                    sync.WaitGroup
		bell                        = make(chan struct{})
		start                       time.Time
	)
	releasedBy.Store(-1)
	fighter := func(i int, c client) error {
		for {
			asked := time.Since(start)
			if asked >= slice {
				return nil
			}
			unlock, err := attempt(ctx, c, name, slice-asked+patience)
			if err != nil {
				return fmt.Errorf("lock: %w", err)
			}
			got := time.Since(start)
			if unlock == nil {
				givenUp.Add(1)
				continue
			}
			if inside.Add(1) != 1 {
				violations.Add(1)
			}
			if got < slice {
				acquired[i]++
				by, at := releasedBy.Load(), time.Duration(releasedAt.Load())
				// A hand-over is from one to another who stood waiting.
				if by >= 0 && by != int64(i) && at > asked {
					handOvers[i] = append(handOvers[i], got-at)
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
		fighters.Go(func() {
			<-bell
			if err := fighter(i, c); err != nil {
				cancel(err)
			}
		})
	}
	start = time.Now()
	close(bell)
	fighters.Wait()
	if ctx.Err() != nil {
		return outcome{}, context.Cause(ctx)
	}
	o := outcome{acquired: acquired, violations: int(violations.Load()), givenUp: int(givenUp.Load())}
	for _, times := range handOvers {
		o.handOvers = append(o.handOvers, times...)
	}
	return o, nil
}
