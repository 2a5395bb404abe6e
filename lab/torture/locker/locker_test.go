package locker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
)

// A scene is a locker with servers of its own, and what an administrator can do to its locks.
type scene struct {
	config locker.Config
	offers history.Offers
	// take takes the lock away from its holder, or makes it impossible to know that it is not.
	take func(t *testing.T, name string)
	// maybeKept is set if the lock may be the holder's still.
	maybeKept bool
}

const ttl = time.Second

func scenes() map[string]func(*testing.T) scene {
	return map[string]func(*testing.T) scene{
		"stile on etcd": func(t *testing.T) scene {
			etcd := testservers.StartEtcd(t)
			return scene{
				config: locker.Config{Kind: "stile", URL: "etcd://" + etcd.Endpoint(), TTL: ttl},
				offers: history.Offers{Tokens: true, Deadlines: true, Loss: true, Proof: true, Fair: true},
				take:   func(t *testing.T, name string) { deleteKeys(t, etcd, name) },
			}
		},
		"stile on redlock": func(t *testing.T) scene {
			servers := testservers.StartRedisServers(t, 3)
			return scene{
				config: locker.Config{Kind: "stile", URL: "redlock://" + strings.Join(addresses(servers), ","), TTL: ttl},
				offers: history.Offers{Tokens: true, Deadlines: true, Loss: true, Proof: true},
				take: func(_ *testing.T, name string) {
					for _, s := range servers {
						s.Do("DEL", name)
					}
				},
			}
		},
		"concurrency": func(t *testing.T) scene {
			etcd := testservers.StartEtcd(t)
			return scene{
				config: locker.Config{Kind: "concurrency", Addresses: []string{etcd.Endpoint()}, TTL: ttl},
				offers: history.Offers{Tokens: true, Loss: true, Fair: true},
				take:   func(t *testing.T, _ string) { revokeLeases(t, etcd) }, // it does not notice anything less
			}
		},
		"redsync": func(t *testing.T) scene {
			servers := testservers.StartRedisServers(t, 3)
			return scene{
				config: locker.Config{Kind: "redsync", Addresses: addresses(servers), TTL: ttl},
				offers: history.Offers{Deadlines: true, Loss: true, Proof: true},
				take: func(_ *testing.T, name string) {
					for _, s := range servers {
						s.Do("DEL", name)
					}
				},
			}
		},
		"redislock": func(t *testing.T) scene {
			server := testservers.StartRedis(t)
			return scene{
				config: locker.Config{Kind: "redislock", Addresses: []string{server.Addr()}, TTL: ttl},
				offers: history.Offers{Loss: true, Proof: true},
				take:   func(_ *testing.T, name string) { server.Do("DEL", name) },
			}
		},
		"rueidislock": func(t *testing.T) scene {
			server := testservers.StartRedis(t)
			return scene{
				config: locker.Config{Kind: "rueidislock", Addresses: []string{server.Addr()}, TTL: ttl},
				offers: history.Offers{Loss: true},
				take:   func(_ *testing.T, name string) { server.Do("DEL", "rueidislock:0:"+name) },
			}
		},
		"gozk": func(t *testing.T) scene {
			proxy := testservers.NewProxy(t, testservers.StartZooKeeper(t).Endpoint())
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

func deleteKeys(t *testing.T, etcd *testservers.Etcd, name string) {
	t.Helper()
	if _, err := etcd.Client(t).Delete(t.Context(), name+"/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
}

func revokeLeases(t *testing.T, etcd *testservers.Etcd) {
	t.Helper()
	cli := etcd.Client(t)
	leases, err := cli.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases.Leases {
		if _, err := cli.Revoke(t.Context(), l.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// everywhere runs a test for every locker.
func everywhere(t *testing.T, test func(*testing.T, scene)) {
	for name, start := range scenes() {
		t.Run(name, func(t *testing.T) { test(t, start(t)) })
	}
}

func open(t *testing.T, c locker.Config, worker string) locker.Locker {
	t.Helper()
	l, err := locker.Open(t.Context(), c, worker)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = l.Close(ctx)
	})
	return l
}

func lock(t *testing.T, l locker.Locker, name string) locker.Hold {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
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

// mustNotGet waits for a lock for a moment, during which nobody can have it.
func mustNotGet(t *testing.T, l locker.Locker, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if h, err := l.Lock(ctx, name); err == nil {
		t.Error("two have the lock")
		_ = h.Release(ctx)
	}
}

func TestALockIsHeldByOne(t *testing.T) {
	everywhere(t, func(t *testing.T, s scene) {
		a, b := open(t, s.config, "a"), open(t, s.config, "b")
		first := lock(t, a, "x")
		mustNotGet(t, b, "x")
		release(t, first)
		second := lock(t, b, "x")
		mustNotGet(t, a, "x")
		if s.offers.Tokens && second.Token() <= first.Token() {
			t.Errorf("token %d comes after %d", second.Token(), first.Token())
		}
		release(t, second)
		release(t, lock(t, a, "x"))
	})
}

func TestGoroutinesOfOneLockerExcludeEachOther(t *testing.T) {
	everywhere(t, func(t *testing.T, s scene) {
		l := open(t, s.config, "a")
		h := lock(t, l, "x")
		mustNotGet(t, l, "x")
		release(t, h)
		release(t, lock(t, l, "x"))
	})
}

func TestTryingForALockThatIsTaken(t *testing.T) {
	everywhere(t, func(t *testing.T, s scene) {
		a, b := open(t, s.config, "a"), open(t, s.config, "b")
		h := lock(t, a, "x")
		_, err := b.TryLock(t.Context(), "x")
		if s.config.Kind == "gozk" {
			if !errors.Is(err, locker.ErrNoTry) {
				t.Errorf("it says: %v", err)
			}
			return
		}
		if !errors.Is(err, locker.ErrTaken) || errors.Is(err, locker.ErrUnclear) {
			t.Errorf("it says: %v", err)
		}
		release(t, h)
		second, err := b.TryLock(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		release(t, second)
	})
}

func TestWhatIsOffered(t *testing.T) {
	everywhere(t, func(t *testing.T, s scene) {
		l := open(t, s.config, "a")
		if got := l.Offers(); got != s.offers {
			t.Errorf("%+v is offered, not %+v", got, s.offers)
		}
		h := lock(t, l, "x")
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
	})
}

func TestAHoldOutlastsItsTTL(t *testing.T) {
	everywhere(t, func(t *testing.T, s scene) {
		a, b := open(t, s.config, "a"), open(t, s.config, "b")
		h := lock(t, a, "x")
		until := h.Until()
		for began := time.Now(); time.Since(began) < 5*ttl/2; { // the time is what is tested
			mustNotGet(t, b, "x")
		}
		if !h.Valid() {
			t.Errorf("it is not valid: %s", h.Why())
		}
		if s.offers.Deadlines && h.Until() < until+int64(ttl) {
			t.Error("its deadline has not moved")
		}
		release(t, h)
	})
}

func TestAHolderIsToldOfALoss(t *testing.T) {
	everywhere(t, func(t *testing.T, s scene) {
		h := lock(t, open(t, s.config, "a"), "x")
		s.take(t, "x")
		select {
		case <-h.Lost():
		case <-time.After(20 * time.Second):
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
		release(t, lock(t, open(t, s.config, "b"), "x"))
	})
}

// What somebody has given up waiting for must not be in the way for longer than a TTL or a session.
func TestAGivenUpWaitIsNotInTheWay(t *testing.T) {
	everywhere(t, func(t *testing.T, s scene) {
		a, b, c := open(t, s.config, "a"), open(t, s.config, "b"), open(t, s.config, "c")
		h := lock(t, a, "x")
		for range 5 {
			mustNotGet(t, b, "x")
		}
		release(t, h)
		release(t, lock(t, c, "x"))
	})
}

func TestALockerThatIsClosedHasNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, s scene) {
		a, err := locker.Open(t.Context(), s.config, "a")
		if err != nil {
			t.Fatal(err)
		}
		lock(t, a, "x")
		if err := a.Close(t.Context()); err != nil {
			t.Errorf("closing says: %v", err)
		}
		release(t, lock(t, open(t, s.config, "b"), "x")) // at once or after the TTL
	})
}

func TestALockerThatIsAbandonedHoldsStill(t *testing.T) {
	for _, name := range []string{"stile on etcd", "stile on redlock"} {
		t.Run(name, func(t *testing.T) {
			c := scenes()[name](t).config
			c.TTL = time.Minute
			a, err := locker.Open(t.Context(), c, "a")
			if err != nil {
				t.Fatal(err)
			}
			lock(t, a, "x")
			a.(locker.Abandoner).Abandon(t.Context())
			mustNotGet(t, open(t, c, "b"), "x")
		})
	}
}

// A hold in the history must not be longer than in truth.
func TestUntilIsNeverTooLate(t *testing.T) {
	etcd := testservers.StartEtcd(t)
	h := lock(t, open(t, locker.Config{Kind: "stile", URL: "etcd://" + etcd.Endpoint(), TTL: ttl}, "a"), "x")
	etcd.Pause()
	defer etcd.Resume()
	var until int64
	for h.Valid() {
		until = max(until, h.Until())
	}
	if now := history.Now(); until > now {
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
	everywhere(t, func(t *testing.T, s scene) {
		c := s.config
		c.Addresses = []string{"127.0.0.1:1"}
		if c.Kind == "stile" {
			c.URL = "redis://127.0.0.1:1"
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := locker.Open(ctx, c, "a"); err == nil || ctx.Err() != nil {
			t.Errorf("it says: %v", err)
		}
	})
}
