package node

import (
	"context"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/stats"
)

// activity counts the connected clients and records the time of the last change. It is the server's
// stats handler.
type activity struct {
	started   time.Time
	connected atomic.Int64
	last      atomic.Int64 // time of the last change, as a duration since started
}

func (a *activity) touch() { a.last.Store(int64(time.Since(a.started))) }

func (a *activity) idle() time.Duration { return time.Since(a.started) - time.Duration(a.last.Load()) }

// TagConn implements stats.Handler.
func (a *activity) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// TagRPC implements stats.Handler.
func (a *activity) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (a *activity) HandleRPC(context.Context, stats.RPCStats) {}

// HandleConn implements stats.Handler.
func (a *activity) HandleConn(_ context.Context, s stats.ConnStats) {
	switch s.(type) {
	case *stats.ConnBegin:
		a.connected.Add(1)
	case *stats.ConnEnd:
		a.connected.Add(-1)
	}
	a.touch()
}

// IdleFor returns how long no client has been connected and no lease has existed; zero if etcd does
// not answer because it has failed. It samples the leases only when it is called, so it must be called
// regularly. Clients that are connected with TLS are not counted, but their leases are.
func (n *Node) IdleFor() time.Duration {
	// After a fatal error etcd may never answer: the goroutine that reported it is blocked, and may hold
	// etcd's locks.
	unused := make(chan bool, 1)
	go func() { unused <- n.hasNoLeases() }()
	select {
	case isUnused := <-unused:
		if isUnused && n.activity.connected.Load() == 0 {
			return n.activity.idle()
		}
	case <-n.failure.done:
	}
	n.activity.touch()
	return 0
}

// hasNoLeases reports whether the server knows that there are no leases.
func (n *Node) hasNoLeases() bool {
	ctx := n.etcd.Server.AuthStore().WithRoot(context.Background()) // listing all leases needs the rights of root
	leases, err := n.etcd.Server.LeaseLeases(ctx, &etcdserverpb.LeaseLeasesRequest{})
	return err == nil && len(leases.Leases) == 0
}
