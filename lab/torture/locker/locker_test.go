package locker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
	"github.com/stilelock/stile/store"
)

// A fixture is a locker's configuration and offers, and a way to take its locks away.
type fixture struct {
	config locker.Config
	offers history.Offers
	// takeAway makes the holder lose the lock, or any knowledge of whether it still holds it.
	takeAway func(t *testing.T, name string)
	// maybeKept is set if the holder may still have the lock in the store after takeAway.
	maybeKept bool
}

const (
	// ttl is the TTL of sessions that must outlive a test, on a busy machine too.
	ttl = time.Minute
	// testTimeout bounds the waits for events that must happen. It is long, for busy machines.
	testTimeout = 3 * time.Minute
)

// servers are shared by all tests. Each test has locks of its own: see [newName].
type servers struct {
	etcd      *testservers.Etcd
	redises   []*testservers.Redis
	zookeeper *testservers.ZooKeeper
}

func startServers(t *testing.T) *servers {
	t.Helper()
	return &servers{
		etcd: testservers.StartEtcd(t), redises: testservers.StartRedisServers(t, 3), zookeeper: testservers.StartZooKeeper(t),
	}
}

func (on *servers) fixtures() map[string]func(*testing.T) fixture {
	all, one := addresses(on.redises), on.redises[0].Addr()
	return map[string]func(*testing.T) fixture{
		"stile on etcd": func(*testing.T) fixture {
			return fixture{
				config:   locker.Config{Kind: "stile", URL: "etcd://" + on.etcd.Endpoint(), TTL: ttl},
				offers:   history.Offers{Tokens: true, Deadlines: true, Loss: true, Proof: true, Fair: true, Sets: true, TurnBits: store.TurnBits},
				takeAway: func(t *testing.T, name string) { deleteKeys(t, on.etcd, name) },
			}
		},
		"stile on redlock": func(*testing.T) fixture {
			return fixture{
				config:   locker.Config{Kind: "stile", URL: "redlock://" + strings.Join(all, ","), TTL: ttl},
				offers:   history.Offers{Tokens: true, Deadlines: true, Loss: true, Proof: true, TurnBits: store.TurnBits},
				takeAway: func(t *testing.T, name string) { del(t, name, on.redises...) },
			}
		},
		"concurrency": func(*testing.T) fixture {
			return fixture{
				config:   locker.Config{Kind: "concurrency", Addresses: []string{on.etcd.Endpoint()}, TTL: ttl},
				offers:   history.Offers{Tokens: true, Loss: true, Fair: true},
				takeAway: func(t *testing.T, name string) { revokeLeases(t, on.etcd, name) }, // it does not notice a deleted key
			}
		},
		"redsync": func(*testing.T) fixture {
			return fixture{
				config:   locker.Config{Kind: "redsync", Addresses: all, TTL: ttl},
				offers:   history.Offers{Deadlines: true, Loss: true, Proof: true},
				takeAway: func(t *testing.T, name string) { del(t, name, on.redises...) },
			}
		},
		"redislock": func(*testing.T) fixture {
			return fixture{
				config:   locker.Config{Kind: "redislock", Addresses: []string{one}, TTL: ttl},
				offers:   history.Offers{Loss: true, Proof: true},
				takeAway: func(t *testing.T, name string) { del(t, name, on.redises[0]) },
			}
		},
		"rueidislock": func(*testing.T) fixture {
			return fixture{
				config:   locker.Config{Kind: "rueidislock", Addresses: []string{one}, TTL: ttl, Patient: true},
				offers:   history.Offers{Loss: true},
				takeAway: func(t *testing.T, name string) { del(t, "rueidislock:0:"+name, on.redises[0]) },
			}
		},
		"gozk": func(t *testing.T) fixture {
			proxy := testservers.NewProxy(t, on.zookeeper.Endpoint())
			return fixture{
				config:    locker.Config{Kind: "gozk", Addresses: []string{proxy.Addr()}, TTL: ttl},
				offers:    history.Offers{Loss: true, Proof: true, Fair: true},
				takeAway:  func(*testing.T, string) { proxy.Reset() }, // it does not notice that the node was deleted
				maybeKept: true,                                       // if it reconnects within the TTL
			}
		},
	}
}

func addresses(servers []*testservers.Redis) []string {
	var all []string
	for _, s := range servers {
		all = append(all, s.Addr())
	}
	return all
}

