package redisstore_test

import (
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// D14: a long line costs little as long as nothing happens in it, and moves on at once when something does.
func TestManyWaiters(t *testing.T) {
	t.Parallel()
	const waiters = 2000
	server := testservers.StartRedis(t)
	name := newName(t)
	holder := hold(t, open(t, storeAt(t, server.Addr()), time.Minute), name)
	se := open(t, storeAt(t, server.Addr()), time.Minute)
	seats := make([]*seat, 0, waiters)
	start := time.Now()
	for range waiters {
		seats = append(seats, join(t, se, name, line.Slot(1)))
	}
	t.Logf("%d joined in %v", waiters, time.Since(start))
	start = time.Now()
	if err := se.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("all confirmed in %v", time.Since(start))
	start = time.Now()
	holder.leave(t)
	for i, s := range seats[:100] {
		s.await(t, store.Admitted)
		if i == 0 && time.Since(start) > slack {
			t.Errorf("the first of %d was let in after %v", waiters, time.Since(start))
		}
		s.leave(t)
	}
	t.Logf("a hundred turns in %v", time.Since(start))
}
