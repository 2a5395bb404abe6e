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

// The tests in this file check for defects that are known in other Redis locks: redsync, bsm's
// redislock, rueidislock and Redisson. Each comment names the lock and its defect.
//
// Masters that hang (D5) are tested in store/redlockstore.

// D1: rueidislock never gets a free lock if the server hangs for longer than the retry interval
// during a request.
// Promise: P7
func TestEnqueue_hungServerOnlyDelays(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, interceptor := interceptedStore(t, server.Addr())
	se := open(t, st, longTTL)
	hold(t, se, newName(t)).leave(t)          // loads the script
	for _, requests := range []int{1, 2, 3} { // requests while the server hangs; all but one are abandoned
		name := newName(t)
		before, _ := interceptor.counts()
		server.Pause()
		var s *testEntry
		joined := make(chan error, 1)
		go func() (err error) {
			defer func() { joined <- err }()
			s, err = tryJoin(t.Context(), se, name, line.Exclusive)
			return err
		}()
		eventually(t, "the requests are sent", func() bool {
			n, _ := interceptor.counts()
			return n >= before+requests
		})
		server.Resume()
		if err := <-joined; err != nil {
			t.Fatalf("after %d requests to a hung server: %v", requests, err)
		}
		s.await(t, store.Admitted)
		s.leave(t)
		if left := keysOf(t, server, name); len(left) > 0 {
			t.Errorf("after %d requests to a hung server: the release left keys %q", requests, left)
		}
	}
}

// D2: with its defaults rueidislock never gets a free lock if a round trip takes 24ms.
// Promise: P4
func TestEnqueue_freeLockTakesOneRoundTrip(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	for _, rtt := range []time.Duration{24 * time.Millisecond, 120 * time.Millisecond} {
		proxy := testservers.NewProxy(t, server.Addr())
		st, interceptor := interceptedStore(t, proxy.Addr())
		se := open(t, st, longTTL)
		hold(t, se, newName(t)).leave(t) // loads the script
		proxy.Delay(rtt / 2)
		// On a busy machine a request may be repeated before it is answered, so the minimum of
		// several tries counts.
		least := 2
		for tries := 0; least > 1 && tries < 100; tries++ {
			eventually(t, "only the subscription is running", func() bool { return st.Calls() == 1 })
			_, before := interceptor.counts()
			s := hold(t, se, newName(t))
			_, answered := interceptor.counts()
			least = min(least, answered-before)
			s.leave(t)
		}
		if least != 1 {
			t.Errorf("round trip %v: a free lock took %d answered requests, want 1", rtt, least)
		}
	}
}

// D3: rueidislock computes the end of a lease by the client's clock: if the server's is ten seconds
// ahead, two clients hold the lock at once. Wherever the server's clock is, a lease must last as
// long as requested: no shorter, and at most a day longer.
// Promise: P1
// Bug: RedissonPermitExpirableSemaphore
func TestLease_anyServerClock(t *testing.T) {
	t.Parallel()
	const ttl, short, off = 10 * time.Minute, time.Second, 24 * time.Hour
	server := testservers.StartRedisWithClock(t)
	name := newName(t)
	var last uint64
	for _, ahead := range []time.Duration{off, -off, 0} {
		server.SetClockAhead(ahead)
		begun := time.Now()
		a, b := open(t, storeAt(t, server.Addr()), ttl), open(t, storeAt(t, server.Addr()), longTTL)
		checkRises := func(s *testEntry) {
			t.Helper()
			st, _, _ := s.standing()
			if st.State != store.Admitted || st.Order <= last {
				t.Errorf("clock %v ahead: got %+v after order %d", ahead, st, last)
			}
			last = st.Order
		}
		checkTTL := func(begun time.Time) {
			t.Helper()
			ms, err := server.Do("PTTL", name).AsInt64()
			left := time.Duration(ms) * time.Millisecond
			if err != nil || left > ttl || left < timeLeft(ttl, begun)-time.Second {
				t.Errorf("clock %v ahead: got PTTL %v, %v; want %v", ahead, left, err, ttl)
			}
		}
		first := hold(t, a, name)
		checkTTL(begun) // as long as the session, which was opened before
		checkRises(first)
		second := join(t, b, name, line.Exclusive)
		begun = time.Now()
		confirm(t, a, b)
		checkTTL(begun)
		second.checkWaits(t)
		first.leave(t)
		second.await(t, store.Admitted)
		checkRises(second)
		second.leave(t)

		dead := rawClient{server, name} // a holder without a process
		begun = time.Now()
		if got := dead.send(t, fmt.Sprintf("dead%v.x", ahead), short); got != "in" {
			t.Fatalf("clock %v ahead: dead holder: got %q, want in", ahead, got)
		}
		third := join(t, b, name, line.Exclusive)
		if _, at := third.await(t, store.Admitted); at.Sub(begun) < short {
			t.Errorf("clock %v ahead: the dead holder's lock was free after %v, TTL %v", ahead, at.Sub(begun), short)
		}
		checkRises(third)
		third.leave(t)
	}
}