func del(t *testing.T, key string, servers ...*testservers.Redis) {
	t.Helper()
	for _, s := range servers {
		s.Do("DEL", key)
	}
}

// clientOf returns a client of the server. It is closed when t ends.
func clientOf(t *testing.T, etcd *testservers.Etcd) *clientv3.Client {
	t.Helper()
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cli.Close() })
	return cli
}

func deleteKeys(t *testing.T, etcd *testservers.Etcd, name string) {
	t.Helper()
	if _, err := clientOf(t, etcd).Delete(t.Context(), name+"/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
}

// revokeLeases revokes the leases of the holder and the waiters of a lock.
func revokeLeases(t *testing.T, etcd *testservers.Etcd, name string) {
	t.Helper()
	cli := clientOf(t, etcd)
	line, err := cli.Get(t.Context(), name+"/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range line.Kvs {
		if _, err := cli.Revoke(t.Context(), clientv3.LeaseID(kv.Lease)); err != nil {
			t.Fatal(err)
		}
	}
}

// nameCount is the number of names that newName has returned.
var nameCount atomic.Int64

// newName returns the name of a lock that no other test uses.
func newName() string { return fmt.Sprintf("x%d", nameCount.Add(1)) }

// The rules that every locker has to keep.
func TestLocker_everyKind(t *testing.T) {
	on := startServers(t)
	for kind, newFixture := range on.fixtures() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			for what, test := range map[string]func(*testing.T, fixture){
				"one holder at a time":                        testOneHolder,
				"goroutines of one locker exclude each other": testGoroutines,
				"try a taken lock":                            testTryTaken,
				"offers":                                      testOffers,
				"hold outlasts the TTL":                       testHoldOutlastsTTL,
				"holder is notified of a loss":                testLossNotified,
				"abandoned waits do not block others":         testAbandonedWaits,
				"closed locker holds nothing":                 testClosedLocker,
				"abandoned locker still holds":                testAbandonedLocker,
			} {
				t.Run(what, func(t *testing.T) {
					t.Parallel()
					test(t, newFixture(t))
				})
			}
		})
	}
}

func open(t *testing.T, c locker.Config, worker string) locker.Locker {
	t.Helper()
	l := connect(t, c, worker)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = l.Close(ctx)
	})
	return l
}

// connect opens a locker. It retries, since some kinds fail after five seconds, which may be too
// short on a busy machine.
func connect(t *testing.T, c locker.Config, worker string) locker.Locker {
	t.Helper()
	for began := time.Now(); ; {
		l, err := locker.Open(t.Context(), c, worker)
		if err == nil {
			return l
		}
		if time.Since(began) > testTimeout {
			t.Fatal(err)
		}
	}
}

