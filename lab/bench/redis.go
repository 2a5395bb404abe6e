package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	goredisv9 "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/stilelock/stile/internal/tcpproxy"
	"github.com/stilelock/stile/store/redisstore"
)

// rtt is how long a round trip takes through the proxy.
const rtt = 8 * time.Millisecond

// crowd is the contest on Redis.
var crowd = contest{Clients: 16}

func measureRedis(ctx context.Context, c config) (_ *report, err error) {
	s, err := newServer()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	addrs, err := freeAddresses(1)
	if err != nil {
		return nil, err
	}
	err = s.start(c.redis, "--port", port(addrs[0]), "--bind", host(addrs[0]), "--save", "", "--appendonly", "no", "--dir", s.dir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.until(ctx)
	defer cancel()
	other := goRedis(addrs[0])
	defer other.Close()
	if err := await(ctx, func(ctx context.Context) error { return other.Ping(ctx).Err() }); err != nil {
		return nil, err
	}
	version, err := redisInfo(ctx, other, "server", "redis_version")
	if err != nil {
		return nil, err
	}
	proxy, err := tcpproxy.New(addrs[0], func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") })
	if err != nil {
		return nil, err
	}
	defer proxy.Close()
	proxy.Delay(rtt / 2)

	near, err := in(ctx, c, redisSetting("loopback", addrs[0], other))
	if err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	far, err := in(ctx, c, redisSetting(fmt.Sprintf("RTT %v", rtt), proxy.Addr(), other))
	if err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	return &report{
		About: []string{
			fmt.Sprintf("redis-server %s, %s", version, versions("github.com/redis/rueidis", "github.com/go-redsync/redsync/v4",
				"github.com/bsm/redislock", "github.com/redis/go-redis/v9")),
			fmt.Sprintf("One redis-server, asked directly and through a proxy that makes a round trip take %v; commands are the server's own count, "+
				"those inside scripts included", rtt),
		},
		Settings: []settingReport{near.report(), far.report()},
		Expected: redisExpectations(near, far),
	}, nil
}

func redisExpectations(near, far *bench) []expectation {
	trips := compare(far.alone[stileName].handOvers.medians(), slices.Repeat([]float64{float64(rtt)}, far.rounds))
	all := []expectation{{far.name + ": Stile's hand-over in round trips", trips, 1.3, true}}
	var worst *ratio
	for _, c := range far.contenders {
		if strings.HasPrefix(c.name, "rueidislock") {
			all = append(all, expectation{far.name + ": Stile's hand-over / that of " + c.name, far.handOverRatio(c.name), 0.6, true})
		}
		if r := near.handOverRatio(c.name); c.name != stileName && (worst == nil || r.median() > worst.median()) {
			worst = r
		}
	}
	all = append(all, expectation{near.name + ": Stile's hand-over / that of the best of the others", worst, 1, true})
	for _, b := range []*bench{near, far} {
		most, least := b.fights[crowd][stileName].shares()
		share := float64(most) / float64(max(least, 1))
		all = append(all, expectation{
			fmt.Sprintf("%s: %v on one lock, the most that one has / the least", b.name, crowd), &ratio{share, share, share}, 1.3, true,
		})
	}
	return all
}

func redisSetting(name, addr string, other *goredis.Client) setting {
	return setting{
		name: name, contests: []contest{crowd}, slices: 2,
		contenders: []contender{
			{name: "redsync, as it comes", connect: redsyncWith(addr)},
			{name: "redsync, every ms", connect: redsyncWith(addr, redsync.WithRetryDelay(time.Millisecond))},
			{name: "redislock, every ms", connect: redislockEvery(addr, time.Millisecond)},
			{name: "rueidislock, majority 1", connect: rueidislockOf(addr, 1)},
			{name: "rueidislock, as it comes", connect: rueidislockOf(addr, 2)},
			{name: stileName, connect: redisStile(addr)},
		},
		// Long enough for the other to have asked, and uneven, so that those who poll are met at any moment.
		settle: func(i int) time.Duration { return 3*rtt + time.Duration(i*7919%20000)*time.Microsecond },
		commands: func(ctx context.Context) (int, error) {
			text, err := redisInfo(ctx, other, "stats", "total_commands_processed")
			if err != nil {
				return 0, err
			}
			return strconv.Atoi(text)
		},
	}
}

// redisInfo returns what the server says of itself under a name.
func redisInfo(ctx context.Context, cli *goredis.Client, section, name string) (string, error) {
	text, err := cli.Info(ctx, section).Result()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("INFO %s does not tell %s", section, name)
}

func goRedis(addr string) *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
}

// funcClient is a client of two functions.
type funcClient struct {
	lock       func(ctx context.Context, name string) (unlock func(context.Context) error, err error)
	disconnect func()
}

func (c funcClient) Lock(ctx context.Context, name string) (func(context.Context) error, error) {
	return c.lock(ctx, name)
}

func (c funcClient) Close() { c.disconnect() }

func redsyncWith(addr string, options ...redsync.Option) func(context.Context, int) (client, error) {
	options = append([]redsync.Option{redsync.WithExpiry(sessionTTL), redsync.WithTries(1 << 30)}, options...)
	return func(context.Context, int) (client, error) {
		cli := goRedis(addr)
		rs := redsync.New(goredisv9.NewPool(cli))
		lock := func(ctx context.Context, name string) (func(context.Context) error, error) {
			m := rs.NewMutex(name, options...)
			if err := m.LockContext(ctx); err != nil {
				return nil, err
			}
			return func(ctx context.Context) error {
				ok, err := m.UnlockContext(ctx)
				if err == nil && !ok {
					err = errors.New("redsync: not unlocked")
				}
				return err
			}, nil
		}
		return funcClient{lock, func() { cli.Close() }}, nil
	}
}

func redislockEvery(addr string, d time.Duration) func(context.Context, int) (client, error) {
	return func(context.Context, int) (client, error) {
		cli := goRedis(addr)
		locker := redislock.New(cli)
		lock := func(ctx context.Context, name string) (func(context.Context) error, error) {
			l, err := locker.Obtain(ctx, name, sessionTTL, &redislock.Options{RetryStrategy: redislock.LinearBackoff(d)})
			if err != nil {
				return nil, err
			}
			return l.Release, nil
		}
		return funcClient{lock, func() { cli.Close() }}, nil
	}
}

func rueidislockOf(addr string, majority int32) func(context.Context, int) (client, error) {
	return func(context.Context, int) (client, error) {
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true},
			KeyMajority:    majority,
			NoLoopTracking: true,
			KeyValidity:    sessionTTL,
		})
		if err != nil {
			return nil, err
		}
		lock := func(ctx context.Context, name string) (func(context.Context) error, error) {
			_, cancel, err := locker.WithContext(ctx, name)
			if err != nil {
				return nil, err
			}
			return func(context.Context) error { cancel(); return nil }, nil
		}
		return funcClient{lock, locker.Close}, nil
	}
}

func redisStile(addr string) func(context.Context, int) (client, error) {
	return func(context.Context, int) (client, error) {
		cli, err := rueidis.NewClient(redisstore.ClientOptions(addr))
		if err != nil {
			return nil, err
		}
		st, err := redisstore.New(cli, nil)
		if err != nil {
			return nil, err
		}
		return newStile(st, sessionTTL, cli.Close)
	}
}
