package etcdstore_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// Any number of lines is read in a few requests. Each line is complete, and they are in order.
func TestLines_fewRequestsForManyLines(t *testing.T) {
	t.Parallel()
	c, rec := newRecordedClient(t, 0)
	holder, waiter := newClient(t, server(t).Client(t), longTTL), newClient(t, server(t).Client(t), longTTL)
	name := newName(t)
	const n = 205 // one request reads 50, with their limits
	for i := range n {
		lock(t, holder, fmt.Sprintf("%s/%03d", name, i))
	}
	lock(t, holder, name)
	join(t, waiter, name+"/007")

	lines, err := c.Lines(t.Context(), name+"/")
	if err != nil {
		t.Fatal(err)
	}
	wantRequests(t, "Lines, 205 lines", rec.takeLog(), "Range", "Txn", "Txn", "Txn", "Txn", "Txn", "LeaseTimeToLive", "LeaseTimeToLive")
	if len(lines) != n {
		t.Fatalf("got %d lines, want %d", len(lines), n)
	}
	for i, l := range lines {
		waiters := 0
		if i == 7 {
			waiters = 1
		}
		if l.Name != fmt.Sprintf("%s/%03d", name, i) || len(l.Holders) != 1 || len(l.Waiters) != waiters {
			t.Fatalf("line %d: got %+v", i, l)
		}
	}
}

// A line that is read again within a second costs no further query of a lease.
func TestLine_queriesLeasesRarely(t *testing.T) {
	t.Parallel()
	rec := recorderWithoutCancel()
	st, name := newStore(t, connectWith(t, rec.config(server(t).Endpoint())), ""), newName(t)
	enqueue(t, openSession(t, st), name)
	read := func() (store.Entry, []string) {
		t.Helper()
		rec.takeLog()
		l, err := st.Line(t.Context(), name)
		if err != nil || len(l.Entries) != 1 {
			t.Fatalf("got %+v, %v; want one entry", l, err)
		}
		return l.Entries[0], requests(rec.takeLog())
	}
	if _, log := read(); !slices.Contains(log, "LeaseTimeToLive") {
		t.Fatalf("first reading: got requests %q, want a query of the lease", log)
	}
	eventually(t, "a reading without a query of the lease", func() bool { // on a busy machine a second may pass
		e, log := read()
		if e.Remaining <= 0 || e.Remaining > etcdstore.MaxTTL {
			t.Fatalf("got %v remaining, want something up to %v", e.Remaining, etcdstore.MaxTTL)
		}
		return slices.Equal(log, []string{"Txn"})
	})
}
