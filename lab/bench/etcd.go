package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// The contenders on etcd besides Stile.
const (
	rawEtcd      = "raw Txn (create == 0 → put), Delete"
	rawTurns     = "raw, taking turns"
	stockMutex   = "concurrency.Mutex"
	sessionTTL   = stile.DefaultTTL // of all sessions and locks, except on ZooKeeper
	laterStile   = "Stile, releases in the background"
	zkSessionTTL = 40 * time.Second
)

func measureEtcd(ctx context.Context, c config) (_ *report, err error) {
	s, err := newServer()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	addr, err := startEtcd(s, c.etcd)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.untilExit(ctx)
	defer cancel()
	e := &etcd{endpoint: addr}
	defer e.close()
	admin, err := e.dial()
	if err != nil {
		return nil, err
	}
	if err := await(ctx, func(ctx context.Context) error { _, err := admin.Put(ctx, "ready", ""); return err }); err != nil {
		return nil, err
	}
	status, err := admin.Status(ctx, e.endpoint)
	if err != nil {
		return nil, err
	}
	r := &report{About: []string{
		fmt.Sprintf("etcd %s, %s", status.Version, versions("go.etcd.io/etcd/client/v3")),
		fmt.Sprintf("One etcd with default settings, compacted between rounds; TTL %v and the settings of the etcd client are the same for all; "+
			"commands are the messages that the server receives from clients, without renewals", sessionTTL),
	}}
	if err := e.measure(ctx, c, admin, r); err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	return r, nil
}

// startEtcd starts an etcd and returns its client address.
func startEtcd(s *server, program string) (addr string, err error) {
	addrs, err := freeAddresses(2)
	if err != nil {
		return "", err
	}
	clientURL, peerURL := "http://"+addrs[0], "http://"+addrs[1]
	return addrs[0], s.start(program, "--name=bench", "--data-dir="+filepath.Join(s.dir, "data"),
		"--listen-client-urls="+clientURL, "--advertise-client-urls="+clientURL,
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL, "--initial-cluster=bench="+peerURL)
}

// measure measures the selected contests and adds them to the report.
func (e *etcd) measure(ctx context.Context, c config, admin *clientv3.Client, r *report) error {
	if c.selects("mutex") {
		b, err := measureSetting(ctx, c, e.setting(admin))
		if err != nil {
			return err
		}
		r.Settings, r.Expected = append(r.Settings, b.report()), append(r.Expected, etcdExpectations(b)...)
	}
	if c.selects("crowd") {
		for _, k := range mutexCrowds {
			m := &crowds{
				crowd: k.crowd, least: k.least, contenders: []string{stileMutex, stockMutex}, store: "etcd", addr: e.endpoint, count: e.requests,
			}
			if err := measureCrowd(ctx, c, m, r); err != nil {
				return err
			}
		}
	}
	if c.selects("distinct") {
		contenders := []contender{{name: rawEtcd, connect: e.connectRaw}, {name: stockMutex, connect: e.connectStock}, {name: stileName, connect: e.connectStile}}
		b := e.base(admin)
		if err := measureDistinct(ctx, c, b.name, contenders, b.beforeRound, usage{b.commandCount, e.processorTime}, r); err != nil {
			return err
		}
	}
	if c.selects("linger") {
		if err := e.measureLinger(ctx, c, e.base(admin), r); err != nil {
			return err
		}
	}
	if c.selects("rwmutex") {
		client, err := openStile(ctx, "etcd", e.endpoint)
		if err != nil {
			return err
		}
		recipe, err := e.recipeReaders()
		if err != nil {
			return err
		}
		readers := map[string]readerSource{stileRWMutex: stileReaders(client), recipeRWMutex: recipe}
		if err := measureReaders(ctx, c, "etcd", e.requests, readers, r); err != nil {
			return err
		}
		m := &crowds{crowd: readMostly, contenders: []string{stileRWMutex, recipeRWMutex, stileMutex}, store: "etcd", addr: e.endpoint, count: e.requests}
		if err := measureCrowd(ctx, c, m, r); err != nil {
			return err
		}
	}
	if c.selects("semaphore") {
		m := &crowds{crowd: tenSlots, contenders: []string{stileSemaphore, stockSharded, stileSharded}, store: "etcd", addr: e.endpoint, count: e.requests}
		if err := measureCrowd(ctx, c, m, r); err != nil {
			return err
		}
	}
	if c.selects("election") {
		if err := e.measureElections(ctx, c, admin, r); err != nil {
			return err
		}
	}
	if c.selects("lockall") {
		return measureSets(ctx, c, e.base(admin), setSizes, r, e.connectStile, stockMutex, e.connectStock, 1.5)
	}
	return nil
}

