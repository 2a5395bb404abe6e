package redisstore_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// All keys of a line expire, and none before the entries.
// Promise: P5
// Bug: redisson #6510
func TestKeys_outlastEntriesAndExpire(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Minute
	server := testservers.StartRedis(t)
	name := newName(t)
	begun := time.Now()
	check := func(when string) {
		t.Helper()
		for i, key := range redisstore.Keys("", name) {
			ms, err := server.Do("PTTL", key).AsInt64()
			if err != nil {
				t.Fatal(err)
			}
			left := time.Duration(ms) * time.Millisecond
			switch {
			case ms == -2: // no such key
			case ms == -1:
				t.Errorf("%s: key %q never expires", when, key)
			case i == 0 && left > 2*time.Hour, i < 5 && left > 2*time.Hour+5*time.Minute:
				t.Errorf("%s: key %q expires in %v", when, key, left)
			case i == 5 && (left > 24*time.Hour || left < 24*time.Hour-time.Since(begun)-time.Second):
				t.Errorf("%s: the last order expires in %v, want a day", when, left)
			case i < 5 && left < timeLeft(ttl, begun)-time.Second:
				t.Errorf("%s: key %q expires in %v, before the entries", when, key, left)
			}
		}
	}
	st := storeAt(t, server.Addr())
	a, b, c := open(t, st, ttl), open(t, st, ttl), open(t, st, ttl)
	first := hold(t, a, name)
	check("held")
	second := join(t, b, name, line.Shared)
	third := join(t, c, name, line.Shared)
	check("waited for")
	first.leave(t)
	check("handed over to two")
	fourth := join(t, a, name, line.Exclusive)
	check("waited for again")
	if err := second.Extensions().WithdrawAfter(t.Context(), 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	check("one stays for long")
	// Shorten all expiries, as if much time had passed since they were set. A confirmation must
	// extend them.
	for _, key := range redisstore.Keys("", name)[:5] {
		server.Do("PEXPIRE", key, "200000")
	}
	confirm(t, a)
	confirm(t, c)
	check("confirmed")
	third.leave(t)
	second.leave(t)
	check("handed over")
	fourth.leave(t)
	if left := keysOf(t, server, name); len(left) > 0 {
		t.Errorf("the line is empty and has the keys %q", left)
	}
}

// rawLine runs operations of the script without a store, for clients without a process.
type rawLine struct {
	server *testservers.Redis
	name   string
}

// words returns the words of the command.
func (b rawLine) words(script, op string, args ...string) []string {
	keys := redisstore.Keys("", b.name)
	words := append([]string{"EVAL", script, strconv.Itoa(len(keys))}, keys...)
	return append(append(words, op, "PUBLISH", "//wake/", "", b.name), args...)
}

func (b rawLine) do(t *testing.T, op string, args ...string) {
	t.Helper()
	b.server.Do(b.words(redisstore.Script, op, args...)...)
}

// A lease includes its last millisecond. An operation in that millisecond must not end the lease.
// Promise: P5
func TestLease_includesLastMillisecond(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	// Runs the script in the last millisecond of the holder's lease. If it has not finished in that
	// millisecond, the attempt does not count.
	inLastMillisecond := `
		local function ms() local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000) end
		local ends = tonumber(redis.call('ZSCORE', KEYS[4], 'holder.x'))
		for _ = 1, 1000000 do if ms() >= ends then break end end -- from 7.2 on the time stands still in a script
		local function body() ` + redisstore.Script + ` end
		local reply = body()
		return { ms() == ends and 1 or 0, redis.call('EXISTS', KEYS[1]), reply[#reply - 1] }`
	for end := time.Now().Add(testTimeout); ; {
		if time.Now().After(end) {
			t.Fatalf("no attempt was quick enough within %v", testTimeout)
		}
		l := rawLine{server, newName(t)}
		l.do(t, "join", "holder.x", "3600000", "0", "nobody", "", "{}")
		l.do(t, "join", "waiter.x", "3600000", "0", "nobody", "", "{}")
		l.do(t, "detach", "holder.x", "20")
		reply, err := server.Do(l.words(inLastMillisecond, "visit", "3600000", "", "waiter.x")...).ToArray()
		if err != nil || len(reply) != 3 {
			t.Fatal(reply, err)
		}
		if inTime, _ := reply[0].AsInt64(); inTime == 0 {
			continue
		}
		existing, _ := reply[1].AsInt64()
		standing, _ := reply[2].ToString()
		if existing != 1 || standing != "wait" {
			t.Errorf("in the last millisecond of a lease: %d keys, standing %q; want 1 and wait", existing, standing)
		}
		return
	}
}

// Of two holders one crashes. The key must expire with the other holder's lease, even if the
// waiters have longer leases: if all crash then, plain lockers see only the key.
// Promise: P4
func TestKeys_lockExpiresWithLastHolder(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedisWithClock(t)
	l := rawLine{server, newName(t)}
	l.do(t, "join", "crashes.s", "300000", "0", "nobody", "", "{}")
	l.do(t, "join", "stays.s", "600000", "0", "nobody", "", "{}")
	l.do(t, "join", "waits.x", "36000000", "0", "nobody", "", "{}")
	l.do(t, "visit", "600000", "", "stays.s")
	server.SetClockAhead(400 * time.Second)
	l.do(t, "visit", "0", "", "waits.x")
	ms, err := server.Do("PTTL", l.name).AsInt64()
	if err != nil || ms <= 0 || ms > 600000 {
		t.Errorf("the key expires in %d ms (%v), want at most 600 s", ms, err)
	}
}

// The last order expires a day after its time. The entries in the line still have their orders.
// Promise: P2
func TestOrder_risesAfterLastOrderExpired(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	fence := redisstore.Keys("", name)[5]
	server.Do("SET", fence, fmt.Sprint(time.Now().Add(5*24*time.Hour).UnixMicro())) // from a clock that was ahead
	a := hold(t, open(t, storeAt(t, server.Addr()), longTTL), name)
	first, _, _ := a.standing()
	server.Do("DEL", fence) // as its expiry does
	b := join(t, open(t, storeAt(t, server.Addr()), longTTL), name, line.Exclusive)
	b.checkWaits(t)
	a.leave(t)
	if second, _ := b.await(t, store.Admitted); second.Order <= first.Order {
		t.Errorf("got order %d after %d", second.Order, first.Order)
	}
}

// A server with a wildly wrong clock must not exhaust the orders unnoticed: a larger order would make a
// token that does not fit 63 bits.
// Promise: P2
func TestOrder_exhausted(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	fence := redisstore.Keys("", name)[5]
	se := open(t, storeAt(t, server.Addr()), longTTL)
	server.Do("SET", fence, fmt.Sprint(store.MaxOrder-1))
	a := hold(t, se, name)
	if last, _, _ := a.standing(); last.Order != store.MaxOrder {
		t.Errorf("got order %d, want %d, the largest", last.Order, uint64(store.MaxOrder))
	}
	a.leave(t)
	_, err := se.Enqueue(t.Context(), store.Request{Name: name, Notify: func(store.Standing) {}})
	if err == nil || !strings.Contains(err.Error(), "no fencing token is left") || !strings.Contains(err.Error(), fence) {
		t.Errorf("after the largest order: got error %v, want one that names the key %q", err, fence)
	}
}
