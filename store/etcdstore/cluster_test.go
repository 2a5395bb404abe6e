package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store/etcdstore"
)

// quickly has a cluster elect as soon as it does by default: for tests that take its leader away, again and again. Leaders
// may change when nobody does that, on a busy machine; so little else may depend on when.
var quickly = []string{"--heartbeat-interval=100", "--election-timeout=1000"}

// load is goroutines that take locks and give them back, each its own, without much of a pause.
type load struct {
	client  *stile.Client
	working sync.WaitGroup
	stop    chan struct{}
	rounds  []atomic.Int64
}

func startLoad(t *testing.T, cluster *testservers.EtcdCluster, name string) *load {
	t.Helper()
	const goroutines = 6
	l := &load{
		client: newClient(t, connect(t, cluster.Endpoints()...), ample), // etcd may end early what was renewed while its leader stood still
		stop:   make(chan struct{}),
		rounds: make([]atomic.Int64, goroutines),
	}
	for i := range goroutines {
		m := l.client.Mutex(fmt.Sprintf("%s/%d", name, i))
		l.working.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				h, err := m.Lock(context.Background())
				if err == nil {
					err = h.Release(context.Background())
				}
				if err != nil && !errors.Is(err, stile.ErrNotKnown) { // which is true of what the dead leader had in its hands
					t.Errorf("goroutine %d: %v", i, err)
					return
				}
				l.rounds[i].Add(1)
			}
		})
	}
	return l
}

// flows waits until every goroutine has made some rounds more.
func (l *load) flows(t *testing.T) {
	t.Helper()
	const more = 5
	var want []int64
	for i := range l.rounds {
		want = append(want, l.rounds[i].Load()+more)
	}
	await(t, "the load to go on", func() bool {
		for i := range l.rounds {
			if l.rounds[i].Load() < want[i] && !t.Failed() {
				return false
			}
		}
		return true
	})
}

func (l *load) end() {
	close(l.stop)
	l.working.Wait()
}

// The stock mutex stands still for seven seconds, returns errors, and leaves half of the keys behind.
// Promise: P4
func TestCluster_memberDiesUnderLoad(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 3, quickly...)
	name, direct := newName(t), connect(t, cluster.Endpoints()...)
	l := startLoad(t, cluster, name)
	end := sync.OnceFunc(l.end)
	defer end()
	l.flows(t)

	leader := func(t *testing.T, c *testservers.EtcdCluster) *testservers.Etcd { return c.Leader(t) }
	kill, restart := (*testservers.Etcd).Kill, (*testservers.Etcd).Restart
	pause, resume := (*testservers.Etcd).Pause, (*testservers.Etcd).Resume
	for _, event := range []struct {
		what   string
		choose func(*testing.T, *testservers.EtcdCluster) *testservers.Etcd
		hurt   func(*testservers.Etcd)
		heal   func(*testservers.Etcd)
	}{
		{"leader killed", leader, kill, restart},
		{"leader killed again", leader, kill, restart},
		// A paused member's connections stand, so every third attempt goes there and is waited for.
		{"leader paused", leader, pause, resume},
		{"follower killed", follower, kill, restart},
		{"follower paused", follower, pause, resume},
	} {
		e := event.choose(t, cluster)
		start := time.Now()
		event.hurt(e)
		l.flows(t)
		went := time.Since(start)
		event.heal(e)
		l.flows(t)
		t.Logf("%s: 5 rounds of everybody %v after that, and the next %v after it", event.what, went, time.Since(start)-went)
		if t.Failed() {
			return
		}
	}
	end()
	await(t, "all entries to be out", func() bool { return len(keysUnder(t, direct, name)) == 0 })
	if lines, err := l.client.Lines(t.Context(), name); err != nil || len(lines) > 0 {
		t.Errorf("the lines are %+v, %v; want none", lines, err)
	}
}

func follower(t *testing.T, cluster *testservers.EtcdCluster) *testservers.Etcd {
	t.Helper()
	leader := cluster.Leader(t)
	for _, m := range cluster.Members() {
		if m != leader {
			return m
		}
	}
	return nil
}

