package etcdstore_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
)

// contest is one lock, its holder, and who waits for it.
type contest struct {
	hold    *stile.Hold
	place   *stile.Place
	early   atomic.Bool // the hold's entry went while the hold was valid
	overlap bool        // the hold was valid when the next one had the lock
}

// outcome is what came of some contests.
type outcome struct {
	valid    int // holds that were valid when the old leader went on
	early    int // holds whose entries went while they were valid
	overlaps int // holds that were valid when the next one had the lock
}

// pauseTheLeader has locks held, by clients whose sessions are renewed with the members that follow, while the leader is
// stopped for longer than their TTL. It cuts the holders off, so that nobody can tell them anything, lets the old leader
// go on, and waits for everybody's turn.
func pauseTheLeader(t *testing.T, cluster *testservers.EtcdCluster, ttl, lockDelay time.Duration) outcome {
	t.Helper()
	leader := cluster.Leader(t)
	var cutOff []*testservers.Proxy
	var direct, cut []string
	for _, m := range cluster.Members() {
		if m != leader {
			proxy := testservers.NewProxy(t, m.Endpoint())
			direct, cut, cutOff = append(direct, m.Endpoint()), append(cut, proxy.Addr()), append(cutOff, proxy)
		}
	}
	cli := connect(t, direct...)
	name := newName(t)
	contests := make(map[string]*contest)
	for i := range 6 {
		lockName := fmt.Sprintf("%s/%d", name, i)
		holder := newDelayedClient(t, newStore(t, connect(t, cut...), ""), ttl, lockDelay)
		waiter := newDelayedClient(t, newStore(t, cli, ""), ttl, lockDelay)
		contests[lockName] = &contest{hold: lock(t, holder, lockName), place: join(t, waiter, lockName)}
	}
	deletions := cli.Watch(clientv3.WithRequireLeader(t.Context()), name, clientv3.WithPrefix(), clientv3.WithFilterPut(),
		clientv3.WithCreatedNotify())
	<-deletions
	go func() {
		for resp := range deletions {
			for _, ev := range resp.Events {
				key := string(ev.Kv.Key)
				if c := contests[key[:strings.LastIndexByte(key, '/')]]; c != nil && c.hold.Valid() {
					c.early.Store(true)
				}
			}
		}
	}()

	leader.Pause()
	time.Sleep(ttl + ttl/2)
	for _, proxy := range cutOff {
		proxy.Hold()
	}
	var o outcome
	for _, c := range contests {
		if c.hold.Valid() {
			o.valid++
		}
	}
	leader.Resume()
	var waiting sync.WaitGroup
	for _, c := range contests {
		waiting.Go(func() {
			select {
			case <-c.place.Ready():
				c.overlap = c.hold.Valid()
			case <-time.After(3*ttl + lockDelay): // a TTL anew from the new leader, at most, and the delay
			}
		})
	}
	waiting.Wait()
	for _, c := range contests {
		if err := holdSoon(t, c.place).Release(t.Context()); err != nil && !errors.Is(err, stile.ErrLost) {
			t.Errorf("Release: %v", err)
		}
		if c.early.Load() {
			o.early++
		}
		if c.overlap {
			o.overlaps++
		}
	}
	for _, proxy := range cutOff {
		proxy.Release()
	}
	return o
}

// What etcd does to a lease that it gives up early, done by hand, so that it is done for certain. Without a LockDelay the holder,
// which is cut off, is still valid when the next one has the lock.
func TestWithALockDelayAHoldWhoseLeaseIsRevokedDoesNotOverlapWithTheNext(t *testing.T) {
	t.Parallel()
	for ttl, lockDelay := range map[time.Duration]time.Duration{3 * time.Second: 3 * time.Second, 30 * time.Second: 0} {
		proxy := testservers.NewProxy(t, server(t).Endpoint())
		direct, name := server(t).Client(t), newName(t)
		h := lock(t, newDelayedClient(t, newStore(t, connect(t, proxy.Addr()), ""), ttl, lockDelay), name)
		next := join(t, newDelayedClient(t, newStore(t, direct, ""), ttl, lockDelay), name)
		resp, err := direct.Get(t.Context(), name+"/", clientv3.WithFirstCreate()...)
		if err != nil || len(resp.Kvs) != 1 {
			t.Fatalf("the entry of the holder: %v, %v", resp, err)
		}
		proxy.Hold()
		if _, err := direct.Revoke(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease)); err != nil {
			t.Fatal(err)
		}
		second := holdSoon(t, next)
		if overlap := h.Valid(); overlap != (lockDelay == 0) {
			t.Errorf("with a LockDelay of %v: the first hold is valid when there is a second: %v", lockDelay, overlap)
		}
		release(t, second)
		proxy.Release()
	}
}

// Up to version 3.7.3 at least, etcd may revoke leases early that were renewed while its leader was stopped. Their holders
// are cut off here, and know nothing of it.
func TestWithALockDelayHoldsDoNotOverlapWhenTheStoreEndsThemEarly(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second // long enough for an election
	cluster := testservers.StartEtcdCluster(t, 3)
	for _, lockDelay := range []time.Duration{ttl, ttl, 0} {
		o := pauseTheLeader(t, cluster, ttl, lockDelay)
		t.Logf("with a LockDelay of %v: %d of %d valid holds were ended early, and %d overlapped with the next",
			lockDelay, o.early, o.valid, o.overlaps)
		if lockDelay > 0 && o.overlaps > 0 {
			t.Errorf("with a LockDelay of %v %d holds were valid when the next one had the lock", lockDelay, o.overlaps)
		}
	}
}