func lock(t *testing.T, l locker.Locker, name string) locker.Hold {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	h, err := l.Lock(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func release(t *testing.T, h locker.Hold) {
	t.Helper()
	if err := h.Release(t.Context()); err != nil {
		t.Errorf("Release: got error %v", err)
	}
}

// mustNotGet checks that a lock that another locker holds cannot be acquired, with TryLock and with
// a short Lock. After TryLock, where it is supported, a server has certainly replied.
func mustNotGet(t *testing.T, l locker.Locker, name string) {
	t.Helper()
	switch h, err := l.TryLock(t.Context(), name); {
	case err == nil:
		t.Error("two holders at once")
		_ = h.Release(t.Context())
	case !errors.Is(err, locker.ErrTaken) && !errors.Is(err, locker.ErrTryUnsupported):
		t.Errorf("TryLock of a taken lock: got error %v, want ErrTaken", err)
	}
	giveUp(t, l, name)
}

// giveUp waits briefly for a lock that is held the whole time.
func giveUp(t *testing.T, l locker.Locker, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if h, err := l.Lock(ctx, name); err == nil {
		t.Error("two holders at once")
		_ = h.Release(t.Context())
	}
}

func testOneHolder(t *testing.T, s fixture) {
	a, b, x := open(t, s.config, "a"), open(t, s.config, "b"), newName()
	first := lock(t, a, x)
	mustNotGet(t, b, x)
	release(t, first)
	second := lock(t, b, x)
	mustNotGet(t, a, x)
	if s.offers.Tokens && second.Token() <= first.Token() {
		t.Errorf("got token %d after %d, want a larger one", second.Token(), first.Token())
	}
	release(t, second)
	release(t, lock(t, a, x))
}

func testGoroutines(t *testing.T, s fixture) {
	l, x := open(t, s.config, "a"), newName()
	h := lock(t, l, x)
	giveUp(t, l, x)
	release(t, h)
	release(t, lock(t, l, x))
}

func testTryTaken(t *testing.T, s fixture) {
	a, b, x := open(t, s.config, "a"), open(t, s.config, "b"), newName()
	h := lock(t, a, x)
	_, err := b.TryLock(t.Context(), x)
	if s.config.Kind == "gozk" {
		if !errors.Is(err, locker.ErrTryUnsupported) {
			t.Errorf("TryLock: got error %v, want ErrTryUnsupported", err)
		}
		return
	}
	if !errors.Is(err, locker.ErrTaken) || errors.Is(err, locker.ErrUnknownOutcome) {
		t.Errorf("TryLock: got error %v, want ErrTaken", err)
	}
	release(t, h)
	second, err := b.TryLock(t.Context(), x)
	if err != nil {
		t.Fatal(err)
	}
	release(t, second)
}

func testOffers(t *testing.T, s fixture) {
	l := open(t, s.config, "a")
	if got := l.Offers(); got != s.offers {
		t.Errorf("got offers %+v, want %+v", got, s.offers)
	}
	h := lock(t, l, newName())
	if got := h.Token() != 0; got != s.offers.Tokens {
		t.Errorf("got token %d, want one: %t", h.Token(), s.offers.Tokens)
	}
	now := history.Now()
	switch until := h.Until(); {
	case !s.offers.Deadlines && until != 0:
		t.Errorf("got deadline %d, want none", until)
	case s.offers.Deadlines && (until <= now || until > now+int64(ttl)):
		t.Errorf("got validity %v, want at most the TTL of %v", time.Duration(until-now), ttl)
	}
	if !h.Valid() {
		t.Errorf("hold is not valid: %s", h.Why())
	}
	release(t, h)
}

// A hold that is not renewed ends after its TTL, and nothing acquires the lock again. The TTL is
// ten seconds here, because the test has to sleep for longer than it.
func testHoldOutlastsTTL(t *testing.T, s fixture) {
	const ttl = 10 * time.Second
	waiterConfig := s.config
	s.config.TTL = ttl
	a, b, x := open(t, s.config, "a"), open(t, waiterConfig, "b"), newName()
	h := lock(t, a, x)
	until := h.Until()
	time.Sleep(ttl * 3 / 2) // the test is about the passing of time
	mustNotGet(t, b, x)
	if !h.Valid() {
		t.Errorf("hold is not valid: %s", h.Why())
	}
	if s.offers.Deadlines && h.Until() < until+int64(ttl) {
		t.Error("the deadline was not extended by the TTL")
	}
	release(t, h)
}

func testLossNotified(t *testing.T, s fixture) {
	next := open(t, s.config, "b")
	s.config.TTL = 10 * time.Second // some kinds notice a loss only when they renew
	x := newName()
	h := lock(t, open(t, s.config, "a"), x)
	s.takeAway(t, x)
	select {
	case <-h.Lost():
	case <-time.After(testTimeout):
		t.Fatal("the holder was not notified")
	}
	if h.Valid() {
		t.Error("the lost hold is still valid")
	}
	if h.Why() == "" {
		t.Error("got no reason for the loss")
	}
	if err := h.Release(t.Context()); !errors.Is(err, locker.ErrLost) && (err != nil || !s.maybeKept) {
		t.Errorf("Release: got error %v", err)
	}
	release(t, lock(t, next, x))
}

// An abandoned wait may block other clients for a TTL or until its session ends, but no longer.
func testAbandonedWaits(t *testing.T, s fixture) {
	a, b, c, x := open(t, s.config, "a"), open(t, s.config, "b"), open(t, s.config, "c"), newName()
	h := lock(t, a, x)
	for range 5 {
		giveUp(t, b, x)
	}
	release(t, h)
	release(t, lock(t, c, x))
}

func testClosedLocker(t *testing.T, s fixture) {
	next := open(t, s.config, "b")
	s.config.TTL = 5 * time.Second // a lock that Close has not released is free after that
	a := connect(t, s.config, "a")
	x := newName()
	lock(t, a, x)
	if err := a.Close(t.Context()); err != nil {
		t.Errorf("Close: got error %v", err)
	}
	release(t, lock(t, next, x)) // at once or after the TTL
}

func testAbandonedLocker(t *testing.T, s fixture) {
	a := connect(t, s.config, "a")
	x := newName()
	lock(t, a, x)
	abandoner, ok := a.(locker.Abandoner)
	if ok != (s.config.Kind == "stile") {
		t.Errorf("got Abandoner %t, want it for stile only", ok)
	}
	if !ok {
		_ = a.Close(t.Context())
		return
	}
	abandoner.Abandon(t.Context())
	mustNotGet(t, open(t, s.config, "b"), x)
}

// A hold must not last longer in the history than in reality.
func TestHold_untilIsNeverTooLate(t *testing.T) {
	t.Parallel()
	etcd := testservers.StartEtcd(t)
	h := lock(t, open(t, locker.Config{Kind: "stile", URL: "etcd://" + etcd.Endpoint(), TTL: 5 * time.Second}, "a"), "x")
	etcd.Pause()
	defer etcd.Resume()
	var until int64
	for h.Valid() {
		until = max(until, h.Until())
		if left := time.Duration(until - history.Now()); left > 50*time.Millisecond {
			time.Sleep(left - 50*time.Millisecond)
		}
	}
	now := history.Now()
	if until == 0 {
		t.Fatal("the hold was lost before the first read of its deadline")
	}
	if until > now {
		t.Errorf("the hold ended %v before its deadline", time.Duration(until-now))
	}
}

func TestOpen_errorNamesKinds(t *testing.T) {
	_, err := locker.Open(t.Context(), locker.Config{Kind: "flock"}, "a")
	if err == nil || !strings.Contains(err.Error(), "stile") {
		t.Errorf("got error %v, want one that names the kinds", err)
	}
}

func TestOpen_serverDown(t *testing.T) {
	for _, kind := range locker.Kinds() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := locker.Config{Kind: kind, URL: "redis://127.0.0.1:1", Addresses: []string{"127.0.0.1:1"}, TTL: ttl}
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			if _, err := locker.Open(ctx, c, "a"); err == nil || ctx.Err() != nil {
				t.Errorf("got error %v before the test timed out, want one", err)
			}
		})
	}
}

