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

// rtt is the duration of a round trip through the proxy.
const rtt = 8 * time.Millisecond

// redisContest is the only contest on Redis.
var redisContest = contest{Clients: 16}

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
	ctx, cancel := s.untilExit(ctx)
	defer cancel()
	admin := goRedis(addrs[0])
	defer admin.Close()
	if err := await(ctx, func(ctx context.Context) error { return admin.Ping(ctx).Err() }); err != nil {
		return nil, err
	}
	version, err := redisInfo(ctx, admin, "server", "redis_version")
	if err != nil {
		return nil, err
	}
	proxy, err := tcpproxy.New(addrs[0], func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") })
	if err != nil {
		return nil, err
	}
	defer proxy.Close()
	proxy.Delay(rtt / 2)

	direct, err := measureSetting(ctx, c, redisSetting("loopback", addrs[0], admin))
	if err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	proxied, err := measureSetting(ctx, c, redisSetting(fmt.Sprintf("RTT %v", rtt), proxy.Addr(), admin))
	if err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	return &report{
		About: []string{
			fmt.Sprintf("redis-server %s, %s", version, versions("github.com/redis/rueidis", "github.com/go-redsync/redsync/v4",
				"github.com/bsm/redislock", "github.com/redis/go-redis/v9")),
			fmt.Sprintf("One redis-server, reached directly and through a proxy that makes a round trip take %v; commands are the server's own count, "+
				"including those inside scripts", rtt),
		},
		Settings: []settingReport{direct.report(), proxied.report()},
		Expected: redisExpectations(direct, proxied),
	}, nil
}

func redisExpectations(direct, proxied *bench) []expectation {
	roundTrips := compare(proxied.uncontended[stileName].handOvers.medians(), slices.Repeat([]float64{float64(rtt)}, proxied.rounds))
	all := []expectation{{proxied.name + ": Stile's hand-over in round trips", roundTrips, 1.3, true}}
	var highest *ratio
	for _, c := range proxied.contenders {
		if strings.HasPrefix(c.name, "rueidislock") {
			all = append(all, expectation{proxied.name + ": Stile's hand-over / that of " + c.name, proxied.handOverRatio(c.name), 0.6, true})
		}
		if r := direct.handOverRatio(c.name); c.name != stileName && (highest == nil || r.median() > highest.median()) {
			highest = r
		}
	}
	all = append(all, expectation{direct.name + ": Stile's hand-over / that of the fastest other contender", highest, 1, true})
	for _, b := range []*bench{direct, proxied} {
		maxAcquired, minAcquired := b.contestResults[redisContest][stileName].shares()
		share := float64(maxAcquired) / float64(max(minAcquired, 1))
		all = append(all, expectation{
			fmt.Sprintf("%s: %v on one lock, most acquisitions of one client / fewest", b.name, redisContest), &ratio{share, share, share}, 1.3, true,
		})
	}
	return all
}

func redisSetting(name, addr string, admin *goredis.Client) setting {
	return setting{
		name: name, contests: []contest{redisContest}, contestSlices: 2,
		contenders: []contender{
			{name: "redsync, defaults", connect: redsyncWith(addr)},
			{name: "redsync, every ms", connect: redsyncWith(addr, redsync.WithRetryDelay(time.Millisecond))},
			{name: "redislock, every ms", connect: redislockEvery(addr, time.Millisecond)},
			{name: "rueidislock, majority 1", connect: rueidislockWith(addr, 1)},
			{name: "rueidislock, defaults", connect: rueidislockWith(addr, 2)},
			{name: stileName, connect: redisStile(addr)},
		},
		// Long enough for the waiter's first request, and uneven, so that the release comes at any
		// moment between two polls.
		handOverDelay: func(i int) time.Duration { return 3*rtt + time.Duration(i*7919%20000)*time.Microsecond },
		commandCount: func(ctx context.Context) (int, error) {
			text, err := redisInfo(ctx, admin, "stats", "total_commands_processed")
			if err != nil {
				return 0, err
			}
			return strconv.Atoi(text)
		},
	}
}

// redisInfo returns a field of a section of INFO.
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
	return "", fmt.Errorf("INFO %s has no field %s", section, name)
}

func goRedis(addr string) *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
}

// funcClient is a client made of two functions.
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

func rueidislockWith(addr string, majority int32) func(context.Context, int) (client, error) {
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
