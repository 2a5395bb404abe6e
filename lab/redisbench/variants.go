package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	goredisv9 "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/redisstore"
)

// ttl is how long all locks last that nobody renews.
const ttl = 15 * time.Second

// A client is one process that locks, with connections of its own.
type client struct {
	lock  func(ctx context.Context, name string) (unlock func() error, err error)
	close func()
}

// A variant is one way to lock.
type variant struct {
	name    string
	connect func(addr string) (*client, error)
	polls   bool // waits by asking again and again
}

var variants = []variant{
	{name: "redsync, as it comes", polls: true, connect: redsyncWith()},
	{name: "redsync, every ms", polls: true, connect: redsyncWith(redsync.WithRetryDelay(time.Millisecond))},
	{name: "redislock, every ms", polls: true, connect: redislockEvery(time.Millisecond)},
	{name: "rueidislock, majority 1", connect: rueidislockOf(1)},
	{name: "rueidislock, as it comes", connect: rueidislockOf(2)},
	{name: stileName, connect: stileClient},
}

const stileName = "Stile"

func goRedis(addr string) *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
}

func redsyncWith(options ...redsync.Option) func(string) (*client, error) {
	return func(addr string) (*client, error) {
		cli := goRedis(addr)
		rs := redsync.New(goredisv9.NewPool(cli))
		options := append([]redsync.Option{redsync.WithExpiry(ttl), redsync.WithTries(1 << 30)}, options...)
		return &client{
			lock: func(ctx context.Context, name string) (func() error, error) {
				m := rs.NewMutex(name, options...)
				if err := m.LockContext(ctx); err != nil {
					return nil, err
				}
				return func() error {
					ok, err := m.Unlock()
					if err == nil && !ok {
						err = errors.New("redsync: not unlocked")
					}
					return err
				}, nil
			},
			close: func() { cli.Close() },
		}, nil
	}
}

func redislockEvery(d time.Duration) func(string) (*client, error) {
	return func(addr string) (*client, error) {
		cli := goRedis(addr)
		locker := redislock.New(cli)
		return &client{
			lock: func(ctx context.Context, name string) (func() error, error) {
				l, err := locker.Obtain(ctx, name, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(d)})
				if err != nil {
					return nil, err
				}
				return func() error { return l.Release(context.Background()) }, nil
			},
			close: func() { cli.Close() },
		}, nil
	}
}

func rueidislockOf(majority int32) func(string) (*client, error) {
	return func(addr string) (*client, error) {
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true},
			KeyMajority:    majority,
			NoLoopTracking: true,
			KeyValidity:    ttl,
		})
		if err != nil {
			return nil, err
		}
		return &client{
			lock: func(ctx context.Context, name string) (func() error, error) {
				_, cancel, err := locker.WithContext(ctx, name)
				if err != nil {
					return nil, err
				}
				return func() error { cancel(); return nil }, nil
			},
			close: locker.Close,
		}, nil
	}
}

func stileClient(addr string) (*client, error) {
	cli, err := rueidis.NewClient(redisstore.Ready(addr))
	if err != nil {
		return nil, err
	}
	st, err := redisstore.New(cli, nil)
	if err != nil {
		return nil, err
	}
	c, err := stile.New(st, &stile.Options{TTL: ttl, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	return &client{
		lock: func(ctx context.Context, name string) (func() error, error) {
			h, err := c.Mutex(name).Lock(ctx)
			if err != nil {
				return nil, err
			}
			return func() error { return h.Release(context.Background()) }, nil
		},
		close: func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			_ = c.Close(ctx)
			cli.Close()
		},
	}, nil
}
