package redisstore_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// renewals counts the operations of the script in a confirmation: one renews several entries, or visits one line.
func renewals(t *testing.T, server *testservers.Redis, se store.Session) int {
	t.Helper()
	server.Do("CONFIG", "RESETSTAT")
	confirm(t, se)
	called := commandStats(t, server)
	return called["evalsha"] + called["eval"]
}

// Entries that are alone in their lines are renewed together. One that is not alone any more is visited, in the
// same confirmation, until it is alone again.
// Promise: P5
func TestConfirm_renewsTogetherWhileAlone(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	se := open(t, storeAt(t, server.Addr()), longTTL)
	contended := hold(t, se, "contended")
	for _, name := range []string{"a", "b"} {
		hold(t, se, name)
	}
	if n := renewals(t, server, se); n != 3 {
		t.Errorf("the first confirmation: %d operations, want a visit to each line", n)
	}
	shorten := func() {
		t.Helper()
		for _, name := range []string{"a", "b", "contended"} {
			server.Do("PEXPIRE", name, "60000")
			server.Do("ZADD", redisstore.Keys("", name)[3], "XX", strconv.FormatInt(time.Now().Add(time.Minute).UnixMilli(), 10), holderOf(t, server, name))
		}
	}
	check := func(when string, want int) {
		t.Helper()
		shorten()
		begun := time.Now()
		if n := renewals(t, server, se); n != want {
			t.Errorf("%s: %d operations, want %d", when, n, want)
		}
		for _, name := range []string{"a", "b", "contended"} {
			ms, err := server.Do("PTTL", name).AsInt64()
			if left := time.Duration(ms) * time.Millisecond; err != nil || left < timeLeft(longTTL, begun)-time.Second {
				t.Errorf("%s: the key of %q expires in %v (%v), want about %v", when, name, left, err, longTTL)
			}
		}
	}
	check("alone", 1)
	waiter := rawLine{server, "contended"} // a client that does not poll, because that would be counted
	waiter.do(t, "join", "waiter.x", "3600000", "0", "nobody", "", "{}")
	check("a waiter has come", 2)
	check("the waiter is known", 2)
	waiter.do(t, "leave", "", "waiter.x")
	check("the waiter has left", 2)
	check("alone again", 1)
	if st, _, _ := contended.standing(); st.State != store.Admitted {
		t.Errorf("got %+v", st)
	}
}

// holderOf returns the id of the holder of a line.
func holderOf(t *testing.T, server *testservers.Redis, name string) string {
	t.Helper()
	ids, err := server.Do("ZRANGE", redisstore.Keys("", name)[2], "0", "-1").AsStrSlice()
	if err != nil || len(ids) != 1 {
		t.Fatalf("holders of %q: %q, %v", name, ids, err)
	}
	return ids[0]
}

// A lock that was taken away is not renewed, and its holder is told. Those that are renewed together with it are
// not affected.
// Promise: P5, P6
func TestConfirm_renewsTogetherWithLost(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(*testservers.Redis){
		"replaced":        func(server *testservers.Redis) { server.Do("SET", "lock", "somebody else's") },
		"deleted":         func(server *testservers.Redis) { server.Do("DEL", "lock") },
		"of another type": func(server *testservers.Redis) { server.Do("DEL", "lock"); server.Do("RPUSH", "lock", "x") },
		"its holder deleted, and another waits": func(server *testservers.Redis) {
			server.Do("DEL", redisstore.Keys("", "lock")[2])
			rawLine{server, "lock"}.do(t, "join", "waiter.x", "3600000", "0", "nobody", "", "{}")
		},
		"its lease deleted": func(server *testservers.Redis) { server.Do("DEL", redisstore.Keys("", "lock")[3]) },
		"its entry deleted": func(server *testservers.Redis) { server.Do("DEL", redisstore.Keys("", "lock")[4]) },
		"expired": func(server *testservers.Redis) {
			server.Do("ZADD", redisstore.Keys("", "lock")[3], "XX", "1", holderOf(t, server, "lock"))
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := testservers.StartRedis(t)
			se := open(t, storeAt(t, server.Addr()), longTTL)
			lost, other := hold(t, se, "lock"), hold(t, se, "other")
			confirm(t, se)
			spoil(server)
			begun := time.Now()
			server.Do("PEXPIRE", "other", "60000")
			confirm(t, se)
			lost.await(t, store.Gone)
			if st, _, _ := other.standing(); st.State != store.Admitted {
				t.Errorf("the other lock: got %+v", st)
			}
			ms, err := server.Do("PTTL", "other").AsInt64()
			if left := time.Duration(ms) * time.Millisecond; err != nil || left < timeLeft(longTTL, begun)-time.Second {
				t.Errorf("the key of the other lock expires in %v (%v), want about %v", left, err, longTTL)
			}
		})
	}
}

// Another client has replaced a key beside the lock by one of another type, so the script fails. The confirmation
// says so, but renews the others.
func TestConfirm_renewsTogetherWithBroken(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	se := open(t, storeAt(t, server.Addr()), longTTL)
	names := []string{"a", "broken", "c"}
	for _, name := range names {
		hold(t, se, name)
	}
	confirm(t, se)
	leases := redisstore.Keys("", "broken")[3]
	server.Do("DEL", leases)
	server.Do("SET", leases, "a string")
	for _, name := range names {
		server.Do("PEXPIRE", name, "60000")
	}
	begun := time.Now()
	if err := se.Confirm(t.Context()); err == nil {
		t.Error("Confirm: got no error")
	}
	for _, name := range []string{"a", "c"} {
		ms, err := server.Do("PTTL", name).AsInt64()
		if left := time.Duration(ms) * time.Millisecond; err != nil || left < timeLeft(longTTL, begun)-time.Second {
			t.Errorf("the key of %q expires in %v (%v), want about %v", name, left, err, longTTL)
		}
	}
}

