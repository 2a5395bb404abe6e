package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// The tests of this file are about defects that were seen in other locks on Redis, or are documented there: redsync, bsm's
// redislock, rueidislock and Redisson. Each says which and what they do.
//
// Masters that hang (D5) are a matter of store/redlockstore.

// D1: rueidislock waits for ever for a free lock if the server stands still for longer than its retry while it asks.
func TestStalledServerDelaysAndStrandsNobody(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	direct := server.Client(t)
	se := open(t, storeAt(t, server.Addr()), time.Minute)
	for _, stall := range []time.Duration{15 * time.Millisecond, 60 * time.Millisecond, 200 * time.Millisecond, 700 * time.Millisecond} {
		best := time.Hour
		for range 3 {
			var stalled sync.WaitGroup
			stalled.Go(func() {
				seconds := fmt.Sprintf("%.3f", stall.Seconds())
				if err := direct.Do(t.Context(), direct.B().Arbitrary("DEBUG", "SLEEP", seconds).Build()).Error(); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(5 * time.Millisecond)
			start := time.Now()
			s := hold(t, se, newName(t))
			best = min(best, time.Since(start))
			stalled.Wait()
			s.leave(t)
		}
		if best > stall+slack {
			t.Errorf("a server that stood for %v delayed a free lock by %v at best", stall, best)
		}
	}
}

// D2: with its defaults rueidislock never gets a free lock where a round trip takes 24 ms.
func TestFreeLockTakesOneRoundTrip(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	for _, rtt := range []time.Duration{24 * time.Millisecond, 120 * time.Millisecond} {
		proxy := testservers.NewProxy(t, server.Addr())
		st, courier := storeBy(t, proxy.Addr())
		se := open(t, st, time.Minute)
		hold(t, se, newName(t)).leave(t) // the server has learnt the script
		proxy.Delay(rtt / 2)
		best := math.MaxInt
		for range 4 { // on a busy machine a request may be given up, and made again
			courier.commands()
			s := hold(t, se, newName(t))
			best = min(best, len(courier.commands()))
			s.leave(t)
		}
		if best != 1 {
			t.Errorf("with a round trip of %v a free lock took %d requests at best", rtt, best)
		}
	}
}

// D3: rueidislock writes ends of leases by the client's clock: with a server ten seconds ahead, two have the lock at once.
func TestServersClockMayBeAnywhere(t *testing.T) {
	t.Parallel()
	const ttl, off = 2 * time.Second, 20 * time.Second
	server := testservers.StartRedisAhead(t)
	name := newName(t)
	var before uint64
	for _, ahead := range []time.Duration{off, -off, 0} {
		server.SetAhead(ahead)
		a, b := open(t, storeAt(t, server.Addr()), ttl), open(t, storeAt(t, server.Addr()), ttl)
		stop := keep(t, a)
		keep(t, b)
		first := hold(t, a, name)
		second := join(t, b, name, line.Exclusive)
		time.Sleep(ttl * 5 / 4)
		second.waits(t)
		st, _, _ := first.standing()
		if st.State != store.Admitted || st.Order <= before {
			t.Errorf("clock %v ahead: %+v after order %d", ahead, st, before)
		}
		stop()
		died := time.Now()
		if err := a.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		now, at := second.await(t, store.Admitted)
		if after := at.Sub(died); after < ttl-time.Millisecond || after > ttl+off/2 {
			t.Errorf("clock %v ahead: the lock of a dead holder was free after %v, with a TTL of %v", ahead, after, ttl)
		}
		if now.Order <= st.Order {
			t.Errorf("clock %v ahead: order %d follows %d", ahead, now.Order, st.Order)
		}
		second.leave(t)
		before = now.Order
	}
}

// D4: redsync and redislock leave the lock behind, for its TTL, if the caller's context ends while they ask for it.
func TestCancelledRequestLeavesNoLockBehind(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	proxy := testservers.NewProxy(t, server.Addr())
	st := storeAt(t, proxy.Addr())
	se := open(t, st, time.Minute)
	hold(t, se, newName(t)).leave(t)
	proxy.Delay(4 * time.Millisecond)
	failed := 0
	for i := range 30 {
		name := newName(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond/2)
		s, err := tryJoin(ctx, se, name, line.Exclusive)
		cancel()
		if err == nil {
			s.leave(t)
		} else if failed++; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("want an error that says so, got %v", err)
		}
		eventually(t, "no key is left of a lock that was given up", func() bool { return len(keysOf(t, server, name)) == 0 })
	}
	if failed < 10 {
		t.Errorf("only %d of 30 contexts ended too early: the test is not about anything", failed)
	}
}

// D4, the worst of it: the request was given up, everything was cleaned up, and then it arrives.
func TestRequestThatArrivesAfterItsCancellationIsVoid(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	proxy, name := testservers.NewProxy(t, server.Addr()), newName(t)
	se := open(t, storeAt(t, proxy.Addr()), time.Minute)
	script, err := rawJoin(t, server, se, name)
	if err != nil {
		t.Fatal(err)
	}
	// The cancellation, by way of the public door: an enqueue that is lost on its way, given up, and cleaned up after.
	proxy.Hold(testservers.Down)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := tryJoin(ctx, se, name, line.Exclusive); err == nil {
		t.Fatal("it was answered")
	}
	proxy.Release()
	eventually(t, "the entry is taken out", func() bool { return len(keysOf(t, server, name)) == 0 })
	id := script.voided(t)
	if got := script.send(t, id, time.Minute); got != "void" {
		t.Errorf("the request that came late was answered with %q, want void", got)
	}
	if left := keysOf(t, server, name); len(left) > 0 {
		t.Errorf("the request that came late has left %q", left)
	}
}

// lateJoin makes requests by hand.
type lateJoin struct {
	server *testservers.Redis
	name   string
}

func rawJoin(t *testing.T, server *testservers.Redis, se store.Session, name string) (lateJoin, error) {
	t.Helper()
	return lateJoin{server, name}, se.Confirm(t.Context())
}

// voided returns the id of the entry that must not come.
func (l lateJoin) voided(t *testing.T) string {
	t.Helper()
	ids, err := l.server.Do("ZRANGE", redisstore.Keys("", l.name)[6], "0", "-1").AsStrSlice()
	if err != nil || len(ids) != 1 {
		t.Fatalf("the entries that must not come are %q, %v; want one", ids, err)
	}
	return ids[0]
}

// send puts the entry in, and returns what the script says to that.
func (l lateJoin) send(t *testing.T, id string, ttl time.Duration) string {
	t.Helper()
	keys := redisstore.Keys("", l.name)
	words := append([]string{"EVALSHA", redisstore.ScriptSum, fmt.Sprint(len(keys))}, keys...)
	words = append(words, "join", "PUBLISH", "//wake/", "", l.name, id, fmt.Sprint(ttl.Milliseconds()), "0", "nobody", "", "{}")
	reply, err := l.server.Do(words...).ToArray()
	if err != nil || len(reply) == 0 {
		t.Fatal(reply, err)
	}
	said, err := reply[0].ToString()
	if err != nil {
		t.Fatal(err)
	}
	return said
}

// D6: rueidislock waits for ever for a wake-up that was lost.
func TestLostWakeUpsCostOneHeartbeat(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	deaf := storeAt(t, server.Addr())
	deaf.Deafen()
	a, b := open(t, storeAt(t, server.Addr()), time.Minute), open(t, deaf, time.Minute)
	best := time.Hour
	for range 3 {
		name := newName(t)
		first := hold(t, a, name)
		second := join(t, b, name, line.Exclusive)
		time.Sleep(1500 * time.Millisecond) // so that it asks as rarely as it ever does
		server.Do("CONFIG", "RESETSTAT")
		eventually(t, "it asks, and will not for as long as it ever does not", func() bool {
			return commandStats(t, server)["evalsha"] > 0
		})
		start := time.Now()
		first.leave(t)
		_, at := second.await(t, store.Admitted)
		best = min(best, at.Sub(start))
		second.leave(t)
	}
	if best > beat+slack {
		t.Errorf("without a wake-up the next one came in after %v at best", best)
	}
}

// D6: the same, with connections that are cut again and again.
func TestCutSubscriptionsStrandNobody(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	const clients, turns = 4, 60
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var cutter sync.WaitGroup
	cutter.Go(func() {
		for ctx.Err() == nil {
			server.Do("CLIENT", "KILL", "TYPE", "pubsub")
			select {
			case <-ctx.Done():
			case <-time.After(40 * time.Millisecond):
			}
		}
	})
	var inside atomic.Int32
	var all sync.WaitGroup
	for range clients {
		st := storeAt(t, server.Addr())
		st.Mute() // so that they ask when they hear again, and at no other time
		se := open(t, st, time.Minute)
		all.Go(func() {
			for range turns {
				s := hold(t, se, name)
				if inside.Add(1) > 1 {
					t.Error("two hold the lock")
				}
				time.Sleep(time.Millisecond)
				inside.Add(-1)
				s.leave(t)
			}
		})
	}
	all.Wait()
	cancel()
	cutter.Wait()
}

// D7: in Redisson's fair lock each dead waiter may hold up the others for five minutes.
func TestDeadWaitersHoldNobodyUp(t *testing.T) {
	t.Parallel()
	const dead = 100
	server := testservers.StartRedis(t)
	name := newName(t)
	holder := hold(t, open(t, storeAt(t, server.Addr()), time.Minute), name)

	proxy := testservers.NewProxy(t, server.Addr())
	doomed := storeAt(t, proxy.Addr())
	for _, se := range openMany(t, doomed, dead, time.Minute) {
		join(t, se, name, line.Exclusive).waits(t)
	}
	live := join(t, open(t, storeAt(t, server.Addr()), time.Minute), name, line.Exclusive)
	live.waits(t)
	// As if the process had been killed: nothing more comes from it, and its connections are closed.
	proxy.Refuse()
	proxy.Reset()
	eventually(t, "the server sees that they are gone", func() bool {
		n, err := server.Do("PUBSUB", "CHANNELS", "//wake/*").AsStrSlice()
		return err == nil && len(n) == 2
	})
	start := time.Now()
	holder.leave(t)
	_, at := live.await(t, store.Admitted) // the lease of any of them would take longer than we wait here
	t.Logf("%d dead waiters cost %v", dead, at.Sub(start))
}

// D7: if nobody can see that they are dead, their leases end.
func TestSilentWaitersHoldNobodyUpLongerThanTheirLeases(t *testing.T) {
	t.Parallel()
	const dead, ttl = 20, 4 * time.Second
	server := testservers.StartRedis(t)
	name := newName(t)
	holder := hold(t, open(t, storeAt(t, server.Addr()), time.Minute), name)
	proxy := testservers.NewProxy(t, server.Addr())
	doomed := storeAt(t, proxy.Addr())
	for _, se := range openMany(t, doomed, dead, ttl) {
		join(t, se, name, line.Exclusive).waits(t)
	}
	live := join(t, open(t, storeAt(t, server.Addr()), time.Minute), name, line.Exclusive)
	proxy.Hold() // the connections stay, and nothing comes through
	holder.leave(t)
	live.await(t, store.Admitted) // one lease after the other would take longer than we wait here
}

// A waiter whose connection is down when its turn comes keeps its place.
func TestWaiterThatIsAwayKeepsItsPlace(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	holder := hold(t, open(t, storeAt(t, server.Addr()), time.Minute), name)
	proxy := testservers.NewProxy(t, server.Addr())
	away := join(t, open(t, storeAt(t, proxy.Addr()), time.Minute), name, line.Exclusive)
	next := join(t, open(t, storeAt(t, server.Addr()), time.Minute), name, line.Exclusive)
	last := join(t, open(t, storeAt(t, server.Addr()), time.Minute), name, line.Exclusive)
	proxy.Refuse()
	proxy.Reset()
	eventually(t, "the server sees that it is gone", func() bool {
		n, err := server.Do("PUBSUB", "CHANNELS", "//wake/*").AsStrSlice()
		return err == nil && len(n) == 3
	})
	holder.leave(t)
	first, _ := next.await(t, store.Admitted)
	proxy.Accept()
	eventually(t, "it is back", func() bool {
		n, err := server.Do("PUBSUB", "CHANNELS", "//wake/*").AsStrSlice()
		return err == nil && len(n) == 4
	})
	next.leave(t)
	second, _ := away.await(t, store.Admitted)
	last.waits(t)
	away.leave(t)
	third, _ := last.await(t, store.Admitted)
	if first.Order >= second.Order || second.Order >= third.Order {
		t.Errorf("the orders are %d, %d, %d: they must rise", first.Order, second.Order, third.Order)
	}
}

// D8: Redisson's fair lock forgets waiters after five minutes, though they live.
func TestWaiterMayWaitForManyLeases(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	server := testservers.StartRedis(t)
	name := newName(t)
	a, b := open(t, storeAt(t, server.Addr()), ttl), open(t, storeAt(t, server.Addr()), ttl)
	keep(t, a)
	keep(t, b)
	holder := hold(t, a, name)
	waiter := join(t, b, name, line.Exclusive)
	time.Sleep(4 * ttl)
	waiter.waits(t)
	holder.leave(t)
	waiter.await(t, store.Admitted)
}

// D9: with rueidislock the lock of a dead holder is free up to 100 ms after its TTL. Here who waits asks at that moment, and
// in this test at no other.
func TestLockOfADeadHolderIsFreeAfterItsTTL(t *testing.T) {
	t.Parallel()
	const ttl = 500 * time.Millisecond
	server := testservers.StartRedis(t)
	st := storeAt(t, server.Addr())
	st.Mute()
	b := open(t, st, time.Minute)
	hold(t, b, newName(t)).leave(t) // the server has learnt the script
	best := time.Hour
	for range 5 {
		dead := lateJoin{server, newName(t)} // whose process is nowhere
		begun := time.Now()
		if got := dead.send(t, "dead.x", ttl); got != "in" {
			t.Fatalf("the dead holder was told %q", got)
		}
		_, at := join(t, b, dead.name, line.Exclusive).await(t, store.Admitted)
		if at.Sub(begun) < ttl {
			t.Errorf("the lock was free %v after it was taken, with a TTL of %v", at.Sub(begun), ttl)
		}
		best = min(best, at.Sub(begun)-ttl)
	}
	t.Logf("beyond the TTL: %v at best", best)
}

// D10: most locks tell nobody that the lock was lost while its process stood still. Here the client is cut off: to it that
// is the same.
func TestHolderIsToldBeforeTheNextIsLetIn(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	server := testservers.StartRedis(t)
	proxy, name := testservers.NewProxy(t, server.Addr()), newName(t)
	first, err := newClient(t, storeAt(t, proxy.Addr()), ttl).Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var told atomic.Int64
	context.AfterFunc(first.Context(), func() { told.Store(time.Now().UnixNano()) })
	proxy.Hold()
	second, err := newClient(t, storeAt(t, server.Addr()), ttl).Mutex(name).Lock(t.Context())
	now := time.Now().UnixNano()
	if err != nil {
		t.Fatal(err)
	}
	if at := told.Load(); at == 0 || at > now {
		t.Errorf("the next one was let in before the holder was told")
	}
	if first.Valid() || first.Token() >= second.Token() {
		t.Errorf("the first is valid: %v; tokens %d and %d", first.Valid(), first.Token(), second.Token())
	}
	proxy.Release()
}

// D11: counters begin again when Redis has lost its data, and holders hear nothing of it.
func TestHolderIsToldOfLostDataAndTokensStillRise(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		how  string
		lose func(*testservers.Redis)
	}{
		{"restarted empty", func(r *testservers.Redis) { r.Restart() }},
		{"flushed", func(r *testservers.Redis) { r.Do("FLUSHALL") }},
	} {
		t.Run(c.how, func(t *testing.T) {
			t.Parallel()
			const ttl = 6 * time.Second
			server := testservers.StartRedis(t)
			name := newName(t)
			st := storeAt(t, server.Addr())
			first, err := newClient(t, st, ttl).Mutex(name).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c.lose(server)
			wantTold(t, first)
			second, err := newClient(t, storeAt(t, server.Addr()), ttl).Mutex(name).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if second.Token() <= first.Token() {
				t.Errorf("token %d follows %d", second.Token(), first.Token())
			}
		})
	}
}