// base is what the settings on etcd have in common.
func (e *etcd) base(admin *clientv3.Client) setting {
	return setting{
		name:          "etcd",
		handOverDelay: func(int) time.Duration { return 10 * time.Millisecond },
		beforeRound:   func(ctx context.Context) error { return compact(ctx, admin) },
		commandCount:  e.requests,
	}
}

func etcdExpectations(b *bench) []expectation {
	const hold = 3 * time.Millisecond
	rate := func(clients int, hold time.Duration, noise bool) *ratio {
		return b.rateRatio(contest{clients, hold, noise}, stockMutex)
	}
	all := []expectation{
		{"uncontended pair, Stile / raw", b.pairRatio(rawEtcd), 1.10, true},
		{"uncontended pair, released in the background / awaited", b.pairRatioOf(laterStile, stileName), 0.80, true},
		{"hand-over, Stile / raw delete → watch event", b.handOverRatio(rawEtcd), 1.4, true},
		{"2 clients, hold 0: acquisitions/s, Stile / concurrency.Mutex", rate(2, 0, false), 25, false},
		{"2 clients, hold 3 ms: the same", rate(2, hold, false), 9, false},
		{"2 clients, hold 3 ms, with unrelated writes: the same", rate(2, hold, true), 9, false},
		{"10 clients, hold 0: the same", rate(10, 0, false), 5, false},
	}
	worst := slices.MinFunc(b.contests, func(k, l contest) int {
		return cmp.Compare(b.rateRatio(k, stockMutex).median(), b.rateRatio(l, stockMutex).median())
	})
	return append(all, expectation{
		fmt.Sprintf("never slower: the lowest of all contests (%v)", worst), b.rateRatio(worst, stockMutex), 1, false,
	})
}

// etcd is the server and all connections to it.
type etcd struct {
	endpoint string

	connections []*clientv3.Client
}

func (e *etcd) setting(admin *clientv3.Client) setting {
	var contests []contest
	for _, clients := range []int{2, 10, 32} {
		for _, hold := range []time.Duration{0, 3 * time.Millisecond} {
			contests = append(contests, contest{clients, hold, false}, contest{clients, hold, true})
		}
	}
	noContest := func(contest) bool { return false }
	twoClients := func(k contest) bool { return k.Clients == 2 }
	s := e.base(admin)
	s.contests = contests
	s.contenders = []contender{
		{name: rawEtcd, connect: e.connectRaw, takesPart: noContest},
		{name: rawTurns, connect: e.connectTurns, takesPart: twoClients, contestsOnly: true},
		{name: stockMutex, connect: e.connectStock},
		{name: stileName, connect: e.connectStile},
		{name: laterStile, connect: e.connectLater, takesPart: noContest},
	}
	s.noise = func(ctx context.Context) func() (float64, error) { return startPuts(ctx, admin) }
	return s
}

// requests returns how many messages the server has received from clients, without renewals of leases.
func (e *etcd) requests(ctx context.Context) (int, error) {
	n, err := e.sum(ctx, func(series string) bool {
		return strings.HasPrefix(series, "grpc_server_msg_received_total") && !strings.Contains(series, `"LeaseKeepAlive"`)
	})
	return int(n), err
}

