package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// watchAll watches all lines of a store. It returns a channel that receives a value for each call.
func watchAll(t *testing.T, st store.Store) <-chan struct{} {
	t.Helper()
	calls := make(chan struct{}, 1000)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := st.Watch(ctx, "", func([]string) { calls <- struct{}{} })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Watch: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	wait(t, calls, "the watch is open")
	return calls
}

// awaitLength waits for a call after which the line has the given number of entries.
func awaitLength(t *testing.T, calls <-chan struct{}, st store.Store, name string, length int) {
	t.Helper()
	for {
		wait(t, calls, fmt.Sprintf("a call after which the line has %d entries", length))
		for {
			// The caller reads the line, and repeats a read that fails.
			l, err := st.Line(t.Context(), name)
			if err == nil && len(l.Entries) == length {
				return
			}
			if err == nil {
				break
			}
		}
	}
}

// Promise: P7
// Bug: etcd #16223
func TestWatch_survivesCompaction(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	direct := e.Client(t)
	proxy, name := testservers.NewProxy(t, e.Endpoint()), newName(t)
	calls := watchAll(t, newStore(t, connect(t, proxy.Addr()), ""))
	other := newStore(t, direct, "")

	proxy.Hold()
	enqueue(t, openSession(t, other), name)
	resp, err := direct.Put(t.Context(), "other", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := direct.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	proxy.Release()
	awaitLength(t, calls, other, name, 1)
}

// Promise: P7
func TestWatch_survivesServerRestart(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	name := newName(t)
	st := newStore(t, e.Client(t), "")
	calls := watchAll(t, st)
	se := openSession(t, st)
	j := enqueue(t, se, name)
	awaitLength(t, calls, st, name, 1)
	e.Restart()
	j.withdraw(t)
	awaitLength(t, calls, st, name, 0)
}

// The watch's connection stops delivering data without an error. The other connection works.
// Promise: P7
func TestWatch_silentStreamOnlyDelays(t *testing.T) {
	t.Parallel()
	name := newName(t)
	one, two := testservers.NewProxy(t, server(t).Endpoint()), testservers.NewProxy(t, server(t).Endpoint())
	cli := connect(t, one.Addr(), two.Addr())
	direct := newStore(t, server(t).Client(t), "")
	se := openSession(t, direct)
	eventually(t, "both connections are open", func() bool {
		_, err := cli.Get(t.Context(), "x")
		return err == nil && one.Connections() > 0 && two.Connections() > 0
	})
	st := newStore(t, cli, "")
	times := noPollingTimes()
	times.ResyncInterval = 200 * time.Millisecond // replaces the watch
	st.SetTimes(times)
	calls := watchAll(t, st)
	// It is unknown which connection the watch uses, so each is silenced in turn.
	for _, proxy := range []*testservers.Proxy{one, two} {
		proxy.Hold()
		j := enqueue(t, se, name)
		awaitLength(t, calls, direct, name, 1)
		j.withdraw(t)
		awaitLength(t, calls, direct, name, 0)
		proxy.Release()
	}
}

// Changes of keys that are not about locks cause no call.
func TestWatch_ignoresOtherKeys(t *testing.T) {
	t.Parallel()
	e := startEtcd(t) // not shared, because other tests' locks cause calls
	cli, name := e.Client(t), newName(t)
	st := newStore(t, cli, "")
	calls := watchAll(t, st)
	for _, key := range []string{"config", "registry/pods/default/web-1", "a/b/", "/", "a", ".stile/1f", "a/0x1f"} {
		if _, err := cli.Put(t.Context(), key, "{}"); err != nil {
			t.Fatal(err)
		}
		if _, err := cli.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	enqueue(t, openSession(t, st), name)
	wait(t, calls, "there is a call for the entry") // it comes after any call that the keys could cause
	if more := len(calls); more > 0 {
		t.Errorf("got %d calls besides the one for the entry, want none", more)
	}
}

func TestWatch_readNotPermitted(t *testing.T) {
	t.Parallel()
	e := startEtcdWithAuth(t)
	cli := connectWith(t, clientv3.Config{
		Endpoints: []string{e.Endpoint()}, Username: "app", Password: "secret-of-app", DialTimeout: testTimeout,
	})
	st := newStore(t, cli, "app/")
	calls := watchAll(t, st)
	held := enqueue(t, openSession(t, st), "lock")
	awaitLength(t, calls, st, "lock", 1)
	waiter := enqueue(t, openSession(t, st), "lock")
	waiter.await(t, store.Waiting)

	for _, prefix := range []string{"", "lock"} {
		ctx := contextFor(t, testTimeout)
		err := newStore(t, cli, "elsewhere/").Watch(ctx, prefix, func([]string) { t.Error("called without permission to read") })
		wantErrorContains(t, err, "watch", fmt.Sprintf("%q", prefix), e.Endpoint(), "permission denied", "read and write", `"elsewhere/"`)
		if ctx.Err() != nil {
			t.Error("Watch did not return before its context ended")
		}
	}
	// The denied watches have ended no other watch.
	held.withdraw(t)
	waiter.await(t, store.Admitted)
	awaitLength(t, calls, st, "lock", 1)
}
