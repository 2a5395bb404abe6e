package redisstore_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// ttl is the TTL for which the tests examine servers.
const examinedTTL = 15 * time.Second

// examined returns the findings of an examination that does not wait between two readings of a clock.
func examined(t *testing.T, st *redisstore.Store) []store.Finding {
	t.Helper()
	st.ExaminePause(func() {})
	found, err := st.Examine(t.Context(), examinedTTL)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// expectFinding checks that there is exactly one finding with this id, with this severity and text.
func expectFinding(t *testing.T, found []store.Finding, id string, severity store.Severity, text string) {
	t.Helper()
	var with []store.Finding
	for _, f := range found {
		if f.ID == id {
			with = append(with, f)
		}
	}
	if len(with) != 1 || with[0].Severity != severity || !strings.Contains(with[0].What, text) {
		t.Errorf("got %+v for %s, want one finding that is %v and contains %q", with, id, severity, text)
		return
	}
	if f := with[0]; (f.Advice == "") != (severity == store.Fine) || severity == store.Risk && f.Promise == "" {
		t.Errorf("finding without advice or promise: %+v", f)
	}
}

// A server that has not answered in time is asked again; that is no finding.
func TestExamine_repeatsUnansweredRequests(t *testing.T) {
	t.Parallel()
	client := &dropFirst{Client: connect(t, testservers.StartRedis(t).Addr()), seen: make(map[string]bool)}
	for word := range redisstore.Harmless() { // answered at once: otherwise the examination would time out more often than needed
		client.seen[strings.ToUpper(word)] = word != "time"
	}
	found := examined(t, newStore(t, client, nil))
	for _, word := range []string{"TIME", "INFO", "CONFIG"} {
		if !client.seen[word] {
			t.Errorf("only %v were sent; the test needs %s", client.seen, word)
		}
	}
	expectFinding(t, found, "redis-rights", store.Fine, "may do all")
	expectFinding(t, found, "redis-persistence", store.Risk, "no append-only file")
}

func TestExamine_eviction(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, "maxmemory 100mb", "maxmemory-policy volatile-lru")
	st := storeAt(t, server.Addr())
	expectFinding(t, examined(t, st), "redis-eviction", store.Risk, "maxmemory-policy is volatile-lru")
	server.Do("CONFIG", "SET", "maxmemory", "0")
	expectFinding(t, examined(t, st), "redis-eviction", store.Fine, "evicts nothing")
	server.Do("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "noeviction")
	expectFinding(t, examined(t, st), "redis-eviction", store.Fine, "noeviction")
}

func TestExamine_memory(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st := storeAt(t, server.Addr())
	expectFinding(t, examined(t, st), "redis-memory", store.Fine, "no limit")
	server.Do("CONFIG", "SET", "maxmemory", "1gb")
	expectFinding(t, examined(t, st), "redis-memory", store.Fine, "% of maxmemory")
	server.Do("CONFIG", "SET", "maxmemory", "100kb")
	found := examined(t, st)
	expectFinding(t, found, "redis-memory", store.Attention, "nobody gets a lock")
	expectFinding(t, found, "redis-full", store.Attention, "nobody gets a lock")
}

func TestExamine_persistence(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st := storeAt(t, server.Addr())
	expectFinding(t, examined(t, st), "redis-persistence", store.Risk, "no append-only file")
	server.Do("CONFIG", "SET", "appendonly", "yes", "appendfsync", "everysec")
	expectFinding(t, examined(t, st), "redis-persistence", store.Attention, "appendfsync is everysec")
	server.Do("CONFIG", "SET", "appendfsync", "always")
	expectFinding(t, examined(t, st), "redis-persistence", store.Fine, "every write is synced")
}

// The server of the tests has a version with a known bug. The rule is tested in package examine.
func TestExamine_version(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	version := ""
	info, err := server.Do("INFO", "server").ToString()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(info, "\r\n") {
		if v, ok := strings.CutPrefix(line, "redis_version:"); ok {
			version = v
		}
	}
	found := examined(t, storeAt(t, server.Addr()))
	i := slices.IndexFunc(found, func(f store.Finding) bool { return f.ID == "redis-version" })
	if i < 0 || !strings.Contains(found[i].What, "Redis "+version) {
		t.Errorf("got %+v, want a finding about version %s", found, version)
	}
	if version == "7.0.15" {
		expectFinding(t, found, "redis-version", store.Attention, "CVE-2025-49844")
	}
}

func TestExamine_replicas(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2, "repl-ping-replica-period 1")
	master, replica := servers[0], servers[1]
	alone := examined(t, storeAt(t, master.Addr()))
	expectFinding(t, alone, "redis-replicas", store.Fine, "no replicas")
	waiting := newStore(t, connect(t, master.Addr()), &redisstore.Options{WaitReplicas: 1})
	expectFinding(t, examined(t, waiting), "redis-wait-replicas", store.Attention, "has no replicas: nobody gets a lock")

	replica.ReplicaOf(master)
	var found []store.Finding
	eventually(t, "the replica keeps up", func() bool {
		found = examined(t, storeAt(t, master.Addr()))
		return slices.ContainsFunc(found, func(f store.Finding) bool {
			return f.ID == "redis-lag" && f.Severity == store.Fine && strings.Contains(f.What, "keep up")
		})
	})
	expectFinding(t, found, "redis-wait-replicas", store.Risk, "a failover can forget")
	expectFinding(t, found, "redis-cut-off", store.Risk, "min-replicas-to-write is 0")
	more := newStore(t, connect(t, master.Addr()), &redisstore.Options{WaitReplicas: 2})
	expectFinding(t, examined(t, more), "redis-wait-replicas", store.Attention, "the server has 1 replica: nobody gets a lock")

	master.Do("CONFIG", "SET", "min-replicas-to-write", "1", "min-replicas-max-lag", "100")
	found = examined(t, waiting)
	expectFinding(t, found, "redis-wait-replicas", store.Fine, "all replicas")
	expectFinding(t, found, "redis-cut-off", store.Fine, "min-replicas-to-write is 1")

	replica.Pause()
	defer replica.Resume()
	eventually(t, "the replica lags", func() bool {
		info, err := master.Do("INFO", "replication").ToString()
		return err == nil && strings.Contains(info, "lag=3")
	})
	expectFinding(t, examined(t, waiting), "redis-lag", store.Attention, "has not reported for")
}

