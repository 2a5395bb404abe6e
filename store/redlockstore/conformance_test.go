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

// The suite runs its tests in parallel, with sessions that must be confirmed in time. With its many
// masters and proxies this test is therefore not run in parallel with the others.
// Promise: P1
func TestStore_conformsOnFiveMasters(t *testing.T) {
	servers := testservers.StartRedisServers(t, 5)
	var proxies sync.Map // by store
	shared, peer := newStore(t, optionsFor(servers)), newStore(t, optionsFor(servers))
	// Connecting takes longer than most tests, so only those that cut a store off get a store of
	// their own. Cut refuses to cut a shared one.
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
				t.Fatalf("%s cuts off a store that other tests use; give it a store of its own", t.Name())
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
		Without: []storetest.Ability{storetest.Fair, storetest.SharedModes, storetest.Downgrades, storetest.Markers, storetest.OwnerUpdates, storetest.Contention, storetest.Requeue, storetest.SlotNumbers, storetest.Limits, storetest.Records, storetest.EnqueueAll, storetest.Follow},
	})
}

// Promise: P1
func TestStore_conformsOnThreeMasters(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	st, peer := newStore(t, optionsFor(servers)), newStore(t, optionsFor(servers)) // shared by all tests: connecting takes longer than most of them
	storetest.Run(t, storetest.Harness{
		Open:    func(*testing.T) store.Store { return st },
		Peer:    func(*testing.T, store.Store) store.Store { return peer },
		TTL:     time.Minute,
		Brief:   3 * time.Second,
		Grace:   30 * time.Second,
		Without: []storetest.Ability{storetest.Fair, storetest.SharedModes, storetest.Downgrades, storetest.Markers, storetest.OwnerUpdates, storetest.Contention, storetest.Requeue, storetest.SlotNumbers, storetest.Limits, storetest.Records, storetest.EnqueueAll, storetest.Cut, storetest.Follow},
	})
}
