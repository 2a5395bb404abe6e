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

// Servers forget scripts when they are restarted, when another is promoted and when somebody says so.
// Promise: P7
func TestForgottenScriptIsSentAgain(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	a, b := open(t, storeAt(t, server.Addr()), lasting), open(t, storeAt(t, server.Addr()), lasting)
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

// contest lets clients hold a lock again and again until stop is called, and then tells how often one was let in while the
// hold of another was valid. turns tells how often somebody held it until now.
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
					continue // a session that was lost, say: the next one
				}
				mu.Lock()
				// Asked in this order: if the other's is valid still, both were when ours was.
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

// A replica is promoted because the master stands still, or has ended. The holders' sessions are on both, or are lost; in
// either case everything goes on.
// Promise: P1, P7
func TestFailoverToAReplica(t *testing.T) {
	for _, c := range []struct {
		how  string
		fail func(master *testservers.Redis)
	}{
		{"the master stands still", func(r *testservers.Redis) { r.Pause() }},
		{"the master has ended", func(r *testservers.Redis) { r.Kill() }},
	} {
		t.Run(c.how, func(t *testing.T) {
			t.Parallel()
			const ttl, some = 10 * time.Second, 20
			f := testservers.StartRedisFailover(t)
			options := redisstore.ClientOptions(f.SentinelAddrs()...)
			options.Sentinel.MasterSet = testservers.SentinelMaster
			options.Sentinel.TopologyRefreshInterval = time.Second
			turns, stop := contest(t, 4, newName(t), func() store.Store {
				return newStore(t, connectWith(t, options), nil)
			}, ttl)
			eventually(t, "the lock goes from one to another", func() bool { return turns() > some })
			c.fail(f.Servers[0])
			f.AwaitMaster(t, f.Servers[1])
			// The replica had everything that the master had but for the last milliseconds, so a lock that was handed over
			// in those may still be another's there, for a TTL; never is it free.
			before := turns()
			eventually(t, "the lock goes from one to another after the failover", func() bool { return turns() > before+some })
			if double := stop(); double > 0 {
				t.Errorf("two held the lock, %d times", double)
			}
		})
	}
}

// The one thing that Redis cannot promise: a lock that the replica has never heard of is free after a failover. The next
// token is larger, so a guard refuses the one who was forgotten. Until that one is told it knows of nothing.
// Promise: P2
func TestForgottenHoldIsFenced(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	master, replica := servers[0], servers[1]
	replica.ReplicaOf(master)
	replica.ReplicaOf(nil) // from here on it hears nothing
	name := newName(t)
	first, err := newClient(t, storeAt(t, master.Addr()), renewed).Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second, err := newClient(t, storeAt(t, replica.Addr()), renewed).Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !first.Valid() || !second.Valid() {
		t.Errorf("nobody has noticed anything: the first is valid: %v, the second: %v", first.Valid(), second.Valid())
	}
	if second.Token() <= first.Token() {
		t.Errorf("two hold the lock, and the second one's token %d does not exceed %d", second.Token(), first.Token())
	}
}

// A server whose wall clock is set forward ends all leases early: Redis counts them by that clock. Two may then hold the lock,
// until the first one hears of it: at once if the server still knows of its entry when the second one comes, else at its next
// confirmation.
// Promise: P2
func TestClockThatIsSetForwardIsFencedAndNoticed(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	server := testservers.StartRedisAhead(t)
	name := newName(t)
	first, err := newClient(t, storeAt(t, server.Addr()), ttl).Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	server.SetAhead(2 * ttl)
	second, err := newClient(t, storeAt(t, server.Addr()), renewed).Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if second.Token() <= first.Token() {
		t.Errorf("token %d follows %d", second.Token(), first.Token())
	}
	wantTold(t, first)
}

// A clock that is set back makes leases last longer, and orders still rise.
// Promise: P1
func TestClockThatIsSetBackOnlyDelays(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedisAhead(t)
	a, b := open(t, storeAt(t, server.Addr()), lasting), open(t, storeAt(t, server.Addr()), lasting)
	name := newName(t)
	first := hold(t, a, name)
	second := join(t, b, name, line.Exclusive)
	server.SetAhead(-24 * time.Hour)
	before, _, _ := first.standing()
	first.leave(t)
	after, _ := second.await(t, store.Admitted)
	if after.Order <= before.Order {
		t.Errorf("order %d follows %d", after.Order, before.Order)
	}
}

// Somebody deletes the lock's key, by hand say: the holder is told, and nobody is let in beside it unnoticed.
// Promise: P1
func TestDeletedKeyIsNoticed(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	a, b := open(t, storeAt(t, server.Addr()), lasting), open(t, storeAt(t, server.Addr()), lasting)
	first := hold(t, a, name)
	server.Do("DEL", name)
	confirm(t, a)
	if st, _ := first.await(t, store.Gone); st.Cause == nil {
		t.Error("it does not say why")
	}
	hold(t, b, name)
}
