package redisstore_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// Whatever happens in a line, all its keys end by themselves, and none before those who stand there.
// Promise: P5
func TestKeysOutliveTheirEntriesAndEnd(t *testing.T) {
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
			case ms == -2: // not there
			case ms == -1:
				t.Errorf("%s: key %q never ends", when, key)
			case i == 0 && left > 2*time.Hour, i < 5 && left > 2*time.Hour+5*time.Minute:
				t.Errorf("%s: key %q ends in %v", when, key, left)
			case i == 5 && (left > 24*time.Hour || left < 24*time.Hour-time.Since(begun)-time.Second):
				t.Errorf("%s: the last order is kept for %v, want a day", when, left)
			case i < 5 && left < without(ttl, begun)-time.Second:
				t.Errorf("%s: key %q ends in %v, before those who stand there", when, key, left)
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
	// All keys end soon, as if much time had passed since they were last touched; a confirmation must set that right.
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
		t.Errorf("nobody stands there, and there are the keys %q", left)
	}
}

// byHand makes requests of the script's without a store, for entries of clients that nobody has.
type byHand struct {
	server *testservers.Redis
	name   string
}

// words are those of a request.
func (b byHand) words(script, op string, args ...string) []string {
	keys := redisstore.Keys("", b.name)
	words := append([]string{"EVAL", script, strconv.Itoa(len(keys))}, keys...)
	return append(append(words, op, "PUBLISH", "//wake/", "", b.name), args...)
}

func (b byHand) do(t *testing.T, op string, args ...string) {
	t.Helper()
	b.server.Do(b.words(redisstore.Script, op, args...)...)
}

// A lease includes its last millisecond. Whoever does something in the line just then must not end it.
// Promise: P5
func TestLeaseIncludesItsLastMillisecond(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	// The script, begun in the last millisecond of the holder's lease. If it was not over in that, the attempt does not count.
	inTheLast := `
		local function ms() local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000) end
		local ends = tonumber(redis.call('ZSCORE', KEYS[4], 'holder.x'))
		for _ = 1, 1000000 do if ms() >= ends then break end end -- from 7.2 on the time stands still in a script
		local function body() ` + redisstore.Script + ` end
		local said = body()
		return { ms() == ends and 1 or 0, redis.call('EXISTS', KEYS[1]), said[#said - 1] }`
	for end := time.Now().Add(soon); ; {
		if time.Now().After(end) {
			t.Fatalf("no attempt was quick enough within %v", soon)
		}
		l := byHand{server, newName(t)}
		l.do(t, "join", "holder.x", "3600000", "0", "nobody", "", "{}")
		l.do(t, "join", "waiter.x", "3600000", "0", "nobody", "", "{}")
		l.do(t, "linger", "holder.x", "20")
		said, err := server.Do(l.words(inTheLast, "visit", "3600000", "", "waiter.x")...).ToArray()
		if err != nil || len(said) != 3 {
			t.Fatal(said, err)
		}
		if inTime, _ := said[0].AsInt64(); inTime == 0 {
			continue
		}
		there, _ := said[1].AsInt64()
		standing, _ := said[2].ToString()
		if there != 1 || standing != "wait" {
			t.Errorf("in the last millisecond of a lease, the lock's key is there: %d; the next is told %q", there, standing)
		}
		return
	}
}

// Of two who hold the lock one crashes. The key must end with the other, however long those live who wait: if all crash then,
// it is all that tells plain lockers whether the lock is free.
// Promise: P4
func TestKeyEndsWithItsLoneHolder(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedisAhead(t)
	l := byHand{server, newName(t)}
	l.do(t, "join", "crashes.s", "300000", "0", "nobody", "", "{}")
	l.do(t, "join", "stays.s", "600000", "0", "nobody", "", "{}")
	l.do(t, "join", "waits.x", "36000000", "0", "nobody", "", "{}")
	l.do(t, "visit", "600000", "", "stays.s")
	server.SetAhead(400 * time.Second)
	l.do(t, "visit", "0", "", "waits.x")
	ms, err := server.Do("PTTL", l.name).AsInt64()
	if err != nil || ms <= 0 || ms > 600000 {
		t.Errorf("the key of a holder whose lease lasts 600 s at most lasts %d ms more (%v)", ms, err)
	}
}

// The last order that was given is forgotten a day after its time. Those who are in the line still know it.
// Promise: P2
func TestOrdersRiseInALineThatOutlastsItsLastOrder(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	fence := redisstore.Keys("", name)[5]
	server.Do("SET", fence, fmt.Sprint(time.Now().Add(5*24*time.Hour).UnixMicro())) // of a clock that was ahead
	a := hold(t, open(t, storeAt(t, server.Addr()), lasting), name)
	first, _, _ := a.standing()
	server.Do("DEL", fence) // as time does
	b := join(t, open(t, storeAt(t, server.Addr()), lasting), name, line.Exclusive)
	b.waits(t)
	a.leave(t)
	if second, _ := b.await(t, store.Admitted); second.Order <= first.Order {
		t.Errorf("order %d after %d", second.Order, first.Order)
	}
}