func TestExamine_someReplicas(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	servers[1].ReplicaOf(servers[0])
	servers[2].ReplicaOf(servers[0])
	st := newStore(t, connect(t, servers[0].Addr()), &redisstore.Options{WaitReplicas: 1})
	expectFinding(t, examined(t, st), "redis-wait-replicas", store.Attention, "wait for 1 of 2 replicas")
}

func TestExamine_replica(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	servers[1].ReplicaOf(servers[0])
	expectFinding(t, examined(t, storeAt(t, servers[1].Addr())), "redis-role", store.Attention, "is a replica")
	expectFinding(t, examined(t, storeAt(t, servers[0].Addr())), "redis-role", store.Fine, "master")
}

// A clock that differs by a day, and one that is set forward during the examination.
func TestExamine_clock(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedisWithClock(t)
	st := storeAt(t, server.Addr())
	expectFinding(t, examined(t, st), "redis-clock", store.Fine, "agree")
	server.SetClockAhead(24 * time.Hour)
	expectFinding(t, examined(t, st), "redis-clock", store.Attention, "differ by 24h")
	st.ExaminePause(func() { server.SetClockAhead(25 * time.Hour) })
	found, err := st.Examine(t.Context(), examinedTTL)
	if err != nil {
		t.Fatal(err)
	}
	expectFinding(t, found, "redis-clock-rate", store.Risk, "gained")
}