// processorTime returns how long the server has used the processors.
func (e *etcd) processorTime(ctx context.Context) (time.Duration, error) {
	seconds, err := e.sum(ctx, func(series string) bool { return series == "process_cpu_seconds_total" })
	return time.Duration(seconds * float64(time.Second)), err
}

// sum returns the sum of some series of the server's metrics.
func (e *etcd) sum(ctx context.Context, selected func(series string) bool) (total float64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.endpoint+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		series, text, _ := strings.Cut(lines.Text(), " ")
		if !selected(series) {
			continue
		}
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, lines.Err()
}

// dial returns a new client with its own connection. All contenders use the same settings.
func (e *etcd) dial() (*clientv3.Client, error) {
	cli, err := clientv3.New(clientv3.Config{
		Endpoints:            []string{e.endpoint},
		DialTimeout:          5 * time.Second,
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               zap.NewNop(),
	})
	if err == nil {
		e.connections = append(e.connections, cli)
	}
	return cli, err
}

func (e *etcd) close() {
	for _, cli := range e.connections {
		_ = cli.Close()
	}
}

// compact removes the history of all keys, so that all rounds begin alike.
func compact(ctx context.Context, cli *clientv3.Client) error {
	resp, err := cli.Put(ctx, "compaction", "")
	if err != nil {
		return err
	}
	_, err = cli.Compact(ctx, resp.Header.Revision, clientv3.WithCompactPhysical())
	return err
}

// rawClient sends only the requests that every lock needs. Its session is never closed; it is
// discarded with the server.
type rawClient struct {
	cli     *clientv3.Client
	session *concurrency.Session
}

func (e *etcd) connectRaw(context.Context, int) (client, error) { return e.raw() }

func (e *etcd) raw() (*rawClient, error) {
	cli, err := e.dial()
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(cli, concurrency.WithTTL(int(sessionTTL/time.Second)))
	return &rawClient{cli, session}, err
}

// create puts a key if it does not exist. The revision is the store's at that moment: a watch that
// starts after it misses nothing.
func (c *rawClient) create(ctx context.Context, key string) (created bool, revision int64, err error) {
	resp, err := c.cli.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, "", clientv3.WithLease(c.session.Lease()))).
		Commit()
	if err != nil {
		return false, 0, err
	}
	return resp.Succeeded, resp.Header.Revision, nil
}

// Lock is a lower bound for locks and hand-overs. If the key exists, Lock waits until it is
// deleted; the returned function then does nothing, and any client can create the key next.
func (c *rawClient) Lock(ctx context.Context, key string) (func(context.Context) error, error) {
	created, revision, err := c.create(ctx, key)
	if err != nil {
		return nil, err
	}
	if created {
		return func(ctx context.Context) error { _, err := c.cli.Delete(ctx, key); return err }, nil
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	for resp := range c.cli.Watch(watching, key, clientv3.WithRev(revision+1), clientv3.WithFilterPut()) {
		if len(resp.Events) > 0 {
			return func(context.Context) error { return nil }, nil
		}
	}
	return nil, fmt.Errorf("watch ended: %w", context.Cause(ctx))
}

func (c *rawClient) Close() {}

// turnClient is one of two clients that take turns. Together they send the requests of two clients
// that acquire the same lock in a loop: while one deletes its key, the other may still be creating
// its own.
type turnClient struct {
	*rawClient
	index        int
	otherDeleted chan struct{} // receives once for each deletion of the other client's key
	stop         context.CancelFunc
}

func (e *etcd) connectTurns(_ context.Context, i int) (client, error) {
	raw, err := e.raw()
	return &turnClient{rawClient: raw, index: i, stop: func() {}}, err
}

// prepare opens the watch on the other client's key.
func (c *turnClient) prepare(ctx context.Context, name string) error {
	c.stop()
	c.otherDeleted = make(chan struct{}, 1)
	if c.index == 0 {
		c.otherDeleted <- struct{}{} // client 0 has the first turn
	}
	ctx, c.stop = context.WithCancel(ctx)
	events := c.cli.Watch(ctx, c.key(name, 1-c.index), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	if resp, ok := <-events; !ok || !resp.Created {
		return fmt.Errorf("cannot open the watch: %w", context.Cause(ctx))
	}
	go func(otherDeleted chan<- struct{}) {
		for resp := range events {
			for range resp.Events {
				otherDeleted <- struct{}{}
			}
		}
	}(c.otherDeleted)
	return nil
}

func (c *turnClient) key(name string, i int) string { return fmt.Sprintf("%s/%d", name, i) }

// Lock creates the client's key and waits for its turn.
func (c *turnClient) Lock(ctx context.Context, name string) (func(context.Context) error, error) {
	key := c.key(name, c.index)
	if created, _, err := c.create(ctx, key); err != nil || !created {
		return nil, errors.Join(err, fmt.Errorf("put %s: key exists: %t", key, !created))
	}
	remove := func(ctx context.Context) error { _, err := c.cli.Delete(ctx, key); return err }
	select {
	case <-c.otherDeleted:
		return remove, nil
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), remove(context.WithoutCancel(ctx)))
	}
}

