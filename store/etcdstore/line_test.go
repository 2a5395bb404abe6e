package etcdstore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// The waiter misses the release and cannot receive it later, because the history is compacted.
// Promise: P7
// Bug: etcd #16223
func TestWaiter_survivesCompaction(t *testing.T) {
	t.Parallel()
	e := startEtcd(t) // not shared, because compaction affects all lines
	direct := e.Client(t)
	proxy, name := testservers.NewProxy(t, e.Endpoint()), newName(t)
	holder := openSession(t, newStore(t, direct, ""))
	held := enqueue(t, holder, name)
	rec := &recorder{}
	waiter := enqueue(t, openSession(t, newStore(t, connectWith(t, rec.config(proxy.Addr())), "")), name)
	waiter.await(t, store.Waiting)
	rec.awaitLast(t, "Range answered")

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
	rec.takeLog()
	waiter.await(t, store.Admitted)
	if log := rec.takeLog(); slices.Contains(log, "DELETE") {
		t.Errorf("got log %q, want no DELETE: the event was not compacted", log)
	}
}

// Promise: P7
func TestWaiter_survivesServerRestart(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	name := newName(t)
	holder, waiter := newClient(t, e.Client(t), longTTL), newClient(t, e.Client(t), longTTL)
	held := lock(t, holder, name)
	place := join(t, waiter, name)
	e.Restart()
	release(t, held)
	h := awaitHold(t, place)
	release(t, h)
}

// Connections are cut at random moments during many hand-overs.
// Promise: P7
// Bug: etcd #16223
func TestWaiter_survivesCutConnections(t *testing.T) {
	t.Parallel()
	const (
		clients = 4
		cuts    = 20 // the test lasts until there were so many
	)
	name, inside := newName(t), atomic.Int32{}
	var (
		proxies   []*testservers.Proxy
		working   sync.WaitGroup
		handOvers atomic.Int32
		enough    atomic.Bool
	)
	for i := range clients {
		proxy := testservers.NewProxy(t, server(t).Endpoint())
		proxies = append(proxies, proxy)
		c := newClient(t, connect(t, proxy.Addr()), longTTL)
		round := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout) // ends if the waiter was forgotten
			defer cancel()
			h, err := c.Mutex(name).Lock(ctx)
			if err != nil {
				return err
			}
			if n := inside.Add(1); n != 1 {
				t.Errorf("%d clients hold the lock", n)
			}
			time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
			inside.Add(-1)
			if err := h.Release(ctx); !errors.Is(err, stile.ErrNotKnown) { // the connection was cut before the reply
				return err
			}
			return nil
		}
		working.Go(func() {
			for n := 0; !enough.Load(); n++ {
				if err := round(); err != nil {
					t.Errorf("client %d, round %d: %v", i, n, err)
					return
				}
				handOvers.Add(1)
			}
		})
	}
	for range cuts {
		// If a waiter was forgotten, there is no further hand-over between two cuts.
		seen := handOvers.Load()
		eventually(t, "the lock is handed over again", func() bool { return t.Failed() || handOvers.Load() > seen+1 })
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		proxies[rand.IntN(clients)].Reset()
	}
	enough.Store(true)
	working.Wait()
	t.Logf("%d hand-overs, %d connections cut", handOvers.Load(), cuts)
}

// The watch's connection stops delivering data without an error. The other connection works.
// Promise: P7
// Bug: redisson #3891
func TestWaiter_silentWatchOnlyDelays(t *testing.T) {
	t.Parallel()
	name := newName(t)
	one, two := testservers.NewProxy(t, server(t).Endpoint()), testservers.NewProxy(t, server(t).Endpoint())
	rec := &recorder{}
	st := newStore(t, connectWith(t, rec.config(one.Addr(), two.Addr())), "")
	times := noPollingTimes()
	times.RecheckInterval, times.WatchTimeout = 300*time.Millisecond, 500*time.Millisecond // replace the watch
	st.SetTimes(times)
	c := newClientOn(t, st, longTTL)
	holder := newClient(t, server(t).Client(t), longTTL)
	eventually(t, "both connections are open", func() bool {
		release(t, lock(t, c, newName(t)))
		return one.Connections() > 0 && two.Connections() > 0
	})
	// A line of the same client in which nothing happens: its watch, on the same silent stream,
	// keeps the stream in use.
	idle := newName(t)
	lock(t, holder, idle)
	join(t, c, idle)
	silenced := false
	for n := 0; !silenced && n < 20; n++ {
		held := lock(t, holder, name)
		place := join(t, c, name)
		silent := one
		eventually(t, "the line is watched", func() bool { return rec.watchAddr(name+"/-") != "" })
		if rec.watchAddr(name+"/-") == two.Addr() {
			silent = two
		}
		silent.Hold()
		rec.takeLog()
		release(t, held)
		release(t, awaitHold(t, place))
		// On a busy machine the watch may have been replaced for being late, by one on the other
		// connection.
		if silenced = !slices.Contains(rec.takeLog(), "DELETE"); !silenced {
			silent.Release()
		}
	}
	if !silenced {
		t.Fatal("precondition failed: the watch was never silent")
	}

	// Now the line has no watch, or cannot open one on the silent connection. The store must keep
	// trying until it has one on the other connection.
	watched := false
	for end := time.Now().Add(testTimeout); !watched && time.Now().Before(end); {
		held := lock(t, holder, name)
		place := join(t, c, name)
		release(t, held)
		release(t, awaitHold(t, place))
		watched = slices.Contains(rec.takeLog(), "DELETE")
	}
	if !watched {
		t.Errorf("the line was not watched for %v, though one of two connections works", testTimeout)
	}
}

