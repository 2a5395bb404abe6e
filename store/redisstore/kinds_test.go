package redisstore_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// wantOtherKind checks that an entry is refused, as a try or not, because of the first entry of the
// line, of which want has the mode, order, session, and whether it is foreign.
func wantOtherKind(t *testing.T, se store.Session, name string, mode line.Mode, want store.Entry) {
	t.Helper()
	for _, try := range []bool{true, false} {
		_, err := se.Enqueue(t.Context(), store.Request{Name: name, Mode: mode, Try: try, Notify: func(st store.Standing) {
			t.Errorf("a refused entry got %+v", st)
		}})
		checkOtherKind(t, err, mode, want)
	}
}

func checkOtherKind(t *testing.T, err error, mode line.Mode, want store.Entry) {
	t.Helper()
	e, ok := errors.AsType[*store.KindError](err)
	if !ok {
		t.Fatalf("Enqueue with mode %v: got %v, want a *store.KindError", mode, err)
	}
	got := e.Other
	if e.Mode != mode || got.Mode != want.Mode || got.Order != want.Order || got.Foreign != want.Foreign ||
		!got.Foreign && got.Session != want.Session || got.Foreign && got.Session == "" {
		t.Errorf("Enqueue with mode %v: got %+v, want an error with %+v", mode, e, want)
	}
}

// entryOf returns what an error should say about an admitted entry.
func entryOf(t *testing.T, s *testEntry, mode line.Mode, se store.Session) store.Entry {
	t.Helper()
	st, _ := s.await(t, store.Admitted)
	return store.Entry{Mode: mode, Order: st.Order, Session: se.ID()}
}

// dump returns the values and the ends of all keys of a line.
func dump(t *testing.T, server *testservers.Redis, name string) []string {
	t.Helper()
	var all []string
	for _, key := range redisstore.Keys("", name) {
		if n, err := server.Do("EXISTS", key).AsInt64(); err != nil || n == 0 {
			all = append(all, "")
			continue
		}
		value, err := server.Do("DUMP", key).ToString()
		ends, err2 := server.Do("EVAL", "return tostring(redis.call('PEXPIRETIME', KEYS[1]))", "1", key).ToString()
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		all = append(all, value+ends)
	}
	return all
}

// Promise: P5
// Bug: hazelcast #20387
func TestEnqueue_refusedLeavesNothing(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, interceptor := interceptedStore(t, server.Addr())
	a, b := open(t, storeAt(t, server.Addr()), longTTL), open(t, st, 2*longTTL)
	var joins atomic.Int32
	var count handler
	count = func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		interceptor.next("join", count)
		joins.Add(1)
		return send(ctx)
	}
	interceptor.next("join", count)
	for _, mode := range []line.Mode{line.Exclusive, line.Shared, line.Slot(1), line.Slot(2)} {
		name := newName(t)
		first := entryOf(t, join(t, a, name, mode), mode, a)
		join(t, a, name, mode)
		before := dump(t, server, name)
		joins.Store(0)
		wantOtherKind(t, b, name, line.Slot(3), first)
		after := dump(t, server, name)
		if joins.Load() > 2 { // a busy server: a request was repeated, which TestEnqueue_refusalLost is about
			before, after = withoutVoids(before), withoutVoids(after)
		}
		if !slices.Equal(after, before) {
			t.Errorf("%v: a refused entry changed the keys from %q to %q", mode, before, after)
		}
	}
}

// withoutVoids returns what dump returned, without the key of the void entries.
func withoutVoids(all []string) []string {
	const voids = 6
	return slices.Delete(slices.Clone(all), voids, voids+1)
}

// The reply that refuses an entry is lost. The repetition is decided anew, and nothing is left of a
// refused entry, even if the lost request arrives again.
// Promise: P5
func TestEnqueue_refusalLost(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, interceptor := interceptedStore(t, server.Addr())
	a, b := open(t, storeAt(t, server.Addr()), longTTL), open(t, st, longTTL)

	t.Run("refused again", func(t *testing.T) {
		name := newName(t)
		holder := hold(t, a, name)
		before := dump(t, server, name)
		interceptor.next("join", loseReply)
		_, err := tryJoin(t.Context(), b, name, line.Slot(2))
		checkOtherKind(t, err, line.Slot(2), entryOf(t, holder, line.Exclusive, a))
		raw := rawClient{server, name}
		id := raw.voided(t)
		if after := dump(t, server, name); !slices.Equal(withoutVoids(after), withoutVoids(before)) {
			t.Errorf("the refused entry changed the keys from %q to %q", before, after)
		}
		holder.leave(t)
		if got := raw.send(t, id, longTTL); got != "void" {
			t.Errorf("late request: got %q, want void", got)
		}
		if left := keysOf(t, server, name); len(left) > 0 {
			t.Errorf("got keys %q, want none", left)
		}
		eventually(t, "the store has forgotten the entry", func() bool { return st.Entries() == 0 })
	})

	t.Run("succeeds", func(t *testing.T) {
		name := newName(t)
		holder := hold(t, a, name)
		interceptor.next("join", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
			left := make(chan struct{})
			interceptor.hold("join", left) // on a busy machine the store may repeat the request before
			send(ctx)
			holder.leave(t)
			close(left)
			return failRequest(ctx, send)
		})
		s := join(t, b, name, line.Slot(2))
		s.await(t, store.Admitted)
		s.leave(t)
		if left := keysOf(t, server, name); len(left) > 0 {
			t.Errorf("got keys %q, want none", left)
		}
	})
}

