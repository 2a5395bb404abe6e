package etcdstore_test

import (
	"errors"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// writeOver does what an operator does who "just has a look" with etcdctl put: the key is there as before, without its lease.
func writeOver(t *testing.T, name string) (key string) {
	t.Helper()
	cli := server(t).Client(t)
	keys := keysUnder(t, cli, name)
	if len(keys) == 0 {
		t.Fatal("the scenario has failed: there is no key to write over")
	}
	if _, err := cli.Put(t.Context(), keys[0], "seen by the operators"); err != nil {
		t.Fatal(err)
	}
	return keys[0]
}

// Without its lease a key stays when its owner dies. So its owner takes it out, and knows that before anybody else is in.
func TestWhoseKeyIsWrittenOverHearsOfItBeforeAnotherIsLetIn(t *testing.T) {
	t.Parallel()
	name := newName(t)
	se := openSession(t, newStore(t, server(t).Client(t), ""))
	other := openSession(t, newStore(t, server(t).Client(t), ""))
	held := enqueue(t, se, name)
	held.await(t, store.Admitted)
	await(t, "its line to be watched", func() bool { return etcdstore.Watches(se, name) })
	next := enqueue(t, other, name)
	next.await(t, store.Waiting)

	key := writeOver(t, name)
	held.gone(t)
	next.await(t, store.Admitted)
	if keys := keysUnder(t, server(t).Client(t), name); len(keys) != 1 || keys[0] == key {
		t.Errorf("the line is %q, want the other's entry alone", keys)
	}
	if err := held.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw: %v, want ErrGone", err)
	}
}

// Who has waited has a watch that says nothing of what is put. It opens another.
func TestWhoHasWaitedHearsThatItsKeyIsWrittenOver(t *testing.T) {
	t.Parallel()
	name := newName(t)
	se := openSession(t, newStore(t, server(t).Client(t), ""))
	other := openSession(t, newStore(t, server(t).Client(t), ""))
	first := enqueue(t, other, name)
	first.await(t, store.Admitted)
	held := enqueue(t, se, name)
	held.await(t, store.Waiting)
	await(t, "its line to be watched", func() bool { return etcdstore.WatchOf(se, name) == 1 })
	first.withdraw(t)
	held.await(t, store.Admitted)
	await(t, "its line to be watched again", func() bool { return etcdstore.WatchOf(se, name) == 2 })

	writeOver(t, name)
	held.gone(t)
	await(t, "its key to be deleted", func() bool { return !there(t, server(t).Client(t), name) })
}

// One who waited while it happened finds it in the reading with which the new watch begins.
func TestAWaiterWhoseKeyIsWrittenOverHearsOfItWhenItHolds(t *testing.T) {
	t.Parallel()
	name := newName(t)
	se := openSession(t, newStore(t, server(t).Client(t), ""))
	waiter := enqueue(t, openSession(t, newStore(t, server(t).Client(t), "")), name)
	waiter.await(t, store.Admitted)
	held := enqueue(t, se, name)
	held.await(t, store.Waiting)
	for _, key := range keysUnder(t, server(t).Client(t), name) {
		if strings.HasSuffix(key, se.ID()) {
			if _, err := server(t).Client(t).Put(t.Context(), key, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	waiter.withdraw(t)
	held.await(t, store.Admitted)
	held.gone(t)
	await(t, "its key to be deleted", func() bool { return !there(t, server(t).Client(t), name) })
}

// The owner is dead, or has not heard yet. Nobody else is let in, and who looks is told what to do.
func TestAKeyThatWasWrittenOverExcludesAsBefore(t *testing.T) {
	t.Parallel()
	cli, name := server(t).Client(t), newName(t)
	c := newClient(t, server(t).Client(t), ample)
	for _, what := range []struct {
		name string
		opts []clientv3.OpOption
	}{
		{"without a lease", nil},
		{"with another lease", []clientv3.OpOption{clientv3.WithLease(leaseOf(t, openSession(t, newStore(t, cli, ""))))}},
	} {
		t.Run(what.name, func(t *testing.T) {
			key := name + "/694d9d3b5a8c1f2e"
			if _, err := cli.Put(t.Context(), key, "seen by the operators", what.opts...); err != nil {
				t.Fatal(err)
			}
			var held *stile.HeldError
			if _, err := c.Mutex(name).TryLock(t.Context()); !errors.As(err, &held) || held.Holder == nil || !held.Holder.Foreign {
				t.Fatalf("TryLock: %v, want a HeldError that names a foreign holder", err)
			}
			l, err := c.Show(t.Context(), name)
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

// A store with a prefix has its guards where a store without one has the locks below that prefix.
func TestTheGuardsOfAStoreWithAPrefixAreNoEntries(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	name := newName(t)
	se := openSession(t, newStore(t, cli, name+"/"))
	late := nextIsLate(now)
	ctx := endsWhen(t, "an attempt to be made", late.held.Load)
	if _, err := tryEnqueue(ctx, se, "a", false); err == nil {
		t.Fatal("the scenario has failed: the lock was had")
	}
	await(t, "the guard to be raised", func() bool { return there(t, server(t).Client(t), name+"/.stile") })

	c := newClient(t, server(t).Client(t), ample)
	l, err := c.Show(t.Context(), name+"/.stile")
	if err != nil || len(l.Holders) > 0 {
		t.Errorf("the line is %+v, %v; want nobody", l, err)
	}
	release(t, lock(t, c, name+"/.stile"))
}