// Two lockers on the same connections have sessions of their own: they exclude each other, and closing
// one leaves the other one's hold.
func TestShare(t *testing.T) {
	server := testservers.StartRedis(t)
	sessions := make(chan struct{}, 10)
	c := locker.Config{Kind: "stile", URL: "redis://" + server.Addr(), TTL: time.Minute, OnSession: func() { sessions <- struct{}{} }}
	a, err := locker.Open(t.Context(), c, "w1")
	if err != nil {
		t.Fatal(err)
	}
	b, err := locker.Share(a, c, "w1")
	if err != nil {
		t.Fatal(err)
	}
	h, err := a.Lock(t.Context(), "shared")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.TryLock(t.Context(), "shared"); !errors.Is(err, locker.ErrTaken) {
		t.Errorf("got error %v, want ErrTaken", err)
	}
	for range 2 {
		<-sessions
	}
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Errorf("release after the other locker was closed: %v", err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := locker.Share(nil, c, "w1"); err == nil {
		t.Error("got no error for a locker that is not Stile's")
	}
}

// A locker with a linger time keeps locks, and says so: the verdict must not take a release for a proof.
func TestOpen_linger(t *testing.T) {
	server := testservers.StartRedis(t)
	c := locker.Config{Kind: "stile", URL: "redis://" + server.Addr(), TTL: time.Minute, Linger: time.Hour}
	first, err := locker.Open(t.Context(), c, "w1")
	if err != nil {
		t.Fatal(err)
	}
	second, err := locker.Share(first, c, "w1")
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range []locker.Locker{first, second} {
		if !l.Offers().Keeps {
			t.Errorf("locker %d: got offers %+v, want Keeps", i, l.Offers())
		}
		var tokens []uint64
		for range 2 {
			h, err := l.Lock(t.Context(), "kept")
			if err != nil {
				t.Fatal(err)
			}
			tokens = append(tokens, h.Token())
			if err := h.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if tokens[1] != tokens[0]+1 {
			t.Errorf("locker %d: got tokens %d, want two turns of one entry", i, tokens)
		}
	}
	for _, l := range []locker.Locker{second, first} {
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
