package node

import (
	"context"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/stats"
)

// activity tells how many clients are connected and when one last came or went. It hears of them as the server's
// stats handler.
type activity struct {
	began     time.Time
	connected atomic.Int64
	last      atomic.Int64 // when something last happened, as the time since began
}

func (a *activity) touch() { a.last.Store(int64(time.Since(a.began))) }

func (a *activity) ago() time.Duration { return time.Since(a.began) - time.Duration(a.last.Load()) }

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

// IdleFor is for how long nobody has been connected and no lease been alive, as far as this method knows: of leases it
// knows how many there are whenever it is called. It must be called every now and then. Clients that are connected with
// TLS are not counted, their leases are.
func (n *Node) IdleFor() time.Duration {
	ctx := n.etcd.Server.AuthStore().WithRoot(context.Background()) // nobody else may see all leases
	leases, err := n.etcd.Server.LeaseLeases(ctx, &etcdserverpb.LeaseLeasesRequest{})
	if err != nil || len(leases.Leases) > 0 || n.activity.connected.Load() > 0 {
		n.activity.touch()
		return 0
	}
	return n.activity.ago()
}
