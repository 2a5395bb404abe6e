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
func TestWaiter_survivesCompaction(t *testing.T) {
	t.Parallel()
	e := startEtcd(t) // of its own: compaction is not for one line
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
	waiter.await(t, store.Admitted)
	if log := w.passed(); slices.Contains(log, "DELETE") {
		t.Errorf("what passed was %q: the event was not compacted, and this test shows nothing", log)
	}
}

// Promise: P7
func TestWaiter_survivesServerRestart(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	name := newName(t)
	holder, waiter := newClient(t, e.Client(t), ample), newClient(t, e.Client(t), ample)
	held := lock(t, holder, name)
	place := join(t, waiter, name)
	e.Restart()
	release(t, held)
	h := holdSoon(t, place)
	release(t, h)
}

// Promise P7, with connections that are cut at random moments of many hand-overs.
// Promise: P7
func TestWaiter_survivesCutConnections(t *testing.T) {
	t.Parallel()
	const (
		clients = 4
		cuts    = 20 // so many, however long that takes
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
		c := newClient(t, connect(t, proxy.Addr()), ample)
		round := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), soon) // a waiter that was forgotten waits for ever
			defer cancel()
			h, err := c.Mutex(name).Lock(ctx)
			if err != nil {
				return err
			}
			if n := inside.Add(1); n != 1 {
				t.Errorf("%d are inside", n)
			}
			time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
			inside.Add(-1)
			if err := h.Release(ctx); !errors.Is(err, stile.ErrNotKnown) { // its connection was cut before there was an answer
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
		// Between two cuts there are hand-overs, or somebody was forgotten.
		seen := handOvers.Load()
		await(t, "hand-overs to go on", func() bool { return t.Failed() || handOvers.Load() > seen+1 })
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		proxies[rand.IntN(clients)].Reset()
	}
	enough.Store(true)
	working.Wait()
	t.Logf("%d hand-overs, %d connections cut", handOvers.Load(), cuts)
}

// The watch's connection stops delivering data without an error. The other connection works.
// Promise: P7
func TestWaiter_silentWatchOnlyDelays(t *testing.T) {
	t.Parallel()
	name := newName(t)
	one, two := testservers.NewProxy(t, server(t).Endpoint()), testservers.NewProxy(t, server(t).Endpoint())
	w := &wire{}
	st := newStore(t, connectWith(t, w.config(one.Addr(), two.Addr())), "")
	times := byEvents()
	times.RecheckInterval, times.WatchTimeout = 300*time.Millisecond, 500*time.Millisecond // what must help if the watch does not
	st.SetTimes(times)
	c := newClientOf(t, st, ample)
	holder := newClient(t, server(t).Client(t), ample)
	await(t, "both ways to be open", func() bool {
		release(t, lock(t, c, newName(t)))
		return one.Connections() > 0 && two.Connections() > 0
	})
	// A line of the same client that nothing happens to: its watch, on the same silent stream, keeps it in use.
	idle := newName(t)
	lock(t, holder, idle)
	join(t, c, idle)
	silenced := false
	for n := 0; !silenced && n < 20; n++ {
		held := lock(t, holder, name)
		place := join(t, c, name)
		silent := one
		await(t, "the watch of the line", func() bool { return w.watchOf(name+"/") != "" })
		if w.watchOf(name+"/") == two.Addr() {
			silent = two
		}
		silent.Hold()
		w.passed()
		release(t, held)
		release(t, holdSoon(t, place))
		// On a busy machine a watch may be given up for being late, and have been opened the other way meanwhile.
		if silenced = !slices.Contains(w.passed(), "DELETE"); !silenced {
			silent.Release()
		}
	}
	if !silenced {
		t.Fatal("the scenario has failed: the watch was never silent")
	}

	// And again: now the line has no watch, or cannot open one on that way. It goes on trying, until it has one the other way.
	watched := false
	for end := time.Now().Add(soon); !watched && time.Now().Before(end); {
		held := lock(t, holder, name)
		place := join(t, c, name)
		release(t, held)
		release(t, holdSoon(t, place))
		watched = slices.Contains(w.passed(), "DELETE")
	}
	if !watched {
		t.Errorf("for %v the line was not watched, though one of two ways to the server works", soon)
	}
}

