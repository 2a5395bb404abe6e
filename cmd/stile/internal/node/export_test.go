package node

import (
	"context"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/raft/v3/raftpb"
)

// WithCheapPasswords returns the configuration with fast password checks. With the default cost
// each takes more than a second under the race detector.
func (c Config) WithCheapPasswords() Config {
	c.bcryptCost = 4 // bcrypt's minimum
	return c
}

// WithPorts returns the configuration with pick as the way to choose a port.
func (c Config) WithPorts(pick func(host string) (string, error)) Config {
	c.pickPort = pick
	return c
}

// Exposed returns the configuration with all addresses counted as beyond the loopback interface.
func (c Config) Exposed() Config {
	c.exposed = true
	return c
}

// WarnInsecure logs what --insecure allows.
func (c Config) WarnInsecure() { c.warnInsecure() }

// WithStarted returns the configuration with f called after etcd has started and before the server
// is ready.
func (c Config) WithStarted(f func()) Config {
	c.started = func(*etcdserver.EtcdServer) { f() }
	return c
}

// BlockReads takes the lock that etcd holds while it commits, and returns a function that fails the
// server as a commit does on a full disk: the error is reported, and the lock is never released.
func (n *Node) BlockReads() (fail func(error)) {
	n.etcd.Server.Backend().ReadTx().(sync.Locker).Lock()
	return n.failure.report
}

// WithLongWaits returns the configuration with a long election timeout, so that etcd's waits of
// five seconds and two elections become very long: for a request to be applied, and for clients
// when it closes. A server that is alone is elected at once nevertheless.
func (c Config) WithLongWaits(election time.Duration) Config {
	c.tune = func(e *embed.Config) { e.ElectionMs = uint(election.Milliseconds()) }
	if len(c.Cluster.Peers) <= 1 {
		c.started = elect
	}
	return c
}

// elect makes a server that is alone its own leader as soon as it knows that it is alone.
func elect(s *etcdserver.EtcdServer) {
	to := uint64(s.MemberID())
	for s.Lead() == 0 {
		_ = s.Process(context.Background(), &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), To: &to}) // retried on failure
		select {
		case <-s.StopNotify():
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// RevokeTethered ends the lease of a process that is dead.
func (n *Node) RevokeTethered(ctx context.Context, lease int64) error {
	return n.leases().Revoke(ctx, lease)
}
