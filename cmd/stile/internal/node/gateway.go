package node

import (
	"context"
	"fmt"
	"math"
	"net"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	etcdgw "go.etcd.io/etcd/api/v3/etcdserverpb/gw"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	electiongw "go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb/gw"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	lockgw "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb/gw"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"
)

// gateway is etcd's JSON API. It replaces etcd's own gateway, without WebSockets, and has its own
// gRPC server, reached in memory. etcd's own gateway connects to the address for clients with the
// server's certificate. That certificate would have to be valid for a client, and its name must not
// count as a user.
type gateway struct {
	mux    *runtime.ServeMux
	server *grpc.Server
	conn   *grpc.ClientConn
}

func newGateway(etcd *etcdserver.EtcdServer, options []grpc.ServerOption) (*gateway, error) {
	g := &gateway{server: v3rpc.Server(etcd, nil, nil, options...)}
	direct := v3client.New(etcd)
	v3lockpb.RegisterLockServer(g.server, v3lock.NewLockServer(direct))
	v3electionpb.RegisterElectionServer(g.server, v3election.NewElectionServer(direct))

	listener := bufconn.Listen(64 << 10)
	go func() { _ = g.server.Serve(listener) }() // ends when close is called
	var err error
	g.conn, err = grpc.NewClient("passthrough:///gateway",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	if err != nil {
		g.server.Stop()
		return nil, fmt.Errorf("connect JSON gateway: %w", err)
	}

	// The same JSON options as etcd's.
	g.mux = runtime.NewServeMux(runtime.WithMarshalerOption(runtime.MIMEWildcard, &runtime.HTTPBodyMarshaler{
		Marshaler: &runtime.JSONPb{
			MarshalOptions:   protojson.MarshalOptions{UseProtoNames: true},
			UnmarshalOptions: protojson.UnmarshalOptions{DiscardUnknown: true},
		},
	}))
	for _, register := range []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{
		etcdgw.RegisterKVHandler,
		etcdgw.RegisterWatchHandler,
		etcdgw.RegisterLeaseHandler,
		etcdgw.RegisterClusterHandler,
		etcdgw.RegisterMaintenanceHandler,
		etcdgw.RegisterAuthHandler,
		lockgw.RegisterLockHandler,
		electiongw.RegisterElectionHandler,
	} {
		if err := register(context.Background(), g.mux, g.conn); err != nil {
			g.close()
			return nil, fmt.Errorf("set up JSON gateway: %w", err)
		}
	}
	return g, nil
}

// close cancels all calls through the gateway.
func (g *gateway) close() {
	g.server.Stop()
	_ = g.conn.Close()
}
