package etcdstore_test

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// markersOf returns the keys of a lock's markers.
func markersOf(t *testing.T, cli *clientv3.Client, name string) []string {
	t.Helper()
	resp, err := cli.Get(t.Context(), ".stile/traces/"+name+"//", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, kv := range resp.Kvs {
		if kv.Lease != 0 {
			t.Errorf("marker %q is attached to a lease, want none", kv.Key)
		}
		keys = append(keys, string(kv.Key))
	}
	return keys
}

func wantMarkers(t *testing.T, name string, orders ...uint64) {
	t.Helper()
	var want []string
	for _, order := range orders {
		want = append(want, ".stile/traces/"+name+"//"+strconv.FormatUint(order, 10))
	}
	if got := markersOf(t, server(t).Client(t), name); !slices.Equal(got, want) {
		t.Errorf("got markers %q, want %q", got, want)
	}
}

func mark(t *testing.T, j *testEntry) (order uint64) {
	t.Helper()
	order = j.await(t, store.Admitted).Order
	if unreleased, err := j.Extensions().Mark(t.Context()); err != nil || len(unreleased) > 0 {
		t.Fatalf("Mark: got %+v, %v; want no unreleased entries", unreleased, err)
	}
	return order
}

func newLockDelayClient(t *testing.T, st *etcdstore.Store, ttl, lockDelay time.Duration) *stile.Client {
	t.Helper()
	c, err := stile.New(st, &stile.Options{
		TTL: ttl, LockDelay: lockDelay, Owner: stile.Owner{Host: "test", Command: t.Name()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeQuickly(c.Close) })
	return c
}

// A LockDelay costs one more request to take a lock, and none to release it.
// Promise: LockDelay
func TestMarker_oneTxnDeletedByRelease(t *testing.T) {
	t.Parallel()
	name := newName(t)
	c, rec := newRecordedClient(t, time.Minute)
	for range 2 {
		h := lock(t, c, name)
		wantRequests(t, "Lock", rec.takeLog(), "Txn", "Txn")
		wantMarkers(t, name, h.Token()>>11)
		release(t, h)
		wantRequests(t, "Release", rec.takeLog(), "Txn")
		wantMarkers(t, name)
	}

	held := lock(t, newLockDelayClient(t, newStore(t, server(t).Client(t), ""), longTTL, time.Minute), name)
	place := join(t, c, name)
	rec.awaitLast(t, "Range answered")
	rec.takeLog()
	release(t, held)
	release(t, awaitHold(t, place))
	wantRequests(t, "hand-over and Release", rec.takeLog(), "Txn", "Txn")
}

// Other clients, and readers of the line, ignore markers.
// Promise: LockDelay
func TestMarker_ignoredByOtherClients(t *testing.T) {
	forEachForeignClient(t, func(t *testing.T, r foreignClient, c *stile.Client, name string) {
		st := newStore(t, server(t).Client(t), "")
		se := openSession(t, st)
		order := mark(t, enqueue(t, se, name))
		if err := se.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantMarkers(t, name, order)
		for _, prefix := range []string{name, ".stile"} {
			if lines, err := store.CollectLines(st.Lines(t.Context(), prefix)); err != nil || len(lines) > 0 {
				t.Errorf("Lines with prefix %q: got %+v, %v; want none", prefix, lines, err)
			}
		}
		acquired, leave := r.join(t, name)
		wait(t, acquired, "the foreign client acquires the lock")
		leave()
		release(t, lock(t, c, name)) // it has no LockDelay
		if err := st.Capabilities().ClearMarks(t.Context(), name, []uint64{order}); err != nil {
			t.Fatal(err)
		}
		wantMarkers(t, name)
	})
}

// A late attempt to leave a marker arrives after the entry was withdrawn. It must have no effect:
// the marker would look like that of a hold that was not released.
// Promise: LockDelay
func TestMarker_lateAttemptIsVoid(t *testing.T) {
	for how, leave := range map[string]func(context.Context, *testEntry) error{
		"withdrawn":       func(ctx context.Context, j *testEntry) error { return j.Withdraw(ctx) },
		"withdrawn later": func(ctx context.Context, j *testEntry) error { return j.Extensions().WithdrawAfter(ctx, time.Minute) },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			cli, intercept := interceptedClient(t)
			name := newName(t)
			j := enqueue(t, openSession(t, newStore(t, cli, "")), name)
			late := delayNext(intercept, "Txn")
			mark(t, j)
			if err := leave(t.Context(), j); err != nil {
				t.Fatal(err)
			}
			late.deliver(t)
			if markers := markersOf(t, server(t).Client(t), name); len(markers) > 0 {
				t.Errorf("the late attempt left markers %q", markers)
			}
		})
	}
}

