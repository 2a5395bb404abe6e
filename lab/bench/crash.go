package main

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	goredisv9 "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sync/errgroup"

	"github.com/stilelock/stile/storeurl"
)

// crashes is how many holders of each contender are killed in a round.
const crashes = 12

// crashTTL returns the TTL of all locks and sessions when crashes are measured: whole seconds, and at least two.
func crashTTL(c config) time.Duration { return max(10*c.slice, 2*time.Second).Truncate(time.Second) }

// crashTimeout is how long one round may take.
func crashTimeout(ttl time.Duration) time.Duration { return workerTimeout + 10*ttl }

// crashPoll is how often a waiter of redislock tries, which has no default.
const crashPoll = 100 * time.Millisecond

// The stores in the measurement of crashes.
const (
	crashEtcd    = "etcd"
	crashLocal   = "local server"
	crashRedis   = "Redis"
	crashRedlock = "three Redis"
	crashZK      = "ZooKeeper"
)

// A crashContender is a lock whose holder is killed.
type crashContender struct {
	store, name string

	// connect connects a client to the store.
	connect func(ctx context.Context, addr string, ttl time.Duration) (client, error)
	// hold, if not nil, connects the holder's client instead.
	hold func(ctx context.Context, addr string, ttl time.Duration) (client, error)
	// start, if not nil, starts a process that holds the lock, instead of a worker with a client.
	start func(ctx context.Context, name string, ttl time.Duration) (*workerProcess, error)
	// apart is set if each lock is held by a process of its own, because its death is noticed. Otherwise one
	// process holds all locks, each with a session of its own, and the store sees nothing but sessions that end.
	apart bool
}

// The contenders with the local server.
const (
	stileTethered = "Stile, tethered"
	stileRun      = "`stile run`"
)

// crashContenders returns all contenders. run starts a `stile run` with the local server.
func crashContenders(run func(ctx context.Context, name string, ttl time.Duration) (*workerProcess, error)) []crashContender {
	return []crashContender{
		{store: crashEtcd, name: stockMutex, connect: crashStockEtcd},
		{store: crashEtcd, name: stileName, connect: crashStile("etcd://", false)},
		{
			store: crashLocal, name: stileTethered, apart: true,
			connect: crashStile("etcd+unix://", false), hold: crashStile("etcd+unix://", true),
		},
		{store: crashLocal, name: stileRun, connect: crashStile("etcd+unix://", false), start: run, apart: true},
		{store: crashRedis, name: "redsync, defaults", connect: crashRedsync},
		{store: crashRedis, name: fmt.Sprintf("redislock, every %v", crashPoll), connect: crashRedislock},
		{store: crashRedis, name: "rueidislock, majority 1", connect: crashRueidislock},
		{store: crashRedis, name: stileName, connect: crashStile("redis://", false)},
		{store: crashRedlock, name: "redsync, defaults", connect: crashRedsync},
		{store: crashRedlock, name: stileName, connect: crashStile("redlock://", false)},
		{store: crashZK, name: stockZK, connect: func(_ context.Context, addr string, ttl time.Duration) (client, error) {
			return stockZKClient(addr, ttl)
		}},
		{store: crashZK, name: stileName, connect: crashStile("zk://", false)},
	}
}

func crashStile(scheme string, tethered bool) func(context.Context, string, time.Duration) (client, error) {
	return func(ctx context.Context, addr string, ttl time.Duration) (client, error) {
		opened, err := storeurl.Open(ctx, scheme+addr, &storeurl.Options{Tethered: tethered})
		for errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // on a busy machine Open gives up too soon
			opened, err = storeurl.Open(ctx, scheme+addr, &storeurl.Options{Tethered: tethered})
		}
		if err != nil {
			return nil, err
		}
		return newStile(opened.Store, ttl, func() { _ = opened.Close() })
	}
}

func crashStockEtcd(_ context.Context, addr string, ttl time.Duration) (client, error) {
	cli, err := (&etcd{endpoint: addr}).dial()
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(cli, concurrency.WithTTL(int(ttl/time.Second)))
	if err != nil {
		return nil, err
	}
	return stockClient{&rawClient{cli, session}}, nil
}

// crashRedsync connects to one server, or to several as Redlock. redsync does not extend its locks; that is left
// to the program.
func crashRedsync(_ context.Context, addrs string, ttl time.Duration) (client, error) {
	var pools []redis.Pool
	for addr := range strings.SplitSeq(addrs, ",") {
		pools = append(pools, goredisv9.NewPool(goRedis(addr)))
	}
	rs := redsync.New(pools...)
	lock := func(ctx context.Context, name string) (func(context.Context) error, error) {
		m := rs.NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(1<<30))
		if err := m.LockContext(ctx); err != nil {
			return nil, err
		}
		go extend(ctx, ttl, func() error { _, err := m.ExtendContext(ctx); return err })
		return func(ctx context.Context) error { _, err := m.UnlockContext(ctx); return err }, nil
	}
	return funcClient{lock, func() {}}, nil
}

