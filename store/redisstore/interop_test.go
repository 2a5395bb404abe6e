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

// The other party in these tests does what all plain lockers do: SET NX PX to lock, compare and
// delete to unlock. redsync itself is tested in the lab module, which keeps it out of this module's
// dependencies.

// plainLock tries to take the lock as plain lockers do.
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
func TestPlainLocker_mutualExclusion(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, interceptor := interceptedStore(t, server.Addr())
	se := open(t, st, longTTL)
	for _, mode := range []line.Mode{line.Exclusive, line.Shared, line.Slot(2)} {
		name := newName(t)
		s := join(t, se, name, mode)
		s.await(t, store.Admitted)
		if plainLock(server, name, "theirs", longTTL) {
			t.Errorf("%v: a plain locker got a lock that Stile holds", mode)
		}
		if plainUnlock(server, name, "theirs") {
			t.Errorf("%v: a plain locker released Stile's lock", mode)
		}
		s.leave(t)
		if !plainLock(server, name, "theirs", longTTL) {
			t.Errorf("%v: a plain locker cannot take the lock after its release", mode)
		}
		behind := line.Exclusive
		if line.SameKind(mode, behind) {
			behind = mode
		}
		s = join(t, se, name, behind)
		s.checkStillWaits(t, interceptor)
		if !plainUnlock(server, name, "theirs") {
			t.Errorf("%v: the plain locker lost its lock", mode)
		}
		s.await(t, store.Admitted) // though nothing is published: D12
		s.leave(t)
	}
}

// A plain locker's hold is an exclusive entry, so slots are refused behind it.
func TestPlainLocker_isExclusive(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	se := open(t, storeAt(t, server.Addr()), longTTL)
	foreign := store.Entry{Foreign: true}
	lockers := map[string]func(name string){
		"a string": func(name string) { server.Do("SET", name, "theirs", "NX", "PX", "3600000") },
		"a hash":   func(name string) { server.Do("HSET", name, "redisson", "1") },
	}
	for what, lock := range lockers {
		t.Run(what, func(t *testing.T) {
			name := newName(t)
			lock(name)
			wantOtherKind(t, se, name, line.Slot(1), foreign)
			wantOtherKind(t, se, name, line.Slot(2), foreign)
			if left := keysOf(t, server, name); len(left) != 1 {
				t.Errorf("the refused entries left keys %q, want only the locker's", left)
			}
			first, second := join(t, se, name, line.Shared), join(t, se, name, line.Exclusive)
			wantOtherKind(t, se, name, line.Slot(1), foreign)
			server.Do("DEL", name)
			first.await(t, store.Admitted)
			first.leave(t)
			second.await(t, store.Admitted)
			second.leave(t)
			join(t, se, name, line.Slot(2)).await(t, store.Admitted)
		})
	}
	t.Run("in a line of slots", func(t *testing.T) {
		name := newName(t)
		join(t, se, name, line.Slot(1)).await(t, store.Admitted)
		waiter := join(t, se, name, line.Slot(1))
		server.Do("SET", name, "theirs") // by force
		wantOtherKind(t, se, name, line.Slot(1), foreign)
		server.Do("DEL", name)
		waiter.await(t, store.Admitted)
		join(t, se, name, line.Slot(1)).checkWaits(t)
	})
}

// Promise: P4
func TestPlainLocker_crashFreesAfterTTL(t *testing.T) {
	t.Parallel()
	const ttl = 700 * time.Millisecond
	server := testservers.StartRedis(t)
	name := newName(t)
	start := time.Now()
	if !plainLock(server, name, "theirs", ttl) {
		t.Fatal("the plain locker cannot take the free lock")
	}
	st := storeAt(t, server.Addr())
	st.DisablePolling() // so that it polls only when the lease ends
	_, at := join(t, open(t, st, longTTL), name, line.Exclusive).await(t, store.Admitted)
	if took := at.Sub(start); took < ttl {
		t.Errorf("plain locker with TTL %v: the lock was free after %v", ttl, took)
	}
}

// Promise: P1
func TestPlainLocker_getsDeadHoldersLockAfterTTL(t *testing.T) {
	t.Parallel()
	const ttl = 500 * time.Millisecond
	server := testservers.StartRedis(t)
	name := newName(t)
	hold(t, open(t, storeAt(t, server.Addr()), longTTL), newName(t)) // loads the script
	start := time.Now()
	if got := (rawClient{server, name}).send(t, "dead.x", ttl); got != "in" { // a holder without a process
		t.Fatalf("dead holder: got %q, want in", got)
	}
	eventually(t, "a plain locker gets the lock", func() bool { return plainLock(server, name, "theirs", longTTL) })
	if took := time.Since(start); took < ttl-time.Millisecond {
		t.Errorf("the lock was free after %v, TTL %v", took, ttl)
	}
}

// A plain locker that is late takes a key whose lease had ended; a Stile waiter must wait for that
// one too.
// Promise: P1
func TestPlainLocker_betweenTwoHolders(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, interceptor := interceptedStore(t, server.Addr())
	a, b := open(t, storeAt(t, server.Addr()), longTTL), open(t, st, longTTL)
	first := hold(t, a, name)
	second := join(t, b, name, line.Exclusive)
	server.Do("SET", name, "theirs", "PX", strconv.FormatInt(longTTL.Milliseconds(), 10)) // by force
	confirm(t, a)
	first.await(t, store.Gone)
	second.checkStillWaits(t, interceptor)
	if !plainUnlock(server, name, "theirs") {
		t.Error("Stile deleted the plain locker's key")
	}
	second.await(t, store.Admitted)
}

func TestLine_foreignHolder(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st := storeAt(t, server.Addr())
	name := newName(t)
	server.Do("SET", name, "their secret token")
	l, err := st.Line(t.Context(), name)
	if err != nil || len(l.Entries) != 1 || len(l.Remarks) != 1 {
		t.Fatalf("got %+v, %v; want one entry and one remark", l, err)
	}
	if e := l.Entries[0]; !e.Foreign || !e.Admitted || e.Session == "" || e.Session == "their secret token" {
		t.Errorf("got entry %+v", e)
	}
	se := open(t, st, longTTL)
	_, err = se.Enqueue(t.Context(), store.Request{Name: name, Try: true, Notify: func(store.Standing) {}})
	held, ok := errors.AsType[*store.HeldError](err)
	if !ok || held.Holder == nil || !held.Holder.Foreign {
		t.Errorf("Try: got %v, want HeldError with a foreign holder", err)
	}
	// A key of another type is not a lock, but blocks it all the same.
	other := newName(t)
	server.Do("HSET", other, "redisson", "1")
	s := join(t, se, other, line.Exclusive)
	s.checkWaits(t)
	server.Do("DEL", other)
	s.await(t, store.Admitted)
}

func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx, cancel
}

// Plain lockers publish nothing when they unlock. The first waiter behind one must therefore poll
// often, however long it has waited and however long the key may last. Regular polling is disabled
// here.
// Promise: P4
func TestPlainLocker_firstWaiterPollsOften(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	if !plainLock(server, name, "theirs", longTTL) {
		t.Fatal("the plain locker cannot take the free lock")
	}
	st, interceptor := interceptedStore(t, server.Addr())
	st.DisablePolling()
	first := join(t, open(t, st, longTTL), name, line.Exclusive)
	first.checkStillWaits(t, interceptor)
	if !plainUnlock(server, name, "theirs") {
		t.Error("the plain locker lost its lock")
	}
	first.await(t, store.Admitted)
}
