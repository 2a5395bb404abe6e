package observer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stilelock/stile/lab/torture/history"
)

// redisServers are one Redis server, or the masters of a Redlock.
type redisServers struct {
	clients []*redis.Client
	prefix  string
	token   func(uint64) uint64
}

// silent is a logger of the Redis client that logs nothing.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func openRedis(addrs []string, prefix string, token func(uint64) uint64) *redisServers {
	redis.SetLogger(silent{}) // it would report every outage
	o := &redisServers{prefix: prefix, token: token}
	for _, addr := range addrs {
		o.clients = append(o.clients, redis.NewClient(&redis.Options{
			Addr: addr, DialTimeout: time.Second, ReadTimeout: time.Second, MaxRetries: -1,
		}))
	}
	return o
}

// Follow follows the keyspace events of the locks' own keys on the first server. They contain no
// tokens, and changes while Follow is not subscribed are not reported at all.
func (o *redisServers) Follow(ctx context.Context, emit func(history.Entry)) {
	for ctx.Err() == nil {
		// Set each time, since a restarted server has forgotten it.
		o.clients[0].ConfigSet(ctx, "notify-keyspace-events", "Kg$x")
		sub := o.clients[0].PSubscribe(ctx, "__keyspace@0__:"+o.prefix+"*")
		o.receive(ctx, sub.Channel(), emit)
		_ = sub.Close()
	}
}

// receive reports events for a second. After that, Follow subscribes again: the server may have
// been restarted.
func (o *redisServers) receive(ctx context.Context, events <-chan *redis.Message, emit func(history.Entry)) {
	timeout := time.After(time.Second)
	for {
		select {
		case m := <-events:
			_, key, _ := strings.Cut(m.Channel, ":")
			switch m.Payload {
			case "set":
				emit(history.Entry{Lock: key, Key: key})
			case "del", "expired", "evicted":
				emit(history.Entry{Lock: key, Key: key, Gone: true})
			}
		case <-timeout:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Remaining omits the keys that end by themselves and keep no client from the lock: a line whose
// leases have all ended, the last token that was given, and the records that void entries whose
// requests may arrive late. It also omits the list of a Redlock's names and the records of names, which
// stay.
func (o *redisServers) Remaining(ctx context.Context) (map[string][]string, error) {
	left := map[string][]string{}
	for _, cli := range o.clients {
		now, err := cli.Time(ctx).Result()
		if err != nil {
			return nil, err
		}
		keys := cli.Scan(ctx, 0, "*", 1000).Iterator()
		for keys.Next(ctx) {
			key := keys.Val()
			if remains, err := remains(ctx, cli, key, now); err != nil {
				return nil, err
			} else if !remains {
				continue
			}
			lock := strings.Trim(strings.SplitN(key, "//", 2)[0], "{}")
			left[lock] = append(left[lock], key+" on "+cli.Options().Addr)
		}
		if err := keys.Err(); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// remains reports whether [redisServers.Remaining] names a key. While a waiter has a lease, only clients that
// ask for the same kind of lock are admitted, even if nobody holds it.
func remains(ctx context.Context, cli *redis.Client, key string, now time.Time) (bool, error) {
	switch {
	case strings.HasSuffix(key, "//names"), strings.HasSuffix(key, "//r"):
		return false, nil
	case strings.HasSuffix(key, "//x"):
		leases, err := cli.ZCount(ctx, key, strconv.FormatInt(now.UnixMilli(), 10), "+inf").Result()
		if err != nil || leases > 0 {
			return true, err
		}
	case !strings.Contains(key, "//"):
		return true, nil
	}
	ttl, err := cli.PTTL(ctx, key).Result()
	return ttl <= 0, err
}

// Evict deletes the lock's own key, all or not: the waiters are in keys of Stile's own, which
// nobody deletes by accident. It returns a token only if there is one server, since a deletion on
// several servers is not one step.
func (o *redisServers) Evict(ctx context.Context, lock string, _ bool) (Eviction, error) {
	if len(o.clients) == 1 {
		return o.evictOne(ctx, lock)
	}
	var deleted int64
	var errs []error
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, cli := range o.clients {
		all.Go(func() {
			n, err := cli.Del(ctx, lock).Result()
			mu.Lock()
			defer mu.Unlock()
			deleted += n
			errs = append(errs, err)
		})
	}
	all.Wait()
	if deleted == 0 {
		return Eviction{}, errors.Join(errs...)
	}
	return Eviction{What: fmt.Sprintf("DEL %s on %d servers", lock, len(o.clients))}, nil
}

// evictOne deletes the key, and reads in the same step the orders of the holders, which Stile keeps
// in another key. All of them lose the lock with the key.
func (o *redisServers) evictOne(ctx context.Context, lock string) (Eviction, error) {
	var holders *redis.ZSliceCmd
	var deleted *redis.IntCmd
	_, err := o.clients[0].TxPipelined(ctx, func(p redis.Pipeliner) error {
		holders, deleted = p.ZRangeWithScores(ctx, "{"+lock+"}//h", 0, -1), p.Del(ctx, lock)
		return nil
	})
	if err != nil || deleted.Val() == 0 {
		return Eviction{}, err
	}
	e := Eviction{What: "DEL " + lock}
	for _, holder := range holders.Val() {
		e.Took = append(e.Took, o.token(uint64(holder.Score)))
	}
	return e, nil
}

// Length counts the entries of Stile's own keys, with those whose leases have ended since the line changed
// last.
func (o *redisServers) Length(ctx context.Context, lock string) (int, error) {
	if len(o.clients) > 1 {
		return 0, nil
	}
	var holders, waiters *redis.IntCmd
	_, err := o.clients[0].TxPipelined(ctx, func(p redis.Pipeliner) error {
		holders, waiters = p.ZCard(ctx, "{"+lock+"}//h"), p.ZCard(ctx, "{"+lock+"}//q")
		return nil
	})
	return int(holders.Val() + waiters.Val()), err
}

// Compact does nothing: Redis keeps no past revisions.
func (o *redisServers) Compact(context.Context) error { return nil }

func (o *redisServers) Close() {
	for _, cli := range o.clients {
		_ = cli.Close()
	}
}