// wantTold waits until a holder is told that its hold is lost, by the server and not by its own clock.
func wantTold(t *testing.T, h *stile.Hold) {
	t.Helper()
	select {
	case <-h.Lost():
	case <-time.After(soon):
		t.Fatal("the holder was not told")
	}
	if lost, ok := errors.AsType[*stile.LostError](h.Err()); !ok || lost.Reason == stile.LostDeadline {
		t.Errorf("nobody but its own clock told the holder: %v", h.Err())
	}
}

// D13: who may not use the channels has the script stopped in its middle, after the lock was taken.
func TestUserWithoutChannelsIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, "user mute on >secret ~* resetchannels +@all")
	options := redisstore.Ready(server.Addr())
	options.Username, options.Password = "mute", "secret"
	st := newStore(t, connectWith(t, options), nil)
	_, err := st.Open(t.Context(), store.SessionOptions{TTL: time.Minute})
	if err == nil || !strings.Contains(err.Error(), "//wake/") || strings.Contains(err.Error(), "secret") ||
		!strings.Contains(err.Error(), "docs/stores.md") {
		t.Errorf("the error must name the channel and what to do, and no password: %v", err)
	}
	if n, err := server.Do("DBSIZE").AsInt64(); err != nil || n != 0 {
		t.Errorf("%d keys were left, %v", n, err)
	}
}