// D4: redsync and redislock leave the lock behind, for its TTL, if the caller's context ends during
// the request.
// Promise: P5
// Bug: CURATOR-462
func TestEnqueue_canceledLeavesNoKeys(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	proxy := testservers.NewProxy(t, server.Addr())
	st := storeAt(t, proxy.Addr())
	se := open(t, st, longTTL)
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
			t.Errorf("got %v, want DeadlineExceeded", err)
		}
		eventually(t, "no key of the abandoned lock is left", func() bool { return len(keysOf(t, server, name)) == 0 })
	}
	if failed < 10 {
		t.Errorf("only %d of 30 contexts ended early; the test needs at least 10", failed)
	}
}

// D4, worst case: the request was abandoned, everything was cleaned up, and then it arrives.
// Promise: P5
// Bug: CURATOR-498
func TestEnqueue_lateRequestAfterCancelIsVoid(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, interceptor := interceptedStore(t, server.Addr())
	se := open(t, st, longTTL)
	hold(t, se, newName(t)).leave(t) // loads the script
	// Enqueue sends a request that is carried out but not answered; the caller gives up, and the
	// store cleans up.
	ctx, cancel := context.WithCancel(t.Context())
	interceptor.next("join", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		if err := send(t.Context())[0].Error(); err != nil {
			t.Error(err)
		}
		cancel()
		return failRequest(ctx, send)
	})
	if _, err := tryJoin(ctx, se, name, line.Exclusive); !errors.Is(err, context.Canceled) {
		t.Fatalf("join: got %v, want Canceled", err)
	}
	script := rawClient{server, name}
	id := script.voided(t)
	eventually(t, "the entry is removed", func() bool { return len(keysOf(t, server, name)) == 0 })
	if got := script.send(t, id, longTTL); got != "void" {
		t.Errorf("late request: got %q, want void", got)
	}
	if left := keysOf(t, server, name); len(left) > 0 {
		t.Errorf("the late request left keys %q", left)
	}
}

// rawClient sends requests without a store.
type rawClient struct {
	server *testservers.Redis
	name   string
}

// voided waits until an entry is voided, and returns its id.
func (l rawClient) voided(t *testing.T) string {
	t.Helper()
	var ids []string
	eventually(t, "the entry is voided", func() bool {
		var err error
		if ids, err = l.server.Do("ZRANGE", redisstore.Keys("", l.name)[6], "0", "-1").AsStrSlice(); err != nil {
			t.Fatal(err)
		}
		return len(ids) > 0
	})
	if len(ids) != 1 {
		t.Fatalf("got void entries %q, want one", ids)
	}
	return ids[0]
}

// send puts an entry in, for a client without a process, and returns the script's reply.
func (l rawClient) send(t *testing.T, id string, ttl time.Duration) string {
	t.Helper()
	return l.sendFor(t, id, ttl, "nobody", "")
}

// sendFor puts an entry in for a client, with a flag that says whether it has subscribed.
func (l rawClient) sendFor(t *testing.T, id string, ttl time.Duration, client, flag string) string {
	t.Helper()
	keys := redisstore.Keys("", l.name)
	words := append([]string{"EVALSHA", redisstore.ScriptSum, fmt.Sprint(len(keys))}, keys...)
	words = append(words, "join", "PUBLISH", "//wake/", "", l.name, id, fmt.Sprint(ttl.Milliseconds()), "0", client, flag, "{}")
	reply, err := l.server.Do(words...).ToArray()
	if err != nil || len(reply) == 0 {
		t.Fatal(reply, err)
	}
	code, err := reply[0].ToString()
	if err != nil {
		t.Fatal(err)
	}
	return code
}

