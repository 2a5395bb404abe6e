package locker

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// redisClients are connections of go-redis, with the context of the renewers that use them.
type redisClients struct {
	all          []*redis.Client
	renewCtx     context.Context
	stopRenewing context.CancelFunc
}

// dialRedis returns a client for each address. A majority of the servers must reply, which is
// enough for a lock that needs a majority.
//
// The clients observe the deadlines of contexts, which go-redis does only with
// ContextTimeoutEnabled. Without it, redsync's own timeouts and those of the renewers would have no
// effect.
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
		return nil, fmt.Errorf("no reply from %d of %d Redis servers: %w", len(errs), n, errors.Join(errs...))
	}
	return clients, nil
}

// Close stops all renewers and closes the connections. It does not wait for anything.
func (r *redisClients) Close(context.Context) error {
	r.stopRenewing()
	var errs []error
	for _, c := range r.all {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
