package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

func setOwner(ctx context.Context, j *testEntry, reason string) error {
	return j.Extensions().SetOwner(ctx, store.Owner{Host: "test", Reason: reason})
}

// onlyKey returns the only key under a lock's name, or nil if there is none.
func onlyKey(t *testing.T, name string) *mvccpb.KeyValue {
	t.Helper()
	resp, err := server(t).Client(t).Get(t.Context(), name+"/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	switch len(resp.Kvs) {
	case 0:
		return nil
	case 1:
		return resp.Kvs[0]
	}
	t.Fatalf("got %d keys under %q, want at most one", len(resp.Kvs), name)
	return nil
}

// The watch of an entry's key must not take the owner's own put for an overwrite.
func TestSetOwner_isNotAnOverwrite(t *testing.T) {
	t.Parallel()
	name := newName(t)
	se := openSession(t, newStore(t, server(t).Client(t), ""))
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	eventually(t, "its key is watched", func() bool { return etcdstore.KeyWatched(se, name) })
	before := onlyKey(t, name)
	for n := range 3 {
		if err := setOwner(t.Context(), j, fmt.Sprint("reason ", n)); err != nil {
			t.Fatal(err)
		}
	}
	after := onlyKey(t, name)
	if after.CreateRevision != before.CreateRevision || after.Lease != before.Lease || string(after.Key) != string(before.Key) ||
		after.Version < before.Version+3 || !strings.Contains(string(after.Value), "reason 2") {
		t.Errorf("key before: %+v; after: %+v", before, after)
	}
	// The watch delivers the deletion after all puts.
	if _, err := server(t).Client(t).Delete(t.Context(), string(after.Key)); err != nil {
		t.Fatal(err)
	}
	select {
	case st := <-j.standings:
		if st.State != store.Gone || !strings.Contains(st.Cause.Error(), "another client removed it") {
			t.Errorf("got standing %+v, want Gone, because another client removed it", st)
		}
	case <-time.After(testTimeout):
		t.Fatal("the entry was deleted, and its owner was not notified")
	}
}

// An overwritten entry is not attached to the session: putting it under the lease again would
// restore a lost hold.
// Promise: P1
func TestSetOwner_doesNotRestoreOverwrittenEntry(t *testing.T) {
	t.Parallel()
	name := newName(t)
	cli, intercept := interceptedClient(t)
	se := openSession(t, newStore(t, cli, ""))
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	// The request is in flight when the key is overwritten.
	f := handler(func(_ context.Context, request string, send func() error) error {
		if request == "Txn" {
			intercept.Store(nil)
			overwrite(t, sessionKey(name, se))
		}
		return send()
	})
	intercept.Store(&f)
	if err := setOwner(t.Context(), j, "mine"); !errors.Is(err, store.ErrGone) {
		t.Errorf("SetOwner of an overwritten entry: got %v, want ErrGone", err)
	}
	if kv := onlyKey(t, name); kv != nil && kv.Lease != 0 {
		t.Errorf("got key %+v, want one without a lease", kv)
	}
	j.awaitGone(t)
	eventually(t, "its key is deleted", func() bool { return !keyExists(t, server(t).Client(t), name) })
}

// A key that was deleted and created again is another entry, whichever client created it.
// Promise: P1
func TestSetOwner_sparesNewerEntry(t *testing.T) {
	t.Parallel()
	name := newName(t)
	cli, intercept := interceptedClient(t)
	se := openSession(t, newStore(t, cli, ""))
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	key := sessionKey(name, se)
	f := handler(func(_ context.Context, request string, send func() error) error {
		if request == "Txn" {
			intercept.Store(nil)
			direct := server(t).Client(t)
			if _, err := direct.Delete(t.Context(), key); err != nil {
				t.Error(err)
			}
			if _, err := direct.Put(t.Context(), key, "another", clientv3.WithLease(leaseOf(t, se))); err != nil {
				t.Error(err)
			}
		}
		return send()
	})
	intercept.Store(&f)
	if err := setOwner(t.Context(), j, "mine"); !errors.Is(err, store.ErrGone) {
		t.Errorf("SetOwner of an entry whose key was created again: got %v, want ErrGone", err)
	}
	if kv := onlyKey(t, name); kv == nil || string(kv.Value) != "another" {
		t.Errorf("other entry's key: got %+v, want it unchanged", kv)
	}
}

