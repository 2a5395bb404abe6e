//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stilelock/stile"
)

// times are how long something took, several times.
type times []time.Duration

func (t times) String() string {
	if len(t) == 0 {
		return "–"
	}
	sorted := slices.Sorted(slices.Values(t))
	return fmt.Sprintf("%v, 99 %% below %v", show(sorted[len(sorted)/2]), show(sorted[len(sorted)*99/100]))
}

// show writes a duration with three digits or so.
func show(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(10 * time.Millisecond).String()
	}
}

// settled is how long somebody waits before the lock is handed over: its watch is open by then.
const settled = 50 * time.Millisecond

// pairs takes a lock that nobody else wants, and lets it go, n times.
func pairs(ctx context.Context, client *stile.Client, n int) (took times, err error) {
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

// handOvers has two clients hand a lock over that nobody else wants, n times.
func handOvers(ctx context.Context, one, other *stile.Client, n int) (took times, err error) {
	const name = "relay"
	place, err := join(ctx, one, name, false)
	if err != nil {
		return nil, err
	}
	for range n {
		next, err := join(ctx, other, name, true)
		if err != nil {
			return nil, err
		}
		time.Sleep(settled)
		d, err := handOver(ctx, place, next)
		if err != nil {
			return nil, err
		}
		took = append(took, d)
		place, one, other = next, other, one
	}
	return took, place.Leave(ctx)
}

// handOver releases the lock of a place and waits until the next has it. It returns how long that took.
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

// handOversInLine has the first n in a line hand the lock over to each other.
func handOversInLine(ctx context.Context, places []*stile.Place, n int) (took times, err error) {
	for i := range min(n, len(places)-1) {
		d, err := handOver(ctx, places[i], places[i+1])
		if err != nil {
			return nil, err
		}
		took = append(took, d)
		time.Sleep(settled)
	}
	return took, nil
}
