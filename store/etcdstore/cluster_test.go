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

// fastElection sets etcd's default timings, with which a cluster elects a leader quickly. It is for
// tests that take the leader away repeatedly. On a busy machine the leader may change at other
// times too, so little else may depend on when it does.
var fastElection = []string{"--heartbeat-interval=100", "--election-timeout=1000"}

// workload is a number of goroutines that each take and release a lock of their own, almost without
// a pause.
type workload struct {
	client   *stile.Client
	working  sync.WaitGroup
	stopping chan struct{}
	rounds   []atomic.Int64
}

func startWorkload(t *testing.T, cluster *testservers.EtcdCluster, name string) *workload {
	t.Helper()
	const goroutines = 6
	l := &workload{
		client:   newClient(t, connect(t, cluster.Endpoints()...), longTTL), // etcd may end leases early that were renewed while its leader was paused
		stopping: make(chan struct{}),
		rounds:   make([]atomic.Int64, goroutines),
	}
	for i := range goroutines {
		m := l.client.Mutex(fmt.Sprintf("%s/%d", name, i))
		l.working.Go(func() {
			for {
				select {
				case <-l.stopping:
					return
				case <-time.After(5 * time.Millisecond):
				}
				h, err := m.Lock(context.Background())
				if err == nil {
					err = h.Release(context.Background())
				}
				if err != nil && !errors.Is(err, stile.ErrNotKnown) { // the outcome of requests that the dead leader had is unknown
					t.Errorf("goroutine %d: %v", i, err)
					return
				}
				l.rounds[i].Add(1)
			}
		})
	}
	return l
}

// awaitRounds waits until every goroutine has taken and released its lock a few more times.
func (l *workload) awaitRounds(t *testing.T) {
	t.Helper()
	const more = 5
	var want []int64
	for i := range l.rounds {
		want = append(want, l.rounds[i].Load()+more)
	}
	eventually(t, "every goroutine makes progress", func() bool {
		for i := range l.rounds {
			if l.rounds[i].Load() < want[i] && !t.Failed() {
				return false
			}
		}
		return true
	})
}

func (l *workload) stop() {
	close(l.stopping)
	l.working.Wait()
}

// The stock mutex stalls for seven seconds, returns errors, and leaves half of the keys behind.
// Promise: P4
func TestCluster_memberDiesUnderLoad(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 3, fastElection...)
	name, direct := newName(t), connect(t, cluster.Endpoints()...)
	l := startWorkload(t, cluster, name)
	end := sync.OnceFunc(l.stop)
	defer end()
	l.awaitRounds(t)

	leader := func(t *testing.T, c *testservers.EtcdCluster) *testservers.Etcd { return c.Leader(t) }
	kill, restart := (*testservers.Etcd).Kill, (*testservers.Etcd).Restart
	pause, resume := (*testservers.Etcd).Pause, (*testservers.Etcd).Resume
	for _, tt := range []struct {
		name   string
		choose func(*testing.T, *testservers.EtcdCluster) *testservers.Etcd
		fail   func(*testservers.Etcd)
		heal   func(*testservers.Etcd)
	}{
		{"leader killed", leader, kill, restart},
		{"leader killed again", leader, kill, restart},
		// A paused member's connections stay open, so every third attempt goes to it and has to
		// time out.
		{"leader paused", leader, pause, resume},
		{"follower killed", follower, kill, restart},
		{"follower paused", follower, pause, resume},
	} {
		e := tt.choose(t, cluster)
		start := time.Now()
		tt.fail(e)
		l.awaitRounds(t)
		took := time.Since(start)
		tt.heal(e)
		l.awaitRounds(t)
		t.Logf("%s: 5 rounds of each goroutine took %v, and 5 more after recovery %v", tt.name, took, time.Since(start)-took)
		if t.Failed() {
			return
		}
	}
	end()
	eventually(t, "all entries are deleted", func() bool { return len(keysUnder(t, direct, name)) == 0 })
	if lines, err := l.client.Lines(t.Context(), name); err != nil || len(lines) > 0 {
		t.Errorf("got lines %+v, %v; want none", lines, err)
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

// Two of three members are killed, and the third still answers requests that need no quorum. Such
// an answer must not count as a confirmation, as it does for the stock mutex, whose IsOwner is a
// compare-only transaction (defect B9).
// Promise: P6
func TestCluster_lossOfQuorumLosesHolds(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 3)
	last := cluster.Members()[0]
	const ttl = 15 * time.Second // to expire, but not before the quorum has gone
	name, cli := newName(t), connect(t, last.Endpoint())
	c := newClient(t, cli, ttl)
	session, err := concurrency.NewSession(connect(t, last.Endpoint()), concurrency.WithTTL(int(longTTL.Seconds())))
	if err != nil {
		t.Fatal(err)
	}
	stock := concurrency.NewMutex(session, newName(t))
	if err := stock.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := lock(t, c, name)
	place, err := newClient(t, cli, longTTL).Mutex(name).Join(t.Context()) // its session stays alive
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the entry is in the line", func() bool { return place.Ahead() == 1 })
	for _, m := range cluster.Members()[1:] {
		m.Kill()
	}
	eventually(t, "the stock mutex claims to be held without a quorum", func() bool {
		resp, err := session.Client().Txn(contextFor(t, 5*time.Second)).If(stock.IsOwner()).Commit()
		return err == nil && resp.Succeeded
	})
	wait(t, h.Lost(), "the hold is lost")
	if h.Valid() {
		t.Error("the hold is lost and still valid")
	}
	if _, err := c.Mutex(name).TryLock(contextFor(t, time.Second)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("TryLock without a quorum: got %v, want DeadlineExceeded", err)
	}
	if _, err := c.Line(contextFor(t, time.Second), name); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Line without a quorum: got %v, want DeadlineExceeded", err)
	}
	select {
	case <-place.Ready():
		t.Error("the waiter's outcome was decided without a quorum")
	default:
	}
	// The watch was ended for want of a leader. The waiter is admitted when there is a quorum
	// again.
	for _, m := range cluster.Members()[1:] {
		m.Start()
	}
	last.AwaitReady()
	awaitHold(t, place)
}

