package testservers

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// EtcdCluster is several etcd servers that agree with each other.
type EtcdCluster struct {
	members []*Etcd
}

// StartEtcdCluster starts an etcd of n members, waits until each of them answers and stops them when the test ends.
//
// They beat every 200 ms with elections after two seconds, so the smallest TTL they grant is three seconds: on a busy
// machine members that wait for less elect leaders all the time. flags are as in [StartEtcd].
func StartEtcdCluster(t testing.TB, n int, flags ...string) *EtcdCluster {
	t.Helper()
	flags = append([]string{"--heartbeat-interval=200", "--election-timeout=2000"}, flags...)
	return &EtcdCluster{members: startMembers(t, n, flags)}
}

// Members returns the members, always in the same order.
func (c *EtcdCluster) Members() []*Etcd { return slices.Clone(c.members) }

// Endpoints returns the addresses that clients connect to, as host:port, in the order of Members.
func (c *EtcdCluster) Endpoints() []string {
	var endpoints []string
	for _, m := range c.members {
		endpoints = append(endpoints, m.Endpoint())
	}
	return endpoints
}

// Client returns a client of all members, which is closed when t ends. It speaks neither TLS nor for a user.
func (c *EtcdCluster) Client(t testing.TB) *clientv3.Client {
	t.Helper()
	return newClient(t, c.Endpoints()...)
}

// Leader returns the member that leads. While there is none, after the last one was killed or paused say, it waits;
// after minutes the test fails. A leader that was paused and has not heard of its successor yet is not
// mistaken for one.
func (c *EtcdCluster) Leader(t testing.TB) *Etcd {
	t.Helper()
	cli := newClient(t, c.Endpoints()...)
	defer cli.Close()
	// Polling, because etcd tells nobody outside of an election.
	for end := time.Now().Add(longEnough); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if leader := c.leader(t.Context(), cli); leader != nil {
			return leader
		}
	}
	t.Fatalf("testservers: the etcd cluster %v has had no leader for %v", c.Endpoints(), longEnough)
	return nil
}

// leader asks every member once and returns the one that leads, nil if none does.
func (c *EtcdCluster) leader(ctx context.Context, cli *clientv3.Client) *Etcd {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	replies := make([]*clientv3.StatusResponse, len(c.members))
	var asking sync.WaitGroup
	for i, m := range c.members {
		asking.Go(func() { replies[i], _ = cli.Status(ctx, m.Endpoint()) })
	}
	asking.Wait()
	if i := leads(replies); i >= 0 {
		return c.members[i]
	}
	return nil
}

// leads returns which of the members, by their replies or nil, says that it leads in the latest term that any of them
// knows of; -1 if none does.
func leads(replies []*clientv3.StatusResponse) int {
	leader, term := -1, uint64(0)
	for i, r := range replies {
		if r == nil || r.RaftTerm < term {
			continue
		}
		if r.RaftTerm > term {
			leader, term = -1, r.RaftTerm
		}
		if r.Leader == r.Header.MemberId {
			leader = i
		}
	}
	return leader
}
