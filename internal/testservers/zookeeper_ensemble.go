package testservers

import (
	"slices"
	"testing"
	"time"
)

// ZooKeeperEnsemble is several ZooKeeper servers that agree with each other.
type ZooKeeperEnsemble struct {
	members []*ZooKeeper
}

// StartZooKeeperEnsemble starts n servers, waits until each of them serves and stops them when the test ends.
//
// Their tick is 250 ms, and they give each other up after 40 ticks, which is ten seconds. config is as in
// [StartZooKeeper], for all of them.
func StartZooKeeperEnsemble(t testing.TB, n int, config ...string) *ZooKeeperEnsemble {
	t.Helper()
	e, err := NewZooKeeperEnsemble(n, config...)
	Check(t, err)
	for _, z := range e.members {
		z.t = t
	}
	bind(t, e)
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

// Close ends the processes and removes their data.
func (e *ZooKeeperEnsemble) Close() error { return closeAll(e.members) }

// Log returns what the servers logged last.
func (e *ZooKeeperEnsemble) Log() string { return logs(e.members) }

// Members returns the servers, always in the same order.
func (e *ZooKeeperEnsemble) Members() []*ZooKeeper { return slices.Clone(e.members) }

// Endpoints returns the addresses that clients connect to, as host:port, in the order of Members.
func (e *ZooKeeperEnsemble) Endpoints() []string {
	var endpoints []string
	for _, z := range e.members {
		endpoints = append(endpoints, z.Endpoint())
	}
	return endpoints
}

// Abandon resets the connections of the other members to z, so that they need not find out for themselves, in the time of
// their syncLimit, that z was paused or cut off: if it led, they begin to elect another now.
func (e *ZooKeeperEnsemble) Abandon(z *ZooKeeper) {
	for _, other := range e.members {
		if other != z {
			other.links[z.id].Reset()
		}
	}
}

// Leader returns the member that leads. While there is none it waits; after some minutes the test fails. A member that
// was paused while it led must not be asked for.
func (e *ZooKeeperEnsemble) Leader(t testing.TB) *ZooKeeper {
	t.Helper()
	for end := time.Now().Add(zkPatience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, z := range e.members {
			if z.process.running() && z.mode() == "leader" {
				return z
			}
		}
	}
	t.Fatalf("testservers: the ensemble %v has had no leader for %v", e.Endpoints(), zkPatience)
	return nil
}

// Followers returns the members that do not lead, when there is one that does.
func (e *ZooKeeperEnsemble) Followers(t testing.TB) []*ZooKeeper {
	t.Helper()
	leader := e.Leader(t)
	return slices.DeleteFunc(e.Members(), func(z *ZooKeeper) bool { return z == leader })
}
