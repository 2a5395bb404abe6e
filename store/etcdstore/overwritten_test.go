package etcdstore_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// overwrite does what etcdctl put does when an operator leaves a note: the key stays, but without
// its lease.
func overwrite(t *testing.T, key string) {
	t.Helper()
	cli := server(t).Client(t)
	resp, err := cli.Txn(t.Context()).
		If(clientv3.Compare(clientv3.Version(key), ">", 0)).
		Then(clientv3.OpPut(key, "seen by the operators")).
		Commit()
	if err != nil || !resp.Succeeded {
		t.Fatalf("precondition failed: key %q was not overwritten: %v", key, err)
	}
}

// sessionKey returns the key of a session's exclusive entry.
func sessionKey(name string, se store.Session) string { return name + "/" + se.ID() }

// An overwritten key has no lease and would stay after its owner's death. The owner deletes it, and
// is notified before another entry is admitted.
// Promise: P6
func TestOverwrittenKey_holderNotifiedBeforeNext(t *testing.T) {
	t.Parallel()
	name := newName(t)
	se := openSession(t, newStore(t, server(t).Client(t), ""))
	other := openSession(t, newStore(t, server(t).Client(t), ""))
	notified := make(chan struct{})
	held, err := se.Enqueue(t.Context(), store.Request{Name: name, Mode: line.Exclusive, Notify: func(st store.Standing) {
		if st.State == store.Gone {
			close(notified)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "its key is watched", func() bool { return etcdstore.KeyWatched(se, name) })
	admitted := make(chan bool, 1)
	_, err = other.Enqueue(t.Context(), store.Request{Name: name, Mode: line.Exclusive, Notify: func(st store.Standing) {
		if st.State == store.Admitted {
			select {
			case <-notified:
				admitted <- true
			default:
				admitted <- false
			}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}

	overwrite(t, sessionKey(name, se))
	select {
	case before := <-admitted:
		if !before {
			t.Error("another entry was admitted before the owner was notified")
		}
	case <-contextFor(t, testTimeout).Done():
		t.Fatal("no other entry was admitted")
	}
	if err := held.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw: got %v, want ErrGone", err)
	}
}

// A holder that has waited has a watch of the line, which filters out puts. It also watches its own
// key.
// Promise: P6
func TestOverwrittenKey_notifiedAfterWaiting(t *testing.T) {
	t.Parallel()
	name := newName(t)
	se := openSession(t, newStore(t, server(t).Client(t), ""))
	first := enqueue(t, openSession(t, newStore(t, server(t).Client(t), "")), name)
	first.await(t, store.Admitted)
	held := enqueue(t, se, name)
	held.await(t, store.Waiting)
	eventually(t, "its line is watched", func() bool { return etcdstore.LineWatched(se, name) })
	first.withdraw(t)
	held.await(t, store.Admitted)
	eventually(t, "its key is watched", func() bool { return etcdstore.KeyWatched(se, name) })

	overwrite(t, sessionKey(name, se))
	held.awaitGone(t)
	eventually(t, "its key is deleted", func() bool { return !keyExists(t, server(t).Client(t), name) })
}

// A waiter whose key is overwritten is notified by the read with which the watch of its key starts.
// Promise: P6
func TestOverwrittenKey_waiterNotifiedOnAdmission(t *testing.T) {
	t.Parallel()
	name := newName(t)
	se := openSession(t, newStore(t, server(t).Client(t), ""))
	first := enqueue(t, openSession(t, newStore(t, server(t).Client(t), "")), name)
	first.await(t, store.Admitted)
	held := enqueue(t, se, name)
	held.await(t, store.Waiting)
	eventually(t, "its line is watched", func() bool { return etcdstore.LineWatched(se, name) })
	overwrite(t, sessionKey(name, se))
	first.withdraw(t)
	held.await(t, store.Admitted)
	held.awaitGone(t)
	eventually(t, "its key is deleted", func() bool { return !keyExists(t, server(t).Client(t), name) })
}

// The owner of an overwritten entry closes its session at once. The key is deleted all the same.
// Promise: P5
func TestOverwrittenKey_deletedByClose(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	name := newName(t)
	se := openSession(t, newStore(t, cli, ""))
	held := enqueue(t, se, name)
	held.await(t, store.Admitted)
	eventually(t, "its key is watched", func() bool { return etcdstore.KeyWatched(se, name) })
	var closing atomic.Bool
	f := handler(func(ctx context.Context, request string, send func() error) error {
		if request == "Txn" && !closing.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		return send()
	})
	intercept.Store(&f)
	overwrite(t, sessionKey(name, se))
	held.awaitGone(t)
	closing.Store(true)
	if err := se.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if keyExists(t, server(t).Client(t), name) {
		t.Error("the key is still there")
	}
}

// An overwritten entry was not released, so its marker stays, even if the session's next entry has
// to delete the key.
func TestOverwrittenKey_markerStays(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	name := newName(t)
	se := openSession(t, newStore(t, cli, ""))
	held := enqueue(t, se, name)
	held.await(t, store.Admitted)
	if _, err := held.Extensions().Mark(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its key is watched", func() bool { return etcdstore.KeyWatched(se, name) })
	var deleting atomic.Bool
	nextJoined := make(chan struct{})
	f := handler(func(_ context.Context, request string, send func() error) error {
		if request == "Txn" && !deleting.Swap(true) {
			<-nextJoined
		}
		return send()
	})
	intercept.Store(&f)
	overwrite(t, sessionKey(name, se))
	held.awaitGone(t)
	eventually(t, "the deletion of the key has begun", deleting.Load)
	enqueue(t, se, name).await(t, store.Admitted)
	close(nextJoined)
	if !keyExists(t, server(t).Client(t), ".stile/traces/"+name) {
		t.Error("the marker is gone")
	}
}

// The owner is dead, or has not been notified yet. No other entry is admitted, and the line's
// remarks give advice.
// Promise: P1
func TestOverwrittenKey_stillExcludes(t *testing.T) {
	t.Parallel()
	for _, mode := range []line.Mode{line.Exclusive, line.Shared} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			name := newName(t)
			st := newStore(t, server(t).Client(t), "")
			times := noPollingTimes()
			times.HeldWatchDelay = longInterval // the owner is never notified
			st.SetTimes(times)
			se := openSession(t, st)
			if _, err := se.Enqueue(t.Context(), store.Request{Name: name, Mode: mode}); err != nil {
				t.Fatal(err)
			}
			key := keysUnder(t, server(t).Client(t), name)[0]
			overwrite(t, key)

			c := newClient(t, server(t).Client(t), longTTL)
			var held *stile.HeldError
			if _, err := c.Mutex(name).TryLock(t.Context()); !errors.As(err, &held) || held.Holder == nil ||
				!held.Holder.Foreign || held.Holder.Session != se.ID() {
				t.Fatalf("TryLock: got %v, want a HeldError that names the session", err)
			}
			l, err := c.Line(t.Context(), name)
			if err != nil || len(l.Holders) != 1 {
				t.Fatalf("got line %+v, %v", l, err)
			}
			if remarks := strings.Join(l.Remarks, "\n"); !strings.Contains(remarks, key) || !strings.Contains(remarks, "broken") {
				t.Errorf("got remarks %q, want advice about %s", l.Remarks, key)
			}
			if _, err := c.Break(t.Context(), name, l.Holders[0].Token); err != nil {
				t.Fatal(err)
			}
			release(t, lock(t, c, name))
		})
	}
}

// A key that was written once, and resembles an entry by accident, is not an entry.
func TestLine_ignoresKeysResemblingEntries(t *testing.T) {
	t.Parallel()
	name := newName(t)
	for _, key := range []string{"4c01db0b339c", "202611220930", "1732264800000-retry", "001122334455"} {
		if _, err := server(t).Client(t).Put(t.Context(), name+"/"+key, "another program's"); err != nil {
			t.Fatal(err)
		}
	}
	c := newClient(t, server(t).Client(t), longTTL)
	h, err := c.Mutex(name).TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release(t, h)
}

// A store with a prefix has its epoch keys where a store without one has the locks below that
// prefix.
func TestLine_ignoresEpochKeysOfPrefixedStore(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	name := newName(t)
	se := openSession(t, newStore(t, cli, name+"/"))
	late := delayNext(intercept, "Txn")
	ctx := late.context(t)
	if _, err := tryEnqueue(ctx, se, "a", false); err == nil {
		t.Fatal("precondition failed: the lock was acquired")
	}
	eventually(t, "the epoch key is written", func() bool { return keyExists(t, server(t).Client(t), name+"/.stile") })

	c := newClient(t, server(t).Client(t), longTTL)
	l, err := c.Line(t.Context(), name+"/.stile")
	if err != nil || len(l.Holders) > 0 {
		t.Errorf("got line %+v, %v; want no holders", l, err)
	}
	release(t, lock(t, c, name+"/.stile"))
}
