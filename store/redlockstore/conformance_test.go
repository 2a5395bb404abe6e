package redlockstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/storetest"
)

// The suite's own tests are run in parallel, and have sessions that must be confirmed in time; so it is not run in parallel
// with the others, where there are many masters and proxies.
func TestStoreConformsOnFiveMasters(t *testing.T) {
	servers := testservers.StartRedisServers(t, 5)
	var proxies sync.Map // of stores
	open := func(t *testing.T) store.Store {
		ps, options := through(t, servers)
		st := newStore(t, options)
		proxies.Store(st, ps)
		return st
	}
	storetest.Run(t, storetest.Harness{
		Open: open,
		Peer: func(t *testing.T, _ store.Store) store.Store { return open(t) },
		Cut: func(_ *testing.T, st store.Store, _ string) (heal func()) {
			ps, _ := proxies.Load(st)
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
		Without: []storetest.Ability{storetest.Fair, storetest.SharedModes, storetest.Traces},
	})
}

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
		Without: []storetest.Ability{storetest.Fair, storetest.SharedModes, storetest.Traces, storetest.Cut},
	})
}
