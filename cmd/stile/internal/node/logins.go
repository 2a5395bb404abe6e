package node

import (
	"cmp"
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

// logins logs failed logins.
type logins struct {
	failed *throttle
	etcd   atomic.Pointer[etcdserver.EtcdServer] // nil until etcd has started
}

// option returns the interceptor for logins.
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

// known returns name if there is such a user, and "unknown" if not: people type passwords in place
// of names, and passwords must not be logged.
func (l *logins) known(name string) string {
	if etcd := l.etcd.Load(); etcd != nil {
		if _, err := etcd.AuthStore().UserGet(&etcdserverpb.AuthUserGetRequest{Name: name}); err == nil {
			return name
		}
	}
	return "unknown"
}

// callerOf returns the address that a call comes from.
func callerOf(ctx context.Context) string {
	caller, ok := peer.FromContext(ctx)
	if !ok {
		return "unknown"
	}
	switch caller.Addr.Network() {
	case "unix":
		return "socket"
	case "bufconn": // through the gateway, which appends the address to the client's X-Forwarded-For
		md, _ := metadata.FromIncomingContext(ctx)
		forwarded := strings.Join(md.Get("x-forwarded-for"), ",")
		return cmp.Or(strings.TrimSpace(forwarded[strings.LastIndexByte(forwarded, ',')+1:]), "this process")
	default:
		return hostname(caller.Addr.String())
	}
}