// D15: in Redisson's read-write lock, and in many others, readers that keep coming leave no room for a writer.
func TestFloodOfReadersLeavesRoomForAWriter(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var readers sync.WaitGroup
	const flood = 6
	var passed atomic.Int32
	for range flood {
		se := open(t, storeAt(t, server.Addr()), time.Minute)
		readers.Go(func() {
			for ctx.Err() == nil {
				s := join(t, se, name, line.Shared)
				s.await(t, store.Admitted)
				passed.Add(1)
				time.Sleep(5 * time.Millisecond)
				s.leave(t)
			}
		})
	}
	se := open(t, storeAt(t, server.Addr()), time.Minute)
	for range 10 {
		s := join(t, se, name, line.Exclusive)
		before := passed.Load()
		s.await(t, store.Admitted)
		if n := passed.Load() - before; n > flood { // each reader that was there may hear of it late
			t.Errorf("while the writer waited readers were let in %d times", n)
		}
		s.leave(t)
	}
	cancel()
	readers.Wait()
}

// D16: goroutines that go on when the client is closed.
func TestNothingGoesOnAfterClose(t *testing.T) { // not parallel: it looks at all goroutines
	server := testservers.StartRedis(t)
	st := storeAt(t, server.Addr())
	a, b := newClient(t, st, time.Minute), newClient(t, st, time.Minute)
	first, err := a.Mutex("x").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	place, err := b.Mutex("x").Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = first.Contended()
	if err := first.Release(t.Context()); err != nil {
		t.Error(err)
	}
	<-place.Ready()
	if err := errors.Join(a.Close(t.Context()), b.Close(t.Context())); err != nil {
		t.Error(err)
	}
	eventually(t, "no goroutine of the store's is left", func() bool {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		return !strings.Contains(string(stacks), "redisstore.(*")
	})
}

