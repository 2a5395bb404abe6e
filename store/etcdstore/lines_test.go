package etcdstore_test

import (
	"fmt"
	"testing"
)

// However many lines there are, they are read in a few requests, each whole, and in order.
func TestLines_fewRequestsForManyLines(t *testing.T) {
	t.Parallel()
	c, w := newWiredClient(t, 0)
	holder, waiter := newClient(t, server(t).Client(t), ample), newClient(t, server(t).Client(t), ample)
	name := newName(t)
	const n = 205 // one request reads 100
	for i := range n {
		lock(t, holder, fmt.Sprintf("%s/%03d", name, i))
	}
	lock(t, holder, name)
	join(t, waiter, name+"/007")

	lines, err := c.Lines(t.Context(), name+"/")
	if err != nil {
		t.Fatal(err)
	}
	wantRequests(t, "reading 205 lines", w.passed(), "Range", "Txn", "Txn", "Txn", "LeaseTimeToLive", "LeaseTimeToLive")
	if len(lines) != n {
		t.Fatalf("there are %d lines, want %d", len(lines), n)
	}
	for i, l := range lines {
		waiters := 0
		if i == 7 {
			waiters = 1
		}
		if l.Name != fmt.Sprintf("%s/%03d", name, i) || len(l.Holders) != 1 || len(l.Waiters) != waiters {
			t.Fatalf("line %d is %+v", i, l)
		}
	}
}
