package memstore_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
	"github.com/stilelock/stile/store/storetest"
)

const grace = time.Minute

func TestStore_conformance(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Open: func(*testing.T) store.Store { return memstore.New() },
		Cut:  cut,
		Run:  synctest.Test, TTL: time.Hour, Grace: grace,
	})
}

// Requests that take time can be canceled in flight and can overtake each other.
func TestStore_conformanceWithDelays(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Open: func(*testing.T) store.Store {
			st := memstore.New()
			st.SetFaults(faraway)
			return st
		},
		Run: synctest.Test, TTL: time.Hour, Grace: grace,
		Without: []storetest.Ability{storetest.Cut},
	})
}

func TestStore_conformanceOnRealClock(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Open: func(*testing.T) store.Store { return memstore.New() },
		TTL:  time.Minute, Brief: time.Second / 4, Grace: 30 * time.Second,
		Without: []storetest.Ability{storetest.Cut},
	})
}

// A wrapper that renames locks sees every operation: no extension bypasses it.
func TestStore_conformanceRenamed(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Open: func(*testing.T) store.Store { return storetest.Renamed(memstore.New(), "renamed/") },
		Run:  synctest.Test, TTL: time.Hour, Grace: grace,
		Without: []storetest.Ability{storetest.Cut},
	})
}

func faraway(memstore.Call) memstore.Fault {
	return memstore.Fault{Delay: rand.N(time.Millisecond), ReplyDelay: rand.N(time.Millisecond)}
}

func cut(_ *testing.T, st store.Store, session string) (heal func()) {
	m := st.(*memstore.Store)
	m.SetFaults(func(c memstore.Call) memstore.Fault {
		switch {
		case c.Session != session:
			return memstore.Fault{}
		case c.Op == memstore.Notify:
			return memstore.Fault{Delay: grace / 2}
		default:
			return memstore.Fault{Drop: true}
		}
	})
	return func() { m.SetFaults(nil) }
}
