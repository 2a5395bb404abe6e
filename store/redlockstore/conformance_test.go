package redlockstore_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/storetest"
)

// The suite's own tests are run in parallel, and have sessions that must be confirmed in time; so it is not run in parallel
// with the others, where there are many masters and proxies.
// Promise: P1
func TestStoreConformsOnFiveMasters(t *testing.T) {
	servers := testservers.StartRedisServers(t, 5)
	var proxies sync.Map // of stores
	shared, peer := newStore(t, to(servers)), newStore(t, to(servers))
	// Connecting costs more than most tests do: only those that cut a store off have it for themselves. Cut would refuse to
	// cut another.
	open := func(t *testing.T, shared store.Store) store.Store {
		if !strings.Contains(t.Name(), "outage") {
			return shared
		}
		ps, options := through(t, servers)
		st := newStore(t, options)
		proxies.Store(st, ps)
		return st
	}
	storetest.Run(t, storetest.Harness{
		Open: func(t *testing.T) store.Store { return open(t, shared) },
		Peer: func(t *testing.T, _ store.Store) store.Store { return open(t, peer) },
		Cut: func(t *testing.T, st store.Store, _ string) (heal func()) {
			ps, alone := proxies.Load(st)
			if !alone {
				t.Fatalf("%s cuts off a store that other tests use, too: it must be given one of its own", t.Name())
			}
			each := func(f func(*testservers.Proxy)) {
				for _, p := range ps.([]*testservers.Proxy) {
					f(p)
				}
			}
			each(func(p *testservers.Proxy) { p.Hold() })
			return func() { each(func(p *testservers.Proxy) { p.Release() }) }
		},
		TTL:     time.Minute,
		Brief:   4 * time.Second,
		Grace:   30 * time.Second,
		Without: []storetest.Ability{storetest.Fair, storetest.SharedModes, storetest.Markers, storetest.OwnerUpdates, storetest.Contention},
	})
}

// Promise: P1
func TestStoreConformsOnThreeMasters(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st, peer := newStore(t, to(servers)), newStore(t, to(servers)) // for all tests: connecting costs more than most of them do
	storetest.Run(t, storetest.Harness{
		Open:    func(*testing.T) store.Store { return st },
		Peer:    func(*testing.T, store.Store) store.Store { return peer },
		TTL:     time.Minute,
		Brief:   3 * time.Second,
		Grace:   30 * time.Second,
		Without: []storetest.Ability{storetest.Fair, storetest.SharedModes, storetest.Markers, storetest.OwnerUpdates, storetest.Contention, storetest.Cut},
	})
}