// Two of three members are gone, and the third answers what needs no quorum: nothing is claimed to be held on its
// word, as a compare-only transaction of the stock does (defect B9).
// Promise: P6
func TestCluster_lossOfQuorumLosesHolds(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 3)
	last := cluster.Members()[0]
	const ttl = 15 * time.Second // to expire, but not before the quorum has gone
	name, cli := newName(t), connect(t, last.Endpoint())
	c := newClient(t, cli, ttl)
	session, err := concurrency.NewSession(connect(t, last.Endpoint()), concurrency.WithTTL(int(ample.Seconds())))
	if err != nil {
		t.Fatal(err)
	}
	stock := concurrency.NewMutex(session, newName(t))
	if err := stock.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := lock(t, c, name)
	place, err := newClient(t, cli, ample).Mutex(name).Join(t.Context()) // its session lives through all this
	if err != nil {
		t.Fatal(err)
	}
	await(t, "a place in the line", func() bool { return place.Ahead() == 1 })
	for _, m := range cluster.Members()[1:] {
		m.Kill()
	}
	await(t, "the stock to claim what nobody confirms", func() bool {
		resp, err := session.Client().Txn(until(t, 5*time.Second)).If(stock.IsOwner()).Commit()
		return err == nil && resp.Succeeded
	})
	wait(t, h.Lost(), "the loss")
	if h.Valid() {
		t.Error("the hold is lost, and valid")
	}
	if _, err := c.Mutex(name).TryLock(until(t, time.Second)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("TryLock without a quorum returned %v, want the end of its context", err)
	}
	if _, err := c.Line(until(t, time.Second), name); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Show without a quorum returned %v, want the end of its context", err)
	}
	select {
	case <-place.Ready():
		t.Error("the waiter has an outcome without a quorum")
	default:
	}
	// And when there is one again, the waiter gets its turn: its watch was ended, for want of a leader.
	for _, m := range cluster.Members()[1:] {
		m.Start()
	}
	last.AwaitReady()
	holdSoon(t, place)
}

// The member that a waiter's watch is on dies, whichever that is.
// Promise: P7
func TestWaiter_survivesDeathOfEachMember(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 3, quickly...)
	name := newName(t)
	holder, waiter := newClient(t, connect(t, cluster.Endpoints()...), ample), newClient(t, connect(t, cluster.Endpoints()...), ample)
	for _, m := range cluster.Members() {
		held := lock(t, holder, name)
		place := join(t, waiter, name)
		m.Kill()
		release(t, held)
		release(t, holdSoon(t, place))
		m.Restart()
	}
}

// A leader that was stopped for longer than the TTL believes, when it goes on, that it still leads and that leases
// have expired. At no moment are two holds valid, if there is a LockDelay: see docs/guarantees.md.
func TestCluster_leaderStoppedLongerThanTTL(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 3, quickly...)
	const ttl = 5 * time.Second
	name := newName(t)
	var (
		mu    sync.Mutex
		holds = make(map[*stile.Hold]bool) // that have not been released
		taken atomic.Int64
	)
	take := func(h *stile.Hold) {
		mu.Lock()
		defer mu.Unlock()
		for other := range holds {
			// Its holder may have been asleep for long. What counts is what it would be told now.
			if other.Valid() && h.Valid() {
				t.Errorf("the holds with the tokens %d and %d are both valid", other.Token(), h.Token())
			}
		}
		holds[h] = true
	}
	give := func(h *stile.Hold) {
		mu.Lock()
		defer mu.Unlock()
		delete(holds, h)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var working sync.WaitGroup
	for range 3 {
		st := newStore(t, connect(t, cluster.Endpoints()...), "")
		st.SetTimes(etcdstore.DefaultTimes()) // a watch on the paused member is silent
		c := newDelayedClient(t, st, ttl, ttl)
		working.Go(func() {
			for ctx.Err() == nil {
				h, err := c.Mutex(name).Lock(ctx)
				if err != nil {
					// That of a new session may be in vain for as long as there is no leader. What counts is that all goes on.
					t.Logf("Lock: %v", err)
					continue
				}
				take(h)
				select {
				case <-h.Lost():
				case <-time.After(20 * time.Millisecond):
				case <-ctx.Done():
				}
				give(h)
				taken.Add(1)
				if err := h.Release(ctx); err != nil && !errors.Is(err, stile.ErrLost) && !errors.Is(err, stile.ErrNotKnown) && ctx.Err() == nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	progress := func(when string) {
		t.Helper()
		start, want := time.Now(), taken.Load()+5
		await(t, "5 locks "+when, func() bool { return taken.Load() >= want })
		t.Logf("5 locks %s: %v", when, time.Since(start))
	}
	progress("before")
	leader := cluster.Leader(t)
	leader.Pause()
	progress("under another leader")
	time.Sleep(ttl + ttl/2)
	leader.Resume()
	progress("with the old one back")
	cancel()
	working.Wait()
}

// A holder is admitted in the order of tokens on whatever member the request arrives.
// Promise: P2
func TestToken_growsAcrossMembers(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 3)
	name := newName(t)
	var clients []*stile.Client
	for _, m := range cluster.Members() {
		clients = append(clients, newClient(t, connectWith(t, clientv3.Config{Endpoints: []string{m.Endpoint()}}), ample))
	}
	var last uint64
	for i := range 30 {
		h := lock(t, clients[i%3], name)
		if h.Token() <= last {
			t.Errorf("token %d came after %d", h.Token(), last)
		}
		last = h.Token()
		release(t, h)
	}
}
