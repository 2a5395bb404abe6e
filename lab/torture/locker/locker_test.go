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
)

// A scene is a locker, and what an administrator can do to its locks.
type scene struct {
	config locker.Config
	offers history.Offers
	// take takes the lock away from its holder, or makes it impossible to know that it is not.
	take func(t *testing.T, name string)
	// maybeKept is set if the lock may be the holder's still.
	maybeKept bool
}

const (
	// ttl is that of sessions that are to live for as long as a test takes, on however busy a
	// machine.
	ttl = time.Minute
	// patience is how long a test waits for what must happen: only what is broken takes longer.
	patience = 3 * time.Minute
)

// servers are those that all tests share. Each test has locks of its own: see [newName].
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

func (on *servers) scenes() map[string]func(*testing.T) scene {
	all, one := addresses(on.redises), on.redises[0].Addr()
	return map[string]func(*testing.T) scene{
		"stile on etcd": func(*testing.T) scene {
			return scene{
				config: locker.Config{Kind: "stile", URL: "etcd://" + on.etcd.Endpoint(), TTL: ttl},
				offers: history.Offers{Tokens: true, Deadlines: true, Loss: true, Proof: true, Fair: true},
				take:   func(t *testing.T, name string) { deleteKeys(t, on.etcd, name) },
			}
		},
		"stile on redlock": func(*testing.T) scene {
			return scene{
				config: locker.Config{Kind: "stile", URL: "redlock://" + strings.Join(all, ","), TTL: ttl},
				offers: history.Offers{Tokens: true, Deadlines: true, Loss: true, Proof: true},
				take:   func(t *testing.T, name string) { del(t, name, on.redises...) },
			}
		},
		"concurrency": func(*testing.T) scene {
			return scene{
				config: locker.Config{Kind: "concurrency", Addresses: []string{on.etcd.Endpoint()}, TTL: ttl},
				offers: history.Offers{Tokens: true, Loss: true, Fair: true},
				take:   func(t *testing.T, name string) { revokeLeases(t, on.etcd, name) }, // it does not notice anything less
			}
		},
		"redsync": func(*testing.T) scene {
			return scene{
				config: locker.Config{Kind: "redsync", Addresses: all, TTL: ttl},
				offers: history.Offers{Deadlines: true, Loss: true, Proof: true},
				take:   func(t *testing.T, name string) { del(t, name, on.redises...) },
			}
		},
		"redislock": func(*testing.T) scene {
			return scene{
				config: locker.Config{Kind: "redislock", Addresses: []string{one}, TTL: ttl},
				offers: history.Offers{Loss: true, Proof: true},
				take:   func(t *testing.T, name string) { del(t, name, on.redises[0]) },
			}
		},
		"rueidislock": func(*testing.T) scene {
			return scene{
				config: locker.Config{Kind: "rueidislock", Addresses: []string{one}, TTL: ttl, Patient: true},
				offers: history.Offers{Loss: true},
				take:   func(t *testing.T, name string) { del(t, "rueidislock:0:"+name, on.redises[0]) },
			}
		},
		"gozk": func(t *testing.T) scene {
			proxy := testservers.NewProxy(t, on.zookeeper.Endpoint())
			return scene{
				config:    locker.Config{Kind: "gozk", Addresses: []string{proxy.Addr()}, TTL: ttl},
				offers:    history.Offers{Loss: true, Proof: true, Fair: true},
				take:      func(*testing.T, string) { proxy.Reset() }, // it does not notice that the node is gone
				maybeKept: true,                                       // if it connects again within the TTL
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

// clientOf returns a client of the server, which is closed when t ends.
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

// revokeLeases ends the leases of all who hold a lock or wait for it.
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

// names counts the locks.
var names atomic.Int64

// newName returns the name of a lock that no other test has.
func newName() string { return fmt.Sprintf("x%d", names.Add(1)) }

// What must be so of every locker.
func TestEveryLocker(t *testing.T) {
	on := startServers(t)
	for kind, newScene := range on.scenes() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			for what, test := range map[string]func(*testing.T, scene){
				"a lock is held by one":                       aLockIsHeldByOne,
				"goroutines of one locker exclude each other": goroutinesOfOneLockerExcludeEachOther,
				"trying for a lock that is taken":             tryingForALockThatIsTaken,
				"what is offered":                             whatIsOffered,
				"a hold outlasts its TTL":                     aHoldOutlastsItsTTL,
				"a holder is told of a loss":                  aHolderIsToldOfALoss,
				"a given up wait is not in the way":           aGivenUpWaitIsNotInTheWay,
				"a locker that is closed has nothing":         aLockerThatIsClosedHasNothing,
				"a locker that is abandoned holds still":      aLockerThatIsAbandonedHoldsStill,
			} {
				t.Run(what, func(t *testing.T) {
					t.Parallel()
					test(t, newScene(t))
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

// connect opens a locker. Some give up after five seconds, as a busy machine may need: it tries
// again.
func connect(t *testing.T, c locker.Config, worker string) locker.Locker {
	t.Helper()
	for began := time.Now(); ; {
		l, err := locker.Open(t.Context(), c, worker)
		if err == nil {
			return l
		}
		if time.Since(began) > patience {
			t.Fatal(err)
		}
	}
}

func lock(t *testing.T, l locker.Locker, name string) locker.Hold {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
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
		t.Errorf("the release says: %v", err)
	}
}

// mustNotGet tries for a lock that nobody can have, where that can be done: then a server has
// answered. And it waits for it for a moment.
func mustNotGet(t *testing.T, l locker.Locker, name string) {
	t.Helper()
	switch h, err := l.TryLock(t.Context(), name); {
	case err == nil:
		t.Error("two have the lock")
		_ = h.Release(t.Context())
	case !errors.Is(err, locker.ErrTaken) && !errors.Is(err, locker.ErrTryUnsupported):
		t.Errorf("trying for a lock that is taken says: %v", err)
	}
	giveUp(t, l, name)
}

// giveUp waits for a lock for a moment, during which nobody can have it.
func giveUp(t *testing.T, l locker.Locker, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if h, err := l.Lock(ctx, name); err == nil {
		t.Error("two have the lock")
		_ = h.Release(t.Context())
	}
}

func aLockIsHeldByOne(t *testing.T, s scene) {
	a, b, x := open(t, s.config, "a"), open(t, s.config, "b"), newName()
	first := lock(t, a, x)
	mustNotGet(t, b, x)
	release(t, first)
	second := lock(t, b, x)
	mustNotGet(t, a, x)
	if s.offers.Tokens && second.Token() <= first.Token() {
		t.Errorf("token %d comes after %d", second.Token(), first.Token())
	}
	release(t, second)
	release(t, lock(t, a, x))
}

func goroutinesOfOneLockerExcludeEachOther(t *testing.T, s scene) {
	l, x := open(t, s.config, "a"), newName()
	h := lock(t, l, x)
	giveUp(t, l, x)
	release(t, h)
	release(t, lock(t, l, x))
}

func tryingForALockThatIsTaken(t *testing.T, s scene) {
	a, b, x := open(t, s.config, "a"), open(t, s.config, "b"), newName()
	h := lock(t, a, x)
	_, err := b.TryLock(t.Context(), x)
	if s.config.Kind == "gozk" {
		if !errors.Is(err, locker.ErrTryUnsupported) {
			t.Errorf("it says: %v", err)
		}
		return
	}
	if !errors.Is(err, locker.ErrTaken) || errors.Is(err, locker.ErrUnknownOutcome) {
		t.Errorf("it says: %v", err)
	}
	release(t, h)
	second, err := b.TryLock(t.Context(), x)
	if err != nil {
		t.Fatal(err)
	}
	release(t, second)
}

func whatIsOffered(t *testing.T, s scene) {
	l := open(t, s.config, "a")
	if got := l.Offers(); got != s.offers {
		t.Errorf("%+v is offered, not %+v", got, s.offers)
	}
	h := lock(t, l, newName())
	if got := h.Token() != 0; got != s.offers.Tokens {
		t.Errorf("the token is %d", h.Token())
	}
	now := history.Now()
	switch until := h.Until(); {
	case !s.offers.Deadlines && until != 0:
		t.Errorf("it is valid until %d, though nobody can know", until)
	case s.offers.Deadlines && (until <= now || until > now+int64(ttl)):
		t.Errorf("it is valid for %v", time.Duration(until-now))
	}
	if !h.Valid() {
		t.Errorf("it is not valid: %s", h.Why())
	}
	release(t, h)
}

// Were it not renewed it would be over, and nobody would take it again. To outlast a minute would
// take one: this is the longest that the test can wait for.
func aHoldOutlastsItsTTL(t *testing.T, s scene) {
	const ttl = 10 * time.Second
	waits := s.config
	s.config.TTL = ttl
	a, b, x := open(t, s.config, "a"), open(t, waits, "b"), newName()
	h := lock(t, a, x)
	until := h.Until()
	time.Sleep(ttl * 3 / 2) // the time is what is tested
	mustNotGet(t, b, x)
	if !h.Valid() {
		t.Errorf("it is not valid: %s", h.Why())
	}
	if s.offers.Deadlines && h.Until() < until+int64(ttl) {
		t.Error("its deadline has not moved")
	}
	release(t, h)
}

func aHolderIsToldOfALoss(t *testing.T, s scene) {
	next := open(t, s.config, "b")
	s.config.TTL = 10 * time.Second // some find out when they renew it
	x := newName()
	h := lock(t, open(t, s.config, "a"), x)
	s.take(t, x)
	select {
	case <-h.Lost():
	case <-time.After(patience):
		t.Fatal("it was not told")
	}
	if h.Valid() {
		t.Error("it is valid still")
	}
	if h.Why() == "" {
		t.Error("nobody says why")
	}
	if err := h.Release(t.Context()); !errors.Is(err, locker.ErrLost) && (err != nil || !s.maybeKept) {
		t.Errorf("the release says: %v", err)
	}
	release(t, lock(t, next, x))
}

// What somebody has given up waiting for must not be in the way for longer than a TTL or a session.
func aGivenUpWaitIsNotInTheWay(t *testing.T, s scene) {
	a, b, c, x := open(t, s.config, "a"), open(t, s.config, "b"), open(t, s.config, "c"), newName()
	h := lock(t, a, x)
	for range 5 {
		giveUp(t, b, x)
	}
	release(t, h)
	release(t, lock(t, c, x))
}

func aLockerThatIsClosedHasNothing(t *testing.T, s scene) {
	next := open(t, s.config, "b")
	s.config.TTL = 5 * time.Second // after which what it has not given up is free
	a := connect(t, s.config, "a")
	x := newName()
	lock(t, a, x)
	if err := a.Close(t.Context()); err != nil {
		t.Errorf("closing says: %v", err)
	}
	release(t, lock(t, next, x)) // at once or after the TTL
}

func aLockerThatIsAbandonedHoldsStill(t *testing.T, s scene) {
	a := connect(t, s.config, "a")
	x := newName()
	lock(t, a, x)
	left, ok := a.(locker.Abandoner)
	if ok != (s.config.Kind == "stile") {
		t.Errorf("it can be abandoned: %t", ok)
	}
	if !ok {
		_ = a.Close(t.Context())
		return
	}
	left.Abandon(t.Context())
	mustNotGet(t, open(t, s.config, "b"), x)
}

// A hold in the history must not be longer than in truth.
func TestUntilIsNeverTooLate(t *testing.T) {
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
		t.Fatal("it was lost before anything was seen of it")
	}
	if until > now {
		t.Errorf("it was not valid any more %v before the time until which it was said to be", time.Duration(until-now))
	}
}

func TestAnErrorNamesWhatThereIs(t *testing.T) {
	_, err := locker.Open(t.Context(), locker.Config{Kind: "flock"}, "a")
	if err == nil || !strings.Contains(err.Error(), "stile") {
		t.Errorf("it says: %v", err)
	}
}

func TestAServerThatIsDownIsAnError(t *testing.T) {
	for _, kind := range locker.Kinds() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := locker.Config{Kind: kind, URL: "redis://127.0.0.1:1", Addresses: []string{"127.0.0.1:1"}, TTL: ttl}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if _, err := locker.Open(ctx, c, "a"); err == nil || ctx.Err() != nil {
				t.Errorf("it says: %v", err)
			}
		})
	}
}
