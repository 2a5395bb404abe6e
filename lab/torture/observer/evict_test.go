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
	// patience is how long a test waits for what must happen: only what is broken takes longer.
	patience = 3 * time.Minute
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A scene is a store in which Stile takes locks.
type scene struct {
	t    *testing.T
	ctx  context.Context
	url  string
	eyes observer.Observer
}

func newScene(t *testing.T, kind, url, addr string) *scene {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	eyes, err := observer.Open(kind, []string{addr}, "torture/", func(order uint64) uint64 { return order << 11 })
	must(t, err)
	t.Cleanup(eyes.Close)
	return &scene{t, ctx, url, eyes}
}

// open opens a session.
func (s *scene) open() locker.Locker {
	l, err := locker.Open(s.ctx, locker.Config{Kind: "stile", URL: s.url, TTL: ttl}, "w")
	must(s.t, err)
	s.t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

// wait has so many wait for a lock that somebody holds, until the test ends, and returns when all have entries.
func (s *scene) wait(name string, n int) {
	ctx, cancel := context.WithCancel(s.ctx)
	var waiters sync.WaitGroup
	for range n {
		l := s.open()
		waiters.Go(func() { _, _ = l.Lock(ctx, name) })
	}
	s.t.Cleanup(func() { cancel(); waiters.Wait() })
	for {
		left, err := s.eyes.Remaining(s.ctx)
		must(s.t, err)
		if len(left[name]) == n+1 {
			return
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-s.ctx.Done():
			s.t.Fatalf("there are entries %v, and not %d", left, n+1)
		}
	}
}

func (s *scene) evict(name string, all bool) observer.Eviction {
	s.t.Helper()
	e, err := s.eyes.Evict(s.ctx, name, all)
	must(s.t, err)
	return e
}

func TestEvictionsTellWhomTheyTook(t *testing.T) {
	etcd, zk, redis := testservers.StartEtcd(t), testservers.StartZooKeeper(t), testservers.StartRedis(t)
	for _, c := range []struct {
		kind, url, addr string
		line            bool // waiters have entries beside the holder's
	}{
		{"etcd", "etcd://" + etcd.Endpoint(), etcd.Endpoint(), true},
		{"zk", "zk://" + zk.Endpoint(), zk.Endpoint(), true},
		{"redis", "redis://" + redis.Addr(), redis.Addr(), false},
	} {
		t.Run(c.kind, func(t *testing.T) {
			s := newScene(t, c.kind, c.url, c.addr)
			if e := s.evict("torture/nobody", true); e.What != "" || e.Took != nil {
				t.Errorf("nobody is there, and it did %+v", e)
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
					t.Errorf("all of the line: %v: the holder has the token %d, and it did %+v", all, h.Token(), e)
				}
			}
		})
	}
}