// The holder is notified that an entry waits, even if its watch was cut.
func TestContended_survivesCutConnections(t *testing.T) {
	t.Parallel()
	proxy, name := testservers.NewProxy(t, server(t).Endpoint()), newName(t)
	w := &wire{}
	st := newStore(t, connectWith(t, w.config(proxy.Addr())), "")
	times := byEvents()
	times.HeldWatchDelay = never // the only watch is that for the hint
	st.SetTimes(times)
	h := lock(t, newClientOf(t, st, ample), name)
	contended := h.Contended()
	w.await(t, "watching")
	proxy.Reset()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := newClient(t, server(t).Client(t), ample).Mutex(name).Join(ctx); err != nil {
		t.Fatal(err)
	}
	wait(t, contended, "the hint that somebody waits")
}

// All keys of a line are deleted in one revision while several entries wait. None of them is
// admitted.
// Promise: P1
func TestWaiter_notAdmittedWhenLineIsDeleted(t *testing.T) {
	t.Parallel()
	name, st := newName(t), newStore(t, server(t).Client(t), "")
	enqueue(t, openSession(t, st), name).await(t, store.Admitted)
	var waiting []*joined
	for range 5 {
		j := enqueue(t, openSession(t, st), name)
		j.await(t, store.Waiting)
		waiting = append(waiting, j)
	}
	removeKeys(t, name)
	for _, j := range waiting {
		j.gone(t)
	}
}

// As above, for an entry whose session receives the deletion before the reply to the insertion.
// Promise: P1
func TestEnqueue_notAdmittedWhenLineIsDeleted(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	st := newStore(t, cli, "")
	shared := func(se store.Session, name string) *joined {
		heard := make(chan store.Standing, 100)
		ticket, err := se.Enqueue(t.Context(), store.Request{
			Name: name, Mode: line.Shared, Notify: func(st store.Standing) { heard <- st },
		})
		if err != nil {
			t.Fatal(err)
		}
		return &joined{ticket, name, heard}
	}
	for {
		name := newName(t)
		enqueue(t, openSession(t, st), name).await(t, store.Admitted)
		se := openSession(t, st) // later, so that etcd tells first that the holder has gone
		watching := shared(se, name)
		watching.await(t, store.Waiting)
		await(t, "a watch of the line", func() bool { return etcdstore.Watches(se, name) })
		var attempts atomic.Int32
		f := tampering(func(_ context.Context, request string, carryOut func() error) error {
			err := carryOut()
			if request == "Txn" && attempts.Add(1) == 1 {
				removeKeys(t, name)
				watching.gone(t)
			}
			return err
		})
		now.Store(&f)
		j := shared(se, name)
		now.Store(nil)
		if attempts.Load() == 1 { // else the entry was put in again, on a busy machine, and stands there by itself
			j.gone(t)
			return
		}
	}
}

// An entry that joins while no watch is open must request a read, because no watch delivers what
// happens before the next one starts. So a watch that has ended does not count as open.
func TestLineWatch_notOpenAfterItEnded(t *testing.T) {
	t.Parallel()
	e := startEtcd(t) // of its own: compaction is not for one line
	proxy := testservers.NewProxy(t, e.Endpoint())
	direct, name := e.Client(t), newName(t)
	cli, now := tamperedAt(t, proxy.Addr())
	st := newStore(t, cli, "")
	times := byEvents()
	times.WatchTimeout = never
	st.SetTimes(times)
	se := openSession(t, st)
	first := enqueue(t, openSession(t, newStore(t, direct, "")), name)
	first.await(t, store.Admitted)
	enqueue(t, se, name).await(t, store.Waiting)
	await(t, "its line to be watched", func() bool { return etcdstore.Watches(se, name) })

	reading, goOn := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(reading) })
	f := tampering(func(_ context.Context, request string, carryOut func() error) error {
		if request == "Range" {
			once()
			<-goOn
		}
		return carryOut()
	})
	now.Store(&f)
	// The watch cannot go on where it was: that has been compacted.
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
	case <-reading: // with which the next watch begins
	case <-until(t, soon).Done():
		t.Fatal("no other watch was opened")
	}
	if etcdstore.Watches(se, name) {
		t.Error("while another watch is being opened the old one counts as open")
	}
	close(goOn)
	await(t, "the other watch to be open", func() bool { return etcdstore.Watches(se, name) })
}
