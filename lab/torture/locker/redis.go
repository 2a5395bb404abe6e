package locker

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// redisClients are connections of go-redis, and how long what is done with them may go on.
type redisClients struct {
	all          []*redis.Client
	renewCtx     context.Context
	stopRenewing context.CancelFunc
}

// dialRedis returns a client for each address, and makes sure that most of them answer: who locks at a majority
// can do with that.
//
// The clients heed the deadlines of contexts, which go-redis does only when told to. Otherwise redsync's own time limits,
// and those of the extensions here, would mean nothing.
func dialRedis(ctx context.Context, addresses []string) (*redisClients, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	clients := &redisClients{}
	clients.renewCtx, clients.stopRenewing = context.WithCancel(context.Background())
	answers := make(chan error)
	for _, addr := range addresses {
		c := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		clients.all = append(clients.all, c)
		go func() { answers <- c.Ping(ctx).Err() }()
	}
	var errs []error
	for range clients.all {
		if err := <-answers; err != nil {
			errs = append(errs, err)
		}
	}
	if n := len(clients.all); n == 0 || len(errs) > n/2 {
		_ = clients.Close(ctx)
		return nil, fmt.Errorf("%d of %d Redis servers do not answer: %w", len(errs), n, errors.Join(errs...))
	}
	return clients, nil
}

// Close stops all extensions and closes the connections. It does not wait for anything.
func (r *redisClients) Close(context.Context) error {
	r.stopRenewing()
	var errs []error
	for _, c := range r.all {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
