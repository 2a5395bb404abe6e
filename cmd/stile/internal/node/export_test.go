package node

import (
	"context"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/raft/v3/raftpb"
)

// WithCheapPasswords returns the configuration with passwords that are checked fast: under the race detector that takes
// more than a second of computing otherwise, for each.
func (c Config) WithCheapPasswords() Config {
	c.bcryptCost = 4 // the least there is
	return c
}

// WithPorts returns the configuration with another way to choose a port.
func (c Config) WithPorts(pick func(host string) (string, error)) Config {
	c.pickPort = pick
	return c
}

// Exposed returns the configuration of a server that takes its address for one beyond the loopback interface.
func (c Config) Exposed() Config {
	c.exposed = true
	return c
}

// WarnInsecure logs what Insecure allows.
func (c Config) WarnInsecure() { c.warnInsecure() }

// WithBegun returns the configuration of a server that calls f once it has begun, and goes on with its start after that.
func (c Config) WithBegun(f func()) Config {
	c.begun = func(*etcdserver.EtcdServer) { f() }
	return c
}

// WithLongWaits returns the configuration with which etcd waits for very long for what must not take it so long: for a
// request to be carried out, and for its clients when it closes. That is five seconds and two elections. An election of a
// server that is alone is not waited for.
func (c Config) WithLongWaits(election time.Duration) Config {
	c.tune = func(e *embed.Config) { e.ElectionMs = uint(election.Milliseconds()) }
	if len(c.Cluster.Peers) <= 1 {
		c.begun = elect
	}
	return c
}

// elect makes a server that is alone its own leader, as soon as it knows that it is alone.
func elect(s *etcdserver.EtcdServer) {
	to := uint64(s.MemberID())
	for s.Lead() == 0 {
		_ = s.Process(context.Background(), &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), To: &to}) // or again
		select {
		case <-s.StopNotify():
			return
		case <-time.After(time.Millisecond):
		}
	}
}
