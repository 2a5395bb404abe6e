package main

import (
	"context"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
)

// stileClient acquires locks with Stile. All options but the TTL are the defaults.
type stileClient struct {
	client     *stile.Client
	disconnect func()
}

func newStile(st store.Store, ttl time.Duration, disconnect func()) (client, error) {
	return newStileWith(st, &stile.Options{TTL: ttl}, disconnect)
}

func newStileWith(st store.Store, opts *stile.Options, disconnect func()) (client, error) {
	c, err := stile.New(st, opts)
	return stileClient{c, disconnect}, err
}

func (c stileClient) Lock(ctx context.Context, name string) (func(context.Context) error, error) {
	hold, err := c.client.Mutex(name).Lock(ctx)
	if err != nil {
		return nil, err
	}
	return hold.Release, nil
}

func (c stileClient) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = c.client.Close(ctx) // leftovers vanish with the server
	c.disconnect()
}
