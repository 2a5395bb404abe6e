package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// The tests in this file check for known defects of the usual lock on etcd, concurrency.Mutex of
// the official client, here called the stock mutex. Where that is quick and reliable, a test named
// TestStock shows the defect there under the same circumstances.
//
// Other files test for these defects: keys left by an enqueue whose outcome is unknown
// (interrupted_test.go), late releases (late_test.go), late watches and needless reads
// (requests_test.go), answers without a quorum and errors when a leader dies (cluster_test.go).

// stockSession returns a session of package concurrency on the server at endpoint.
func stockSession(t *testing.T, endpoint string) *concurrency.Session {
	t.Helper()
	s, err := concurrency.NewSession(connect(t, endpoint), concurrency.WithTTL(int(longTTL.Seconds())))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// locking starts Lock of a stock mutex and returns a channel that receives its error.
func locking(ctx context.Context, m *concurrency.Mutex) <-chan error {
	done := make(chan error, 1)
	go func() { done <- m.Lock(ctx) }()
	return done
}

// stillLocking checks that Lock of a stock mutex has not returned after a while.
func stillLocking(t *testing.T, done <-chan error, what string) {
	t.Helper()
	select {
	case err := <-done:
		t.Errorf("the stock mutex does not have the defect any more: %s, and Lock returned %v", what, err)
	case <-time.After(500 * time.Millisecond):
	}
}

// B1: a release is carried out and its reply is lost. The release is repeated later, when the next
// entry of the session has the same key.
// Bug: solid_queue #761
func TestRelease_repeatedSparesNewerEntry(t *testing.T) {
	t.Parallel()
	proxy, name := testservers.NewProxy(t, server(t).Endpoint()), newName(t)
	direct, rec := server(t).Client(t), &recorder{}
	se := openSession(t, newStore(t, connectWith(t, rec.config(proxy.Addr())), ""))
	first := enqueue(t, se, name)
	first.await(t, store.Admitted)

	proxy.CutReplies()
	err := first.Withdraw(contextUntil(t, "the release is carried out", func() bool { return !keyExists(t, direct, name) }))
	if !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrGone) {
		t.Fatalf("Withdraw without a reply: got %v, want Canceled", err)
	}
	proxy.Reset()
	proxy.Release()
	rec.ignoreCancel.Store(true) // else a repeated request could find the entry deleted by the first one

	second := enqueue(t, se, name)
	st := second.await(t, store.Admitted)
	if err := first.Withdraw(t.Context()); !errors.Is(err, store.ErrNotKnown) {
		t.Errorf("second Withdraw: got %v, want ErrNotKnown", err)
	}
	wantLine(t, direct, name, st.Order)
	second.checkNotNotified(t)
}

func TestStockUnlock_repeatedDeletesNewerLock(t *testing.T) {
	t.Parallel()
	proxy, name := testservers.NewProxy(t, server(t).Endpoint()), newName(t)
	direct := server(t).Client(t)
	s := stockSession(t, proxy.Addr())
	first, second := concurrency.NewMutex(s, name), concurrency.NewMutex(s, name)
	if err := first.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.CutReplies()
	if err := first.Unlock(contextUntil(t, "the release is carried out", func() bool { return !keyExists(t, direct, name) })); err == nil {
		t.Fatal("Unlock without a reply: got no error")
	}
	proxy.Reset()
	proxy.Release()
	eventually(t, "the newer lock is taken", func() bool { return second.Lock(contextFor(t, 10*time.Second)) == nil })
	if err := first.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if keys := keysUnder(t, direct, name); len(keys) > 0 {
		t.Errorf("the stock mutex does not have the defect any more: keys %q are left after a repeated Unlock of the earlier lock", keys)
	}
}

