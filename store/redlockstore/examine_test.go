package redlockstore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redlockstore"
)

// examined returns the findings about a store.
func examined(t *testing.T, st *redlockstore.Store) []store.Finding {
	t.Helper()
	found, err := st.Examine(t.Context(), 15*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// expectFinding checks that there is exactly one finding with this id, with this severity, text and servers.
func expectFinding(t *testing.T, found []store.Finding, id string, severity store.Severity, text string, servers ...string) {
	t.Helper()
	var with []store.Finding
	for _, f := range found {
		if f.ID == id && f.Severity == severity {
			with = append(with, f)
		}
	}
	if len(with) != 1 || !strings.Contains(with[0].What, text) {
		t.Errorf("got %+v for %s, want one finding that is %v and contains %q: %+v", with, id, severity, text, found)
		return
	}
	f := with[0]
	if (f.Advice == "") != (severity == store.Fine) || severity == store.Risk && f.Promise == "" {
		t.Errorf("finding without advice or promise: %+v", f)
	}
	if len(servers) > 0 && fmt.Sprint(f.Servers) != fmt.Sprint(servers) {
		t.Errorf("%s: got the servers %v, want %v", id, f.Servers, servers)
	}
}

// What all masters have in common is one finding; what one has is one with its address.
func TestExamine(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	addrs := []string{servers[0].Addr(), servers[1].Addr(), servers[2].Addr()}
	servers[1].Do("CONFIG", "SET", "appendonly", "yes", "appendfsync", "always", "maxmemory", "1gb", "maxmemory-policy", "allkeys-lru")
	found := examined(t, newStore(t, optionsFor(servers)))
	expectFinding(t, found, "redlock-quorum", store.Fine, "all 3 masters answer; 1 may fail")
	expectFinding(t, found, "redis-persistence", store.Risk, "no append-only file", addrs[0], addrs[2])
	expectFinding(t, found, "redis-persistence", store.Fine, "every write is synced", addrs[1])
	expectFinding(t, found, "redis-eviction", store.Risk, "allkeys-lru", addrs[1])
	expectFinding(t, found, "redlock-replicas", store.Fine, "no replicas", addrs...)
	expectFinding(t, found, "redis-rights", store.Fine, "may do all", addrs...)

	st := newStore(t, optionsFor(servers))
	examined(t, st) // until all are connected
	servers[2].Pause()
	found = examined(t, st)
	expectFinding(t, found, "redlock-quorum", store.Attention, "2 of 3 masters answer, and 2 have to")
	expectFinding(t, found, "redis-answer", store.Attention, "does not answer: no reply within 10s", addrs[2])

	servers[2].Kill()
	found = examined(t, newStore(t, optionsFor(servers)))
	expectFinding(t, found, "redlock-quorum", store.Attention, "2 of 3 masters answer, and 2 have to")
	expectFinding(t, found, "redis-answer", store.Attention, "does not answer", addrs[2])
}

// One server by two addresses.
func TestExamine_sameServer(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	proxy := testservers.NewProxy(t, servers[0].Addr())
	st := newStore(t, []rueidis.ClientOption{option(servers[0].Addr()), option(servers[1].Addr()), option(proxy.Addr())})
	expectFinding(t, examined(t, st), "redlock-same", store.Risk, servers[0].Addr()+" and "+proxy.Addr()+" are the same server")
}

// A master with a replica, which is a master of the URL too.
func TestExamine_replicas(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	servers[1].ReplicaOf(servers[0])
	found := examined(t, newStore(t, optionsFor(servers)))
	n := 0
	for _, f := range found {
		if f.ID == "redlock-replicas" && f.Severity == store.Risk {
			n++
			if !strings.Contains(f.What, "the master has replicas (1)") && !strings.Contains(f.What, "is a replica of another") {
				t.Errorf("got %+v", f)
			}
		}
	}
	if n != 2 {
		t.Errorf("got %d findings about replicas, want that of the master and that of the replica: %+v", n, found)
	}
}

func TestExamine_rights(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3,
		"user limited on >secret ~* &* +@all -zadd -info -config", "user timeless on >secret ~* &* +@all -time")
	as := func(user string) []rueidis.ClientOption {
		options := optionsFor(servers)
		for i := range options {
			options[i].Username, options[i].Password = user, "secret"
		}
		return options
	}
	found := examined(t, newStore(t, as("limited")))
	expectFinding(t, found, "redis-rights", store.Attention, "may not use ZADD")
	expectFinding(t, found, "redis-info", store.Attention, "INFO is not permitted")
	expectFinding(t, examined(t, newStore(t, as("timeless"))), "redis-rights", store.Attention, "may not use TIME")
	for _, s := range servers {
		if size, err := s.Do("DBSIZE").AsInt64(); err != nil || size != 0 {
			t.Errorf("the examination has left %d keys, %v", size, err)
		}
	}
}

// The clock of one master is a day ahead.
func TestExamine_clock(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	ahead := testservers.StartRedisWithClock(t)
	ahead.SetClockAhead(24 * time.Hour)
	servers = append(servers, ahead)
	expectFinding(t, examined(t, newStore(t, optionsFor(servers))), "redis-clock", store.Attention, "differ by 24h", ahead.Addr())
}
