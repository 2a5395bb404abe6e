//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stilelock/stile"
)

// durations are repeated measurements of the same thing.
type durations []time.Duration

func (d durations) String() string {
	if len(d) == 0 {
		return "–"
	}
	sorted := slices.Sorted(slices.Values(d))
	return fmt.Sprintf("%v, 99 %% below %v", formatDuration(sorted[len(sorted)/2]), formatDuration(sorted[len(sorted)*99/100]))
}

// formatDuration formats a duration with about three digits.
func formatDuration(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(10 * time.Millisecond).String()
	}
}

// settleTime is how long a client waits before the lock is handed over. Its watch is open by then.
const settleTime = 50 * time.Millisecond

// measurePairs acquires and releases an uncontended lock n times.
func measurePairs(ctx context.Context, client *stile.Client, n int) (took durations, err error) {
	for range n {
		began := time.Now()
		hold, err := client.Mutex("free").Lock(ctx)
		if err != nil {
			return nil, err
		}
		if err := hold.Release(ctx); err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}

// measureHandOvers hands a lock over between two clients n times. No other client wants it.
func measureHandOvers(ctx context.Context, a, b *stile.Client, n int) (took durations, err error) {
	const name = "relay"
	place, err := join(ctx, a, name, false)
	if err != nil {
		return nil, err
	}
	for range n {
		next, err := join(ctx, b, name, true)
		if err != nil {
			return nil, err
		}
		time.Sleep(settleTime)
		d, err := handOver(ctx, place, next)
		if err != nil {
			return nil, err
		}
		took = append(took, d)
		place, a, b = next, b, a
	}
	return took, place.Leave(ctx)
}

// handOver releases the lock of place, waits until next has acquired it, and returns how long that
// took.
func handOver(ctx context.Context, place, next *stile.Place) (time.Duration, error) {
	hold, err := place.Wait(ctx)
	if err != nil {
		return 0, err
	}
	released := make(chan error, 1)
	began := time.Now()
	go func() { released <- hold.Release(ctx) }()
	select {
	case <-next.Ready():
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	took := time.Since(began)
	if _, err := next.Wait(ctx); err != nil {
		return 0, err
	}
	return took, <-released
}

// measureLineHandOvers hands the lock over along a line, n times at most.
func measureLineHandOvers(ctx context.Context, places []*stile.Place, n int) (took durations, err error) {
	for i := range min(n, len(places)-1) {
		d, err := handOver(ctx, places[i], places[i+1])
		if err != nil {
			return nil, err
		}
		took = append(took, d)
		time.Sleep(settleTime)
	}
	return took, nil
}
