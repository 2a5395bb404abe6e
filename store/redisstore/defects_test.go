package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

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
// Promise: P7
func TestStalledServerDelaysAndStrandsNobody(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, courier := storeBy(t, server.Addr())
	se := open(t, st, lasting)
	hold(t, se, newName(t)).leave(t)          // the server has learnt the script
	for _, requests := range []int{1, 2, 3} { // so many are made while the server stands, all but one of them given up
		name := newName(t)
		before, _ := courier.counts()
		server.Pause()
		var s *seat
		joined := make(chan error, 1)
		go func() (err error) {
			defer func() { joined <- err }()
			s, err = tryJoin(t.Context(), se, name, line.Exclusive)
			return err
		}()
		eventually(t, "it asks for the lock", func() bool {
			n, _ := courier.counts()
			return n >= before+requests
		})
		server.Resume()
		if err := <-joined; err != nil {
			t.Fatalf("after %d requests to a server that stood: %v", requests, err)
		}
		s.await(t, store.Admitted)
		s.leave(t)
		if left := keysOf(t, server, name); len(left) > 0 {
			t.Errorf("after %d requests to a server that stood, the release has left %q", requests, left)
		}
	}
}

// D2: with its defaults rueidislock never gets a free lock where a round trip takes 24 ms.
// Promise: P4
func TestFreeLockTakesOneRoundTrip(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	for _, rtt := range []time.Duration{24 * time.Millisecond, 120 * time.Millisecond} {
		proxy := testservers.NewProxy(t, server.Addr())
		st, courier := storeBy(t, proxy.Addr())
		se := open(t, st, lasting)
		hold(t, se, newName(t)).leave(t) // the server has learnt the script
		proxy.Delay(rtt / 2)
		// On a busy machine a request may be made again before it is answered: that is not what this is about.
		least := 2
		for tries := 0; least > 1 && tries < 100; tries++ {
			eventually(t, "only the subscription is under way", func() bool { return st.Calls() == 1 })
			_, before := courier.counts()
			s := hold(t, se, newName(t))
			_, answered := courier.counts()
			least = min(least, answered-before)
			s.leave(t)
		}
		if least != 1 {
			t.Errorf("with a round trip of %v a free lock takes %d requests that are answered", rtt, least)
		}
	}
}

// D3: rueidislock writes ends of leases by the client's clock: with a server ten seconds ahead, two have the lock at once.
// Wherever the server's clock is, a lease lasts as long as it was asked for: no shorter, and not by a day longer.
// Promise: P1
func TestServersClockMayBeAnywhere(t *testing.T) {
	t.Parallel()
	const ttl, short, off = 10 * time.Minute, time.Second, 24 * time.Hour
	server := testservers.StartRedisAhead(t)
	name := newName(t)
	var last uint64
	for _, ahead := range []time.Duration{off, -off, 0} {
		server.SetAhead(ahead)
		begun := time.Now()
		a, b := open(t, storeAt(t, server.Addr()), ttl), open(t, storeAt(t, server.Addr()), lasting)
		rises := func(s *seat) {
			t.Helper()
			st, _, _ := s.standing()
			if st.State != store.Admitted || st.Order <= last {
				t.Errorf("clock %v ahead: %+v after order %d", ahead, st, last)
			}
			last = st.Order
		}
		kept := func(begun time.Time) {
			t.Helper()
			ms, err := server.Do("PTTL", name).AsInt64()
			left := time.Duration(ms) * time.Millisecond
			if err != nil || left > ttl || left < without(ttl, begun)-time.Second {
				t.Errorf("clock %v ahead: the lock is kept for %v more, %v; want %v", ahead, left, err, ttl)
			}
		}
		first := hold(t, a, name)
		kept(begun) // for as long as the session lives that was opened before
		rises(first)
		second := join(t, b, name, line.Exclusive)
		begun = time.Now()
		confirm(t, a, b)
		kept(begun)
		second.waits(t)
		first.leave(t)
		second.await(t, store.Admitted)
		rises(second)
		second.leave(t)

		dead := lateJoin{server, name} // whose process is nowhere
		begun = time.Now()
		if got := dead.send(t, fmt.Sprintf("dead%v.x", ahead), short); got != "in" {
			t.Fatalf("clock %v ahead: the dead holder was told %q", ahead, got)
		}
		third := join(t, b, name, line.Exclusive)
		if _, at := third.await(t, store.Admitted); at.Sub(begun) < short {
			t.Errorf("clock %v ahead: the lock of a dead holder was free after %v, with a TTL of %v", ahead, at.Sub(begun), short)
		}
		rises(third)
		third.leave(t)
	}
}

