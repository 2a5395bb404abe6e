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

// gateway is etcd's JSON API. It is what etcd's own gateway is, without WebSockets, and with a gRPC server to itself that is
// reached in memory: etcd's connects to the address for clients with the server's certificate, which would have to do for a
// client, and whose name must not pass for a user.
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
	go func() { _ = g.server.Serve(listener) }() // ends with close
	var err error
	g.conn, err = grpc.NewClient("passthrough:///gateway",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	if err != nil {
		g.server.Stop()
		return nil, fmt.Errorf("connect the JSON gateway: %w", err)
	}

	// As etcd writes and reads JSON.
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
			return nil, fmt.Errorf("set up the JSON gateway: %w", err)
		}
	}
	return g, nil
}

// close ends all calls through the gateway.
func (g *gateway) close() {
	g.server.Stop()
	_ = g.conn.Close()
}