// crashRedislock connects a client of redislock, which does not extend its locks either.
func crashRedislock(_ context.Context, addr string, ttl time.Duration) (client, error) {
	locker := redislock.New(goRedis(addr))
	lock := func(ctx context.Context, name string) (func(context.Context) error, error) {
		l, err := locker.Obtain(ctx, name, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(crashPoll)})
		if err != nil {
			return nil, err
		}
		go extend(ctx, ttl, func() error { return l.Refresh(ctx, ttl, nil) })
		return l.Release, nil
	}
	return funcClient{lock, func() {}}, nil
}

// extend extends a lock as often as Stile renews a session, until that fails.
func extend(ctx context.Context, ttl time.Duration, once func() error) {
	ticker := time.NewTicker(ttl / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if once() != nil {
				return
			}
		}
	}
}

func crashRueidislock(ctx context.Context, addr string, ttl time.Duration) (client, error) {
	return rueidislockWith(addr, 1, ttl)(ctx, 0)
}

// crash is a worker's part: it takes all locks, each with a session of its own, and holds them until the process
// is killed. The sessions begin at random times, so that at the kill their last renewals are of any age. With
// j.Waits another worker holds the locks, and this one reports when it got each.
func (j job) crash(ctx context.Context, in io.Reader, out io.Writer) error {
	all := crashContenders(nil)
	k := slices.IndexFunc(all, func(k crashContender) bool { return k.store == j.Store && k.name == j.Contender })
	connect := all[k].connect
	if all[k].hold != nil && !j.Waits {
		connect = all[k].hold
	}
	// redislock gives up after a TTL if its context has no deadline.
	ctx, cancel := context.WithTimeout(ctx, crashTimeout(j.TTL))
	defer cancel()
	clients := make([]client, j.Crash)
	connecting, _ := errgroup.WithContext(ctx)
	for i := range clients {
		connecting.Go(func() (err error) {
			time.Sleep(rand.N(j.Slice))
			if clients[i], err = connect(ctx, j.Addr, j.TTL); err != nil || j.Waits {
				return err
			}
			for unlock := (func() error)(nil); unlock == nil && err == nil; { // rueidislock may wait for a free lock
				unlock, err = lockWithin(ctx, clients[i], j.numberedName(j.First+i), callTimeout)
			}
			return err
		})
	}
	if err := connecting.Wait(); err != nil {
		return err
	}
	if err := j.awaitSignal(in, out); err != nil || !j.Waits {
		return err
	}
	got := make([]int64, j.Crash)
	waiting, _ := errgroup.WithContext(ctx)
	for i, c := range clients {
		waiting.Go(func() (err error) {
			got[i], err = j.waitFor(ctx, c, j.numberedName(i))
			return err
		})
	}
	if err := waiting.Wait(); err != nil {
		return err
	}
	return gob.NewEncoder(out).Encode(got)
}

// crashPatience returns how long a waiter waits, from before its holder is killed.
func crashPatience(ttl time.Duration) time.Duration { return 6 * ttl }

// waitFor returns when the lock was obtained; zero if it was not in time. Some contenders wait longer than their
// context allows.
func (j job) waitFor(ctx context.Context, c client, name string) (int64, error) {
	type result struct {
		at  int64
		err error
	}
	obtained := make(chan result, 1)
	go func() {
		_, err := c.Lock(ctx, name)
		obtained <- result{j.now(), err}
	}()
	select {
	case r := <-obtained:
		return r.at, r.err
	case <-time.After(crashPatience(j.TTL)):
		return 0, nil
	}
}

// crashResult is what has happened to one contender in all rounds.
type crashResult struct {
	took  []time.Duration // from the kill of the holder until the waiter had the lock
	early int             // how often the waiter had the lock before the holder was killed
	never int             // how often it did not get it in time
}

// add adds a round: when the holders were killed, and when the waiters got their locks.
func (r *crashResult) add(killed, got []int64) {
	for i := range killed {
		switch took := time.Duration(got[i] - killed[i]); {
		case got[i] == 0:
			r.never++
		case took < 0:
			r.early++
		default:
			r.took = append(r.took, took)
		}
	}
}

// crashMeasurement is the servers and the results so far.
type crashMeasurement struct {
	config
	addrs map[string]string // by store
	ttl   time.Duration
}