// D17: WAIT on a client that shares connections tells of the changes of others.
func TestEntryThatIsNotReplicatedIsRefused(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	master, replica := servers[0], servers[1]
	replica.ReplicaOf(master)
	st := newStore(t, connect(t, master.Addr()), &redisstore.Options{WaitReplicas: 1, WaitTimeout: 200 * time.Millisecond})
	se := open(t, st, time.Minute)
	hold(t, se, newName(t)).leave(t)
	if err := se.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	// What other connections have changed until now the replica has, and the server knows it: their WAIT would succeed.
	master.Do("PING")
	if n, err := master.Do("WAIT", "1", "5000").AsInt64(); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	replica.Pause()
	name := newName(t)
	if _, err := tryJoin(t.Context(), se, name, line.Exclusive); !errors.Is(err, redisstore.ErrNotReplicated) {
		t.Errorf("an entry that the replica does not have: want ErrNotReplicated, got %v", err)
	}
	if err := se.Confirm(t.Context()); !errors.Is(err, redisstore.ErrNotReplicated) {
		t.Errorf("a confirmation that the replica does not have: want ErrNotReplicated, got %v", err)
	}
	eventually(t, "nothing is left of the entry", func() bool { return len(keysOf(t, master, name)) == 0 })
	replica.Resume()
	eventually(t, "the replica counts again", func() bool { return se.Confirm(t.Context()) == nil })
	hold(t, se, name).leave(t)
}

