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

// watchAll watches all lines of a store and returns a channel that tells of calls.
func watchAll(t *testing.T, st store.Store) <-chan struct{} {
	t.Helper()
	calls := make(chan struct{}, 1000)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		err := st.Watch(ctx, "", func() { calls <- struct{}{} })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Watch: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-over })
	wait(t, calls, "the watch to stand")
	return calls
}

// told waits for a call after which the line is of the given length.
func told(t *testing.T, calls <-chan struct{}, st store.Store, name string, length int) {
	t.Helper()
	for {
		wait(t, calls, fmt.Sprintf("a call after which %d stand in the line", length))
		for {
			// Who is told looks, again if there is no answer.
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
	told(t, calls, other, name, 1)
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
	told(t, calls, st, name, 1)
	e.Restart()
	j.withdraw(t)
	told(t, calls, st, name, 0)
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
	await(t, "both ways to be open", func() bool {
		_, err := cli.Get(t.Context(), "x")
		return err == nil && one.Connections() > 0 && two.Connections() > 0
	})
	st := newStore(t, cli, "")
	times := byEvents()
	times.ResyncInterval = 200 * time.Millisecond // what must tell if the watch does not
	st.SetTimes(times)
	calls := watchAll(t, st)
	// We do not know which way the watch went: so both are silenced in turn.
	for _, way := range []*testservers.Proxy{one, two} {
		way.Hold()
		j := enqueue(t, se, name)
		told(t, calls, direct, name, 1)
		j.withdraw(t)
		told(t, calls, direct, name, 0)
		way.Release()
	}
}

// Changes of keys that are not about locks cause no call.
func TestWatch_ignoresOtherKeys(t *testing.T) {
	t.Parallel()
	e := startEtcd(t) // of its own, where nobody else locks
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
	wait(t, calls, "the call for the entry") // which comes after all that the keys could cause
	if more := len(calls); more > 0 {
		t.Errorf("there were %d calls besides the one for the entry", more)
	}
}

func TestWatch_readNotPermitted(t *testing.T) {
	t.Parallel()
	e := startWithUsers(t)
	cli := connectWith(t, clientv3.Config{
		Endpoints: []string{e.Endpoint()}, Username: "app", Password: "secret-of-app", DialTimeout: soon,
	})
	st := newStore(t, cli, "app/")
	calls := watchAll(t, st)
	held := enqueue(t, openSession(t, st), "lock")
	told(t, calls, st, "lock", 1)
	waiter := enqueue(t, openSession(t, st), "lock")
	waiter.await(t, store.Waiting)

	for _, prefix := range []string{"", "lock"} {
		ctx := until(t, soon)
		err := newStore(t, cli, "elsewhere/").Watch(ctx, prefix, func() { t.Error("called, without the right to read") })
		wantSays(t, err, "watch", fmt.Sprintf("%q", prefix), e.Endpoint(), "permission denied", "read and write", `"elsewhere/"`)
		if ctx.Err() != nil {
			t.Error("it went on until its context ended")
		}
	}
	// That has ended no other watch.
	held.withdraw(t)
	waiter.await(t, store.Admitted)
	told(t, calls, st, "lock", 1)
}
