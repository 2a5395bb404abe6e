package node

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// logins logs logins that fail.
type logins struct {
	failed *throttle
	etcd   atomic.Pointer[etcdserver.EtcdServer] // nil until it has started
}

// option makes the server tell of logins.
func (l *logins) option() grpc.ServerOption {
	return grpc.ChainUnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			login, ok := req.(*etcdserverpb.AuthenticateRequest)
			if !ok {
				return next(ctx, req)
			}
			name := login.Name
			resp, err := next(ctx, req)
			if errors.Is(err, rpctypes.ErrGRPCAuthFailed) {
				l.failed.log("user", l.known(name), "from", callerOf(ctx))
			}
			return resp, err
		})
}

// known returns the name of a user. It does not return that of a user that does not exist: people type passwords in place
// of names.
func (l *logins) known(name string) string {
	if etcd := l.etcd.Load(); etcd != nil {
		if _, err := etcd.AuthStore().UserGet(&etcdserverpb.AuthUserGetRequest{Name: name}); err == nil {
			return name
		}
	}
	return "unknown"
}

// callerOf returns where a call comes from.
func callerOf(ctx context.Context) string {
	caller, ok := peer.FromContext(ctx)
	if !ok {
		return "unknown"
	}
	switch caller.Addr.Network() {
	case "unix":
		return "socket"
	case "bufconn": // through the gateway, which puts the address behind what the client says of itself
		md, _ := metadata.FromIncomingContext(ctx)
		forwarded := strings.Join(md.Get("x-forwarded-for"), ",")
		return strings.TrimSpace(forwarded[strings.LastIndexByte(forwarded, ',')+1:])
	default:
		return hostname(caller.Addr.String())
	}
}
