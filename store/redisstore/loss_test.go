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
func TestLossOfOneKeyIsNoticed(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	server := testservers.StartRedis(t)
	for i, which := range []string{"the lock", "who waits", "who holds", "the leases", "the entries", "the last order"} {
		for _, mode := range []line.Mode{line.Exclusive, line.Shared} {
			t.Run(fmt.Sprintf("%s, %v", which, mode), func(t *testing.T) {
				t.Parallel()
				name := newName(t)
				a, b := open(t, storeAt(t, server.Addr()), ttl), open(t, storeAt(t, server.Addr()), ttl)
				first := join(t, a, name, mode)
				before, _ := first.await(t, store.Admitted)
				other := hold(t, a, newName(t))
				second := join(t, b, name, line.Exclusive)
				server.Do("DEL", redisstore.Keys("", name)[i])
				for range 2 {
					for s, se := range map[*seat]store.Session{first: a, second: b} {
						if err := se.Confirm(t.Context()); err != nil {
							t.Errorf("the session lives, and Confirm says %v", err)
						}
						wantKept(t, server, s, se, ttl)
					}
				}
				if st, _, _ := other.standing(); st.State != store.Admitted {
					t.Errorf("the other lock of the session is %+v", st)
				}
				keep(t, b)
				if err := first.Withdraw(t.Context()); err != nil && !errors.Is(err, store.ErrGone) {
					t.Error(err)
				}
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

// wantKept checks that an entry whose session was confirmed just now has all that this promises, unless it was told that it
// is gone.
func wantKept(t *testing.T, server *testservers.Redis, s *seat, se store.Session, ttl time.Duration) {
	t.Helper()
	st, _, _ := s.standing()
	if st.State == store.Gone {
		return
	}
	l, err := storeAt(t, server.Addr()).Line(t.Context(), s.name)
	if err != nil {
		t.Fatal(err)
	}
	const least = 4 // fourths of the TTL are left
	for _, e := range l.Entries {
		if e.Session == se.ID() && e.Admitted == (st.State == store.Admitted) && e.Remaining > ttl*3/least {
			return
		}
	}
	t.Errorf("an entry of session %s was told %+v, and the line is %+v", se.ID(), st, l.Entries)
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
func TestForgottenHandOverIsNoticed(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	server := testservers.StartRedis(t)
	name := newName(t)
	a := open(t, storeAt(t, server.Addr()), ttl)
	b, c := open(t, storeAt(t, server.Addr()), time.Minute), open(t, storeAt(t, server.Addr()), time.Minute)
	first := hold(t, a, name)
	second, third := join(t, b, name, line.Exclusive), join(t, c, name, line.Exclusive)
	forget := remember(t, server, name)
	first.leave(t)
	second.await(t, store.Admitted)
	forget()
	if err := b.Confirm(t.Context()); err != nil {
		t.Fatal(err) // the session lives
	}
	if st, _ := second.await(t, store.Gone); !errors.Is(st.Cause, store.ErrGone) {
		t.Errorf("the cause is %v", st.Cause)
	}
	third.await(t, store.Admitted) // when the first one's lease has ended
}

// A server that refuses to write lets nobody in, and does not say so either.
func TestWhereNothingIsWrittenNobodyIsLetIn(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	// Long enough to be there still when the server writes nothing any more, on a busy machine too.
	if !plainLock(server, name, "theirs", 5*time.Second) {
		t.Fatal("it is locked")
	}
	s := join(t, open(t, storeAt(t, server.Addr()), time.Minute), name, line.Exclusive)
	server.Do("CONFIG", "SET", "min-replicas-to-write", "1")
	eventually(t, "the lock is free", func() bool {
		n, err := server.Do("EXISTS", name).AsInt64()
		return err == nil && n == 0
	})
	refusals := func() string { return errorStat(t, server, "NOREPLICAS") }
	before := refusals()
	eventually(t, "the server has refused to let it in", func() bool { return refusals() != before })
	s.waits(t)
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
	a, b := open(t, storeAt(t, server.Addr()), time.Minute), open(t, storeAt(t, server.Addr()), time.Minute)
	first, second := hold(t, a, name), join(t, b, name, line.Exclusive)
	alone := hold(t, a, newName(t))
	server.Do("CONFIG", "SET", "maxmemory", "1mb") // it has more already
	for _, se := range []store.Session{a, b} {
		if err := se.Confirm(t.Context()); err != nil {
			t.Error(err)
		}
	}
	_, err := storeAt(t, server.Addr()).Open(t.Context(), store.SessionOptions{TTL: time.Minute})
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
func TestOrdersOfAClockThatWasAheadAreRemembered(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	server := testservers.StartRedisAhead(t)
	name := newName(t)
	var last uint64
	for _, ahead := range []time.Duration{30 * day, 0, 8 * day, 29 * day} {
		server.SetAhead(ahead)
		s := hold(t, open(t, storeAt(t, server.Addr()), time.Minute), name)
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
	se := open(t, st, time.Minute)
	for range 3 {
		s := hold(t, se, newName(t))
		standing, _, _ := s.standing()
		if _, err := st.Break(t.Context(), s.name, standing.Order); err != nil {
			t.Fatal(err)
		}
		s.await(t, store.Gone)
		defer s.Withdraw(t.Context()) // the owner may have it still
	}
	if err := se.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := st.Entries(); n > 0 {
		t.Errorf("%d entries are gone, and the store has them still", n)
	}
}
