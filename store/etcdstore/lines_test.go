package etcdstore_test

import (
	"fmt"
	"testing"
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