// The member that serves a waiter's watch dies. Every member is killed once, so one of them is that
// member.
// Promise: P7
func TestWaiter_survivesDeathOfEachMember(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 3, fastElection...)
	name := newName(t)
	holder, waiter := newClient(t, connect(t, cluster.Endpoints()...), longTTL), newClient(t, connect(t, cluster.Endpoints()...), longTTL)
	for _, m := range cluster.Members() {
		held := lock(t, holder, name)
		place := join(t, waiter, name)
		m.Kill()
		release(t, held)
		release(t, awaitHold(t, place))
		m.Restart()
	}
}

// A leader that was stopped for longer than the TTL believes, when it resumes, that it still leads
// and that leases have expired. With a LockDelay, two holds are never valid at the same time: see
// docs/guarantees.md.
func TestCluster_leaderStoppedLongerThanTTL(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 3, fastElection...)
	const ttl = 5 * time.Second
	name := newName(t)
	var (
		mu    sync.Mutex
		holds = make(map[*stile.Hold]bool) // not released yet
		taken atomic.Int64
	)
	add := func(h *stile.Hold) {
		mu.Lock()
		defer mu.Unlock()
		for other := range holds {
			// The goroutine of the other hold may not have run for long. Valid returns what it would
			// see now.
			if other.Valid() && h.Valid() {
				t.Errorf("the holds with tokens %d and %d are both valid", other.Token(), h.Token())
			}
		}
		holds[h] = true
	}
	drop := func(h *stile.Hold) {
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
		c := newLockDelayClient(t, st, ttl, ttl)
		working.Go(func() {
			for ctx.Err() == nil {
				h, err := c.Mutex(name).Lock(ctx)
				if err != nil {
					// A new session cannot be opened while there is no leader. The test requires
					// only that the locks are taken again later.
					t.Logf("Lock: %v", err)
					continue
				}
				add(h)
				select {
				case <-h.Lost():
				case <-time.After(20 * time.Millisecond):
				case <-ctx.Done():
				}
				drop(h)
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
		eventually(t, "5 locks are taken "+when, func() bool { return taken.Load() >= want })
		t.Logf("5 locks %s took %v", when, time.Since(start))
	}
	progress("before the pause")
	leader := cluster.Leader(t)
	leader.Pause()
	progress("with another leader")
	time.Sleep(ttl + ttl/2)
	leader.Resume()
	progress("after the old leader resumed")
	cancel()
	working.Wait()
}

// Tokens rise whichever member a request is sent to.
// Promise: P2
func TestToken_growsAcrossMembers(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 3)
	name := newName(t)
	var clients []*stile.Client
	for _, m := range cluster.Members() {
		clients = append(clients, newClient(t, connectWith(t, clientv3.Config{Endpoints: []string{m.Endpoint()}}), longTTL))
	}
	var last uint64
	for i := range 30 {
		h := lock(t, clients[i%3], name)
		if h.Token() <= last {
			t.Errorf("got token %d after %d", h.Token(), last)
		}
		last = h.Token()
		release(t, h)
	}
}
