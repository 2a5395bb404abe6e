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

// hot is the name of the long line.
const hot = "hot"

// crowd is everybody who stands in line.
type crowd struct {
	stores  []*storeurl.Conn
	clients []*stile.Client
	hot     []*stile.Place // those who stand in the long line, in order

	renewed atomic.Int64 // renewals that were confirmed
	failed  atomic.Int64 // renewals that were not
	lost    atomic.Int64 // holds
}

// atOnce is how many requests are under way at once while the crowd gathers, and when it goes.
const atOnce = 64

// each calls f for the numbers from 0 to n-1, some at once, until one fails.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var working sync.WaitGroup
	for range min(n, atOnce) {
		working.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	working.Wait()
	return context.Cause(ctx)
}

// connect makes the clients. None of them has a session yet.
func (c *crowd) connect(ctx context.Context, p plan, url string) error {
	c.stores, c.clients = make([]*storeurl.Conn, p.connections), make([]*stile.Client, p.sessions)
	err := each(ctx, p.connections, func(ctx context.Context, i int) (err error) {
		c.stores[i], err = storeurl.Open(ctx, url, nil)
		return err
	})
	if err != nil {
		return err
	}
	for i := range c.clients {
		c.clients[i], err = stile.New(c.stores[i%p.connections].Store, &stile.Options{
			TTL: p.ttl,
			Hooks: stile.Hooks{
				SessionRenewed: func(r stile.RenewalEvent) {
					if r.Err == nil {
						c.renewed.Add(1)
					} else {
						c.failed.Add(1)
					}
				},
				HoldEnd: func(_ context.Context, e stile.HoldEndEvent) {
					lost, ok := errors.AsType[*stile.LostError](e.Err)
					if ok && lost.Reason != stile.LostClosed {
						c.lost.Add(1)
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

// gather has everybody take the locks that nobody else wants, and then stand in the lines, those who hold first.
func (c *crowd) gather(ctx context.Context, p plan) error {
	for n := range p.alone {
		err := each(ctx, p.sessions, func(ctx context.Context, i int) error {
			_, err := c.clients[i].Mutex(fmt.Sprintf("alone/%05d/%d", i, n)).Lock(ctx)
			return err
		})
		if c.progress(fmt.Sprintf("each holds %d", n+1)); err != nil {
			return err
		}
	}
	for rank := range p.sessions / p.lines {
		err := each(ctx, p.lines, func(ctx context.Context, i int) error {
			_, err := join(ctx, c.clients[rank*p.lines+i], fmt.Sprintf("line/%05d", i), rank > 0)
			return err
		})
		if c.progress(fmt.Sprintf("%d lines of %d", p.lines, rank+1)); err != nil {
			return err
		}
	}
	for i := range p.waiters + 1 { // one by one: the order is to be known
		place, err := join(ctx, c.clients[i], hot, i > 0)
		if err != nil {
			return err
		}
		c.hot = append(c.hot, place)
	}
	return nil
}

// progress tells whoever watches how far it is.
func (c *crowd) progress(what string) {
	fmt.Fprintf(os.Stderr, "%v: %s; %d renewals, %d not confirmed\n", time.Now().Format(time.TimeOnly), what, c.renewed.Load(), c.failed.Load())
}

// join gets a client in line, and returns when it stands there.
func join(ctx context.Context, client *stile.Client, name string, behind bool) (*stile.Place, error) {
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
			if behind {
				return nil, fmt.Errorf("lock %q was given to somebody who should be waiting", name)
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

// disperse has everybody go.
func (c *crowd) disperse(ctx context.Context) error {
	var errs []error
	var mu sync.Mutex
	note := func(err error) {
		if err != nil {
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		}
	}
	_ = each(ctx, len(c.clients), func(ctx context.Context, i int) error {
		if c.clients[i] != nil {
			note(c.clients[i].Close(ctx))
		}
		return nil
	})
	for _, opened := range c.stores {
		if opened != nil {
			note(opened.Close())
		}
	}
	c.clients, c.stores = nil, nil
	return errors.Join(errs...)
}
