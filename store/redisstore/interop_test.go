package redisstore_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// The other side of these tests is what all plain lockers do: SET NX PX to lock, compare and delete to unlock. redsync itself
// is tried in the lab module, so that nobody has to download it.

// plainLock locks as others do, and reports whether it could.
func plainLock(server *testservers.Redis, name, value string, ttl time.Duration) bool {
	reply, err := server.Do("EVAL", "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) or 'no'", "1", name, value,
		strconv.FormatInt(ttl.Milliseconds(), 10)).ToString()
	return err == nil && reply == "OK"
}

func plainUnlock(server *testservers.Redis, name, value string) bool {
	n, err := server.Do("EVAL", "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0", "1", name, value).AsInt64()
	return err == nil && n == 1
}

// Promise: P1
func TestPlainLockersAndStileExcludeEachOther(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, courier := storeBy(t, server.Addr())
	se := open(t, st, lasting)
	for _, mode := range []line.Mode{line.Exclusive, line.Shared, line.Slot(2)} {
		name := newName(t)
		s := join(t, se, name, mode)
		s.await(t, store.Admitted)
		if plainLock(server, name, "theirs", lasting) {
			t.Errorf("%v: a plain locker got a lock that Stile holds", mode)
		}
		if plainUnlock(server, name, "theirs") {
			t.Errorf("%v: a plain locker released Stile's lock", mode)
		}
		s.leave(t)
		if !plainLock(server, name, "theirs", lasting) {
			t.Errorf("%v: a plain locker cannot have the lock after its release", mode)
		}
		s = join(t, se, name, mode)
		s.waitsOn(t, courier)
		if !plainUnlock(server, name, "theirs") {
			t.Errorf("%v: the plain locker had lost its lock", mode)
		}
		s.await(t, store.Admitted) // though nobody tells of it: D12
		s.leave(t)
	}
}

// Promise: P4
func TestPlainLockerThatCrashesIsReplacedAfterItsTTL(t *testing.T) {
	t.Parallel()
	const ttl = 700 * time.Millisecond
	server := testservers.StartRedis(t)
	name := newName(t)
	start := time.Now()
	if !plainLock(server, name, "theirs", ttl) {
		t.Fatal("it is locked")
	}
	st := storeAt(t, server.Addr())
	st.DisablePolling() // so that it asks at that moment only
	_, at := join(t, open(t, st, lasting), name, line.Exclusive).await(t, store.Admitted)
	if took := at.Sub(start); took < ttl {
		t.Errorf("the lock of a plain locker with a TTL of %v was free after %v", ttl, took)
	}
}

// Promise: P1
func TestPlainLockerGetsTheLockOfADeadStileAfterItsTTL(t *testing.T) {
	t.Parallel()
	const ttl = 500 * time.Millisecond
	server := testservers.StartRedis(t)
	name := newName(t)
	hold(t, open(t, storeAt(t, server.Addr()), lasting), newName(t)) // the server has learnt the script
	start := time.Now()
	if got := (lateJoin{server, name}).send(t, "dead.x", ttl); got != "in" { // its process is nowhere
		t.Fatalf("the dead holder was told %q", got)
	}
	eventually(t, "a plain locker gets the lock", func() bool { return plainLock(server, name, "theirs", lasting) })
	if took := time.Since(start); took < ttl-time.Millisecond {
		t.Errorf("the lock was free after %v, with a TTL of %v", took, ttl)
	}
}

// A plain locker that was late takes a key whose lease had ended; a waiter of Stile's then waits for that one, too.
// Promise: P1
func TestPlainLockerBetweenTwoHolders(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, courier := storeBy(t, server.Addr())
	a, b := open(t, storeAt(t, server.Addr()), lasting), open(t, st, lasting)
	first := hold(t, a, name)
	second := join(t, b, name, line.Exclusive)
	server.Do("SET", name, "theirs", "PX", strconv.FormatInt(lasting.Milliseconds(), 10)) // by force
	confirm(t, a)
	first.await(t, store.Gone)
	second.waitsOn(t, courier)
	if !plainUnlock(server, name, "theirs") {
		t.Error("Stile has taken the key away")
	}
	second.await(t, store.Admitted)
}

func TestForeignHolderIsShown(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st := storeAt(t, server.Addr())
	name := newName(t)
	server.Do("SET", name, "their secret token")
	l, err := st.Line(t.Context(), name)
	if err != nil || len(l.Entries) != 1 || len(l.Remarks) != 1 {
		t.Fatalf("want one entry and one remark, got %+v, %v", l, err)
	}
	if e := l.Entries[0]; !e.Foreign || !e.Admitted || e.Session == "" || e.Session == "their secret token" {
		t.Errorf("the entry is %+v", e)
	}
	se := open(t, st, lasting)
	_, err = se.Enqueue(t.Context(), store.Request{Name: name, Try: true, Notify: func(store.Standing) {}})
	held, ok := errors.AsType[*store.HeldError](err)
	if !ok || held.Holder == nil || !held.Holder.Foreign {
		t.Errorf("a try says %v", err)
	}
	// A key of another kind is nobody's lock, and in the way all the same.
	other := newName(t)
	server.Do("HSET", other, "redisson", "1")
	s := join(t, se, other, line.Exclusive)
	s.waits(t)
	server.Do("DEL", other)
	s.await(t, store.Admitted)
}

func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx, cancel
}

// Plain lockers that poll tell nobody when they let go, so who waits behind them must ask as often as they do: it asks again
// soon, however long it has waited and the key may last. Here that is the only reason to ask.
// Promise: P4
func TestFirstBehindAPlainLockerAsksOften(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	if !plainLock(server, name, "theirs", lasting) {
		t.Fatal("it is locked")
	}
	st, courier := storeBy(t, server.Addr())
	st.DisablePolling()
	first := join(t, open(t, st, lasting), name, line.Exclusive)
	first.waitsOn(t, courier)
	if !plainUnlock(server, name, "theirs") {
		t.Error("the plain locker had lost its lock")
	}
	first.await(t, store.Admitted)
}