// measureCrash measures the time from the kill of a lock's holder until its next waiter, in another process, has
// the lock.
func measureCrash(ctx context.Context, c config) (_ *report, err error) {
	s, err := newServer()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	m := &crashMeasurement{config: c, ttl: crashTTL(c)}
	ctx, cancel := s.untilExit(ctx)
	defer cancel()
	if m.addrs, err = startCrashServers(ctx, s, c); err != nil {
		return nil, err
	}
	a, err := newAccount()
	if err != nil {
		return nil, err
	}
	defer a.remove()
	if m.addrs[crashLocal], err = a.startServer(ctx, c.stile); err != nil {
		return nil, err
	}
	r := &report{About: []string{
		versions("go.etcd.io/etcd/client/v3", "github.com/go-redsync/redsync/v4", "github.com/bsm/redislock", "github.com/redis/rueidis",
			"github.com/go-zookeeper/zk"),
		fmt.Sprintf("TTL %v; %d crashes of each in a round, all at the same time", m.ttl, crashes),
	}}
	contenders := crashContenders(a.starter(c.stile))
	results := make([]crashResult, len(contenders))
	defer fmt.Fprintln(os.Stderr) // ends the progress line
	for round := range c.rounds {
		fmt.Fprintf(os.Stderr, "\r\x1b[Kcrashes: round %d of %d", round+1, c.rounds)
		measuring, roundCtx := errgroup.WithContext(ctx)
		for i, k := range contenders {
			measuring.Go(func() error {
				if err := m.measureWhenReady(roundCtx, k, &results[i]); err != nil {
					return fmt.Errorf("%s, %s: %w", k.store, k.name, err)
				}
				return nil
			})
		}
		if err := measuring.Wait(); err != nil {
			return nil, errors.Join(err, context.Cause(ctx))
		}
	}
	for i, k := range contenders {
		r.addCrashes(k, m.ttl, results[i])
	}
	return r, nil
}

// startCrashServers starts a server of each kind, and returns their addresses by store.
func startCrashServers(ctx context.Context, s *server, c config) (map[string]string, error) {
	addrs := make(map[string]string)
	var redlock []string
	var err error
	if addrs[crashEtcd], err = startEtcd(s, c.etcd); err != nil {
		return nil, err
	}
	for i := range 4 {
		addr, err := startRedis(s, c.redis)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			addrs[crashRedis] = addr
		} else {
			redlock = append(redlock, addr)
		}
	}
	addrs[crashRedlock] = strings.Join(redlock, ",")
	zk, err := startEnsemble(s, 1)
	if err != nil {
		return nil, err
	}
	addrs[crashZK] = zk[0]
	return addrs, awaitCrashServers(ctx, addrs)
}

// awaitCrashServers waits until all servers accept connections, and ZooKeeper serves.
func awaitCrashServers(ctx context.Context, addrs map[string]string) error {
	for _, list := range addrs {
		for addr := range strings.SplitSeq(list, ",") {
			err := await(ctx, func(ctx context.Context) error {
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
				if err != nil {
					return err
				}
				return conn.Close()
			})
			if err != nil {
				return err
			}
		}
	}
	return await(ctx, func(ctx context.Context) error { _, err := serverMode(ctx, addrs[crashZK]); return err })
}

// startServer starts the account's local server and returns the path of its socket.
func (a account) startServer(ctx context.Context, stile string) (socket string, err error) {
	cmd := exec.CommandContext(ctx, stile, "ls", "--url", "local:")
	cmd.Env = a.environment()
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("start the local server: %w: %s", err, bytes.TrimSpace(text))
	}
	return filepath.Join(a.serverDir(), "socket"), nil
}

// starter returns a function that starts a `stile run` with the account's local server. Its command reports that
// it runs, as a worker does.
func (a account) starter(program string) func(context.Context, string, time.Duration) (*workerProcess, error) {
	return func(ctx context.Context, name string, ttl time.Duration) (*workerProcess, error) {
		cmd := exec.CommandContext(ctx, program, "run", "--url", "local:", "--ttl", ttl.String(), name, "--",
			"sh", "-c", "echo "+strings.TrimSpace(ready)+"; exec sleep 1000")
		cmd.Env = a.environment()
		return startProcess(cmd)
	}
}

// measureWhenReady measures one round of a contender. It begins anew, four times at most, if a process ends before
// all are ready.
func (m *crashMeasurement) measureWhenReady(ctx context.Context, k crashContender, r *crashResult) (err error) {
	for range 5 {
		if err = m.measure(ctx, k, r); !errors.Is(err, errNotReady) {
			break
		}
	}
	return err
}

