package testservers

import (
	"slices"
	"testing"
	"time"
)

// ZooKeeperEnsemble is a ZooKeeper ensemble of several servers.
type ZooKeeperEnsemble struct {
	members []*ZooKeeper
}

// StartZooKeeperEnsemble starts an ensemble of n servers, waits until all are ready, and stops them
// when the test ends.
//
// Their tick is 250 ms, and initLimit and syncLimit are 40 ticks, which is 10 s. config is as in
// [StartZooKeeper], for all of them.
func StartZooKeeperEnsemble(t testing.TB, n int, config ...string) *ZooKeeperEnsemble {
	t.Helper()
	e, err := NewZooKeeperEnsemble(n, config...)
	Check(t, err)
	for _, z := range e.members {
		z.t = t
	}
	closeWithTest(t, e)
	return e
}

// NewZooKeeperEnsemble is [StartZooKeeperEnsemble] for servers that belong to no test.
func NewZooKeeperEnsemble(n int, config ...string) (*ZooKeeperEnsemble, error) {
	config = append([]string{"tickTime=250", "initLimit=40", "syncLimit=40"}, config...)
	members, err := startZooKeepers(n, config)
	if err != nil {
		return nil, err
	}
	return &ZooKeeperEnsemble{members}, nil
}

// Close kills the processes and removes their data.
func (e *ZooKeeperEnsemble) Close() error { return closeAll(e.members) }

// Log returns the ends of the servers' logs.
func (e *ZooKeeperEnsemble) Log() string { return logs(e.members) }

// Members returns the servers, always in the same order.
func (e *ZooKeeperEnsemble) Members() []*ZooKeeper { return slices.Clone(e.members) }

// Endpoints returns the addresses for clients, as host:port, in the order of Members.
func (e *ZooKeeperEnsemble) Endpoints() []string {
	var endpoints []string
	for _, z := range e.members {
		endpoints = append(endpoints, z.Endpoint())
	}
	return endpoints
}

// Abandon resets the connections of the other members to z. After z was paused or cut off, they
// notice it at once, not only after their syncLimit. If z was the leader, they elect another.
func (e *ZooKeeperEnsemble) Abandon(z *ZooKeeper) {
	for _, other := range e.members {
		if other != z {
			other.proxies[z.id].Reset()
		}
	}
}

// Leader returns the leader. While there is none it waits. The test fails after four minutes. Do
// not call it while a former leader that was paused may not know of its successor: Leader could
// return it.
func (e *ZooKeeperEnsemble) Leader(t testing.TB) *ZooKeeper {
	t.Helper()
	for end := time.Now().Add(zkTimeout); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, z := range e.members {
			if z.process.running() && z.mode() == "leader" {
				return z
			}
		}
	}
	t.Fatalf("testservers: the ensemble %v has had no leader for %v", e.Endpoints(), zkTimeout)
	return nil
}

// Followers waits until there is a leader and returns the other members.
func (e *ZooKeeperEnsemble) Followers(t testing.TB) []*ZooKeeper {
	t.Helper()
	leader := e.Leader(t)
	return slices.DeleteFunc(e.Members(), func(z *ZooKeeper) bool { return z == leader })
}
