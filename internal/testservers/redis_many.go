package testservers

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

// StartRedisServers starts n independent servers, each with the given configuration; see
// [StartRedis].
func StartRedisServers(t testing.TB, n int, config ...string) []*Redis {
	t.Helper()
	return startRedis(t, n, nil, nil, func(int) []string { return config })
}

// StartRedisCluster starts a Redis Cluster of n masters without replicas, where n is at least 3,
// and waits until all know all slots. config is as in [StartRedis].
func StartRedisCluster(t testing.TB, n int, config ...string) []*Redis {
	t.Helper()
	nodes := startRedis(t, n, nil, nil, func(int) []string {
		// The default bus port, 10000 above the other, could be out of range or in use.
		_, port, _ := net.SplitHostPort(FreeAddress(t))
		return append([]string{
			"cluster-enabled yes", "cluster-config-file nodes.conf", "cluster-port " + port, "cluster-announce-ip " + Host(),
			"cluster-node-timeout 120000", // so that a node delayed by a busy machine is not considered failed
		}, config...)
	})
	const slots = 16384
	for i, node := range nodes {
		node.Do("CLUSTER", "ADDSLOTSRANGE", fmt.Sprint(i*slots/n), fmt.Sprint((i+1)*slots/n-1))
		node.Do("CLUSTER", "SET-CONFIG-EPOCH", fmt.Sprint(i+1))
	}
	for i, node := range nodes {
		host, port, _ := net.SplitHostPort(node.Addr())
		bus, err := node.Do("CONFIG", "GET", "cluster-port").AsStrMap()
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range nodes[:i] {
			other.Do("CLUSTER", "MEET", host, port, bus["cluster-port"])
		}
	}
	for _, node := range nodes {
		node.await("to discover its cluster", func() bool {
			text, err := node.Do("CLUSTER", "INFO").ToString()
			return err == nil && strings.Contains(text, "cluster_state:ok") &&
				strings.Contains(text, fmt.Sprintf("cluster_known_nodes:%d", n))
		})
	}
	return nodes
}

// A RedisFailover is a master, its replicas and the sentinels that monitor them.
type RedisFailover struct {
	Servers   []*Redis // the first is the master until another is promoted
	Sentinels []*Redis
}

// SentinelMaster is the name of the master in the sentinels of a [RedisFailover].
const SentinelMaster = "mymaster"

// Values of down-after-milliseconds. Failure detection is in effect disabled until
// [RedisFailover.AwaitMaster] is called, because otherwise a busy machine could trigger a failover.
const (
	slowDetection = "600000" // in milliseconds
	fastDetection = "500"
)

// StartRedisFailover starts a master, one replica and three sentinels. The sentinels promote the
// replica when the master has ended or is paused, but only after a call of
// [RedisFailover.AwaitMaster]. config is as in [StartRedis], for the master and the replica.
func StartRedisFailover(t testing.TB, config ...string) *RedisFailover {
	t.Helper()
	servers := StartRedisServers(t, 2, config...)
	host, port, _ := net.SplitHostPort(servers[0].Addr())
	servers[1].ReplicaOf(servers[0])
	sentinels := startRedis(t, 3, []string{"--sentinel"}, nil, func(int) []string {
		return []string{
			"sentinel monitor " + SentinelMaster + " " + host + " " + port + " 2",
			"sentinel down-after-milliseconds " + SentinelMaster + " " + slowDetection,
			"sentinel failover-timeout " + SentinelMaster + " 5000",
			"sentinel auth-user " + SentinelMaster + " " + RedisUser,
			"sentinel auth-pass " + SentinelMaster + " any", // the user needs no password
		}
	})
	f := &RedisFailover{Servers: servers, Sentinels: sentinels}
	for _, s := range sentinels {
		s.await("to discover the replica and the other sentinels", func() bool {
			state, err := s.Do("SENTINEL", "MASTER", SentinelMaster).AsStrMap()
			return err == nil && state["num-slaves"] == "1" && state["num-other-sentinels"] == "2" && state["flags"] == "master"
		})
	}
	return f
}

// SentinelAddrs returns the addresses of the sentinels, as host:port.
func (f *RedisFailover) SentinelAddrs() []string {
	var addrs []string
	for _, s := range f.Sentinels {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// AwaitMaster enables failure detection, so that the sentinels replace a master that does not
// answer. It waits until all sentinels report want as the master and want has that role.
func (f *RedisFailover) AwaitMaster(t testing.TB, want *Redis) {
	t.Helper()
	f.setDownAfter(fastDetection)
	want.await("to become the master", func() bool {
		for _, s := range f.Sentinels {
			addr, err := s.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SentinelMaster).AsStrSlice()
			if err != nil || len(addr) != 2 || net.JoinHostPort(addr[0], addr[1]) != want.Addr() {
				return false
			}
		}
		return strings.Contains(want.info("replication"), "role:master")
	})
	f.setDownAfter(slowDetection)
}

// setDownAfter sets how long, in milliseconds, a server may be unreachable before it is considered
// down.
func (f *RedisFailover) setDownAfter(ms string) {
	for _, s := range f.Sentinels {
		s.Do("SENTINEL", "SET", SentinelMaster, "down-after-milliseconds", ms)
	}
}
