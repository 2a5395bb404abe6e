package lab_test

import (
	"context"
	"errors"
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

// ttl is how long the locks of these tests last.
const ttl = time.Second

// newStile returns a Stile client of a server.
func newStile(t *testing.T, addr string) *stile.Client {
	t.Helper()
	cli, err := rueidis.NewClient(redisstore.Ready(addr))
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

// A peer tries once to lock.
type peer struct {
	name string
	key  func(name string) string // the name by which Stile knows the same lock
	try  func(ctx context.Context, name string) (unlock func(), ok bool)
}

func peers(t *testing.T, addr string) []peer {
	t.Helper()
	cli := goredis.NewClient(&goredis.Options{Addr: addr})
	t.Cleanup(func() { cli.Close() })
	rs, rl := redsync.New(goredisv9.NewPool(cli)), redislock.New(cli)
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true},
		KeyMajority:  1, KeyValidity: ttl,
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
	server := testservers.StartRedis(t)
	c := newStile(t, server.Addr())
	for _, p := range peers(t, server.Addr()) {
		t.Run(p.name, func(t *testing.T) {
			name := "lock-" + p.name
			hold, err := c.Mutex(p.key(name)).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * ttl) // it is renewed
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
			start := time.Now()
			time.AfterFunc(300*time.Millisecond, unlock)
			hold, err = c.Mutex(p.key(name)).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took < 300*time.Millisecond {
				t.Errorf("Stile had the lock after %v", took)
			}
			_ = hold.Release(t.Context())
		})
	}
}

// A peer that crashes: nobody unlocks or renews.
func TestStileGetsTheLockOfAPeerThatCrashed(t *testing.T) {
	server := testservers.StartRedis(t)
	c := newStile(t, server.Addr())
	for _, p := range peers(t, server.Addr())[:2] { // the third renews as long as this process lives
		t.Run(p.name, func(t *testing.T) {
			start := time.Now()
			if _, ok := p.try(t.Context(), "lock-"+p.name); !ok {
				t.Fatal("the peer cannot have a lock that is free")
			}
			if _, err := c.Mutex("lock-" + p.name).Lock(t.Context()); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took < ttl-50*time.Millisecond {
				t.Errorf("Stile had the lock after %v", took)
			}
		})
	}
}
