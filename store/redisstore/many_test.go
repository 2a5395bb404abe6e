package redisstore_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// D14: a long line causes little load while nothing happens in it, and advances at once when
// something does.
// Bug: solid_queue #630
func TestLine_manyWaiters(t *testing.T) {
	t.Parallel()
	const turns, others = 50, 500 // together more than one visit
	server := testservers.StartRedis(t)
	name := newName(t)
	holder := join(t, open(t, storeAt(t, server.Addr()), longTTL), name, line.Slot(1))
	holder.await(t, store.Admitted)
	st := storeAt(t, server.Addr())
	st.DisablePolling() // so that they advance by messages only
	se := open(t, st, longTTL)
	start := time.Now()
	seats := make([]*testEntry, 0, turns)
	for range turns {
		seats = append(seats, join(t, se, name, line.Slot(1)))
	}
	var joining sync.WaitGroup
	for range 10 {
		joining.Go(func() { // behind the first ones, in any order
			for range others / 10 {
				if _, err := tryJoin(t.Context(), se, name, line.Slot(1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	joining.Wait()
	t.Logf("%d joined in %v", turns+others, time.Since(start))
	start = time.Now()
	confirm(t, se)
	t.Logf("all confirmed in %v", time.Since(start))
	start = time.Now()
	holder.leave(t)
	for _, s := range seats {
		s.await(t, store.Admitted)
		s.leave(t)
	}
	t.Logf("%d turns in %v", turns, time.Since(start))
}

// D14: one process may hold many locks. All are renewed with few commands for each, and none is
// lost while more are taken.
// Bug: redisson #1604
func TestSession_manyHolds(t *testing.T) {
	t.Parallel()
	const locks, together = 500, 100
	server := testservers.StartRedis(t)
	st := storeAt(t, server.Addr())
	st.SetChunkSize(locks * 2 / 5) // three round trips
	se := open(t, st, longTTL)
	start := time.Now()
	seats := takeMany(t, se, locks)
	t.Logf("%d locks were taken in %v", locks, time.Since(start))
	var called calls
	// A confirmation may fail and is repeated: on a busy machine the Redis client closes
	// connections that are alive.
	eventually(t, "all are confirmed three times within half a minute", func() bool {
		start = time.Now()
		confirm(t, se) // from now on the session knows that it is alone in all lines
		server.Do("CONFIG", "RESETSTAT")
		for range 2 {
			err := se.Confirm(t.Context())
			if errors.Is(err, store.ErrSessionLost) {
				t.Fatal(err)
			}
			if err != nil {
				return false
			}
		}
		called = commandStats(t, server)
		return time.Since(start) < 30*time.Second
	})
	t.Logf("and confirmed three times in %v, the last two with %.1f commands for each", time.Since(start), float64(called.all())/locks)
	if called["evalsha"] != 2*locks/together || called["eval"] > 0 {
		t.Errorf("confirming %d locks twice: got %d EVALSHA and %d EVAL", locks, called["evalsha"], called["eval"])
	}
	// A confirmation takes five commands for each lock. Of confirmations within half a minute one may take three more: it
	// extends the keys of the lock's line. Commands that are not for a lock, such as PING, are far fewer than the locks.
	const maxCommands = 2*5 + 3 + 1
	if n := called.all(); n > maxCommands*locks {
		t.Errorf("confirming %d locks twice took %d commands, want at most %d for each: %v", locks, n, maxCommands, called)
	}
	for _, s := range seats {
		if st, _, _ := s.standing(); st.State != store.Admitted {
			t.Fatalf("lock %q: got %+v", s.name, st)
		}
	}
	start = time.Now()
	eventually(t, "the session is closed", func() bool { return se.Close(t.Context()) == nil }) // each call has ten seconds
	t.Logf("and released in %v", time.Since(start))
	if left, err := store.CollectLines(st.Lines(t.Context(), "")); err != nil || len(left) > 0 {
		t.Errorf("got %d lines, %v; want none", len(left), err)
	}
}

// takeMany takes locks concurrently, and confirms the session meanwhile.
func takeMany(t testing.TB, se store.Session, locks int) []*testEntry {
	t.Helper()
	seats := make([]*testEntry, locks)
	var next atomic.Int64
	var work sync.WaitGroup
	for range 16 {
		work.Go(func() {
			for i := next.Add(1) - 1; i < int64(locks); i = next.Add(1) - 1 {
				s, err := tryJoin(t.Context(), se, fmt.Sprintf("lock/%d", i), line.Exclusive)
				if err != nil {
					t.Error(err)
					return
				}
				seats[i] = s
				if i%100 == 99 {
					if err := se.Confirm(t.Context()); errors.Is(err, store.ErrSessionLost) {
						t.Error(err)
					}
				}
			}
		})
	}
	work.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return seats
}

// calls counts how often a server has executed each command, including those in scripts.
type calls map[string]int

func (c calls) all() (n int) {
	for name, called := range c {
		if !strings.HasPrefix(name, "eval") {
			n += called
		}
	}
	return n
}

// commandStats returns what a server has executed since its statistics were reset.
func commandStats(t testing.TB, server *testservers.Redis) calls {
	t.Helper()
	info, err := server.Do("INFO", "commandstats").ToString()
	if err != nil {
		t.Fatal(err)
	}
	called := make(calls)
	for l := range strings.Lines(info) {
		name, stats, _ := strings.Cut(strings.TrimPrefix(l, "cmdstat_"), ":calls=")
		times, _, found := strings.Cut(stats, ",")
		n, err := strconv.Atoi(times)
		if found && err == nil {
			called[name] = n
		}
	}
	return called
}