// wantLine checks the orders of the entries in a line.
func wantLine(t *testing.T, cli *clientv3.Client, name string, orders ...uint64) {
	t.Helper()
	l, err := newStore(t, cli, "").Line(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	same := len(l.Entries) == len(orders)
	for i := 0; same && i < len(orders); i++ {
		same = l.Entries[i].Order == orders[i]
	}
	if !same {
		t.Errorf("got entries %+v, want orders %d", l.Entries, orders)
	}
}

// B2: a waiter is notified at once when its own entry or lease is gone, not only when the holder
// leaves.
func TestWaiter_notifiedThatEntryIsGone(t *testing.T) {
	t.Parallel()
	for _, revoke := range []bool{false, true} {
		t.Run(map[bool]string{false: "key deleted", true: "lease revoked"}[revoke], func(t *testing.T) {
			t.Parallel()
			direct, name := server(t).Client(t), newName(t)
			rec := &recorder{}
			holder := openSession(t, newStore(t, server(t).Client(t), ""))
			waiter := openSession(t, newStore(t, connectWith(t, rec.config(server(t).Endpoint())), ""))
			enqueue(t, holder, name).await(t, store.Admitted)
			w := enqueue(t, waiter, name)
			w.await(t, store.Waiting)
			rec.awaitLast(t, "Range answered") // its watch is open
			var err error
			if revoke {
				_, err = direct.Revoke(t.Context(), leaseOf(t, waiter))
			} else {
				_, err = direct.Delete(t.Context(), name+"/"+waiter.ID())
			}
			if err != nil {
				t.Fatal(err)
			}
			w.awaitGone(t)
			if err := waiter.Confirm(t.Context()); revoke != errors.Is(err, store.ErrSessionLost) {
				t.Errorf("Confirm: got %v", err)
			}
		})
	}
}

func leaseOf(t *testing.T, se store.Session) clientv3.LeaseID {
	t.Helper()
	id, err := strconv.ParseInt(se.ID(), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return clientv3.LeaseID(id)
}

// B2, for callers of the client: Lock continues, at the end of the line.
func TestWaiter_rejoinsAfterItsEntryVanished(t *testing.T) {
	t.Parallel()
	name, direct := newName(t), server(t).Client(t)
	holder, waiter := newClient(t, server(t).Client(t), longTTL), newClient(t, server(t).Client(t), longTTL)
	held := lock(t, holder, name)
	place := join(t, waiter, name)
	l, err := holder.Line(t.Context(), name)
	if err != nil || len(l.Waiters) != 1 {
		t.Fatalf("got line %+v, %v", l, err)
	}
	if _, err := direct.Delete(t.Context(), name+"/"+l.Waiters[0].Session); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the waiter is in the line again", func() bool {
		again, err := holder.Line(t.Context(), name)
		return err == nil && len(again.Waiters) == 1 && again.Waiters[0].Token > l.Waiters[0].Token
	})
	release(t, held)
	awaitHold(t, place)
}

func TestStockWaiter_notNotifiedThatKeyIsGone(t *testing.T) {
	t.Parallel()
	name, direct := newName(t), server(t).Client(t)
	holder, waiter := stockSession(t, server(t).Endpoint()), stockSession(t, server(t).Endpoint())
	if err := concurrency.NewMutex(holder, name).Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := locking(t.Context(), concurrency.NewMutex(waiter, name))
	eventually(t, "the stock mutex waits", func() bool { return len(keysUnder(t, direct, name)) == 2 })
	if _, err := direct.Revoke(t.Context(), waiter.Lease()); err != nil {
		t.Fatal(err)
	}
	stillLocking(t, done, "its lease was revoked while it waited")
}

// B3 in the stock mutex; for Stile see interrupted_test.go.
func TestStockLock_leaksKeyWhenContextEnds(t *testing.T) {
	t.Parallel()
	proxy, name := testservers.NewProxy(t, server(t).Endpoint()), newName(t)
	m := concurrency.NewMutex(stockSession(t, proxy.Addr()), name)
	direct := server(t).Client(t)
	proxy.CutReplies()
	if err := m.Lock(contextUntil(t, "the key to be put in", func() bool { return keyExists(t, direct, name) })); err == nil {
		t.Fatal("Lock without a reply: got no error")
	}
	proxy.Release()
	time.Sleep(300 * time.Millisecond)
	if keys := keysUnder(t, direct, name); len(keys) != 1 {
		t.Errorf("the stock mutex does not have the defect any more: got keys %q after a failed Lock", keys)
	}
}

// B4: a waiter's key is deleted, and the same session creates another entry under the same key. The
// first entry's owner must not take the second entry for its own.
// Promise: P1
// Bug: CURATOR-696
func TestEntry_recreatedKeyIsNotItsOwn(t *testing.T) {
	t.Parallel()
	direct, name := server(t).Client(t), newName(t)
	st := newStore(t, server(t).Client(t), "")
	holder, waiter := openSession(t, st), openSession(t, st)
	held := enqueue(t, holder, name)
	held.await(t, store.Admitted)
	first := enqueue(t, waiter, name)
	first.await(t, store.Waiting)

	key := name + "/" + waiter.ID()
	old, err := direct.Get(t.Context(), key)
	if err != nil || len(old.Kvs) != 1 {
		t.Fatalf("waiter's key: got %v, %v", old, err)
	}
	// At once and with the same value, so that the two entries differ only in their revision.
	if _, err := direct.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if _, err := direct.Put(t.Context(), key, string(old.Kvs[0].Value), clientv3.WithLease(leaseOf(t, waiter))); err != nil {
		t.Fatal(err)
	}
	held.withdraw(t)
	first.awaitGone(t)
	first.checkNotNotified(t)
}

