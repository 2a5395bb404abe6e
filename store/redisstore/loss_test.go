package redisstore_test

import (
	"errors"
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

// Redis throws away keys one by one when memory is short and it is not told otherwise. Whichever of a line's keys it is:
// who is not told that its entry is gone has what a confirmation promises, others in the same session lose nothing, and the
// line goes on.
// Promise: P1
func TestLossOfOneKeyIsNoticed(t *testing.T) {
	t.Parallel()
	const ttl, longer = 10 * time.Minute, 30 * time.Minute
	server := testservers.StartRedisAhead(t)
	var ahead time.Duration
	pass := func(d time.Duration) { // lets so much time pass on the server
		ahead += d
		server.SetAhead(ahead)
	}
	here, there, reader := storeAt(t, server.Addr()), storeAt(t, server.Addr()), storeAt(t, server.Addr())
	for i, which := range []string{"the lock", "who waits", "who holds", "the leases", "the entries", "the last order"} {
		for _, mode := range []line.Mode{line.Exclusive, line.Shared} {
			t.Run(fmt.Sprintf("%s, %v", which, mode), func(t *testing.T) { // not in parallel: there is one clock
				name := newName(t)
				a, b := open(t, here, ttl), open(t, there, longer)
				first := join(t, a, name, mode)
				before, _ := first.await(t, store.Admitted)
				other := hold(t, a, newName(t))
				second := join(t, b, name, line.Exclusive)
				server.Do("DEL", redisstore.Keys("", name)[i])
				for range 2 {
					pass(ttl / 3)
					for s, se := range map[*seat]store.Session{first: a, second: b} {
						begun := time.Now()
						confirm(t, se)
						wantKept(t, reader, s, se, begun)
					}
				}
				if st, _, _ := other.standing(); st.State != store.Admitted {
					t.Errorf("the other lock of the session is %+v", st)
				}
				if err := first.Withdraw(t.Context()); err != nil && !errors.Is(err, store.ErrGone) {
					t.Error(err)
				}
				pass(ttl + time.Minute) // what is left of the first one ends
				confirm(t, b)
				if st, _, _ := second.standing(); st.State != store.Gone {
					second.await(t, store.Admitted)
					second.leave(t)
				}
				after, _ := hold(t, b, name).await(t, store.Admitted)
				if after.Order <= before.Order {
					t.Errorf("order %d follows %d", after.Order, before.Order)
				}
			})
		}
	}
}

// wantKept checks that an entry whose session was confirmed just now, in a request that begun after the given time, has all
// that this promises, unless it was told that it is gone.
func wantKept(t *testing.T, reader *redisstore.Store, s *seat, se store.Session, begun time.Time) {
	t.Helper()
	st, _, _ := s.standing()
	if st.State == store.Gone {
		return
	}
	l, err := reader.Line(t.Context(), s.name)
	if err != nil {
		t.Fatal(err)
	}
	least := without(se.Terms().TTL, begun) - time.Second
	for _, e := range l.Entries {
		if e.Session == se.ID() && e.Admitted == (st.State == store.Admitted) && e.Remaining > least {
			return
		}
	}
	t.Errorf("an entry of session %s was told %+v and must stay for %v, and the line is %+v", se.ID(), st, least, l.Entries)
}

// remember notes what is in the keys of a line. What it returns puts that back: as a replica does that is promoted and has
// missed what came since.
func remember(t *testing.T, server *testservers.Redis, name string) (forget func()) {
	t.Helper()
	const restore = `redis.call('DEL', unpack(KEYS))
		for i = 1, #ARGV, 3 do redis.call('RESTORE', ARGV[i], ARGV[i + 1], ARGV[i + 2], 'ABSTTL') end
		return 'done'`
	keys := redisstore.Keys("", name)
	words := append([]string{"EVAL", restore, strconv.Itoa(len(keys))}, keys...)
	for _, key := range keys {
		if n, err := server.Do("EXISTS", key).AsInt64(); err != nil || n == 0 {
			continue
		}
		dump, err := server.Do("DUMP", key).ToString()
		ms, err2 := server.Do("PEXPIRETIME", key).AsInt64()
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		words = append(words, key, strconv.FormatInt(ms, 10), dump)
	}
	return func() { server.Do(words...) }
}

// A failover forgets that the lock was handed over. Its new holder waits again, as far as the server knows, and others may be
// let in before it: it must be told, and must not be in their way.
// Promise: P1
func TestForgottenHandOverIsNoticed(t *testing.T) {
	t.Parallel()
	const ttl = lasting / 4
	server := testservers.StartRedisAhead(t)
	name := newName(t)
	a := open(t, storeAt(t, server.Addr()), ttl)
	b, c := open(t, storeAt(t, server.Addr()), lasting), open(t, storeAt(t, server.Addr()), lasting)
	first := hold(t, a, name)
	second, third := join(t, b, name, line.Exclusive), join(t, c, name, line.Exclusive)
	forget := remember(t, server, name)
	first.leave(t)
	second.await(t, store.Admitted)
	forget()
	confirm(t, b)
	if st, _ := second.await(t, store.Gone); !errors.Is(st.Cause, store.ErrGone) {
		t.Errorf("the cause is %v", st.Cause)
	}
	server.SetAhead(lasting / 2) // the first one's lease has ended
	third.await(t, store.Admitted)
}

// A server that refuses to write lets nobody in, and does not say so either.
// Promise: P1
func TestWhereNothingIsWrittenNobodyIsLetIn(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedisAhead(t)
	name := newName(t)
	if !plainLock(server, name, "theirs", lasting) {
		t.Fatal("it is locked")
	}
	st, courier := storeBy(t, server.Addr())
	s := join(t, open(t, st, redisstore.MaxTTL), name, line.Exclusive)
	server.Do("CONFIG", "SET", "min-replicas-to-write", "1")
	server.SetAhead(2 * lasting)
	eventually(t, "the lock is free", func() bool {
		n, err := server.Do("EXISTS", name).AsInt64()
		return err == nil && n == 0
	})
	refusals := func() string { return errorStat(t, server, "NOREPLICAS") }
	before := refusals()
	eventually(t, "the server has refused to let it in", func() bool { return refusals() != before })
	s.waitsOn(t, courier)
	server.Do("CONFIG", "SET", "min-replicas-to-write", "0")
	s.await(t, store.Admitted)
}

// errorStat returns what the server says of how often it has refused with an error.
func errorStat(t *testing.T, server *testservers.Redis, name string) string {
	t.Helper()
	info, err := server.Do("INFO", "errorstats").ToString()
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(info, "errorstat_"+name+":")
	stat, _, _ := strings.Cut(after, "\r")
	return stat
}

// A server that is out of memory takes no new session, and loses nobody who is there.
func TestWhoIsInMayStayWhenMemoryIsShort(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, "maxmemory-policy noeviction")
	name := newName(t)
	a, b := open(t, storeAt(t, server.Addr()), lasting), open(t, storeAt(t, server.Addr()), lasting)
	first, second := hold(t, a, name), join(t, b, name, line.Exclusive)
	alone := hold(t, a, newName(t))
	server.Do("CONFIG", "SET", "maxmemory", "1mb") // it has more already
	confirm(t, a, b)
	_, err := storeAt(t, server.Addr()).Open(t.Context(), store.SessionOptions{TTL: lasting})
	if err == nil || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("of a new session: want an error that says why not, got %v", err)
	}
	first.leave(t)
	second.await(t, store.Admitted)
	second.leave(t)
	alone.leave(t)
}

