package main

import (
	"context"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
)

// stileClient takes locks with Stile, with default options but for the TTL.
type stileClient struct {
	client     *stile.Client
	disconnect func()
}

func newStile(st store.Store, ttl time.Duration, disconnect func()) (client, error) {
	c, err := stile.New(st, &stile.Options{TTL: ttl})
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
	_ = c.client.Close(ctx) // what is left goes with its server
	c.disconnect()
}