// Only the failure to leave the marker shows that the entry is gone: the caller joins the line
// again.
func TestMarker_entryGoneBeforeMark(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	name := newName(t)
	c := newLockDelayClient(t, newStore(t, cli, ""), longTTL, time.Minute)
	release(t, lock(t, c, newName(t)))                // opens the session
	f := handleTxn(2, func(send func() error) error { // the first one inserts the entry
		removeKeys(t, name)
		return send()
	})
	intercept.Store(&f)
	h := lock(t, c, name)
	intercept.Store(nil)
	wantMarkers(t, name, h.Token()>>11)
	release(t, h)
	wantMarkers(t, name)
}

// A marker is left and the reply is lost. The repeated request finds the marker and leaves no
// second one.
// Promise: LockDelay
func TestMarker_inDoubtIsLeftOnce(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	name := newName(t)
	j := enqueue(t, openSession(t, newStore(t, cli, "")), name)
	var lost atomic.Bool
	f := handler(func(_ context.Context, _ string, send func() error) error {
		err := send()
		if !lost.Swap(true) {
			return errLost
		}
		return err
	})
	intercept.Store(&f)
	order := mark(t, j)
	if !lost.Load() {
		t.Fatal("precondition failed: no reply was lost")
	}
	wantMarkers(t, name, order)
	j.withdraw(t)
	wantMarkers(t, name)
}

// The withdrawal has not reached etcd when the session inserts its next entry, which deletes the
// old one and its marker.
// Promise: LockDelay
func TestMarker_deletedWithReplacedEntry(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	name := newName(t)
	se := openSession(t, newStore(t, cli, ""))
	old := enqueue(t, se, name)
	order := mark(t, old)
	f := handler(func(context.Context, string, func() error) error { return errLost })
	intercept.Store(&f)
	if err := old.Withdraw(contextFor(t, 100*time.Millisecond)); err == nil {
		t.Fatal("Withdraw, cluster unreachable: got no error")
	}
	wantMarkers(t, name, order)
	intercept.Store(nil)
	next := enqueue(t, se, name)
	if second := mark(t, next); second == order {
		t.Errorf("the next entry has the order %d of the old one", second)
	}
	next.withdraw(t)
	wantMarkers(t, name)
}

func TestClearMarks_many(t *testing.T) {
	t.Parallel()
	const (
		many  = 301     // one request can delete 128
		first = 1 << 40 // larger than the order of any entry
	)
	cli, name := server(t).Client(t), newName(t)
	orders := make([]uint64, 0, many)
	var puts []clientv3.Op
	for order := uint64(first); order < first+many; order++ {
		orders = append(orders, order)
		puts = append(puts, clientv3.OpPut(".stile/traces/"+name+"//"+strconv.FormatUint(order, 10), ""))
	}
	for some := range slices.Chunk(puts, 100) {
		if _, err := cli.Txn(t.Context()).Then(some...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	st := newStore(t, cli, "")
	j := enqueue(t, openSession(t, st), name)
	j.await(t, store.Admitted)
	unreleased, err := j.Extensions().Mark(t.Context())
	if err != nil || len(unreleased) != many {
		t.Fatalf("Mark: got %d unreleased entries, %v; want %d", len(unreleased), err, many)
	}
	for i, e := range unreleased {
		if e.Order != orders[i] || !e.Owner.IsZero() {
			t.Fatalf("unreleased entry %d: got %+v, want order %d and no owner", i, e, orders[i])
		}
	}
	if err := st.Capabilities().ClearMarks(t.Context(), name, orders); err != nil {
		t.Fatal(err)
	}
	if unreleased, err = j.Extensions().Mark(t.Context()); err != nil || len(unreleased) > 0 {
		t.Errorf("Mark after ClearMarks: got %d unreleased entries, %v; want none", len(unreleased), err)
	}
	if n := len(markersOf(t, cli, name)); n != 1 {
		t.Errorf("got %d markers, want the entry's own", n)
	}
	j.withdraw(t)
}