// D6: rueidislock waits forever if a wake-up is lost. Here all are lost and the waiter polls, at
// least once a second: see TestPollInterval_bounds.
// Promise: P7
// Bug: redisson #3891
func TestPolling_replacesLostMessages(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	noMessages, interceptor := interceptedStore(t, server.Addr())
	noMessages.DropMessages()
	a, b := open(t, storeAt(t, server.Addr()), longTTL), open(t, noMessages, longTTL)
	for _, modes := range [][2]line.Mode{
		{line.Exclusive, line.Exclusive}, {line.Exclusive, line.Shared}, {line.Shared, line.Exclusive}, {line.Slot(1), line.Slot(1)},
	} {
		name := newName(t)
		first := join(t, a, name, modes[0])
		first.await(t, store.Admitted)
		second := join(t, b, name, modes[1])
		second.checkStillWaits(t, interceptor)
		first.leave(t)
		second.await(t, store.Admitted)
		second.leave(t)
	}
}

// D6: the same, with connections that are cut repeatedly.
// Promise: P1, P7
// Bug: etcd #16223
func TestSubscriber_cutRepeatedly(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	const clients, turns, cuts = 4, 5, 24 // minimum numbers
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var cutConnection atomic.Int64
	var cutter sync.WaitGroup
	cutter.Go(func() {
		for ctx.Err() == nil {
			n, err := server.Do("CLIENT", "KILL", "TYPE", "pubsub").AsInt64()
			if err != nil {
				t.Error(err)
			}
			cutConnection.Add(n)
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
		st.DisablePolling() // so that they poll only after they have subscribed again
		se := open(t, st, longTTL)
		all.Go(func() {
			for n := 0; n < turns || cutConnection.Load() < cuts; n++ {
				s := hold(t, se, name)
				if inside.Add(1) > 1 {
					t.Error("two clients hold the lock")
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

// D7: in Redisson's fair lock each dead waiter may delay the others by five minutes.
// Promise: P4
func TestLine_deadWaitersAreSkipped(t *testing.T) {
	t.Parallel()
	const dead = 50
	server := testservers.StartRedis(t)
	name := newName(t)
	holder := hold(t, open(t, storeAt(t, server.Addr()), longTTL), name)

	proxy := testservers.NewProxy(t, server.Addr())
	doomed := storeAt(t, proxy.Addr())
	for _, se := range openMany(t, doomed, dead, longTTL) {
		join(t, se, name, line.Exclusive).checkWaits(t)
	}
	live := join(t, open(t, storeAt(t, server.Addr()), longTTL), name, line.Exclusive)
	live.checkWaits(t)
	// As if the process had been killed: its connections are closed and it sends nothing.
	proxy.Refuse()
	proxy.Reset()
	eventually(t, "the server has closed their connections", func() bool {
		n, err := server.Do("PUBSUB", "CHANNELS", "//wake/*").AsStrSlice()
		return err == nil && len(n) == 2
	})
	start := time.Now()
	holder.leave(t)
	_, at := live.await(t, store.Admitted) // the lease of any dead waiter would take longer than testTimeout
	t.Logf("%d dead waiters cost %v", dead, at.Sub(start))
}

// D7: if the server cannot see that waiters are dead, their leases end all at the same time, not
// one after the other.
// Promise: P4
func TestLine_silentWaitersExpireTogether(t *testing.T) {
	t.Parallel()
	const dead, ttl = 60, 3 * time.Second // one lease after the other would take longer than testTimeout
	server := testservers.StartRedis(t)
	name := newName(t)
	holder := hold(t, open(t, storeAt(t, server.Addr()), longTTL), name)
	// An open connection on which nothing is received.
	silent := adminClient(t, server)
	ctx, cancel := context.WithCancel(t.Context())
	var listening sync.WaitGroup
	listening.Go(func() {
		_ = silent.Receive(ctx, silent.B().Subscribe().Channel("//wake/silent").Build(), func(rueidis.PubSubMessage) {})
	})
	defer listening.Wait()
	defer cancel()
	eventually(t, "the subscription exists", func() bool {
		n, err := server.Do("PUBSUB", "NUMSUB", "//wake/silent").AsIntMap()
		return err == nil && n["//wake/silent"] == 1
	})
	for i := range dead {
		if got := (rawClient{server, name}).sendFor(t, fmt.Sprintf("dead%d.x", i), ttl, "silent", "l"); got != "wait" {
			t.Fatalf("silent waiter: got %q, want wait", got)
		}
	}
	live := join(t, open(t, storeAt(t, server.Addr()), longTTL), name, line.Exclusive)
	holder.leave(t)
	live.await(t, store.Admitted)
}

// A waiter whose connection is down when it could be admitted keeps its place.
// Promise: P2, P3
func TestLine_disconnectedWaiterKeepsItsPlace(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	holder := hold(t, open(t, storeAt(t, server.Addr()), longTTL), name)
	proxy := testservers.NewProxy(t, server.Addr())
	away := join(t, open(t, storeAt(t, proxy.Addr()), longTTL), name, line.Exclusive)
	next := join(t, open(t, storeAt(t, server.Addr()), longTTL), name, line.Exclusive)
	last := join(t, open(t, storeAt(t, server.Addr()), longTTL), name, line.Exclusive)
	proxy.Refuse()
	proxy.Reset()
	eventually(t, "the server has closed its connection", func() bool {
		n, err := server.Do("PUBSUB", "CHANNELS", "//wake/*").AsStrSlice()
		return err == nil && len(n) == 3
	})
	holder.leave(t)
	first, _ := next.await(t, store.Admitted)
	proxy.Accept()
	eventually(t, "it has subscribed again", func() bool {
		n, err := server.Do("PUBSUB", "CHANNELS", "//wake/*").AsStrSlice()
		return err == nil && len(n) == 4
	})
	next.leave(t)
	second, _ := away.await(t, store.Admitted)
	last.checkWaits(t)
	away.leave(t)
	third, _ := last.await(t, store.Admitted)
	if first.Order >= second.Order || second.Order >= third.Order {
		t.Errorf("got orders %d, %d, %d; want rising ones", first.Order, second.Order, third.Order)
	}
}

// While a waiter is disconnected, another entry joins, is admitted past it, and leaves. That order
// must be remembered although the lock is free again: the waiter's order from its arrival is
// smaller.
// Promise: P2
func TestOrder_disconnectedWaiterGetsLargerOrder(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	subscriptions := func(n int) {
		eventually(t, "the expected subscriptions exist", func() bool {
			channels, err := server.Do("PUBSUB", "CHANNELS", "//wake/*").AsStrSlice()
			return err == nil && len(channels) == n
		})
	}
	holder := hold(t, open(t, storeAt(t, server.Addr()), longTTL), name)
	proxy := testservers.NewProxy(t, server.Addr())
	away := join(t, open(t, storeAt(t, proxy.Addr()), longTTL), name, line.Exclusive)
	other := open(t, storeAt(t, server.Addr()), longTTL)
	subscriptions(3)
	proxy.Refuse()
	proxy.Reset()
	subscriptions(2)
	holder.leave(t)
	passing := join(t, other, name, line.Exclusive)
	before, _ := passing.await(t, store.Admitted)
	passing.leave(t)
	away.checkWaits(t)
	proxy.Accept()
	if after, _ := away.await(t, store.Admitted); after.Order <= before.Order {
		t.Errorf("got order %d after %d", after.Order, before.Order)
	}
}

// D8: Redisson's fair lock forgets waiters after five minutes, though they are alive. Here the
// server's clock is set forward by most of a lease repeatedly, and the waiters are confirmed each
// time.
// Promise: P7
func TestConfirm_waiterOutlastsManyLeases(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Minute
	server := testservers.StartRedisWithClock(t)
	name := newName(t)
	a, b := open(t, storeAt(t, server.Addr()), ttl), open(t, storeAt(t, server.Addr()), ttl)
	holder := hold(t, a, name)
	waiter := join(t, b, name, line.Exclusive)
	for i := range 8 {
		server.SetClockAhead(time.Duration(i+1) * ttl * 3 / 4)
		confirm(t, a, b)
		waiter.checkWaits(t)
	}
	holder.leave(t)
	waiter.await(t, store.Admitted)
}

// D9: with rueidislock the lock of a dead holder is free up to 100ms after its TTL. Here the waiter
// polls when the lease ends, and in this test only then.
// Promise: P4
// Bug: rustfs #5939
func TestLease_deadHoldersLockIsFreeAfterTTL(t *testing.T) {
	t.Parallel()
	const ttl = 500 * time.Millisecond
	server := testservers.StartRedis(t)
	st := storeAt(t, server.Addr())
	st.DisablePolling()
	b := open(t, st, longTTL)
	hold(t, b, newName(t)).leave(t) // loads the script
	best := time.Hour
	for range 2 {
		dead := rawClient{server, newName(t)} // a holder without a process
		begun := time.Now()
		if got := dead.send(t, "dead.x", ttl); got != "in" {
			t.Fatalf("dead holder: got %q, want in", got)
		}
		_, at := join(t, b, dead.name, line.Exclusive).await(t, store.Admitted)
		if at.Sub(begun) < ttl {
			t.Errorf("the lock was free after %v, TTL %v", at.Sub(begun), ttl)
		}
		best = min(best, at.Sub(begun)-ttl)
	}
	t.Logf("beyond the TTL: %v at best", best)
}

// D10: most locks do not notify the holder that the lock was lost while its process was suspended.
// Here the holder is disconnected, which has the same effect.
// Promise: P6
func TestHold_lostBeforeNextIsAdmitted(t *testing.T) {
	t.Parallel()
	const ttl = 40 * time.Second // the margin, a tenth, allows for a busy machine
	server := testservers.StartRedis(t)
	proxy, name := testservers.NewProxy(t, server.Addr()), newName(t)
	first, err := newClient(t, storeAt(t, proxy.Addr()), ttl).Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var lostAt atomic.Int64
	context.AfterFunc(first.Context(), func() { lostAt.Store(time.Now().UnixNano()) })
	proxy.Hold()
	second, err := newClient(t, storeAt(t, server.Addr()), clientTTL).Mutex(name).Lock(t.Context())
	now := time.Now().UnixNano()
	if err != nil {
		t.Fatal(err)
	}
	if at := lostAt.Load(); at == 0 || at > now {
		t.Errorf("the next was admitted at %v, the holder notified at %v", time.Unix(0, now), time.Unix(0, at))
	}
	if first.Valid() || first.Token() >= second.Token() {
		t.Errorf("first hold valid: %v; tokens %d and %d, want false and rising tokens", first.Valid(), first.Token(), second.Token())
	}
	proxy.Release()
}

// D11: counters restart when Redis has lost its data, and holders are not notified.
// Promise: P2
func TestHold_lostWithServersData(t *testing.T) {
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
			const ttl = time.Minute // a third of that is the time until the next confirmation
			server := testservers.StartRedis(t)
			name := newName(t)
			st := storeAt(t, server.Addr())
			first, err := newClient(t, st, ttl).Mutex(name).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c.lose(server)
			wantLost(t, first)
			second, err := newClient(t, storeAt(t, server.Addr()), clientTTL).Mutex(name).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if second.Token() <= first.Token() {
				t.Errorf("got token %d after %d", second.Token(), first.Token())
			}
		})
	}
}

// wantLost waits until a hold is lost because of the server and not because of the client's own
// clock.
func wantLost(t *testing.T, h *stile.Hold) {
	t.Helper()
	select {
	case <-h.Lost():
	case <-time.After(testTimeout):
		t.Fatal("the holder was not notified")
	}
	if lost, ok := errors.AsType[*stile.LostError](h.Err()); !ok || lost.Reason == stile.LostDeadline {
		t.Errorf("got %v, want a loss reported by the server", h.Err())
	}
}

// D13: if the user lacks permission for the channels, the script is aborted halfway, after the lock
// was taken.
// Promise: P5
func TestOpen_userWithoutChannels(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, "user mute on >secret ~* resetchannels +@all")
	options := redisstore.ClientOptions(server.Addr())
	options.Username, options.Password = "mute", "secret"
	st := newStore(t, connectWith(t, options), nil)
	_, err := st.Open(t.Context(), store.SessionOptions{TTL: longTTL})
	if err == nil || !strings.Contains(err.Error(), "//wake/") || strings.Contains(err.Error(), "secret") ||
		!strings.Contains(err.Error(), "docs/stores.md") {
		t.Errorf("got %v, want an error with the channel and the page, without the password", err)
	}
	if n, err := server.Do("DBSIZE").AsInt64(); err != nil || n != 0 {
		t.Errorf("got %d keys, %v; want none", n, err)
	}
}

// D15: in Redisson's read-write lock, and in many others, a stream of readers starves a writer.
// Promise: P3
// Bug: redisson #5379
func TestShared_readersDoNotStarveWriter(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var readers sync.WaitGroup
	const flood = 6
	var passed atomic.Int32
	for range flood {
		se := open(t, storeAt(t, server.Addr()), longTTL)
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
	se := open(t, storeAt(t, server.Addr()), longTTL)
	for range 10 {
		already := passed.Load()
		eventually(t, "readers are admitted", func() bool { return passed.Load() >= already+flood })
		s := join(t, se, name, line.Exclusive)
		before := passed.Load()
		s.await(t, store.Admitted)
		if n := passed.Load() - before; n > flood { // each earlier reader may learn of it late
			t.Errorf("while the writer waited readers were admitted %d times", n)
		}
		s.leave(t)
	}
	cancel()
	readers.Wait()
}

// D16: goroutines that still run after the client is closed.
func TestClose_leavesNoGoroutines(t *testing.T) { // not parallel: it examines all goroutines
	server := testservers.StartRedis(t)
	st := storeAt(t, server.Addr())
	a, b := newClient(t, st, clientTTL), newClient(t, st, clientTTL)
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
	eventually(t, "no goroutine of the store is left", func() bool {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		return !strings.Contains(string(stacks), "redisstore.(*")
	})
}

// D17: WAIT on a client that shares connections reports the changes of others.
// Promise: P1
func TestWaitReplicas_missingReplica(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	master, replica := servers[0], servers[1]
	replica.ReplicaOf(master)
	st := newStore(t, connect(t, master.Addr()), &redisstore.Options{WaitReplicas: 1, WaitTimeout: testTimeout})
	se := open(t, st, longTTL)
	hold(t, se, newName(t)).leave(t)
	confirm(t, se)
	// Changes made on other connections are replicated, and the server knows it: a WAIT there would
	// succeed.
	master.Do("SET", "other", "change")
	if n, err := master.Do("WAIT", "1", "120000").AsInt64(); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	replica.Pause()
	st.WaitFor(200 * time.Millisecond)
	name := newName(t)
	if _, err := tryJoin(t.Context(), se, name, line.Exclusive); !errors.Is(err, redisstore.ErrNotReplicated) {
		t.Errorf("join without the replica: got %v, want ErrNotReplicated", err)
	}
	if err := se.Confirm(t.Context()); !errors.Is(err, redisstore.ErrNotReplicated) {
		t.Errorf("Confirm without the replica: got %v, want ErrNotReplicated", err)
	}
	eventually(t, "nothing is left of the entry", func() bool { return len(keysOf(t, master, name)) == 0 })
	replica.Resume()
	st.WaitFor(testTimeout)
	eventually(t, "the replica is in sync again", func() bool { return se.Confirm(t.Context()) == nil })
	hold(t, se, name).leave(t)
}

// D18: rueidislock does not report a failed release.
// Promise: P5
// Bug: etcd #22123
func TestWithdraw_failureIsReportedAndRepeated(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	proxy, name := testservers.NewProxy(t, server.Addr()), newName(t)
	s := hold(t, open(t, storeAt(t, proxy.Addr()), longTTL), name)
	next := join(t, open(t, storeAt(t, server.Addr()), longTTL), name, line.Exclusive)
	proxy.Hold()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Withdraw(ctx); err == nil || errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw: got %v, want an error other than ErrGone", err)
	}
	next.checkWaits(t)
	proxy.Reset()
	proxy.Release()
	next.await(t, store.Admitted)
}

// Errors never contain a password.
func TestErrors_withoutPassword(t *testing.T) {
	t.Parallel()
	const password = "v3ry-s3cret"
	server := testservers.StartRedis(t, "requirepass "+password)
	options := redisstore.ClientOptions(server.Addr())
	options.Password = password
	cli := connectWith(t, options)
	st := newStore(t, cli, nil)
	se := open(t, st, longTTL)
	hold(t, se, newName(t))
	server.Do("CONFIG", "SET", "requirepass", "another")
	server.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := tryJoin(ctx, se, newName(t), line.Exclusive)
	for _, err := range []error{err, se.Confirm(ctx)} {
		if err == nil || strings.Contains(err.Error(), password) {
			t.Errorf("got %v, want an error without the password", err)
		}
	}
}
