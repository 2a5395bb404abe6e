package etcdstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/storetest"
)

// Promise: P1
func TestStore_conformance(t *testing.T) {
	t.Parallel()
	server := server(t)
	var proxies sync.Map // by store
	open := func(t *testing.T) store.Store {
		proxy := testservers.NewProxy(t, server.Endpoint())
		st := newStore(t, connect(t, proxy.Addr()), "")
		proxies.Store(st, proxy)
		return st
	}
	storetest.Run(t, storetest.Harness{
		Open: open,
		Peer: func(t *testing.T, _ store.Store) store.Store { return open(t) },
		Cut: func(_ *testing.T, st store.Store, _ string) (heal func()) {
			proxy, _ := proxies.Load(st)
			proxy.(*testservers.Proxy).Hold()
			return func() { proxy.(*testservers.Proxy).Release() }
		},
		TTL:   time.Minute,
		Brief: 3 * time.Second,
		Grace: 30 * time.Second,
	})
}

// On a cluster, a request may go to a member that has not yet applied the one before.
func TestStore_conformanceOnCluster(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 3)
	storetest.Run(t, storetest.Harness{
		Open: func(t *testing.T) store.Store { return newStore(t, connect(t, cluster.Endpoints()...), "") },
		Peer: func(t *testing.T, _ store.Store) store.Store {
			return newStore(t, connect(t, cluster.Endpoints()...), "")
		},
		TTL:     time.Minute,
		Brief:   3 * time.Second,
		Grace:   30 * time.Second,
		Without: []storetest.Ability{storetest.Cut},
	})
}

// A wrapper that renames locks sees every operation: no extension bypasses it. Below it, a session
// follows one entry ahead of its own in a line of four entries already, as it otherwise does in long
// ones.
func TestStore_conformanceRenamed(t *testing.T) {
	t.Parallel()
	server := server(t)
	open := func(t *testing.T) store.Store {
		st := newStore(t, connect(t, server.Endpoint()), "")
		st.SetSizes(5, 1, 1)
		return storetest.Renamed(st, "renamed/")
	}
	storetest.Run(t, storetest.Harness{
		Open:    open,
		Peer:    func(t *testing.T, _ store.Store) store.Store { return open(t) },
		TTL:     time.Minute,
		Brief:   3 * time.Second,
		Grace:   30 * time.Second,
		Without: []storetest.Ability{storetest.Cut, storetest.ExactAhead},
	})
}