// Promise: P1
func TestEntry_consecutiveEntriesHaveOneOwner(t *testing.T) {
	t.Parallel()
	direct, name := server(t).Client(t), newName(t)
	st := newStore(t, server(t).Client(t), "")
	holder, waiter := openSession(t, st), openSession(t, st)
	held := enqueue(t, holder, name)
	held.await(t, store.Admitted)
	first := enqueue(t, waiter, name)
	first.await(t, store.Waiting)
	if _, err := direct.Delete(t.Context(), name+"/"+waiter.ID()); err != nil {
		t.Fatal(err)
	}
	first.awaitGone(t)
	second := enqueue(t, waiter, name)
	held.withdraw(t)
	second.await(t, store.Admitted)
	first.checkNotNotified(t)
}

func TestStockMutex_twoOwnRecreatedKey(t *testing.T) {
	t.Parallel()
	direct, name := server(t).Client(t), newName(t)
	holder := concurrency.NewMutex(stockSession(t, server(t).Endpoint()), name)
	if err := holder.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := stockSession(t, server(t).Endpoint())
	first := locking(t.Context(), concurrency.NewMutex(s, name))
	eventually(t, "the first lock waits", func() bool { return len(keysUnder(t, direct, name)) == 2 })
	stillLocking(t, first, "the lock is held") // until its watch is open
	if _, err := direct.Delete(t.Context(), fmt.Sprintf("%s/%x", name, s.Lease())); err != nil {
		t.Fatal(err)
	}
	second := locking(t.Context(), concurrency.NewMutex(s, name))
	eventually(t, "the second lock waits", func() bool { return len(keysUnder(t, direct, name)) == 2 })
	if err := holder.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err1, err2 := <-first, <-second; err1 != nil || err2 != nil {
		t.Errorf("the stock mutex does not have the defect any more: the two Locks returned %v and %v", err1, err2)
	}
}

