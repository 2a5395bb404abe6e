package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// contest is one way to fight for a lock.
type contest struct {
	clients int
	hold    time.Duration
	puts    bool // unrelated writes go on meanwhile
}

func (c contest) String() string {
	s := fmt.Sprintf("%d clients, hold %v", c.clients, c.hold)
	if c.puts {
		s += ", unrelated puts"
	}
	return s
}

// outcome is what came of one slice of a contest.
type outcome struct {
	acquired   int
	handOvers  []time.Duration
	violations int
}

// fight lets the locks, which are those of different clients to one name, be taken in turns for the duration of a
// slice. What is still under way then is carried to its end and not counted.
func fight(ctx context.Context, locks []lock, hold, slice time.Duration) (outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		inside, violations atomic.Int64
		releasedBy         atomic.Int64 // by whom the lock was released last,
		releasedAt         atomic.Int64 // and when; only who is inside the lock uses these
		outcomes           = make([]outcome, len(locks))
		fighters           sync.WaitGroup
		bell               = make(chan struct{})
		start              time.Time
	)
	releasedBy.Store(-1)
	fighter := func(i int, l lock) error {
		mine := &outcomes[i]
		for {
			asked := time.Since(start)
			if asked >= slice {
				return nil
			}
			if err := l.Lock(ctx); err != nil {
				return fmt.Errorf("lock: %w", err)
			}
			got := time.Since(start)
			if inside.Add(1) != 1 {
				violations.Add(1)
			}
			if got < slice {
				mine.acquired++
				by, at := releasedBy.Load(), time.Duration(releasedAt.Load())
				// A hand-over is from one to another who stood waiting.
				if by >= 0 && by != int64(i) && at > asked {
					mine.handOvers = append(mine.handOvers, got-at)
				}
			}
			time.Sleep(hold)
			inside.Add(-1)
			releasedBy.Store(int64(i))
			releasedAt.Store(int64(time.Since(start)))
			if err := l.Unlock(ctx); err != nil {
				return fmt.Errorf("unlock: %w", err)
			}
		}
	}
	for i, l := range locks {
		fighters.Go(func() {
			<-bell
			if err := fighter(i, l); err != nil {
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
	total := outcome{violations: int(violations.Load())}
	for _, o := range outcomes {
		total.acquired += o.acquired
		total.handOvers = append(total.handOvers, o.handOvers...)
	}
	return total, nil
}

// rawHandOvers measures the floor under every hand-over: from just before one client deletes a key until another
// hears of it, through a watch that has been open for long. The two change roles each time.
//
// If requeue is set the requests are those of two clients that want the same lock again and again: while one deletes
// its key, the other may still be putting its own in. Otherwise nothing else is under way.
func rawHandOvers(
	ctx context.Context, clients [2]*rawClient, name string, hold, slice time.Duration, requeue bool,
) ([]time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		locks [2]lock
		heard [2]chan time.Duration // when each client heard that the other's key was deleted
		start = time.Now()
	)
	for i := range clients {
		locks[i] = clients[i].lock(fmt.Sprintf("%s/%d", name, i))
		events := clients[i].cli.Watch(ctx, fmt.Sprintf("%s/%d", name, 1-i),
			clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
		if resp, ok := <-events; !ok || !resp.Created {
			return nil, fmt.Errorf("the watch did not begin: %w", context.Cause(ctx))
		}
		heard[i] = make(chan time.Duration, 1)
		go func() {
			for resp := range events {
				for range resp.Events {
					heard[i] <- time.Since(start)
				}
			}
			close(heard[i])
		}()
	}
	end := time.Since(start) + slice
	if requeue {
		return rawDuel(ctx, locks, heard, start, hold, end)
	}
	var times []time.Duration
	for i := 0; time.Since(start) < end; i = 1 - i {
		if err := locks[i].Lock(ctx); err != nil {
			return nil, err
		}
		time.Sleep(hold)
		at := time.Since(start)
		if err := locks[i].Unlock(ctx); err != nil {
			return nil, err
		}
		got, ok := <-heard[1-i]
		if !ok {
			return nil, errWatchEnded
		}
		times = append(times, got-at)
	}
	return times, nil
}

var errWatchEnded = errors.New("the watch ended")

// rawDuel lets two clients take turns, each putting its key in again as soon as it has deleted it. A hand-over is
// counted as it is in a fight: the one who gets the turn was waiting for it, or putting its key in.
func rawDuel(
	ctx context.Context, locks [2]lock, heard [2]chan time.Duration, start time.Time, hold, end time.Duration,
) ([]time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		times      [2][]time.Duration
		releasedAt atomic.Int64 // only who has the turn uses it
		dueling    sync.WaitGroup
	)
	heard[0] <- 0 // it begins
	duel := func(i int) error {
		for {
			asked := time.Since(start)
			if err := locks[i].Lock(ctx); err != nil {
				return err
			}
			select {
			case _, ok := <-heard[i]:
				if !ok {
					return errWatchEnded
				}
			case <-ctx.Done():
				return nil
			}
			got := time.Since(start)
			if got >= end {
				return nil
			}
			if at := time.Duration(releasedAt.Load()); at > asked {
				times[i] = append(times[i], got-at)
			}
			time.Sleep(hold)
			releasedAt.Store(int64(time.Since(start)))
			if err := locks[i].Unlock(ctx); err != nil {
				return err
			}
		}
	}
	for i := range locks {
		dueling.Go(func() {
			// The first to end, with an error or at the end of the slice, ends the other's waiting.
			cancel(duel(i))
		})
	}
	dueling.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return nil, err
	}
	return slices.Concat(times[0], times[1]), nil
}

// putters and putPause make 300 unrelated puts a second, if etcd keeps up.
const (
	putters  = 3
	putPause = 10 * time.Millisecond
	putRate  = putters * int(time.Second/putPause)
)

// startPuts writes keys that have nothing to do with any lock until stop is called, which tells how many a second it
// came to.
func startPuts(ctx context.Context, cli *clientv3.Client) (stop func() (float64, error)) {
	ctx, cancel := context.WithCancelCause(ctx)
	var (
		putting sync.WaitGroup
		done    atomic.Int64
		start   = time.Now()
		over    = make(chan struct{})
	)
	for i := range putters {
		putting.Go(func() {
			ticker := time.NewTicker(putPause)
			defer ticker.Stop()
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				case <-ticker.C:
				}
				if _, err := cli.Put(ctx, fmt.Sprintf("unrelated/%d/%d", i, n%100), "value"); err != nil {
					cancel(fmt.Errorf("unrelated put: %w", err))
					return
				}
				done.Add(1)
			}
		})
	}
	return func() (float64, error) {
		elapsed := time.Since(start)
		close(over)
		putting.Wait()
		err := context.Cause(ctx)
		cancel(nil)
		return float64(done.Load()) / elapsed.Seconds(), err
	}
}
