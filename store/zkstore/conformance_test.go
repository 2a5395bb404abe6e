package zkstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/storetest"
)

// Promise: P1
func TestStore_conforms(t *testing.T) {
	t.Parallel()
	server := server(t)
	var proxies sync.Map // of stores
	open := func(t *testing.T) store.Store {
		proxy := testservers.NewProxy(t, server.Endpoint())
		st := newStore(t, nil, proxy.Addr())
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
		TTL:     time.Minute,
		Brief:   4 * time.Second,
		Grace:   30 * time.Second,
		Without: []storetest.Ability{storetest.ReleaseAfter, storetest.Downgrades, storetest.Markers, storetest.OwnerEvents, storetest.Follow},
	})
}

// shipped is ZooKeeper's default configuration, except for the ports: sessions end only at ticks of
// two seconds, and last for at most twenty of them.
var shipped = []string{"tickTime=2000", "initLimit=10", "syncLimit=5", "minSessionTimeout=4000", "maxSessionTimeout=40000"}

func TestStore_conformsWithDefaultConfig(t *testing.T) {
	t.Parallel()
	z := testservers.StartZooKeeper(t, shipped...)
	open := func(t *testing.T) store.Store { return newStore(t, nil, z.Endpoint()) }
	storetest.Run(t, storetest.Harness{
		Open:    open,
		Peer:    func(t *testing.T, _ store.Store) store.Store { return open(t) },
		TTL:     40 * time.Second,
		Brief:   8 * time.Second, // four ticks
		Grace:   30 * time.Second,
		Without: []storetest.Ability{storetest.ReleaseAfter, storetest.Downgrades, storetest.Markers, storetest.OwnerEvents, storetest.Cut, storetest.Follow},
	})
}

// In an ensemble a server may lag behind the others.
// Promise: P1
func TestStore_conformsOnEnsemble(t *testing.T) {
	t.Parallel()
	ensemble := ensemble(t)
	open := func(t *testing.T) store.Store { return newStore(t, nil, ensemble.Endpoints()...) }
	storetest.Run(t, storetest.Harness{
		Open:    open,
		Peer:    func(t *testing.T, _ store.Store) store.Store { return open(t) },
		TTL:     time.Minute,
		Brief:   4 * time.Second,
		Grace:   30 * time.Second,
		Without: []storetest.Ability{storetest.ReleaseAfter, storetest.Downgrades, storetest.Markers, storetest.OwnerEvents, storetest.Cut, storetest.Follow},
	})
}