// B5: a release that failed is carried out as soon as possible, although the session stays alive.
// Promise: P5
// Bug: etcd #22123
func TestRelease_failedIsCarriedOutLater(t *testing.T) {
	t.Parallel()
	proxy, name := testservers.NewProxy(t, server(t).Endpoint()), newName(t)
	c := newClient(t, connect(t, proxy.Addr()), longTTL)
	h := lock(t, c, name)
	proxy.Hold()
	if err := h.Release(contextFor(t, 200*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, stile.ErrLost) {
		t.Fatalf("Release, server unreachable: got %v, want DeadlineExceeded", err)
	}
	proxy.Reset() // the request is lost
	proxy.Release()
	lock(t, newClient(t, server(t).Client(t), longTTL), name)
	again := lock(t, c, newName(t)) // the session is the same, and alive
	release(t, again)
}

func TestStockUnlock_failedHoldsForever(t *testing.T) {
	t.Parallel()
	proxy, name := testservers.NewProxy(t, server(t).Endpoint()), newName(t)
	s := stockSession(t, proxy.Addr())
	m := concurrency.NewMutex(s, name)
	if err := m.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Hold()
	if err := m.Unlock(contextFor(t, 200*time.Millisecond)); err == nil {
		t.Fatal("Unlock, server unreachable: got no error")
	}
	proxy.Reset()
	proxy.Release()
	other := concurrency.NewMutex(stockSession(t, server(t).Endpoint()), name)
	stillLocking(t, locking(t.Context(), other), "the Unlock of the earlier lock had failed")
}

// B6: Lock returns when its context ends, even if the server is unreachable. The entry leaves the
// line once the server is reachable again.
func TestLock_contextEndsWithoutConnection(t *testing.T) {
	t.Parallel()
	proxy, name := testservers.NewProxy(t, server(t).Endpoint()), newName(t)
	holder := newClient(t, server(t).Client(t), longTTL)
	c := newClient(t, connect(t, proxy.Addr()), longTTL)
	lock(t, holder, name)
	ctx, cancel := context.WithCancel(t.Context())
	place, err := c.Mutex(name).Join(ctx)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the entry is in the line", func() bool { return place.Ahead() == 1 })
	proxy.Hold()
	cancel()
	wait(t, place.Ready(), "Lock returns, whose context has ended")
	if _, err := place.Wait(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("Lock: got %v, want Canceled", err)
	}
	proxy.Release()
	eventually(t, "the waiter has left the line", func() bool {
		l, err := holder.Line(t.Context(), name)
		return err == nil && len(l.Holders) == 1 && len(l.Waiters) == 0
	})
}

func TestStockLock_outlivesContextWithoutConnection(t *testing.T) {
	t.Parallel()
	proxy, name := testservers.NewProxy(t, server(t).Endpoint()), newName(t)
	if err := concurrency.NewMutex(stockSession(t, server(t).Endpoint()), name).Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := concurrency.NewMutex(stockSession(t, proxy.Addr()), name)
	ctx, cancel := context.WithCancel(t.Context())
	done := locking(ctx, m)
	eventually(t, "the stock mutex waits", func() bool { return len(keysUnder(t, server(t).Client(t), name)) == 2 })
	stillLocking(t, done, "the lock is held")
	proxy.Hold()
	cancel()
	stillLocking(t, done, "its context had ended")
	proxy.Release()
	<-done
}

// B8: two locks with one name in one process exclude each other, also between goroutines.
// Bug: RedissonWriteLock
func TestLock_notReentrant(t *testing.T) {
	t.Parallel()
	c, name := newClient(t, server(t).Client(t), longTTL), newName(t)
	h := lock(t, c, name)
	if _, err := c.Mutex(name).TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
		t.Errorf("second TryLock in one process: got %v, want ErrHeld", err)
	}
	place := join(t, c, name)
	select {
	case <-place.Ready():
		t.Error("two Locks in one process hold the lock")
	default:
	}
	release(t, h)
	release(t, awaitHold(t, place))

	var inside atomic.Int32
	done := make(chan error)
	for range 8 {
		go func() {
			var err error
			for range 10 {
				err = errors.Join(err, c.Mutex(name).Do(t.Context(), func(context.Context, *stile.Hold) error {
					defer inside.Add(-1)
					if n := inside.Add(1); n != 1 {
						return errors.New("two goroutines hold the lock")
					}
					return nil
				}))
			}
			done <- err
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestStockMutex_twoOfOneSessionBothHold(t *testing.T) {
	t.Parallel()
	s, name := stockSession(t, server(t).Endpoint()), newName(t)
	for range 2 {
		if err := concurrency.NewMutex(s, name).Lock(contextFor(t, testTimeout)); err != nil {
			t.Errorf("the stock mutex does not have the defect any more: %v", err)
		}
	}
}

// A partitioned holder loses its hold before the server admits another.
// Promise: P6
func TestHold_partitionedHolderLosesFirst(t *testing.T) {
	t.Parallel()
	const ttl = 15 * time.Second // must expire, but not before it is cut off
	proxy, name := testservers.NewProxy(t, server(t).Endpoint()), newName(t)
	rec := &recorder{}
	c := newClient(t, connectWith(t, rec.config(proxy.Addr())), ttl)
	h := lock(t, c, name)
	place := join(t, newClient(t, server(t).Client(t), longTTL), name)
	_, before := rec.renewals()
	eventually(t, "a renewal is answered", func() bool { _, now := rec.renewals(); return now > before })
	proxy.Hold()
	if !h.Valid() {
		t.Fatalf("precondition failed: the hold was lost before it was cut off: %v", h.Err())
	}
	wait(t, place.Ready(), "the next waiter is admitted")
	if h.Valid() {
		t.Error("the next waiter was admitted while the hold was still valid")
	}
	wait(t, h.Context().Done(), "the context of the lost hold ends")
	if err := context.Cause(h.Context()); !errors.Is(err, stile.ErrLost) {
		t.Errorf("cause of the context's end: got %v, want ErrLost", err)
	}
	awaitHold(t, place)
}

// Slow replies do not extend a hold: the deadline counts from when the last renewal was sent.
// Promise: P6
func TestHold_deadlineCountsFromSending(t *testing.T) {
	t.Parallel()
	const (
		ttl   = 20 * time.Second
		valid = ttl - ttl/10
		delay = time.Second // a third of the client's timeout
	)
	proxy, name := testservers.NewProxy(t, server(t).Endpoint()), newName(t)
	rec := &recorder{}
	h := lock(t, newClient(t, connectWith(t, rec.config(proxy.Addr())), ttl), name)
	sent, _ := rec.renewals()
	first := h.Deadline()
	proxy.CutReplies()
	eventually(t, "a renewal is sent", func() bool { now, _ := rec.renewals(); return now.After(sent) })
	time.Sleep(delay)
	proxy.Release()
	eventually(t, "the deadline is extended", func() bool { return h.Deadline().After(first) })
	deadline := h.Deadline()
	if sent, _ = rec.renewals(); deadline.After(sent.Add(valid + delay/10)) {
		t.Errorf("the deadline is %v after the renewal was sent, want %v: its reply was delayed by a second", deadline.Sub(sent), valid)
	}
}

// A hold is lost at once when another client deletes its key or revokes its lease.
// Promise: P6
// Bug: CURATOR-171
func TestHold_evictedIsLostAtOnce(t *testing.T) {
	t.Parallel()
	const (
		ttl    = etcdstore.MaxTTL // the first renewal comes after ninety seconds
		atOnce = ttl / 10
	)
	for _, revoke := range []bool{false, true} {
		t.Run(map[bool]string{false: "key deleted", true: "lease revoked"}[revoke], func(t *testing.T) {
			t.Parallel()
			direct := server(t).Client(t)
			rec := &recorder{}
			c := newClient(t, connectWith(t, rec.config(server(t).Endpoint())), ttl)
			// Once right after it was taken, when its key is not watched yet, and once later.
			for _, watched := range []bool{false, true} {
				name := newName(t)
				h := lock(t, c, name)
				if watched {
					rec.awaitLogged(t, "watching")
					rec.awaitLast(t, "Txn answered")
				}
				resp, err := direct.Get(t.Context(), name+"/", clientv3.WithPrefix())
				if err != nil || len(resp.Kvs) != 1 {
					t.Fatalf("holder's key: got %v, %v", resp, err)
				}
				start := time.Now()
				if revoke {
					_, err = direct.Revoke(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease))
				} else {
					_, err = direct.Delete(t.Context(), string(resp.Kvs[0].Key))
				}
				if err != nil {
					t.Fatal(err)
				}
				wait(t, h.Lost(), "the hold is lost")
				if took := time.Since(start); took > atOnce {
					t.Errorf("the holder was notified after %v", took)
				}
				var lost *stile.LostError
				if !errors.As(h.Err(), &lost) || lost.Reason != stile.LostEvicted {
					t.Errorf("got error %v, want reason LostEvicted", h.Err())
				}
				if err := h.Release(t.Context()); !errors.Is(err, stile.ErrLost) {
					t.Errorf("Release: got %v, want ErrLost", err)
				}
				rec.takeLog()
			}
		})
	}
}

// After its lease was revoked a client continues with a new session.
func TestLock_afterLeaseRevoked(t *testing.T) {
	t.Parallel()
	name, direct := newName(t), server(t).Client(t)
	c := newClient(t, server(t).Client(t), longTTL)
	h := lock(t, c, name)
	l, err := c.Line(t.Context(), name)
	if err != nil || len(l.Holders) != 1 {
		t.Fatalf("got line %+v, %v", l, err)
	}
	resp, err := direct.Get(t.Context(), name+"/"+l.Holders[0].Session)
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("holder's key: got %v, %v", resp, err)
	}
	if _, err := direct.Revoke(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	wait(t, h.Lost(), "the hold is lost")
	again := lock(t, c, name)
	if again.Token() <= h.Token() {
		t.Errorf("got token %d after %d", again.Token(), h.Token())
	}
	release(t, again)
}

// etcd refuses writes after a CORRUPT alarm: the call returns the error and does not retry.
func TestStore_corruptClusterIsAnError(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	c := newClient(t, cli, longTTL)
	corrupt := handler(func(context.Context, string, func() error) error { return rpctypes.ErrGRPCCorrupt })
	wantCorrupt := func(when string) {
		t.Helper()
		intercept.Store(&corrupt)
		defer intercept.Store(nil)
		if _, err := c.Mutex(newName(t)).Lock(t.Context()); err == nil || !strings.Contains(err.Error(), "corrupt") {
			t.Errorf("%s: Lock: got %v, want an error that contains corrupt", when, err)
		}
	}
	wantCorrupt("without a session")
	release(t, lock(t, c, newName(t)))
	wantCorrupt("with a session")
}