// The holder is notified that an entry waits, even if its watch was cut.
func TestContended_survivesCutConnections(t *testing.T) {
	t.Parallel()
	proxy, name := testservers.NewProxy(t, server(t).Endpoint()), newName(t)
	rec := &recorder{}
	st := newStore(t, connectWith(t, rec.config(proxy.Addr())), "")
	times := noPollingTimes()
	times.HeldWatchDelay = longInterval // the only watch is the one for Contended
	st.SetTimes(times)
	h := lock(t, newClientOn(t, st, longTTL), name)
	contended := h.Contended()
	rec.awaitLogged(t, "watching")
	proxy.Reset()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := newClient(t, server(t).Client(t), longTTL).Mutex(name).Join(ctx); err != nil {
		t.Fatal(err)
	}
	wait(t, contended, "the holder is notified that an entry waits")
}

// All keys of a line are deleted in one revision while several entries wait. None of them is
// admitted.
// Promise: P1
// Bug: etcd #16221
func TestWaiter_notAdmittedWhenLineIsDeleted(t *testing.T) {
	t.Parallel()
	name, st := newName(t), newStore(t, server(t).Client(t), "")
	enqueue(t, openSession(t, st), name).await(t, store.Admitted)
	var waiting []*testEntry
	for range 5 {
		j := enqueue(t, openSession(t, st), name)
		j.await(t, store.Waiting)
		waiting = append(waiting, j)
	}
	removeKeys(t, name)
	for _, j := range waiting {
		j.awaitGone(t)
	}
}

// As above, for an entry whose session receives the deletion before the reply to the insertion.
// Promise: P1
// Bug: etcd #16221
func TestEnqueue_notAdmittedWhenLineIsDeleted(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	st := newStore(t, cli, "")
	shared := func(se store.Session, name string) *testEntry {
		standings := make(chan store.Standing, 100)
		ticket, err := se.Enqueue(t.Context(), store.Request{
			Name: name, Mode: line.Shared, Notify: func(st store.Standing) { standings <- st },
		})
		if err != nil {
			t.Fatal(err)
		}
		return &testEntry{ticket, name, standings}
	}
	for {
		name := newName(t)
		enqueue(t, openSession(t, st), name).await(t, store.Admitted)
		se := openSession(t, st) // opened later, so that etcd delivers the holder's deletion first
		watching := shared(se, name)
		watching.await(t, store.Waiting)
		eventually(t, "the line is watched", func() bool { return etcdstore.LineWatched(se, name) })
		var attempts atomic.Int32
		f := handler(func(_ context.Context, request string, send func() error) error {
			err := send()
			if request == "Txn" && attempts.Add(1) == 1 {
				removeKeys(t, name)
				watching.awaitGone(t)
			}
			return err
		})
		intercept.Store(&f)
		j := shared(se, name)
		intercept.Store(nil)
		if attempts.Load() == 1 { // else, on a busy machine, the entry was inserted again and is alone in the line
			j.awaitGone(t)
			return
		}
	}
}

// An entry that joins while no watch is open must request a read, because no watch delivers what
// happens before the next one starts. So a watch that has ended does not count as open.
// Bug: etcd #16223
func TestLineWatch_notOpenAfterItEnded(t *testing.T) {
	t.Parallel()
	e := startEtcd(t) // not shared, because compaction affects all lines
	proxy := testservers.NewProxy(t, e.Endpoint())
	direct, name := e.Client(t), newName(t)
	cli, intercept := interceptedClientAt(t, proxy.Addr())
	st := newStore(t, cli, "")
	times := noPollingTimes()
	times.WatchTimeout = longInterval
	st.SetTimes(times)
	se := openSession(t, st)
	first := enqueue(t, openSession(t, newStore(t, direct, "")), name)
	first.await(t, store.Admitted)
	enqueue(t, se, name).await(t, store.Waiting)
	eventually(t, "its line is watched", func() bool { return etcdstore.LineWatched(se, name) })

	reading, goOn := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(reading) })
	f := handler(func(_ context.Context, request string, send func() error) error {
		if request == "Range" {
			once()
			<-goOn
		}
		return send()
	})
	intercept.Store(&f)
	// The watch cannot continue where it was, because the history is compacted.
	proxy.Hold()
	resp, err := direct.Put(t.Context(), name+"-other", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := direct.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	proxy.Release()
	select {
	case <-reading: // the next watch begins with a read
	case <-contextFor(t, testTimeout).Done():
		t.Fatal("no other watch was opened")
	}
	if etcdstore.LineWatched(se, name) {
		t.Error("the ended watch counts as open while another is being opened")
	}
	close(goOn)
	eventually(t, "the other watch is open", func() bool { return etcdstore.LineWatched(se, name) })
}
