package node

import (
	"context"
	"fmt"
	"math"
	"net"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// Client returns a client of the server for this process. It calls the server's functions, so it needs no
// certificate, and each event of a watch costs half of what it costs through a connection. If the server
// has a root password, the client logs in as root, through a connection in memory. The caller must close it, before
// the server.
//
// It returns an error if the password is not root's, for example because it was changed with etcdctl.
func (n *Node) Client() (*clientv3.Client, error) {
	if n.cfg.RootPassword == "" {
		client := v3client.New(n.etcd.Server)
		calls := adapter.KvServerToKvClient(v3rpc.NewQuotaKVServer(n.etcd.Server))
		client.KV = clientv3.NewKVFromKVClient(abandoning{calls}, client)
		return client, nil
	}
	listener := bufconn.Listen(64 << 10)
	server := v3rpc.Server(n.etcd.Server, nil, nil, n.calls...)
	n.mu.Lock()
	n.grpc = append(n.grpc, server)
	n.mu.Unlock()
	go func() { _ = server.Serve(listener) }() // ends when the node is closed
	cfg := clientv3.Config{
		Endpoints: []string{"http://" + memoryHost}, Logger: zap.NewNop(), DialTimeout: loginTimeout,
		MaxCallRecvMsgSize: math.MaxInt32,
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
		},
		Username: root, Password: n.cfg.RootPassword,
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("log in as the user root, with the password in --root-password-file: %w", err)
	}
	return client, nil
}

// abandoning calls the server's functions, and returns when ctx ends. The functions themselves go on waiting while
// etcd writes to a disk that hangs, and for ever after a write has failed.
type abandoning struct{ pb.KVClient }

func (a abandoning) Range(ctx context.Context, in *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	return abandon(ctx, in, a.KVClient.Range)
}

func (a abandoning) Put(ctx context.Context, in *pb.PutRequest, _ ...grpc.CallOption) (*pb.PutResponse, error) {
	return abandon(ctx, in, a.KVClient.Put)
}

func (a abandoning) DeleteRange(ctx context.Context, in *pb.DeleteRangeRequest, _ ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	return abandon(ctx, in, a.KVClient.DeleteRange)
}

func (a abandoning) Txn(ctx context.Context, in *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	return abandon(ctx, in, a.KVClient.Txn)
}

func abandon[In, Out any](
	ctx context.Context, in In, call func(context.Context, In, ...grpc.CallOption) (Out, error),
) (out Out, err error) {
	type answer struct {
		out Out
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		out, err := call(ctx, in)
		answered <- answer{out, err}
	}()
	select {
	case a := <-answered:
		return a.out, a.err
	case <-ctx.Done():
		return out, status.FromContextError(ctx.Err()).Err()
	}
}

// loginTimeout limits the login of Client.
const loginTimeout = 30 * time.Second

// memoryHost stands for the server in the client's endpoint. It is never resolved.
const memoryHost = "localhost"

// UsersRequired reports whether clients must log in: authentication is enabled.
func (n *Node) UsersRequired() bool { return n.etcd.Server.AuthStore().IsAuthEnabled() }
