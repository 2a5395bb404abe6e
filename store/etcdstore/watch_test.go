package etcdstore_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// The waiter cannot be told of the release, and cannot be told of it later either, because the history has been
// compacted.
func TestWaiterSurvivesCompaction(t *testing.T) {
	t.Parallel()
	e := testservers.StartEtcd(t) // of its own: compaction is not for one line
	direct := e.Client(t)
	proxy, name := testservers.NewProxy(t, e.Endpoint()), newName(t)
	holder := openSession(t, newStore(t, direct, ""))
	held := enqueue(t, holder, name)
	w := &wire{}
	waiter := enqueue(t, openSession(t, newStore(t, connectWith(t, w.config(proxy.Addr())), "")), name)
	waiter.await(t, store.Waiting)
	w.quiet(t, "Range answered")

	proxy.Hold()
	held.withdraw(t)
	var now int64
	for range 10 {
		resp, err := direct.Put(t.Context(), "other", "")
		if err != nil {
			t.Fatal(err)
		}
		now = resp.Header.Revision
	}
	if _, err := direct.Compact(t.Context(), now, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	proxy.Release()
	w.passed()
	start := time.Now()
	waiter.await(t, store.Admitted)
	if took := time.Since(start); took > beforeRecheck {
		t.Errorf("the waiter was admitted after %v, not by its watch", took)
	}
	if log := w.passed(); slices.Contains(log, "DELETE") {
		t.Errorf("what passed was %q: the event was not compacted, and this test shows nothing", log)
	}
}

func TestWaiterSurvivesRestartOfTheServer(t *testing.T) {
	t.Parallel()
	e := testservers.StartEtcd(t)
	name := newName(t)
	holder, waiter := newClient(t, e.Client(t), 20*time.Second), newClient(t, e.Client(t), 20*time.Second)
	held := lock(t, holder, name)
	place := join(t, waiter, name)
	e.Restart()
	release(t, held)
	h := holdSoon(t, place)
	release(t, h)
}

// Promise P7, with connections that are cut at random moments of many hand-overs.
func TestNoWaiterIsForgottenWhenConnectionsAreCut(t *testing.T) {
	t.Parallel()
	const (
		clients = 4
		each    = 25
	)
	name, inside := newName(t), atomic.Int32{}
	var (
		proxies []*testservers.Proxy
		working sync.WaitGroup
		cut     atomic.Int32
	)
	ctx := until(t, 60*time.Second)
	for i := range clients {
		proxy := testservers.NewProxy(t, server(t).Endpoint())
		proxies = append(proxies, proxy)
		c := newClient(t, connect(t, proxy.Addr()), 10*time.Second)
		working.Go(func() {
			for n := range each {
				h, err := c.Mutex(name).Lock(ctx)
				if err != nil {
					t.Errorf("client %d, round %d: %v", i, n, err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d are inside", n)
				}
				time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
				inside.Add(-1)
				if err := h.Release(ctx); err != nil {
					t.Errorf("client %d, round %d: %v", i, n, err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		working.Wait()
	}()
	for {
		select {
		case <-done:
			t.Logf("%d hand-overs, %d connections cut", clients*each, cut.Load())
			if cut.Load() < 20 {
				t.Errorf("only %d connections were cut: this test shows nothing", cut.Load())
			}
			return
		case <-time.After(time.Duration(20+rand.IntN(40)) * time.Millisecond):
			cut.Add(1)
			proxies[rand.IntN(clients)].Reset()
		}
	}
}

// The watch's connection falls silent for good, and nothing tells the client: no reset, no answer. The other way to the
// server works.
func TestSilentWatchDelaysButNeverStrands(t *testing.T) {
	t.Parallel()
	name := newName(t)
	one, two := testservers.NewProxy(t, server(t).Endpoint()), testservers.NewProxy(t, server(t).Endpoint())
	// Lines of the same client that nothing happens to: their watches, on the same silent stream, keep it in use.
	w := &wire{}
	c := newClient(t, connectWith(t, w.config(one.Addr(), two.Addr())), 60*time.Second)
	holder := newClient(t, server(t).Client(t), 60*time.Second)
	await(t, "both ways to be open", func() bool {
		release(t, lock(t, c, newName(t)))
		return one.Connections() > 0 && two.Connections() > 0
	})
	idle := newName(t)
	lock(t, holder, idle)
	join(t, c, idle)
	w.quiet(t, "Range answered")
	held := lock(t, holder, name)
	place := join(t, c, name)
	w.quiet(t, "Range answered")

	// We do not know which way the watches went. If it was the other one, they work, and we begin again.
	silent := one
	silent.Hold()
	release(t, held)
	select {
	case <-place.Ready():
		h, err := place.Hold()
		if err != nil {
			t.Fatal(err)
		}
		release(t, h)
		silent.Release()
		held = lock(t, holder, name)
		place = join(t, c, name)
		silent = two
		silent.Hold()
		release(t, held)
	case <-time.After(time.Second):
	}
	h := holdSoon(t, place)
	release(t, h)

	// And again: now the line has no watch, and cannot open one on that stream.
	held = lock(t, holder, name)
	place = join(t, c, name)
	start := time.Now()
	release(t, held)
	h = holdSoon(t, place)
	t.Logf("with a watch that cannot be opened the hand-over took %v", time.Since(start))
	release(t, h)
}

// The hint that somebody waits reaches the holder also if its watch was cut.
func TestContendedIsToldThroughCuts(t *testing.T) {
	t.Parallel()
	proxy, name := testservers.NewProxy(t, server(t).Endpoint()), newName(t)
	c := newClient(t, connect(t, proxy.Addr()), 20*time.Second)
	h := lock(t, c, name)
	contended := h.Contended()
	time.Sleep(50 * time.Millisecond)
	proxy.Reset()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := newClient(t, server(t).Client(t), 20*time.Second).Mutex(name).Join(ctx); err != nil {
		t.Fatal(err)
	}
	wait(t, contended, "the hint that somebody waits")
}