func TestExamine_roundTrip(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, testservers.StartRedis(t).Addr())
	proxy.Delay(20 * time.Millisecond)
	st := storeAt(t, proxy.Addr())
	st.ExaminePause(func() {})
	found, err := st.Examine(t.Context(), 150*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	expectFinding(t, found, "redis-round-trip", store.Attention, "more than a tenth of the TTL")
}

// The documented rights suffice, each one that is missing is found, and no data is written to find out.
func TestExamine_rights(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, "user stile "+strings.ReplaceAll(documentedACL(t), "PASSWORD", "secret"))
	client := func(user string) *redisstore.Store {
		options := redisstore.ClientOptions(server.Addr())
		options.Username, options.Password = user, "secret"
		return newStore(t, connectWith(t, options), &redisstore.Options{Prefix: "team:"})
	}
	found := examined(t, client("stile"))
	expectFinding(t, found, "redis-rights", store.Fine, "may do all")
	expectFinding(t, found, "redis-persistence", store.Risk, "no append-only file")
	if size, err := server.Do("DBSIZE").AsInt64(); err != nil || size != 0 {
		t.Errorf("the examination has left %d keys, %v", size, err)
	}
	for command := range redisstore.Harmless() {
		if command == "ping" { // the client needs it
			continue
		}
		server.Do("ACL", "SETUSER", "partial", "reset", "on", ">secret", "~team:*", "&team://*", "+@all", "-"+command)
		found := examined(t, client("partial"))
		expectFinding(t, found, "redis-rights", store.Attention, "may not use "+strings.ToUpper(command)+", on keys")
	}
	server.Do("ACL", "SETUSER", "partial", "reset", "on", ">secret", "~team:*", "&team://*", "+@all", "-info")
	expectFinding(t, examined(t, client("partial")), "redis-info", store.Attention, "INFO is not permitted")

	server.Do("ACL", "SETUSER", "partial", "reset", "on", ">secret", "~other:*", "&team://*", "+@all")
	expectFinding(t, examined(t, client("partial")), "redis-rights", store.Attention, "ZSCORE")
	server.Do("ACL", "SETUSER", "partial", "reset", "on", ">secret", "~team:*", "resetchannels", "+@all")
	expectFinding(t, examined(t, client("partial")), "redis-rights", store.Attention, "PUBLISH")
}

// Without CONFIG GET, what it would show is unknown.
func TestExamine_withoutConfig(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2, "appendonly yes", "user clerk on >secret ~* &* +@all -config")
	servers[1].ReplicaOf(servers[0])
	options := redisstore.ClientOptions(servers[0].Addr())
	options.Username, options.Password = "clerk", "secret"
	found := examined(t, newStore(t, connectWith(t, options), nil))
	expectFinding(t, found, "redis-persistence", store.Attention, "CONFIG GET is not permitted")
	expectFinding(t, found, "redis-cut-off", store.Attention, "CONFIG GET is not permitted")
}

// What all masters of a cluster have in common is one finding, and a master that does not answer is one.
func TestExamine_cluster(t *testing.T) {
	t.Parallel()
	nodes := testservers.StartRedisCluster(t, 3)
	nodes[1].Do("CONFIG", "SET", "maxmemory", "1gb", "maxmemory-policy", "allkeys-lru")
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr())
	}
	slices.Sort(addrs)
	st := newStore(t, connectWith(t, redisstore.ClientOptions(addrs...)), nil)
	for _, f := range examined(t, st) {
		switch {
		case f.ID == "redis-persistence" && fmt.Sprint(f.Servers) != fmt.Sprint(addrs):
			t.Errorf("got the servers %v, want %v", f.Servers, addrs)
		case f.ID == "redis-eviction" && f.Severity == store.Risk && fmt.Sprint(f.Servers) != fmt.Sprint([]string{nodes[1].Addr()}):
			t.Errorf("got the servers %v, want %v", f.Servers, nodes[1].Addr())
		}
	}
	nodes[2].Kill()
	expectFinding(t, examined(t, st), "redis-answer", store.Attention, "does not answer")
}
