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
	addr, err := startRedis(s, c.redis)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.untilExit(ctx)
	defer cancel()
	admin := goRedis(addr)
	defer admin.Close()
	if err := await(ctx, func(ctx context.Context) error { return admin.Ping(ctx).Err() }); err != nil {
		return nil, err
	}
	version, err := redisInfo(ctx, admin, "server", "redis_version")
	if err != nil {
		return nil, err
	}
	proxy, err := tcpproxy.New(addr, func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") })
	if err != nil {
		return nil, err
	}
	defer proxy.Close()
	proxy.Delay(rtt / 2)

	r := &report{About: []string{
		fmt.Sprintf("redis-server %s, %s", version, versions("github.com/redis/rueidis", "github.com/go-redsync/redsync/v4",
			"github.com/bsm/redislock", "github.com/redis/go-redis/v9")),
		fmt.Sprintf("One redis-server, reached directly and through a proxy that makes a round trip take %v; commands are the server's own count, "+
			"including those inside scripts", rtt),
	}}
	if err := measureRedisAt(ctx, c, addr, proxy.Addr(), admin, r); err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	return r, nil
}

// startRedis starts a Redis server and returns its address.
func startRedis(s *server, program string) (addr string, err error) {
	addrs, err := freeAddresses(1)
	if err != nil {
		return "", err
	}
	addr = addrs[0]
	return addr, s.start(program, "--port", port(addr), "--bind", host(addr), "--save", "", "--appendonly", "no", "--dir", s.dir)
}

// measureRedisAt measures the selected contests at the server's own address and at that of the
// proxy, and adds them to the report.
func measureRedisAt(ctx context.Context, c config, directAddr, proxyAddr string, admin *goredis.Client, r *report) error {
	settings := []setting{redisSetting("loopback", directAddr, admin), redisSetting(fmt.Sprintf("RTT %v", rtt), proxyAddr, admin)}
	if c.selects("mutex") {
		var measured []*bench
		for _, s := range settings {
			b, err := measureSetting(ctx, c, s)
			if err != nil {
				return err
			}
			measured, r.Settings = append(measured, b), append(r.Settings, b.report())
		}
		r.Expected = append(r.Expected, redisExpectations(measured[0], measured[1])...)
	}
	count := settings[0].commandCount
	if c.selects("rwmutex") {
		client, err := openStile(ctx, "redis", directAddr)
		if err != nil {
			return err
		}
		if err := measureReaders(ctx, c, "redis", count, map[string]readerSource{stileRWMutex: stileReaders(client)}, r); err != nil {
			return err
		}
		m := &crowds{crowd: readMostly, contenders: []string{stileRWMutex, stileMutex}, store: "redis", addr: directAddr, count: count}
		if err := measureCrowd(ctx, c, m, r); err != nil {
			return err
		}
	}
	if c.selects("semaphore") {
		m := &crowds{crowd: tenSlots, contenders: []string{stileSemaphore, stileSharded}, store: "redis", addr: directAddr, count: count}
		if err := measureCrowd(ctx, c, m, r); err != nil {
			return err
		}
	}
	if !c.selects("lockall") {
		return nil
	}
	for i, addr := range []string{directAddr, proxyAddr} {
		s, sizes := settings[i], setSizes
		s.contests = nil
		if addr == proxyAddr {
			sizes = []int{10} // one round trip after another takes long
		}
		err := measureSets(ctx, c, s, sizes, r, redisStile(addr), "redislock", redislockEvery(addr, time.Millisecond), 2)
		if err != nil {
			return err
		}
	}
	return nil
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
	asked := 0 // how many commands are the count's own
	return setting{
		name: name, contests: []contest{redisContest}, contestSlices: 2,
		contenders: []contender{
			{name: "redsync, defaults", connect: redsyncWith(addr)},
			{name: "redsync, every ms", connect: redsyncWith(addr, redsync.WithRetryDelay(time.Millisecond))},
			{name: "redislock, every ms", connect: redislockEvery(addr, time.Millisecond)},
			{name: "rueidislock, majority 1", connect: rueidislockWith(addr, 1, sessionTTL)},
			{name: "rueidislock, defaults", connect: rueidislockWith(addr, 2, sessionTTL)},
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
			n, err := strconv.Atoi(text)
			asked++
			return n - (asked - 1), err // the server has counted the earlier ones, not yet this one
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

func rueidislockWith(addr string, majority int32, validity time.Duration) func(context.Context, int) (client, error) {
	return func(context.Context, int) (client, error) {
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true},
			KeyMajority:    majority,
			NoLoopTracking: true,
			KeyValidity:    validity,
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
