package etcdstore_test

import (
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

func downgrade(t *testing.T, j *testEntry) {
	t.Helper()
	if err := j.Extensions().Downgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// enqueueReader inserts a shared entry.
func enqueueReader(t *testing.T, se store.Session, name string) *testEntry {
	t.Helper()
	standings := make(chan store.Standing, 100)
	ticket, err := se.Enqueue(t.Context(), store.Request{
		Name: name, Mode: line.Shared, Owner: store.Owner{Host: "test"}, Notify: func(st store.Standing) { standings <- st },
	})
	if err != nil {
		t.Fatal(err)
	}
	return &testEntry{ticket, name, standings}
}

// The watch of a session whose entries wait in exclusive mode delivers no puts, so it cannot show a
// downgrade. When a reader joins it must be replaced. Nothing is read periodically here.
// Promise: P7
func TestDowngrade_readerJoinsWatchWithoutPuts(t *testing.T) {
	for how, watched := range map[string]func(t *testing.T, se store.Session, name string){
		"a writer of the session waits ahead": func(t *testing.T, se store.Session, name string) {
			enqueue(t, se, name).await(t, store.Waiting)
		},
		"the watch has been kept open": func(t *testing.T, se store.Session, name string) {
			writer := enqueue(t, se, name)
			writer.await(t, store.Waiting)
			eventually(t, "the line is watched", func() bool { return etcdstore.LineWatched(se, name) })
			writer.withdraw(t)
		},
		"nothing is watched": func(*testing.T, store.Session, string) {},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			name := newName(t)
			holder := enqueue(t, openSession(t, newStore(t, server(t).Client(t), "")), name)
			holder.await(t, store.Admitted)
			near := enqueueReader(t, openSession(t, newStore(t, server(t).Client(t), "")), name)
			near.await(t, store.Waiting)

			se := openSession(t, newStore(t, server(t).Client(t), ""))
			watched(t, se, name)
			reader := enqueueReader(t, se, name)
			before := reader.await(t, store.Waiting)
			eventually(t, "the line is watched", func() bool { return etcdstore.LineWatched(se, name) })
			downgrade(t, holder)
			near.await(t, store.Admitted)
			if before.Ahead == 1 {
				reader.await(t, store.Admitted)
			} else if after := reader.await(t, store.Waiting); after.Ahead != before.Ahead-1 {
				t.Errorf("behind the writer: got %d ahead after the downgrade, want %d", after.Ahead, before.Ahead-1)
			}
		})
	}
}

// A reader's key is deleted in the revision that downgrades the entry ahead. It must not be admitted.
// Promise: P5
func TestDowngrade_ownDeletionInSameRevision(t *testing.T) {
	t.Parallel()
	name := newName(t)
	cli := server(t).Client(t)
	holding, waiting := openSession(t, newStore(t, cli, "")), openSession(t, newStore(t, cli, ""))
	enqueue(t, holding, name).await(t, store.Admitted)
	text := string(onlyKey(t, name).Value)
	reader := enqueueReader(t, waiting, name)
	reader.await(t, store.Waiting)
	eventually(t, "the line is watched", func() bool { return etcdstore.LineWatched(waiting, name) })
	shared := strings.Replace(text, `"exclusive"`, `"shared"`, 1)
	if shared == text {
		t.Fatalf("precondition failed: the value %s has no mode", text)
	}
	_, err := cli.Txn(t.Context()).Then(
		clientv3.OpPut(sessionKey(name, holding), shared, clientv3.WithLease(leaseOf(t, holding))),
		clientv3.OpDelete(reader.Extensions().Key),
	).Commit()
	if err != nil {
		t.Fatal(err)
	}
	reader.awaitGone(t)
}

// The watch of the entry's key must not take the downgrade for an overwrite, and the key stays.
// Promise: P6
func TestDowngrade_isNotAnOverwrite(t *testing.T) {
	t.Parallel()
	name := newName(t)
	se := openSession(t, newStore(t, server(t).Client(t), ""))
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	eventually(t, "its key is watched", func() bool { return etcdstore.KeyWatched(se, name) })
	before := onlyKey(t, name)
	downgrade(t, j)
	after := onlyKey(t, name)
	if after.CreateRevision != before.CreateRevision || after.Lease != before.Lease || string(after.Key) != string(before.Key) {
		t.Errorf("key before: %+v; after: %+v", before, after)
	}
	if err := setOwner(t.Context(), j, "later"); err != nil {
		t.Errorf("SetOwner after a downgrade: %v", err)
	}
	j.withdraw(t)
}

// An attempt to change the owner that was given up, and so has the exclusive mode, is carried out after
// the downgrade. An attempt to downgrade is carried out after the entry has left or outlasts the
// session. Neither must have any effect.
// Promise: P1
func TestDowngrade_lateAttemptIsVoid(t *testing.T) {
	for what, test := range map[string]struct {
		first func(t *testing.T, j *testEntry)
		then  func(t *testing.T, j *testEntry)
		want  line.Mode // of the entry that is left; none is left if nothing follows
	}{
		"owner, then downgrade": {func(t *testing.T, j *testEntry) {
			if err := setOwner(t.Context(), j, "mine"); err != nil {
				t.Fatal(err)
			}
		}, downgrade, line.Shared},
		"downgrade, then withdrawal for later": {downgrade, func(t *testing.T, j *testEntry) {
			if err := j.Extensions().WithdrawAfter(t.Context(), time.Minute); err != nil {
				t.Fatal(err)
			}
		}, line.Shared},
		"downgrade, then a new entry under the same key": {downgrade, func(t *testing.T, j *testEntry) {
			j.withdraw(t)
			// The key is that of the next exclusive entry of the session, which must stay exclusive.
		}, line.Exclusive},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			cli, intercept := interceptedClient(t)
			name := newName(t)
			st := newStore(t, cli, "")
			se := openSession(t, st)
			j := enqueue(t, se, name)
			j.await(t, store.Admitted)
			late := delayNext(intercept, "Txn")
			test.first(t, j)
			test.then(t, j)
			if test.want == line.Exclusive {
				enqueue(t, se, name).await(t, store.Admitted)
			}
			before := onlyKey(t, name)
			late.deliver(t)
			if after := onlyKey(t, name); after.ModRevision != before.ModRevision {
				t.Errorf("key before the late attempt: %+v; after: %+v; want no change", before, after)
			}
			l, err := st.Line(t.Context(), name)
			if err != nil || len(l.Entries) != 1 || l.Entries[0].Mode != test.want {
				t.Errorf("line: got %+v, %v, want one entry in mode %v", l, err, test.want)
			}
		})
	}
}

// Other clients wait for the deletion of the key ahead, so a downgrade lets none of them in.
// Promise: P1
// Bug: CURATOR-276
func TestDowngrade_foreignClientKeepsWaiting(t *testing.T) {
	forEachForeignClient(t, func(t *testing.T, r foreignClient, c *stile.Client, name string) {
		j := enqueue(t, openSession(t, newStore(t, server(t).Client(t), "")), name)
		j.await(t, store.Admitted)
		acquired, leave := r.join(t, name)
		eventually(t, "the foreign client is in the line", func() bool {
			l, err := c.Line(t.Context(), name)
			return err == nil && len(l.Waiters) == 1 && l.Waiters[0].Foreign
		})
		downgrade(t, j)
		select {
		case <-acquired:
			t.Fatal("Stile and the foreign client both hold the lock")
		case <-time.After(100 * time.Millisecond):
		}
		j.withdraw(t)
		wait(t, acquired, "the foreign client acquires the lock")
		leave()
	})
}
