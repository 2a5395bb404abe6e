//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/storeurl"
)

// hotLock is the name of the lock with the long line.
const hotLock = "hot"

// fleet has all clients and their connections.
type fleet struct {
	stores    []*storeurl.Conn
	clients   []*stile.Client
	hotPlaces []*stile.Place // the places in the long line, in order

	renewals       atomic.Int64 // confirmed renewals
	failedRenewals atomic.Int64 // renewals that were not confirmed
	lostHolds      atomic.Int64
}

// concurrency is the number of concurrent requests while the clients acquire and join, and while
// they close.
const concurrency = 64

// forEach calls f for the numbers from 0 to n-1, concurrently, until one call fails.
func forEach(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(n, concurrency) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// connect creates the clients. None of them has a session yet.
func (f *fleet) connect(ctx context.Context, p plan, url string) error {
	f.stores, f.clients = make([]*storeurl.Conn, p.connections), make([]*stile.Client, p.sessions)
	err := forEach(ctx, p.connections, func(ctx context.Context, i int) (err error) {
		f.stores[i], err = storeurl.Open(ctx, url, nil)
		return err
	})
	if err != nil {
		return err
	}
	for i := range f.clients {
		f.clients[i], err = stile.New(f.stores[i%p.connections].Store, &stile.Options{
			TTL: p.ttl,
			Hooks: stile.Hooks{
				SessionRenewed: func(r stile.RenewalEvent) {
					if r.Err == nil {
						f.renewals.Add(1)
					} else {
						f.failedRenewals.Add(1)
					}
				},
				HoldEnd: func(_ context.Context, e stile.HoldEndEvent) {
					lost, ok := errors.AsType[*stile.LostError](e.Err)
					if ok && lost.Reason != stile.LostClosed {
						f.lostHolds.Add(1)
					}
				},
			},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// populate lets every client acquire its uncontended locks and then join its lines. The holders join
// before the waiters.
func (f *fleet) populate(ctx context.Context, p plan) error {
	for n := range p.uncontended {
		err := forEach(ctx, p.sessions, func(ctx context.Context, i int) error {
			_, err := f.clients[i].Mutex(fmt.Sprintf("alone/%05d/%d", i, n)).Lock(ctx)
			return err
		})
		if f.progress(fmt.Sprintf("%d uncontended locks per session", n+1)); err != nil {
			return err
		}
	}
	for rank := range p.sessions * p.joined / p.lines {
		err := forEach(ctx, p.lines, func(ctx context.Context, i int) error {
			n := rank*p.lines + i
			client := f.clients[(n+n/p.sessions)%p.sessions] // each time another one in the same line
			_, err := join(ctx, client, fmt.Sprintf("line/%05d", i), rank > 0)
			return err
		})
		if f.progress(fmt.Sprintf("%d lines with %d entries each", p.lines, rank+1)); err != nil {
			return err
		}
	}
	for i := range p.waiters + 1 { // sequentially, so that the order is known
		place, err := join(ctx, f.clients[i], hotLock, i > 0)
		if err != nil {
			return err
		}
		f.hotPlaces = append(f.hotPlaces, place)
	}
	return nil
}

// progress prints a progress line to stderr.
func (f *fleet) progress(what string) {
	fmt.Fprintf(os.Stderr, "%v: %s; %d renewals, %d not confirmed\n", time.Now().Format(time.TimeOnly), what, f.renewals.Load(), f.failedRenewals.Load())
}

// join joins the line of a lock and returns when the entry is in it. The entry must be admitted at
// once, or, with expectWait, must have to wait.
func join(ctx context.Context, client *stile.Client, name string, expectWait bool) (*stile.Place, error) {
	place, err := client.Mutex(name).Join(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	for {
		select {
		case <-place.Ready():
			if _, err := place.Wait(ctx); err != nil {
				return nil, err
			}
			if expectWait {
				return nil, fmt.Errorf("lock %q was acquired by a client that should be waiting", name)
			}
			return place, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
			if place.Ahead() > 0 {
				return place, nil
			}
		}
	}
}

// close closes all clients and connections.
func (f *fleet) close(ctx context.Context) error {
	var errs []error
	var mu sync.Mutex
	collect := func(err error) {
		if err != nil {
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		}
	}
	_ = forEach(ctx, len(f.clients), func(ctx context.Context, i int) error {
		if f.clients[i] != nil {
			collect(f.clients[i].Close(ctx))
		}
		return nil
	})
	for _, conn := range f.stores {
		if conn != nil {
			collect(conn.Close())
		}
	}
	f.clients, f.stores = nil, nil
	return errors.Join(errs...)
}