// An attempt that was given up is carried out after the entry has left, has another owner, or
// outlasts the session on a lease of its own. It must have no effect.
// Promise: P1
func TestSetOwner_lateAttemptIsVoid(t *testing.T) {
	for how, leave := range map[string]func(context.Context, *testEntry) error{
		"withdrawn":       func(ctx context.Context, j *testEntry) error { return j.Withdraw(ctx) },
		"withdrawn later": func(ctx context.Context, j *testEntry) error { return j.Extensions().WithdrawAfter(ctx, time.Minute) },
		"changed":         func(ctx context.Context, j *testEntry) error { return setOwner(ctx, j, "later") },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			cli, intercept := interceptedClient(t)
			name := newName(t)
			j := enqueue(t, openSession(t, newStore(t, cli, "")), name)
			j.await(t, store.Admitted)
			late := delayNext(intercept, "Txn")
			if err := setOwner(t.Context(), j, "mine"); err != nil {
				t.Fatal(err)
			}
			if err := leave(t.Context(), j); err != nil {
				t.Fatal(err)
			}
			before := onlyKey(t, name)
			late.deliver(t)
			after := onlyKey(t, name)
			if before == nil && after != nil || before != nil && after.ModRevision != before.ModRevision {
				t.Errorf("key before the late attempt: %+v; after: %+v; want no change", before, after)
			}
		})
	}
}

// Other clients wait for the deletion of the key ahead. A put is not one.
// Promise: P1
func TestSetOwner_foreignClientKeepsWaiting(t *testing.T) {
	forEachForeignClient(t, func(t *testing.T, r foreignClient, c *stile.Client, name string) {
		j := enqueue(t, openSession(t, newStore(t, server(t).Client(t), "")), name)
		j.await(t, store.Admitted)
		acquired, leave := r.join(t, name)
		eventually(t, "the foreign client is in the line", func() bool {
			l, err := c.Line(t.Context(), name)
			return err == nil && len(l.Waiters) == 1 && l.Waiters[0].Foreign
		})
		for n := range 3 {
			if err := setOwner(t.Context(), j, fmt.Sprint("reason ", n)); err != nil {
				t.Fatal(err)
			}
			select {
			case <-acquired:
				t.Fatal("Stile and the foreign client both hold the lock")
			case <-time.After(100 * time.Millisecond):
			}
		}
		j.withdraw(t)
		wait(t, acquired, "the foreign client acquires the lock")
		leave()
	})
}

// The two keys differ, so neither entry can be taken for a remainder of the other.
// Promise: P1
func TestEnqueue_twiceInOneLineHasTwoKeys(t *testing.T) {
	t.Parallel()
	name := newName(t)
	st := newStore(t, server(t).Client(t), "")
	se := openSession(t, st)
	first := enqueue(t, se, name)
	first.await(t, store.Admitted)
	second := enqueue(t, se, name)
	second.await(t, store.Waiting)
	l, err := st.Line(t.Context(), name)
	if err != nil || len(l.Entries) != 2 || len(l.Remarks) > 0 {
		t.Fatalf("got line %+v, %v; want both entries", l, err)
	}
	for _, e := range l.Entries {
		if e.Mode != line.Exclusive || e.Session != se.ID() {
			t.Errorf("got entry %+v, want an exclusive one of session %s", e, se.ID())
		}
	}
	first.withdraw(t)
	second.await(t, store.Admitted)
	third := enqueue(t, se, name) // it has the key of the first
	third.await(t, store.Waiting)
	second.withdraw(t)
	third.await(t, store.Admitted)
	third.withdraw(t)
}
