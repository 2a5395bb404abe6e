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

// ttl is how long locks last that are not to be lost, on however busy a machine.
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

// A peer tries once to lock, for ttl if nobody renews it.
type peer struct {
	name string
	key  func(name string) string // the name by which Stile knows the same lock
	try  func(ctx context.Context, name string) (unlock func(), ok bool)
}

func peers(t *testing.T, addr string, ttl time.Duration) []peer {
	t.Helper()
	cli := goredis.NewClient(&goredis.Options{Addr: addr})
	t.Cleanup(func() { cli.Close() })
	rs, rl := redsync.New(goredisv9.NewPool(cli)), redislock.New(cli)
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true},
		KeyMajority:  1, KeyValidity: ttl,
		TryNextAfter: ttl, // by default it gives a request up after 20 ms, as a busy machine may need for it
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(locker.Close)
	same := func(name string) string { return name }
	return []peer{
		{"redsync", same, func(ctx context.Context, name string) (func(), bool) {
			m := rs.NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(1))
			return func() { _, _ = m.Unlock() }, m.LockContext(ctx) == nil
		}},
		{"redislock", same, func(ctx context.Context, name string) (func(), bool) {
			l, err := rl.Obtain(ctx, name, ttl, nil)
			return func() { _ = l.Release(context.WithoutCancel(ctx)) }, err == nil
		}},
		{"rueidislock", func(name string) string { return "rueidislock:0:" + name }, func(ctx context.Context, name string) (func(), bool) {
			_, cancel, err := locker.TryWithContext(ctx, name)
			return func() { cancel() }, err == nil
		}},
	}
}

func TestPeersAndStileExcludeEachOther(t *testing.T) {
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
				t.Error("the peer got a lock that Stile holds")
			}
			if err := hold.Release(t.Context()); err != nil {
				t.Error(err)
			}
			unlock, ok := p.try(t.Context(), name)
			if !ok {
				t.Fatal("the peer cannot have a lock that is free")
			}
			if _, err := c.Mutex(p.key(name)).TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
				t.Errorf("Stile says %v of a lock that the peer holds", err)
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
				t.Error("Stile had the lock before the peer gave it up")
			}
			_ = hold.Release(t.Context())
		})
	}
}

// What Stile holds lasts for longer than its TTL for peers, too.
func TestPeersDoNotGetALockThatStileRenews(t *testing.T) {
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
	time.Sleep(ttl * 6 / 5) // the time is what is tested
	for i, p := range all {
		if unlock, ok := p.try(t.Context(), "lock-"+p.name); ok {
			unlock()
			t.Errorf("%s got a lock that Stile holds", p.name)
		}
		if err := holds[i].Release(t.Context()); err != nil {
			t.Errorf("the lock of which %s was to be kept away: %v", p.name, err)
		}
	}
}

// A peer that crashes: nobody unlocks or renews.
func TestStileGetsTheLockOfAPeerThatCrashed(t *testing.T) {
	t.Parallel()
	const short = 2 * time.Second
	server := testservers.StartRedis(t)
	c := newStile(t, server.Addr(), ttl)
	for _, p := range peers(t, server.Addr(), short)[:2] { // the third renews as long as this process lives
		t.Run(p.name, func(t *testing.T) {
			var start time.Time
			for began, ok := time.Now(), false; !ok; {
				if time.Since(began) > 3*time.Minute {
					t.Fatal("the peer cannot have a lock that is free")
				}
				// It gives up after a twentieth of its TTL, as a busy machine may need.
				start = time.Now()
				_, ok = p.try(t.Context(), "lock-"+p.name)
			}
			if _, err := c.Mutex("lock-" + p.name).Lock(t.Context()); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took < short-50*time.Millisecond {
				t.Errorf("Stile had the lock after %v", took)
			}
		})
	}
}