// A clock that was far ahead for a while leaves orders behind that are far ahead; they must not be forgotten before the clock
// has caught up.
// Promise: P2
func TestOrdersOfAClockThatWasAheadAreRemembered(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	server := testservers.StartRedisAhead(t)
	name := newName(t)
	var last uint64
	for _, ahead := range []time.Duration{30 * day, 0, 8 * day, 29 * day} {
		server.SetAhead(ahead)
		s := hold(t, open(t, storeAt(t, server.Addr()), lasting), name)
		st, _, _ := s.standing()
		if st.Order <= last {
			t.Errorf("with the clock %v ahead, order %d follows %d", ahead, st.Order, last)
		}
		last = st.Order
		s.leave(t)
	}
}

// What is gone is forgotten by the client, too.
func TestEntriesThatAreGoneAreForgotten(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st := storeAt(t, server.Addr())
	se := open(t, st, lasting)
	for range 3 {
		s := hold(t, se, newName(t))
		standing, _, _ := s.standing()
		if _, err := st.Break(t.Context(), s.name, standing.Order); err != nil {
			t.Fatal(err)
		}
		s.await(t, store.Gone)
		defer s.Withdraw(t.Context()) // the owner may have it still
	}
	confirm(t, se)
	if n := st.Entries(); n > 0 {
		t.Errorf("%d entries are gone, and the store has them still", n)
	}
}
