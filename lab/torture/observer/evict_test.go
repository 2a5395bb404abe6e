package observer_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/lab/torture/locker"
	"github.com/stilelock/stile/lab/torture/observer"
)

const (
	ttl = time.Minute
	// testTimeout bounds the waits for events that must happen. It is long, for busy machines.
	testTimeout = 3 * time.Minute
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A fixture is a store in which Stile acquires locks, and its observer.
type fixture struct {
	t   *testing.T
	ctx context.Context
	url string
	obs observer.Observer
}

func newFixture(t *testing.T, kind, url, addr string) *fixture {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	obs, err := observer.Open(kind, []string{addr}, "torture/", func(order uint64) uint64 { return order << 11 })
	must(t, err)
	t.Cleanup(obs.Close)
	return &fixture{t, ctx, url, obs}
}

// open opens a session.
func (s *fixture) open() locker.Locker {
	l, err := locker.Open(s.ctx, locker.Config{Kind: "stile", URL: s.url, TTL: ttl}, "w")
	must(s.t, err)
	s.t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

// wait starts n waiters for a lock that is held. They wait until the test ends. It returns when all
// of them have entries.
func (s *fixture) wait(name string, n int) {
	ctx, cancel := context.WithCancel(s.ctx)
	var waiters sync.WaitGroup
	for range n {
		l := s.open()
		waiters.Go(func() { _, _ = l.Lock(ctx, name) })
	}
	s.t.Cleanup(func() { cancel(); waiters.Wait() })
	for {
		left, err := s.obs.Remaining(s.ctx)
		must(s.t, err)
		if len(left[name]) == n+1 {
			return
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-s.ctx.Done():
			s.t.Fatalf("got entries %v, want %d", left, n+1)
		}
	}
}

func (s *fixture) evict(name string, all bool) observer.Eviction {
	s.t.Helper()
	e, err := s.obs.Evict(s.ctx, name, all)
	must(s.t, err)
	return e
}

func TestEvict_returnsTokens(t *testing.T) {
	etcd, zk, redis := testservers.StartEtcd(t), testservers.StartZooKeeper(t), testservers.StartRedis(t)
	for _, c := range []struct {
		kind, url, addr string
		line            bool // waiters have entries too, not only the holder
	}{
		{"etcd", "etcd://" + etcd.Endpoint(), etcd.Endpoint(), true},
		{"zk", "zk://" + zk.Endpoint(), zk.Endpoint(), true},
		{"redis", "redis://" + redis.Addr(), redis.Addr(), false},
	} {
		t.Run(c.kind, func(t *testing.T) {
			s := newFixture(t, c.kind, c.url, c.addr)
			if e := s.evict("torture/unused", true); e.What != "" || e.Took != nil {
				t.Errorf("empty line: got %+v, want no eviction", e)
			}
			for _, all := range []bool{false, true} {
				name := map[bool]string{false: "torture/one", true: "torture/all"}[all]
				h, err := s.open().Lock(s.ctx, name)
				must(t, err)
				if c.line {
					s.wait(name, 2)
				}
				e := s.evict(name, all)
				if n := len(e.Took); e.What == "" || n == 0 || e.Took[0] != h.Token() || !slices.IsSorted(e.Took) || (n == 3) != (all && c.line) {
					t.Errorf("all %t: got %+v, want the holder's token %d first", all, e, h.Token())
				}
			}
		})
	}
}

// Length counts holders and waiters on every store that has lines.
func TestLength(t *testing.T) {
	etcd, zk, redis := testservers.StartEtcd(t), testservers.StartZooKeeper(t), testservers.StartRedis(t)
	for kind, addr := range map[string]string{"etcd": etcd.Endpoint(), "zk": zk.Endpoint(), "redis": redis.Addr()} {
		t.Run(kind, func(t *testing.T) {
			const name = "torture/length"
			s := newFixture(t, kind, kind+"://"+addr, addr)
			if n, err := s.obs.Length(s.ctx, name); n != 0 || err != nil {
				t.Errorf("empty line: got length %d and error %v, want 0", n, err)
			}
			h, err := s.open().Lock(s.ctx, name)
			must(t, err)
			ctx, cancel := context.WithCancel(s.ctx)
			var waiters sync.WaitGroup
			for range 2 {
				l := s.open()
				waiters.Go(func() { _, _ = l.Lock(ctx, name) })
			}
			s.awaitLength(name, 3)
			cancel()
			waiters.Wait()
			s.awaitLength(name, 1)
			must(t, h.Release(s.ctx))
			s.awaitLength(name, 0)
		})
	}
}

func (s *fixture) awaitLength(name string, want int) {
	s.t.Helper()
	for {
		n, err := s.obs.Length(s.ctx, name)
		must(s.t, err)
		if n == want {
			return
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-s.ctx.Done():
			s.t.Fatalf("got a line of %d, want %d", n, want)
		}
	}
}
