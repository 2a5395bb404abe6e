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

// overwrite does what an operator does who leaves a note with etcdctl put: the key stays, without its lease.
func overwrite(t *testing.T, key string) {
	t.Helper()
	cli := server(t).Client(t)
	resp, err := cli.Txn(t.Context()).
		If(clientv3.Compare(clientv3.Version(key), ">", 0)).
		Then(clientv3.OpPut(key, "seen by the operators")).
		Commit()
	if err != nil || !resp.Succeeded {
		t.Fatalf("the scenario has failed: key %q was not overwritten: %v", key, err)
	}
}

// keyOfSession returns the key of a session's exclusive entry.
func keyOfSession(name string, se store.Session) string { return name + "/" + se.ID() }

// An overwritten key has no lease and would stay after its owner's death. The owner deletes it, and
// is notified before another entry is admitted.
// Promise: P6
func TestOverwrittenKey_holderNotifiedBeforeNext(t *testing.T) {
	t.Parallel()
	name := newName(t)
	se := openSession(t, newStore(t, server(t).Client(t), ""))
	other := openSession(t, newStore(t, server(t).Client(t), ""))
	told := make(chan struct{})
	held, err := se.Enqueue(t.Context(), store.Request{Name: name, Mode: line.Exclusive, Notify: func(st store.Standing) {
		if st.State == store.Gone {
			close(told)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "its key to be watched", func() bool { return etcdstore.WatchesHeld(se, name) })
	admitted := make(chan bool, 1)
	_, err = other.Enqueue(t.Context(), store.Request{Name: name, Mode: line.Exclusive, Notify: func(st store.Standing) {
		if st.State == store.Admitted {
			select {
			case <-told:
				admitted <- true
			default:
				admitted <- false
			}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}

	overwrite(t, keyOfSession(name, se))
	select {
	case before := <-admitted:
		if !before {
			t.Error("another was let in before the owner was told")
		}
	case <-until(t, soon).Done():
		t.Fatal("nobody else was let in")
	}
	if err := held.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw: %v, want ErrGone", err)
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
	await(t, "its line to be watched", func() bool { return etcdstore.Watches(se, name) })
	first.withdraw(t)
	held.await(t, store.Admitted)
	await(t, "its key to be watched", func() bool { return etcdstore.WatchesHeld(se, name) })

	overwrite(t, keyOfSession(name, se))
	held.gone(t)
	await(t, "its key to be deleted", func() bool { return !there(t, server(t).Client(t), name) })
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
	await(t, "its line to be watched", func() bool { return etcdstore.Watches(se, name) })
	overwrite(t, keyOfSession(name, se))
	first.withdraw(t)
	held.await(t, store.Admitted)
	held.gone(t)
	await(t, "its key to be deleted", func() bool { return !there(t, server(t).Client(t), name) })
}

// The owner of an overwritten entry closes its session at once. The key is deleted all the same.
// Promise: P5
func TestOverwrittenKey_deletedByClose(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	name := newName(t)
	se := openSession(t, newStore(t, cli, ""))
	held := enqueue(t, se, name)
	held.await(t, store.Admitted)
	await(t, "its key to be watched", func() bool { return etcdstore.WatchesHeld(se, name) })
	var closing atomic.Bool
	f := tampering(func(ctx context.Context, request string, carryOut func() error) error {
		if request == "Txn" && !closing.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		return carryOut()
	})
	now.Store(&f)
	overwrite(t, keyOfSession(name, se))
	held.gone(t)
	closing.Store(true)
	if err := se.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if there(t, server(t).Client(t), name) {
		t.Error("the key is still there")
	}
}

// An entry that was overwritten was not released, so its marker stays, also if the session's next entry has to delete the key.
func TestOverwrittenKey_markerStays(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	name := newName(t)
	se := openSession(t, newStore(t, cli, ""))
	held := enqueue(t, se, name)
	held.await(t, store.Admitted)
	if _, err := held.Extensions().Mark(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "its key to be watched", func() bool { return etcdstore.WatchesHeld(se, name) })
	var deleting atomic.Bool
	joined := make(chan struct{})
	f := tampering(func(_ context.Context, request string, carryOut func() error) error {
		if request == "Txn" && !deleting.Swap(true) {
			<-joined
		}
		return carryOut()
	})
	now.Store(&f)
	overwrite(t, keyOfSession(name, se))
	held.gone(t)
	await(t, "the key to be being deleted", deleting.Load)
	enqueue(t, se, name).await(t, store.Admitted)
	close(joined)
	if !there(t, server(t).Client(t), ".stile/traces/"+name) {
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
			times := byEvents()
			times.HeldWatchDelay = never // the owner never hears of it
			st.SetTimes(times)
			se := openSession(t, st)
			if _, err := se.Enqueue(t.Context(), store.Request{Name: name, Mode: mode}); err != nil {
				t.Fatal(err)
			}
			key := keysUnder(t, server(t).Client(t), name)[0]
			overwrite(t, key)

			c := newClient(t, server(t).Client(t), ample)
			var held *stile.HeldError
			if _, err := c.Mutex(name).TryLock(t.Context()); !errors.As(err, &held) || held.Holder == nil ||
				!held.Holder.Foreign || held.Holder.Session != se.ID() {
				t.Fatalf("TryLock: %v, want a HeldError that names the session", err)
			}
			l, err := c.Line(t.Context(), name)
			if err != nil || len(l.Holders) != 1 {
				t.Fatalf("the line is %+v, %v", l, err)
			}
			if remarks := strings.Join(l.Remarks, "\n"); !strings.Contains(remarks, key) || !strings.Contains(remarks, "broken") {
				t.Errorf("the remarks %q do not say what to do about %s", l.Remarks, key)
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
		if _, err := server(t).Client(t).Put(t.Context(), name+"/"+key, "somebody's"); err != nil {
			t.Fatal(err)
		}
	}
	c := newClient(t, server(t).Client(t), ample)
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
	cli, now := tampered(t)
	name := newName(t)
	se := openSession(t, newStore(t, cli, name+"/"))
	late := nextIsLate(now)
	ctx := endsWhen(t, "an attempt to be made", late.held.Load)
	if _, err := tryEnqueue(ctx, se, "a", false); err == nil {
		t.Fatal("the scenario has failed: the lock was had")
	}
	await(t, "the epoch key to be written", func() bool { return there(t, server(t).Client(t), name+"/.stile") })

	c := newClient(t, server(t).Client(t), ample)
	l, err := c.Line(t.Context(), name+"/.stile")
	if err != nil || len(l.Holders) > 0 {
		t.Errorf("the line is %+v, %v; want nobody", l, err)
	}
	release(t, lock(t, c, name+"/.stile"))
}
