package redisstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
	"github.com/stilelock/stile/store/storetest"
)

// Promise: P1, P3
func TestStore_conforms(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	var proxies sync.Map // by store
	open := func(t *testing.T) store.Store {
		proxy := testservers.NewProxy(t, server.Addr())
		st := newStore(t, connect(t, proxy.Addr()), nil)
		proxies.Store(st, proxy)
		return st
	}
	storetest.Run(t, storetest.Harness{
		Open: open,
		Peer: func(t *testing.T, _ store.Store) store.Store { return open(t) },
		Cut: func(_ *testing.T, st store.Store, _ string) (heal func()) {
			proxy, _ := proxies.Load(st)
			proxy.(*testservers.Proxy).Hold()
			proxy.(*testservers.Proxy).Reset() // so that the server knows that the subscriber is away
			return func() { proxy.(*testservers.Proxy).Release() }
		},
		TTL:     time.Minute,
		Brief:   2 * time.Second,
		Grace:   30 * time.Second,
		Without: []storetest.Ability{storetest.Markers, storetest.Follow},
	})
}

// In a cluster the entries of one session are on several servers, and each slot has its own
// channel.
// Promise: P1
func TestStore_conformsOnCluster(t *testing.T) {
	t.Parallel()
	var addrs []string
	for _, node := range testservers.StartRedisCluster(t, 3) {
		addrs = append(addrs, node.Addr())
	}
	open := func(t *testing.T) store.Store {
		return newStore(t, connectWith(t, redisstore.ClientOptions(addrs...)), nil)
	}
	storetest.Run(t, storetest.Harness{
		Open:    open,
		Peer:    func(t *testing.T, _ store.Store) store.Store { return open(t) },
		TTL:     time.Minute,
		Brief:   2 * time.Second,
		Grace:   30 * time.Second,
		Without: []storetest.Ability{storetest.Markers, storetest.Cut, storetest.EnqueueAll, storetest.Follow},
	})
}