func (c *turnClient) Close() { c.stop() }

// stockClient acquires locks with the etcd client's own mutex.
type stockClient struct{ *rawClient }

func (e *etcd) connectStock(context.Context, int) (client, error) {
	raw, err := e.raw()
	return stockClient{raw}, err
}

func (c stockClient) Lock(ctx context.Context, name string) (func(context.Context) error, error) {
	m := concurrency.NewMutex(c.session, name)
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	return m.Unlock, nil
}

func (e *etcd) connectStile(context.Context, int) (client, error) {
	return e.stile(&stile.Options{TTL: sessionTTL})
}

// connectLater connects a client whose releases are not awaited.
func (e *etcd) connectLater(context.Context, int) (client, error) {
	return e.stile(&stile.Options{TTL: sessionTTL, ReleaseInBackground: true})
}

func (e *etcd) stile(opts *stile.Options) (client, error) {
	st, err := e.store()
	if err != nil {
		return nil, err
	}
	return newStileWith(st, opts, func() {})
}

// store returns a store with a connection of its own.
func (e *etcd) store() (store.Store, error) {
	cli, err := e.dial()
	if err != nil {
		return nil, err
	}
	return etcdstore.New(cli, nil)
}

// With putters and putPause, startPuts sends 300 puts a second, if etcd keeps up.
const (
	putters  = 3
	putPause = 10 * time.Millisecond
)

// startPuts writes keys that have nothing to do with any lock until stop is called. stop returns
// the number of puts per second.
func startPuts(ctx context.Context, cli *clientv3.Client) (stop func() (float64, error)) {
	ctx, cancel := context.WithCancelCause(ctx)
	var (
		workers sync.WaitGroup
		done    atomic.Int64
		start   = time.Now()
		ended   = make(chan struct{})
	)
	for i := range putters {
		workers.Go(func() {
			ticker := time.NewTicker(putPause)
			defer ticker.Stop()
			for n := 0; ; n++ {
				select {
				case <-ended:
					return
				case <-ticker.C:
				}
				if _, err := cli.Put(ctx, fmt.Sprintf("unrelated/%d/%d", i, n%100), "value"); err != nil {
					cancel(fmt.Errorf("unrelated put: %w", err))
					return
				}
				done.Add(1)
			}
		})
	}
	return func() (float64, error) {
		elapsed := time.Since(start)
		close(ended)
		workers.Wait()
		err := context.Cause(ctx)
		cancel(nil)
		return float64(done.Load()) / elapsed.Seconds(), err
	}
}