// The reply to a request that has added an entry is lost. The repetition finds the entry and is not
// refused, although a plain locker has become the first in the meantime.
// Promise: P7
func TestEnqueue_repetitionFindsEntryOfOtherKind(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, interceptor := interceptedStore(t, server.Addr())
	a, b := open(t, storeAt(t, server.Addr()), longTTL), open(t, st, longTTL)
	name := newName(t)
	join(t, a, name, line.Slot(1)).await(t, store.Admitted)
	interceptor.next("join", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		send(ctx)
		server.Do("SET", name, "theirs") // by force
		return failRequest(ctx, send)
	})
	s := join(t, b, name, line.Slot(1))
	s.checkStillWaits(t, interceptor)
	server.Do("DEL", name)
	s.await(t, store.Admitted)
}

// An entry whose lease has ended is not in the line any more, even if no request has removed it yet.
// Promise: P4
func TestEnqueue_kindOfExpiredEntries(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	server := testservers.StartRedisWithClock(t)
	st := storeAt(t, server.Addr())
	st.DisablePolling()
	se := open(t, st, longTTL)
	hold(t, se, newName(t)).leave(t) // loads the script
	var ahead time.Duration
	pass := func(d time.Duration) {
		ahead += d
		server.SetClockAhead(ahead)
	}

	t.Run("holder and waiter", func(t *testing.T) {
		raw := rawClient{server, newName(t)}
		raw.send(t, "dead1.x", ttl)
		raw.send(t, "dead2.s", ttl)
		if got := raw.send(t, "refused.2", ttl); got != "kind" {
			t.Fatalf("got %q, want kind", got)
		}
		pass(ttl + time.Second)
		join(t, se, raw.name, line.Slot(2)).await(t, store.Admitted)
	})

	t.Run("holder that is detached", func(t *testing.T) {
		name := newName(t)
		s := hold(t, se, name)
		want := entryOf(t, s, line.Exclusive, se)
		if err := s.Extensions().WithdrawAfter(t.Context(), ttl); err != nil {
			t.Fatal(err)
		}
		wantOtherKind(t, se, name, line.Slot(2), want)
		pass(ttl + time.Second)
		join(t, se, name, line.Slot(2)).await(t, store.Admitted)
	})
}

// If nobody holds the lock the first waiter gives the line its kind: here a waiter that was passed
// because its client was away.
// Promise: P3
func TestEnqueue_kindOfPassedWaiter(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	server := testservers.StartRedisWithClock(t)
	se := open(t, storeAt(t, server.Addr()), longTTL)
	raw := rawClient{server, newName(t)}
	first := join(t, se, raw.name, line.Slot(1))
	first.await(t, store.Admitted)
	if got := raw.sendFor(t, "away.1", ttl, "away", "l"); got != "wait" {
		t.Fatalf("got %q, want wait", got)
	}
	first.leave(t)
	l, err := storeAt(t, server.Addr()).Line(t.Context(), raw.name)
	if err != nil || len(l.Entries) != 1 || l.Entries[0].Admitted {
		t.Fatalf("got %+v, %v; want one waiter", l, err)
	}
	waiter := store.Entry{Mode: line.Slot(1), Order: l.Entries[0].Order}
	wantOtherKind(t, se, raw.name, line.Exclusive, waiter)
	passing := join(t, se, raw.name, line.Slot(1))
	wantOtherKind(t, se, raw.name, line.Exclusive, entryOf(t, passing, line.Slot(1), se))
	passing.leave(t)
	wantOtherKind(t, se, raw.name, line.Exclusive, waiter)
	server.SetClockAhead(ttl + time.Second) // the waiter's lease has ended
	hold(t, se, raw.name)
}

// A line has lost its holders, and only the lock's key is left, with Stile's mark. That is nobody's
// entry: others wait until the key expires, whatever their kind.
func TestEnqueue_kindOfLostHolders(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Minute
	server := testservers.StartRedisWithClock(t)
	a, b := open(t, storeAt(t, server.Addr()), ttl), open(t, storeAt(t, server.Addr()), longTTL)
	var waiters []*testEntry
	for _, mode := range []line.Mode{line.Slot(2), line.Exclusive} {
		name := newName(t)
		join(t, a, name, mode).await(t, store.Admitted)
		server.Do("DEL", redisstore.Keys("", name)[2]) // the holders
		s := join(t, b, name, line.Slot(2))
		s.checkWaits(t)
		waiters = append(waiters, s)
		l, err := storeAt(t, server.Addr()).Line(t.Context(), name)
		if err != nil || len(l.Entries) != 2 {
			t.Fatalf("got %+v, %v; want the key and the waiter", l, err)
		}
		wantOtherKind(t, b, name, line.Exclusive, store.Entry{Mode: line.Slot(2), Order: l.Entries[1].Order, Session: b.ID()})
	}
	server.SetClockAhead(ttl + time.Second)
	for _, s := range waiters {
		s.await(t, store.Admitted)
	}
}
