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

// Redis evicts single keys when memory is short, unless its policy is noeviction. Whichever key of
// a line is lost: an entry that is not reported gone has what a confirmation promises, other
// entries of the session are not affected, and the line recovers.
// Promise: P1
func TestConfirm_reportsLossOfOneKey(t *testing.T) {
	t.Parallel()
	const ttl, longer = 10 * time.Minute, 30 * time.Minute
	server := testservers.StartRedisWithClock(t)
	var ahead time.Duration
	pass := func(d time.Duration) { // advances the server's clock
		ahead += d
		server.SetClockAhead(ahead)
	}
	here, there, reader := storeAt(t, server.Addr()), storeAt(t, server.Addr()), storeAt(t, server.Addr())
	for i, which := range []string{"lock", "queue", "holders", "leases", "entries", "last order"} {
		for _, mode := range []line.Mode{line.Exclusive, line.Shared} {
			t.Run(fmt.Sprintf("%s, %v", which, mode), func(t *testing.T) { // not in parallel: the tests share the clock
				name := newName(t)
				a, b := open(t, here, ttl), open(t, there, longer)
				first := join(t, a, name, mode)
				before, _ := first.await(t, store.Admitted)
				other := hold(t, a, newName(t))
				second := join(t, b, name, line.Exclusive)
				server.Do("DEL", redisstore.Keys("", name)[i])
				for range 2 {
					pass(ttl / 3)
					for s, se := range map[*testEntry]store.Session{first: a, second: b} {
						begun := time.Now()
						confirm(t, se)
						wantKept(t, reader, s, se, begun)
					}
				}
				if st, _, _ := other.standing(); st.State != store.Admitted {
					t.Errorf("other lock of the session: got %+v", st)
				}
				if err := first.Withdraw(t.Context()); err != nil && !errors.Is(err, store.ErrGone) {
					t.Error(err)
				}
				pass(ttl + time.Minute) // the first entry's leases end
				confirm(t, b)
				if st, _, _ := second.standing(); st.State != store.Gone {
					second.await(t, store.Admitted)
					second.leave(t)
				}
				after, _ := hold(t, b, name).await(t, store.Admitted)
				if after.Order <= before.Order {
					t.Errorf("got order %d after %d", after.Order, before.Order)
				}
			})
		}
	}
}

// wantKept checks that an entry, unless it was reported gone, has the lease that a confirmation
// begun after the given time promises.
func wantKept(t *testing.T, reader *redisstore.Store, s *testEntry, se store.Session, begun time.Time) {
	t.Helper()
	st, _, _ := s.standing()
	if st.State == store.Gone {
		return
	}
	l, err := reader.Line(t.Context(), s.name)
	if err != nil {
		t.Fatal(err)
	}
	least := timeLeft(se.Terms().TTL, begun) - time.Second
	for _, e := range l.Entries {
		if e.Session == se.ID() && e.Admitted == (st.State == store.Admitted) && e.Remaining > least {
			return
		}
	}
	t.Errorf("entry of session %s: got %+v, want a lease of %v; line: %+v", se.ID(), st, least, l.Entries)
}

// snapshot records the keys of a line. undo puts them back, as after a failover to a replica
// that lacks the later changes.
func snapshot(t *testing.T, server *testservers.Redis, name string) (undo func()) {
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

// A failover loses a handover. The new holder waits again as far as the server knows, and others
// may be admitted before it: it must be notified, and must not block them.
// Promise: P1
func TestFailover_lostHandover(t *testing.T) {
	t.Parallel()
	const ttl = longTTL / 4
	server := testservers.StartRedisWithClock(t)
	name := newName(t)
	a := open(t, storeAt(t, server.Addr()), ttl)
	b, c := open(t, storeAt(t, server.Addr()), longTTL), open(t, storeAt(t, server.Addr()), longTTL)
	first := hold(t, a, name)
	second, third := join(t, b, name, line.Exclusive), join(t, c, name, line.Exclusive)
	undo := snapshot(t, server, name)
	first.leave(t)
	second.await(t, store.Admitted)
	undo()
	confirm(t, b)
	if st, _ := second.await(t, store.Gone); !errors.Is(st.Cause, store.ErrGone) {
		t.Errorf("got cause %v, want ErrGone", st.Cause)
	}
	server.SetClockAhead(longTTL / 2) // the first entry's lease has ended
	third.await(t, store.Admitted)
}

// A server that refuses to write admits no entry and publishes no admission.
// Promise: P1
func TestLine_noAdmissionWithoutWrites(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedisWithClock(t)
	name := newName(t)
	if !plainLock(server, name, "theirs", longTTL) {
		t.Fatal("the plain locker cannot take the free lock")
	}
	st, interceptor := interceptedStore(t, server.Addr())
	s := join(t, open(t, st, redisstore.MaxTTL), name, line.Exclusive)
	server.Do("CONFIG", "SET", "min-replicas-to-write", "1")
	server.SetClockAhead(2 * longTTL)
	eventually(t, "the lock is free", func() bool {
		n, err := server.Do("EXISTS", name).AsInt64()
		return err == nil && n == 0
	})
	refusals := func() string { return errorStat(t, server, "NOREPLICAS") }
	before := refusals()
	eventually(t, "the server has refused the admission", func() bool { return refusals() != before })
	s.checkStillWaits(t, interceptor)
	server.Do("CONFIG", "SET", "min-replicas-to-write", "0")
	s.await(t, store.Admitted)
}

// errorStat returns the server's statistics about an error.
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

// A server that is out of memory refuses new sessions, and keeps the existing ones.
func TestConfirm_serverOutOfMemory(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, "maxmemory-policy noeviction")
	name := newName(t)
	a, b := open(t, storeAt(t, server.Addr()), longTTL), open(t, storeAt(t, server.Addr()), longTTL)
	first, second := hold(t, a, name), join(t, b, name, line.Exclusive)
	alone := hold(t, a, newName(t))
	server.Do("CONFIG", "SET", "maxmemory", "1mb") // it uses more already
	confirm(t, a, b)
	_, err := storeAt(t, server.Addr()).Open(t.Context(), store.SessionOptions{TTL: longTTL})
	if err == nil || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("new session: got %v, want out of memory", err)
	}
	first.leave(t)
	second.await(t, store.Admitted)
	second.leave(t)
	alone.leave(t)
}

// A clock that was far ahead leaves large orders behind. They must be remembered until the clock
// has passed them.
// Promise: P2
func TestOrder_rememberedUntilClockCatchesUp(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	server := testservers.StartRedisWithClock(t)
	name := newName(t)
	var last uint64
	for _, ahead := range []time.Duration{30 * day, 0, 8 * day, 29 * day} {
		server.SetClockAhead(ahead)
		s := hold(t, open(t, storeAt(t, server.Addr()), longTTL), name)
		st, _, _ := s.standing()
		if st.Order <= last {
			t.Errorf("clock %v ahead: got order %d after %d", ahead, st.Order, last)
		}
		last = st.Order
		s.leave(t)
	}
}

// Entries that are gone are removed from the client's tables.
func TestSession_forgetsGoneEntries(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st := storeAt(t, server.Addr())
	se := open(t, st, longTTL)
	for range 3 {
		s := hold(t, se, newName(t))
		standing, _, _ := s.standing()
		if _, err := st.Break(t.Context(), s.name, standing.Order); err != nil {
			t.Fatal(err)
		}
		s.await(t, store.Gone)
		defer s.Withdraw(t.Context()) // the owner has not withdrawn it yet
	}
	confirm(t, se)
	if n := st.Entries(); n > 0 {
		t.Errorf("got %d entries, want none", n)
	}
}