// D4: redsync and redislock leave the lock behind, for its TTL, if the caller's context ends while they ask for it.
// Promise: P5
func TestCancelledRequestLeavesNoLockBehind(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	proxy := testservers.NewProxy(t, server.Addr())
	st := storeAt(t, proxy.Addr())
	se := open(t, st, lasting)
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
// Promise: P5
func TestRequestThatArrivesAfterItsCancellationIsVoid(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, courier := storeBy(t, server.Addr())
	se := open(t, st, lasting)
	hold(t, se, newName(t)).leave(t) // the server has learnt the script
	// The cancellation, by way of the public door: an enqueue that is carried out and not answered, given up, and cleaned up
	// after.
	ctx, cancel := context.WithCancel(t.Context())
	courier.next("join", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		if err := send(t.Context())[0].Error(); err != nil {
			t.Error(err)
		}
		cancel()
		return failed(ctx, send)
	})
	if _, err := tryJoin(ctx, se, name, line.Exclusive); !errors.Is(err, context.Canceled) {
		t.Fatalf("it was given up, and joining says %v", err)
	}
	script := lateJoin{server, name}
	id := script.voided(t)
	eventually(t, "the entry is taken out", func() bool { return len(keysOf(t, server, name)) == 0 })
	if got := script.send(t, id, lasting); got != "void" {
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

// voided waits until there is an entry that must not come, and returns its id.
func (l lateJoin) voided(t *testing.T) string {
	t.Helper()
	var ids []string
	eventually(t, "it is noted that the entry must not come", func() bool {
		var err error
		if ids, err = l.server.Do("ZRANGE", redisstore.Keys("", l.name)[6], "0", "-1").AsStrSlice(); err != nil {
			t.Fatal(err)
		}
		return len(ids) > 0
	})
	if len(ids) != 1 {
		t.Fatalf("the entries that must not come are %q; want one", ids)
	}
	return ids[0]
}

// send puts the entry in, for a client that nobody has, and returns what the script says to that.
func (l lateJoin) send(t *testing.T, id string, ttl time.Duration) string {
	t.Helper()
	return l.sendFor(t, id, ttl, "nobody", "")
}

// sendFor puts the entry in for a client, whose flag says whether it listens.
func (l lateJoin) sendFor(t *testing.T, id string, ttl time.Duration, client, flag string) string {
	t.Helper()
	keys := redisstore.Keys("", l.name)
	words := append([]string{"EVALSHA", redisstore.ScriptSum, fmt.Sprint(len(keys))}, keys...)
	words = append(words, "join", "PUBLISH", "//wake/", "", l.name, id, fmt.Sprint(ttl.Milliseconds()), "0", client, flag, "{}")
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

// D6: rueidislock waits for ever for a wake-up that was lost. Here none is heard, and the waiter polls: at least once a
// second, as TestNobodyAsksMoreRarelyThanOnceAHeartbeat shows.
// Promise: P7
func TestLostWakeUpsCostOneHeartbeat(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	dropMessages, courier := storeBy(t, server.Addr())
	dropMessages.DropMessages()
	a, b := open(t, storeAt(t, server.Addr()), lasting), open(t, dropMessages, lasting)
	name := newName(t)
	first := hold(t, a, name)
	second := join(t, b, name, line.Exclusive)
	second.waitsOn(t, courier)
	first.leave(t)
	second.await(t, store.Admitted)
	second.leave(t)
}

// D6: the same, with connections that are cut again and again.
// Promise: P1, P7
func TestCutSubscriptionsStrandNobody(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	const clients, turns, cuts = 4, 5, 24 // at least
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var cut atomic.Int64
	var cutter sync.WaitGroup
	cutter.Go(func() {
		for ctx.Err() == nil {
			n, err := server.Do("CLIENT", "KILL", "TYPE", "pubsub").AsInt64()
			if err != nil {
				t.Error(err)
			}
			cut.Add(n)
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
		st.DisablePolling() // so that they ask when they hear again, and at no other time
		se := open(t, st, lasting)
		all.Go(func() {
			for n := 0; n < turns || cut.Load() < cuts; n++ {
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
// Promise: P4
func TestDeadWaitersHoldNobodyUp(t *testing.T) {
	t.Parallel()
	const dead = 50
	server := testservers.StartRedis(t)
	name := newName(t)
	holder := hold(t, open(t, storeAt(t, server.Addr()), lasting), name)

	proxy := testservers.NewProxy(t, server.Addr())
	doomed := storeAt(t, proxy.Addr())
	for _, se := range openMany(t, doomed, dead, lasting) {
		join(t, se, name, line.Exclusive).waits(t)
	}
	live := join(t, open(t, storeAt(t, server.Addr()), lasting), name, line.Exclusive)
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

// D7: if nobody can see that they are dead, their leases end: all of them at a time, not one after the other.
// Promise: P4
func TestSilentWaitersHoldNobodyUpLongerThanTheirLeases(t *testing.T) {
	t.Parallel()
	const dead, ttl = 60, 3 * time.Second // one lease after the other would take longer than we wait here
	server := testservers.StartRedis(t)
	name := newName(t)
	holder := hold(t, open(t, storeAt(t, server.Addr()), lasting), name)
	// A connection that stays, and from which nothing comes.
	silent := direct(t, server)
	ctx, cancel := context.WithCancel(t.Context())
	var listening sync.WaitGroup
	listening.Go(func() {
		_ = silent.Receive(ctx, silent.B().Subscribe().Channel("//wake/silent").Build(), func(rueidis.PubSubMessage) {})
	})
	defer listening.Wait()
	defer cancel()
	eventually(t, "it listens", func() bool {
		n, err := server.Do("PUBSUB", "NUMSUB", "//wake/silent").AsIntMap()
		return err == nil && n["//wake/silent"] == 1
	})
	for i := range dead {
		if got := (lateJoin{server, name}).sendFor(t, fmt.Sprintf("dead%d.x", i), ttl, "silent", "l"); got != "wait" {
			t.Fatalf("a silent waiter was told %q", got)
		}
	}
	live := join(t, open(t, storeAt(t, server.Addr()), lasting), name, line.Exclusive)
	holder.leave(t)
	live.await(t, store.Admitted)
}

// A waiter whose connection is down when its turn comes keeps its place.
// Promise: P2, P3
func TestWaiterThatIsAwayKeepsItsPlace(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	holder := hold(t, open(t, storeAt(t, server.Addr()), lasting), name)
	proxy := testservers.NewProxy(t, server.Addr())
	away := join(t, open(t, storeAt(t, proxy.Addr()), lasting), name, line.Exclusive)
	next := join(t, open(t, storeAt(t, server.Addr()), lasting), name, line.Exclusive)
	last := join(t, open(t, storeAt(t, server.Addr()), lasting), name, line.Exclusive)
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

// A waiter is away while another comes, is let in past it, and leaves. What is remembered of that must not be forgotten though
// nobody holds the lock any more: the order that the waiter has from its arrival is smaller than the other's.
// Promise: P2
func TestWaiterThatIsAwayWhileAnotherComesAndGoesHasALargerOrder(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	listening := func(n int) {
		eventually(t, "the server sees who listens", func() bool {
			channels, err := server.Do("PUBSUB", "CHANNELS", "//wake/*").AsStrSlice()
			return err == nil && len(channels) == n
		})
	}
	holder := hold(t, open(t, storeAt(t, server.Addr()), lasting), name)
	proxy := testservers.NewProxy(t, server.Addr())
	away := join(t, open(t, storeAt(t, proxy.Addr()), lasting), name, line.Exclusive)
	other := open(t, storeAt(t, server.Addr()), lasting)
	listening(3)
	proxy.Refuse()
	proxy.Reset()
	listening(2)
	holder.leave(t)
	passing := join(t, other, name, line.Exclusive)
	before, _ := passing.await(t, store.Admitted)
	passing.leave(t)
	away.waits(t)
	proxy.Accept()
	if after, _ := away.await(t, store.Admitted); after.Order <= before.Order {
		t.Errorf("the order %d was given after %d", after.Order, before.Order)
	}
}

// D8: Redisson's fair lock forgets waiters after five minutes, though they live. Here the server's clock is set forward by
// most of a lease again and again, and they are confirmed each time.
// Promise: P7
func TestWaiterMayWaitForManyLeases(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Minute
	server := testservers.StartRedisAhead(t)
	name := newName(t)
	a, b := open(t, storeAt(t, server.Addr()), ttl), open(t, storeAt(t, server.Addr()), ttl)
	holder := hold(t, a, name)
	waiter := join(t, b, name, line.Exclusive)
	for i := range 8 {
		server.SetAhead(time.Duration(i+1) * ttl * 3 / 4)
		confirm(t, a, b)
		waiter.waits(t)
	}
	holder.leave(t)
	waiter.await(t, store.Admitted)
}

// D9: with rueidislock the lock of a dead holder is free up to 100 ms after its TTL. Here who waits asks at that moment, and
// in this test at no other.
// Promise: P4
func TestLockOfADeadHolderIsFreeAfterItsTTL(t *testing.T) {
	t.Parallel()
	const ttl = 500 * time.Millisecond
	server := testservers.StartRedis(t)
	st := storeAt(t, server.Addr())
	st.DisablePolling()
	b := open(t, st, lasting)
	hold(t, b, newName(t)).leave(t) // the server has learnt the script
	best := time.Hour
	for range 2 {
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
// Promise: P6
func TestHolderIsToldBeforeTheNextIsLetIn(t *testing.T) {
	t.Parallel()
	const ttl = 15 * time.Second // of which a tenth is between the two, for a machine that is busy
	server := testservers.StartRedis(t)
	proxy, name := testservers.NewProxy(t, server.Addr()), newName(t)
	first, err := newClient(t, storeAt(t, proxy.Addr()), ttl).Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var told atomic.Int64
	context.AfterFunc(first.Context(), func() { told.Store(time.Now().UnixNano()) })
	proxy.Hold()
	second, err := newClient(t, storeAt(t, server.Addr()), renewed).Mutex(name).Lock(t.Context())
	now := time.Now().UnixNano()
	if err != nil {
		t.Fatal(err)
	}
	if at := told.Load(); at == 0 || at > now {
		t.Errorf("the next one was let in at %v, and the holder told at %v", time.Unix(0, now), time.Unix(0, at))
	}
	if first.Valid() || first.Token() >= second.Token() {
		t.Errorf("the first is valid: %v; tokens %d and %d", first.Valid(), first.Token(), second.Token())
	}
	proxy.Release()
}

// D11: counters begin again when Redis has lost its data, and holders hear nothing of it.
// Promise: P2
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
			const ttl = 30 * time.Second // it hears of it after a third of that
			server := testservers.StartRedis(t)
			name := newName(t)
			st := storeAt(t, server.Addr())
			first, err := newClient(t, st, ttl).Mutex(name).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c.lose(server)
			wantTold(t, first)
			second, err := newClient(t, storeAt(t, server.Addr()), renewed).Mutex(name).Lock(t.Context())
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
// Promise: P5
func TestUserWithoutChannelsIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, "user mute on >secret ~* resetchannels +@all")
	options := redisstore.ClientOptions(server.Addr())
	options.Username, options.Password = "mute", "secret"
	st := newStore(t, connectWith(t, options), nil)
	_, err := st.Open(t.Context(), store.SessionOptions{TTL: lasting})
	if err == nil || !strings.Contains(err.Error(), "//wake/") || strings.Contains(err.Error(), "secret") ||
		!strings.Contains(err.Error(), "docs/stores.md") {
		t.Errorf("the error must name the channel and what to do, and no password: %v", err)
	}
	if n, err := server.Do("DBSIZE").AsInt64(); err != nil || n != 0 {
		t.Errorf("%d keys were left, %v", n, err)
	}
}

// D15: in Redisson's read-write lock, and in many others, readers that keep coming leave no room for a writer.
// Promise: P3
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
		se := open(t, storeAt(t, server.Addr()), lasting)
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
	se := open(t, storeAt(t, server.Addr()), lasting)
	for range 10 {
		already := passed.Load()
		eventually(t, "there are readers", func() bool { return passed.Load() >= already+flood })
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
	a, b := newClient(t, st, renewed), newClient(t, st, renewed)
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
// Promise: P1
func TestEntryThatIsNotReplicatedIsRefused(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	master, replica := servers[0], servers[1]
	replica.ReplicaOf(master)
	st := newStore(t, connect(t, master.Addr()), &redisstore.Options{WaitReplicas: 1, WaitTimeout: soon})
	se := open(t, st, lasting)
	hold(t, se, newName(t)).leave(t)
	confirm(t, se)
	// What other connections have changed until now the replica has, and the server knows it: their WAIT would succeed.
	master.Do("SET", "other", "change")
	if n, err := master.Do("WAIT", "1", "120000").AsInt64(); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	replica.Pause()
	st.WaitFor(200 * time.Millisecond)
	name := newName(t)
	if _, err := tryJoin(t.Context(), se, name, line.Exclusive); !errors.Is(err, redisstore.ErrNotReplicated) {
		t.Errorf("an entry that the replica does not have: want ErrNotReplicated, got %v", err)
	}
	if err := se.Confirm(t.Context()); !errors.Is(err, redisstore.ErrNotReplicated) {
		t.Errorf("a confirmation that the replica does not have: want ErrNotReplicated, got %v", err)
	}
	eventually(t, "nothing is left of the entry", func() bool { return len(keysOf(t, master, name)) == 0 })
	replica.Resume()
	st.WaitFor(soon)
	eventually(t, "the replica counts again", func() bool { return se.Confirm(t.Context()) == nil })
	hold(t, se, name).leave(t)
}

// D18: rueidislock tells nobody that a release has failed.
// Promise: P5
func TestFailedReleaseIsReportedAndMadeUpFor(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	proxy, name := testservers.NewProxy(t, server.Addr()), newName(t)
	s := hold(t, open(t, storeAt(t, proxy.Addr()), lasting), name)
	next := join(t, open(t, storeAt(t, server.Addr()), lasting), name, line.Exclusive)
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
	options := redisstore.ClientOptions(server.Addr())
	options.Password = password
	cli := connectWith(t, options)
	st := newStore(t, cli, nil)
	se := open(t, st, lasting)
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
