package observer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stilelock/stile/lab/torture/history"
)

// redisServers are one Redis, or the masters of a Redlock.
type redisServers struct {
	clients []*redis.Client
	prefix  string
	token   func(uint64) uint64
}

func openRedis(addrs []string, prefix string, token func(uint64) uint64) *redisServers {
	o := &redisServers{prefix: prefix, token: token}
	for _, addr := range addrs {
		o.clients = append(o.clients, redis.NewClient(&redis.Options{
			Addr: addr, DialTimeout: time.Second, ReadTimeout: time.Second, MaxRetries: -1,
		}))
	}
	return o
}

// Follow follows the keyspace events of the locks' own keys on the first server. They tell nothing of tokens, and what
// happens while nobody listens is not told at all.
func (o *redisServers) Follow(ctx context.Context, saw func(history.Entry)) {
	for ctx.Err() == nil {
		o.clients[0].ConfigSet(ctx, "notify-keyspace-events", "Kg$x") // again if the server was restarted
		sub := o.clients[0].PSubscribe(ctx, "__keyspace@0__:"+o.prefix+"*")
		o.listen(ctx, sub.Channel(), saw)
		_ = sub.Close()
	}
}

// listen tells of events for a second: then the server may be another.
func (o *redisServers) listen(ctx context.Context, events <-chan *redis.Message, saw func(history.Entry)) {
	enough := time.After(time.Second)
	for {
		select {
		case m := <-events:
			_, key, _ := strings.Cut(m.Channel, ":")
			switch m.Payload {
			case "set":
				saw(history.Entry{Lock: key, Key: key})
			case "del", "expired", "evicted":
				saw(history.Entry{Lock: key, Key: key, Gone: true})
			}
		case <-enough:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Remaining leaves out what ends by itself and keeps nobody from the lock: a line whose leases have all ended, the last token that
// was given, the entries that must not come any more should their requests arrive late. The list of a Redlock's names stays.
func (o *redisServers) Remaining(ctx context.Context) (map[string][]string, error) {
	left := map[string][]string{}
	for _, cli := range o.clients {
		keys := cli.Scan(ctx, 0, "*", 1000).Iterator()
		for keys.Next(ctx) {
			key := keys.Val()
			beside := strings.Contains(key, "//")
			if left, err := cli.PTTL(ctx, key).Result(); err != nil || beside && left > 0 || strings.HasSuffix(key, "//names") {
				continue // an error is one of Err below, too
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

// Evict deletes the lock's own key: the waiters are in keys of Stile's, which nobody deletes by accident. The token is told only
// of one server: what is deleted on several is not deleted in one step.
func (o *redisServers) Evict(ctx context.Context, lock string, _ bool) (Eviction, error) {
	if len(o.clients) == 1 {
		return o.evictHere(ctx, lock)
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

// evictHere deletes the key, and looks in the same step for the order of the holder, which Stile keeps beside it.
func (o *redisServers) evictHere(ctx context.Context, lock string) (Eviction, error) {
	var holders *redis.ZSliceCmd
	var deleted *redis.IntCmd
	_, err := o.clients[0].TxPipelined(ctx, func(p redis.Pipeliner) error {
		holders, deleted = p.ZRangeWithScores(ctx, "{"+lock+"}//h", 0, 0), p.Del(ctx, lock)
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

// Compact does nothing: Redis remembers nothing.
func (o *redisServers) Compact(context.Context) error { return nil }

func (o *redisServers) Close() {
	for _, cli := range o.clients {
		_ = cli.Close()
	}
}
