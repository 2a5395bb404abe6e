package node

import (
	"context"
	"fmt"
	"math"
	"net"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// Client returns a client of the server for this process. It calls the server's functions, so it needs no
// certificate, and each event of a watch costs half of what it costs through a connection. Only if the server has a
// root password, there is a connection, in memory: then the client is the user root, and must log in. The caller
// must close it, before the server.
//
// It returns an error if the password is not root's, for example because it was changed with etcdctl.
func (n *Node) Client() (*clientv3.Client, error) {
	if n.cfg.RootPassword == "" {
		return v3client.New(n.etcd.Server), nil
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

// loginTimeout limits the login of Client.
const loginTimeout = 30 * time.Second

// memoryHost stands for the server in the client's endpoint. It is never resolved.
const memoryHost = "localhost"

// UsersRequired reports whether clients must log in: authentication is enabled.
func (n *Node) UsersRequired() bool { return n.etcd.Server.AuthStore().IsAuthEnabled() }
