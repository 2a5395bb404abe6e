package redisstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// Servers lose scripts when they are restarted, when a replica is promoted, and by SCRIPT FLUSH.
// Promise: P7
func TestScript_sentAgainAfterFlush(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	a, b := open(t, storeAt(t, server.Addr()), longTTL), open(t, storeAt(t, server.Addr()), longTTL)
	forget := func() { server.Do("SCRIPT", "FLUSH") }
	forget()
	first := hold(t, a, name)
	forget()
	second := join(t, b, name, line.Exclusive)
	forget()
	confirm(t, a, b)
	forget()
	first.leave(t)
	second.await(t, store.Admitted)
	forget()
	second.leave(t)
}

// contest makes clients hold a lock repeatedly until stop is called. stop returns how often a
// client was admitted while the hold of another was valid. turns returns the number of holds so
// far.
func contest(t *testing.T, clients int, name string, connect func() store.Store, ttl time.Duration) (turns, stop func() int) {
	t.Helper()
	var mu sync.Mutex
	var done, double int
	var inside *stile.Hold
	ctx, cancel := contextOf(t)
	var all sync.WaitGroup
	for range clients {
		c := newClient(t, connect(), ttl)
		all.Go(func() {
			for ctx.Err() == nil {
				h, err := c.Mutex(name).Lock(ctx)
				if err != nil {
					time.Sleep(10 * time.Millisecond)
					continue // the session was lost, for example; the next one is used
				}
				mu.Lock()
				// In this order: if the other's is still valid, both were valid when ours was.
				if ours := h.Valid(); ours && inside != nil && inside.Valid() {
					double++
				}
				inside = h
				done++
				mu.Unlock()
				select {
				case <-h.Context().Done():
				case <-time.After(2 * time.Millisecond):
				}
				_ = h.Release(ctx)
			}
		})
	}
	turns = func() int { mu.Lock(); defer mu.Unlock(); return done }
	stop = func() int { cancel(); all.Wait(); return double }
	return turns, stop
}

// A replica is promoted because the master is suspended or killed. The holders' sessions are on
// both servers, or are lost; either way the clients continue.
// Promise: P1, P7
func TestFailover_toReplica(t *testing.T) {
	for _, c := range []struct {
		how  string
		fail func(master *testservers.Redis)
	}{
		{"suspended master", func(r *testservers.Redis) { r.Pause() }},
		{"killed master", func(r *testservers.Redis) { r.Kill() }},
	} {
		t.Run(c.how, func(t *testing.T) {
			t.Parallel()
			const ttl, minTurns = 10 * time.Second, 20
			f := testservers.StartRedisFailover(t)
			options := redisstore.ClientOptions(f.SentinelAddrs()...)
			options.Sentinel.MasterSet = testservers.SentinelMaster
			options.Sentinel.TopologyRefreshInterval = time.Second
			turns, stop := contest(t, 4, newName(t), func() store.Store {
				return newStore(t, connectWith(t, options), nil)
			}, ttl)
			eventually(t, "the lock is handed over repeatedly", func() bool { return turns() > minTurns })
			c.fail(f.Servers[0])
			f.AwaitMaster(t, f.Servers[1])
			// The replica lacks at most the master's last milliseconds. A lock that was handed over
			// in these may be held by the former holder there, for a TTL, but it is never free.
			before := turns()
			eventually(t, "the lock is handed over repeatedly after the failover", func() bool { return turns() > before+minTurns })
			if double := stop(); double > 0 {
				t.Errorf("two clients held the lock, %d times", double)
			}
		})
	}
}

// Redis cannot prevent that a lock of which the replica has no record is free after a failover. The
// next token is larger, so a guard rejects the forgotten holder until that is notified.
// Promise: P2
func TestFailover_lostHoldIsFenced(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	master, replica := servers[0], servers[1]
	replica.ReplicaOf(master)
	replica.ReplicaOf(nil) // from now on it receives nothing
	name := newName(t)
	first, err := newClient(t, storeAt(t, master.Addr()), clientTTL).Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second, err := newClient(t, storeAt(t, replica.Addr()), clientTTL).Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !first.Valid() || !second.Valid() {
		t.Errorf("first hold valid: %v, second: %v; want both", first.Valid(), second.Valid())
	}
	if second.Token() <= first.Token() {
		t.Errorf("got token %d after %d", second.Token(), first.Token())
	}
}

// A server whose wall clock is set forward ends all leases early, because Redis counts them by that
// clock. Two clients may then hold the lock until the first one is notified: at once, if the server
// still has its entry when the second one joins, otherwise at its next confirmation.
// Promise: P2
func TestClock_setForward(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	server := testservers.StartRedisWithClock(t)
	name := newName(t)
	first, err := newClient(t, storeAt(t, server.Addr()), ttl).Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	server.SetClockAhead(2 * ttl)
	second, err := newClient(t, storeAt(t, server.Addr()), clientTTL).Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if second.Token() <= first.Token() {
		t.Errorf("got token %d after %d", second.Token(), first.Token())
	}
	wantLost(t, first)
}

// A clock that is set back extends leases, and orders still rise.
// Promise: P1
func TestClock_setBack(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedisWithClock(t)
	a, b := open(t, storeAt(t, server.Addr()), longTTL), open(t, storeAt(t, server.Addr()), longTTL)
	name := newName(t)
	first := hold(t, a, name)
	second := join(t, b, name, line.Exclusive)
	server.SetClockAhead(-24 * time.Hour)
	before, _, _ := first.standing()
	first.leave(t)
	after, _ := second.await(t, store.Admitted)
	if after.Order <= before.Order {
		t.Errorf("got order %d after %d", after.Order, before.Order)
	}
}

// Another client deletes the lock's key: the holder is notified before another is admitted
// unnoticed.
// Promise: P1
// Bug: CURATOR-171
func TestHold_lostWhenKeyIsDeleted(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	a, b := open(t, storeAt(t, server.Addr()), longTTL), open(t, storeAt(t, server.Addr()), longTTL)
	first := hold(t, a, name)
	server.Do("DEL", name)
	confirm(t, a)
	if st, _ := first.await(t, store.Gone); st.Cause == nil {
		t.Error("got no cause")
	}
	hold(t, b, name)
}