// D18: rueidislock tells nobody that a release has failed.
func TestFailedReleaseIsReportedAndMadeUpFor(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	proxy, name := testservers.NewProxy(t, server.Addr()), newName(t)
	s := hold(t, open(t, storeAt(t, proxy.Addr()), time.Minute), name)
	next := join(t, open(t, storeAt(t, server.Addr()), time.Minute), name, line.Exclusive)
	proxy.Hold()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Withdraw(ctx); err == nil || errors.Is(err, store.ErrGone) {
		t.Errorf("a release that cannot have been carried out returned %v", err)
	}
	next.waits(t)
	proxy.Reset()
	proxy.Release()
	next.await(t, store.Admitted)
}

// A password never comes up in an error.
func TestPasswordIsNotShown(t *testing.T) {
	t.Parallel()
	const password = "v3ry-s3cret"
	server := testservers.StartRedis(t, "requirepass "+password)
	options := redisstore.Ready(server.Addr())
	options.Password = password
	cli := connectWith(t, options)
	st := newStore(t, cli, nil)
	se := open(t, st, time.Minute)
	hold(t, se, newName(t))
	server.Do("CONFIG", "SET", "requirepass", "another")
	server.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := tryJoin(ctx, se, newName(t), line.Exclusive)
	for _, err := range []error{err, se.Confirm(ctx)} {
		if err == nil || strings.Contains(err.Error(), password) {
			t.Errorf("want an error without the password, got %v", err)
		}
	}
}
