package lab_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	goredisv9 "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store/redisstore"
)

// ttl is the TTL of locks that must not expire, on however busy a machine.
const ttl = time.Minute

// newStile returns a Stile client of a server.
func newStile(t *testing.T, addr string, ttl time.Duration) *stile.Client {
	t.Helper()
	cli, err := rueidis.NewClient(redisstore.ClientOptions(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cli.Close)
	st, err := redisstore.New(cli, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := stile.New(st, &stile.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

// A peer is another library that locks in Redis.
type peer struct {
	name string
	key  func(name string) string // the name by which Stile knows the peer's lock
	try  func(ctx context.Context, name string) (unlock func(), ok bool)
}

// peers returns peers whose locks expire after ttl unless they are renewed.
func peers(t *testing.T, addr string, ttl time.Duration) []peer {
	t.Helper()
	cli := goredis.NewClient(&goredis.Options{Addr: addr})
	t.Cleanup(func() { cli.Close() })
	rs, rl := redsync.New(goredisv9.NewPool(cli)), redislock.New(cli)
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true},
		KeyMajority:  1, KeyValidity: ttl,
		TryNextAfter: ttl, // the default is 20 ms, and a request can take longer on a busy machine
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(locker.Close)
	sameName := func(name string) string { return name }
	return []peer{
		{"redsync", sameName, func(ctx context.Context, name string) (func(), bool) {
			m := rs.NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(1))
			return func() { _, _ = m.Unlock() }, m.LockContext(ctx) == nil
		}},
		{"redislock", sameName, func(ctx context.Context, name string) (func(), bool) {
			l, err := rl.Obtain(ctx, name, ttl, nil)
			return func() { _ = l.Release(context.WithoutCancel(ctx)) }, err == nil
		}},
		{"rueidislock", func(name string) string { return "rueidislock:0:" + name }, func(ctx context.Context, name string) (func(), bool) {
			_, cancel, err := locker.TryWithContext(ctx, name)
			return func() { cancel() }, err == nil
		}},
	}
}

func TestInterop_mutualExclusion(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	c := newStile(t, server.Addr(), ttl)
	for _, p := range peers(t, server.Addr(), ttl) {
		t.Run(p.name, func(t *testing.T) {
			name := "lock-" + p.name
			hold, err := c.Mutex(p.key(name)).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if unlock, ok := p.try(t.Context(), name); ok {
				unlock()
				t.Error("the peer acquired a lock that Stile holds")
			}
			if err := hold.Release(t.Context()); err != nil {
				t.Error(err)
			}
			unlock, ok := p.try(t.Context(), name)
			if !ok {
				t.Fatal("the peer could not acquire a free lock")
			}
			if _, err := c.Mutex(p.key(name)).TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
				t.Errorf("TryLock of a lock that the peer holds: got %v, want ErrHeld", err)
			}
			var unlocking atomic.Bool
			time.AfterFunc(300*time.Millisecond, func() {
				unlocking.Store(true)
				unlock()
			})
			hold, err = c.Mutex(p.key(name)).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !unlocking.Load() {
				t.Error("Stile acquired the lock before the peer released it")
			}
			_ = hold.Release(t.Context())
		})
	}
}

// A lock that Stile holds for longer than its TTL stays closed for peers.
func TestInterop_renewedLock(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	server := testservers.StartRedis(t)
	c := newStile(t, server.Addr(), ttl)
	all := peers(t, server.Addr(), ttl)
	var holds []*stile.Hold
	for _, p := range all {
		hold, err := c.Mutex(p.key("lock-" + p.name)).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		holds = append(holds, hold)
	}
	time.Sleep(ttl * 6 / 5) // longer than the TTL, which is the point of the test
	for i, p := range all {
		if unlock, ok := p.try(t.Context(), "lock-"+p.name); ok {
			unlock()
			t.Errorf("%s acquired a lock that Stile holds", p.name)
		}
		if err := holds[i].Release(t.Context()); err != nil {
			t.Errorf("release of the lock that %s tried: %v", p.name, err)
		}
	}
}

// Stile acquires the lock of a peer that neither unlocks nor renews, once it has expired.
func TestInterop_crashedPeer(t *testing.T) {
	t.Parallel()
	const short = 2 * time.Second
	server := testservers.StartRedis(t)
	c := newStile(t, server.Addr(), ttl)
	for _, p := range peers(t, server.Addr(), short)[:2] { // the third one renews as long as this process lives
		t.Run(p.name, func(t *testing.T) {
			var lastTry time.Time
			for began, ok := time.Now(), false; !ok; {
				if time.Since(began) > 3*time.Minute {
					t.Fatal("the peer could not acquire a free lock")
				}
				// A try can fail: redsync gives up after a twentieth of the TTL, and a busy
				// machine may need longer.
				lastTry = time.Now()
				_, ok = p.try(t.Context(), "lock-"+p.name)
			}
			if _, err := c.Mutex("lock-" + p.name).Lock(t.Context()); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(lastTry); took < short-50*time.Millisecond {
				t.Errorf("Stile acquired the lock after %v, before it expired", took)
			}
		})
	}
}