// measure measures one round of a contender. It returns [errNotReady] if a process ended before all were ready: then
// nothing has been measured. `stile run`, for one, ends if it loses its lock while the machine stands still.
func (m *crashMeasurement) measure(ctx context.Context, k crashContender, r *crashResult) error {
	ctx, cancel := context.WithTimeout(ctx, crashTimeout(m.ttl))
	defer cancel()
	epoch := time.Now().UnixNano()
	j := job{
		Store: k.store, Addr: m.addrs[k.store], Contender: k.name, Name: fmt.Sprintf("crash-%d-%d", os.Getpid(), epoch), Epoch: epoch,
		Crash: crashes, Slice: m.ttl, TTL: m.ttl,
	}
	holders, err := m.startHolders(ctx, k, j)
	defer func() {
		for _, h := range holders {
			h.kill()
		}
	}()
	if err != nil {
		return err
	}
	waits := j
	waits.Waits = true
	waiter, err := startWorker(ctx, waits)
	if err != nil {
		return err
	}
	defer waiter.kill()
	for _, w := range append(slices.Clone(holders), waiter) {
		if err := w.awaitReady(); err != nil {
			return err
		}
	}
	if err := waiter.begin(); err != nil {
		return err
	}
	// All waiters are in their lines by then, and the watchdogs of stile run watch.
	time.Sleep(m.ttl / 4)
	killed := make([]int64, crashes)
	var killing sync.WaitGroup
	for i, h := range holders {
		killing.Go(func() {
			time.Sleep(rand.N(m.ttl))
			locks := crashes / len(holders)
			for n := range locks {
				killed[i*locks+n] = j.now()
			}
			h.kill()
		})
	}
	killing.Wait()
	var got []int64
	if err := waiter.outcome(&got); err != nil {
		return err
	}
	r.add(killed, got)
	return nil
}

// startHolders starts the processes that hold the locks.
func (m *crashMeasurement) startHolders(ctx context.Context, k crashContender, j job) (holders []*workerProcess, err error) {
	if !k.apart {
		w, err := startWorker(ctx, j)
		if err != nil {
			return nil, err
		}
		return []*workerProcess{w}, nil
	}
	for i := range crashes {
		var w *workerProcess
		if k.start != nil {
			time.Sleep(m.ttl / crashes) // workers begin at different times by themselves
			w, err = k.start(ctx, j.numberedName(i), m.ttl)
		} else {
			one := j
			one.Crash, one.First = 1, i
			w, err = startWorker(ctx, one)
		}
		if err != nil {
			return holders, err
		}
		holders = append(holders, w)
	}
	return holders, nil
}

// crashRow has the figures of one contender.
type crashRow struct {
	Store, Contender          string
	Crashes                   int
	Median, P10, P90, Longest time.Duration
	Early, Never              int // how often the waiter had the lock before the crash, or not in time
}

// addCrashes adds the results of a contender to the report, and what is expected of Stile.
func (r *report) addCrashes(k crashContender, ttl time.Duration, result crashResult) {
	row := crashRow{
		k.store, k.name, len(result.took), quantile(result.took, 0.5), quantile(result.took, 0.1), quantile(result.took, 0.9),
		quantile(result.took, 1), result.early, result.never,
	}
	r.Crashes = append(r.Crashes, row)
	if !slices.Contains([]string{stileName, stileRun, stileTethered}, k.name) {
		return
	}
	within := func(what string, took, limit time.Duration) {
		part := took.Seconds() / limit.Seconds()
		r.Expected = append(r.Expected, expectation{fmt.Sprintf("%s, %s: %s / %v", k.store, k.name, what, limit), &ratio{part, part, part}, 1, true})
	}
	wrong := float64(row.Early + row.Never)
	r.Expected = append(r.Expected, expectation{fmt.Sprintf("%s, %s: before the crash or never", k.store, k.name), &ratio{wrong, wrong, wrong}, 0, true})
	within("longest", row.Longest, ttl+time.Second)
	if k.apart {
		within("median", row.Median, 50*time.Millisecond)
	}
}

func crashTable(t *strings.Builder, rows []crashRow) {
	cells := [][]string{{"store", "lock", "crashes", "median", "10 %", "90 %", "longest", "before the crash", "never"}}
	for _, r := range rows {
		cells = append(cells, []string{
			r.Store, r.Contender, fmt.Sprint(r.Crashes), formatWait(r.Median), formatWait(r.P10), formatWait(r.P90), formatWait(r.Longest), fmt.Sprint(r.Early), fmt.Sprint(r.Never),
		})
	}
	table(t, cells)
}

func formatWait(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}
