package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/stilelock/stile"
)

// A readerSource takes a lock for reading, always with the same session.
type readerSource func(ctx context.Context, name string) (release func(context.Context) error, err error)

func stileReaders(client *stile.Client) readerSource {
	return func(ctx context.Context, name string) (func(context.Context) error, error) {
		hold, err := client.RWMutex(name).RLock(ctx)
		if err != nil {
			return nil, err
		}
		return hold.Release, nil
	}
}

func (e *etcd) recipeReaders() (readerSource, error) {
	raw, err := e.raw()
	if err != nil {
		return nil, err
	}
	return func(_ context.Context, name string) (func(context.Context) error, error) {
		m := recipe.NewRWMutex(raw.session, name)
		return func(context.Context) error { return m.RUnlock() }, m.RLock()
	}, nil
}

// measureReaders measures RLock and RUnlock while another reader of the same process holds the lock,
// and counts the requests that they take.
func measureReaders(ctx context.Context, c config, store string, count func(context.Context) (int, error), contenders map[string]readerSource, r *report) error {
	m := newTimed(store + ": RLock and release beside a reader of the same client")
	names := slices.Sorted(maps.Keys(contenders))
	for round := range c.rounds {
		for i := range names {
			name := names[(round+i)%len(names)]
			lock := fmt.Sprintf("readers-%d-%d-%d", os.Getpid(), round, i)
			took, requests, err := readBesideReader(ctx, lock, contenders[name], count)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			m.add(name, took)
			m.requests[name] = append(m.requests[name], requests)
		}
	}
	r.Timed = append(r.Timed, m.rows(stileRWMutex)...)
	r.Expected = append(r.Expected, expectation{store + ": requests of a reader beside a reader of the same client", spread(m.requests[stileRWMutex]), 0, true})
	if contenders[recipeRWMutex] != nil {
		r.Expected = append(r.Expected, expectation{store + ": such a reader, Stile / " + recipeRWMutex, m.ratio(stileRWMutex, recipeRWMutex), 1, true})
	}
	return nil
}

// readBesideReader returns what readers beside a reader take, and the requests for each. They come
// while the first one lets others join it, and after the requests that its own admission causes.
func readBesideReader(
	ctx context.Context, name string, read readerSource, count func(context.Context) (int, error),
) (took []time.Duration, requests float64, err error) {
	release, err := read(ctx, name)
	if err != nil {
		return nil, 0, err
	}
	time.Sleep(300 * time.Millisecond)
	before, err := count(ctx)
	if err != nil {
		return nil, 0, err
	}
	for range blockSize {
		start := time.Now()
		release, err := read(ctx, name)
		if err == nil {
			err = release(ctx)
		}
		if err != nil {
			return nil, 0, err
		}
		took = append(took, time.Since(start))
	}
	after, err := count(ctx)
	if err != nil {
		return nil, 0, err
	}
	return took, float64(after-before) / blockSize, release(ctx)
}