// A confirmation that was not answered does not make the next one more expensive: the server may have been too slow.
func TestConfirm_renewsTogetherAfterFailure(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	proxy := testservers.NewProxy(t, server.Addr())
	se := open(t, storeAt(t, proxy.Addr()), longTTL)
	const locks = 50
	for i := range locks {
		hold(t, se, strconv.Itoa(i))
	}
	confirm(t, se)
	proxy.Hold()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := se.Confirm(ctx); err == nil {
		t.Fatal("Confirm succeeded without an answer")
	}
	proxy.Reset()
	proxy.Release()
	if n := renewals(t, server, se); n > locks/2 {
		t.Errorf("the next confirmation: %d operations, want one for all locks", n)
	}
}

// Whether the client has subscribed, which changes with each lost connection, does not matter for holders: they are
// renewed together in any case.
func TestConfirm_renewsTogetherUnsubscribed(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	se := open(t, storeAt(t, server.Addr()), longTTL)
	hold(t, se, "a")
	hold(t, se, "b")
	confirm(t, se)
	for _, flag := range []string{"", "l"} {
		for _, name := range []string{"a", "b"} {
			server.Do("HSET", redisstore.Keys("", name)[4], holderOf(t, server, name), "client|"+flag+"|{}")
		}
		if n := renewals(t, server, se); n != 1 {
			t.Errorf("flag %q: %d operations, want one for both locks", flag, n)
		}
	}
}

// A server that refuses everything for a while, such as because of its rights, does not make the next confirmation more
// expensive either.
func TestConfirm_renewsTogetherAfterRefusal(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	se := open(t, storeAt(t, server.Addr()), longTTL)
	const locks = 50
	for i := range locks {
		hold(t, se, strconv.Itoa(i))
	}
	confirm(t, se)
	server.Do("ACL", "SETUSER", "default", "-pexpire", "-evalsha", "-eval")
	if err := se.Confirm(t.Context()); err == nil {
		t.Fatal("Confirm succeeded although it was refused")
	}
	server.Do("ACL", "SETUSER", "default", "+@all")
	if n := renewals(t, server, se); n > locks/2 {
		t.Errorf("the next confirmation: %d operations, want one for all locks", n)
	}
}

// The keys beside the lock are not set at each renewal, but always outlast the lease.
// Promise: P5
func TestKeys_outlastRenewedLease(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	server := testservers.StartRedisWithClock(t)
	se := open(t, storeAt(t, server.Addr()), ttl)
	s := hold(t, se, newName(t))
	var ahead time.Duration
	for range 30 {
		ahead += 7 * time.Second
		server.SetClockAhead(ahead)
		begun := time.Now()
		confirm(t, se)
		for _, key := range redisstore.Keys("", s.name)[2:5] {
			ms, err := server.Do("PTTL", key).AsInt64()
			if left := time.Duration(ms) * time.Millisecond; err != nil || left < ttl+30*time.Second-time.Since(begun)-time.Second {
				t.Fatalf("after %v: key %q expires in %v (%v), want half a minute after the lease", ahead, key, left, err)
			}
		}
	}
}

// An entry that leaves at a set time is not renewed any more.
// Promise: P4
func TestConfirm_leavesDetachedAlone(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	se := open(t, storeAt(t, server.Addr()), longTTL)
	s, other := hold(t, se, "leaves"), hold(t, se, "other")
	confirm(t, se)
	if err := s.Extensions().WithdrawAfter(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	confirm(t, se)
	if ms, err := server.Do("PTTL", s.name).AsInt64(); err != nil || ms > time.Minute.Milliseconds() {
		t.Errorf("the key expires in %d ms (%v), want at most a minute", ms, err)
	}
	if st, _, _ := other.standing(); st.State != store.Admitted {
		t.Errorf("the other lock: got %+v", st)
	}
}

// A visit to an entry that is alone does not shorten the lease, keeps the information about it, and leaves a detached
// entry as it is.
func TestVisit_alone(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	l := rawLine{server, newName(t)}
	const text = "{|}\n{|}"
	l.do(t, "join", "holder.x", "600000", "0", "nobody", "", text)
	leases, entries := redisstore.Keys("", l.name)[3], redisstore.Keys("", l.name)[4]
	lease := func() string {
		t.Helper()
		score, err := server.Do("ZSCORE", leases, "holder.x").ToString()
		if err != nil {
			t.Fatal(err)
		}
		return score
	}
	before := lease()
	known := func(flag string) {
		t.Helper()
		if got, err := server.Do("HGET", entries, "holder.x").ToString(); err != nil || got != "nobody|"+flag+"|"+text {
			t.Errorf("the information about the entry is %q (%v), want it to have the flag %q", got, err, flag)
		}
	}
	l.do(t, "visit", "1000", "l", "holder.x") // not renewed: that would shorten the lease
	l.do(t, "visit", "1000", "l", "holder.x")
	known("l")
	if after := lease(); after != before {
		t.Errorf("the lease ended at %s, and a shorter visit has set it to %s", before, after)
	}
	l.do(t, "visit", "1200000", "", "holder.x") // renewed
	known("l")
	if after := lease(); after == before {
		t.Errorf("a longer visit has left the end of the lease at %s", after)
	}
	l.do(t, "detach", "holder.x", "600000")
	before = lease()
	for _, flag := range []string{"", "l"} {
		l.do(t, "visit", "1800000", flag, "holder.x")
		known("t")
	}
	if after := lease(); after != before {
		t.Errorf("the lease of a detached entry ended at %s, and a visit has set it to %s", before, after)
	}
}
