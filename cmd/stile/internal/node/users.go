package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/auth"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// gate keeps clients out: before users are required, so that nobody gets in without being one, and when the server is about
// to stop. The zero gate is open.
type gate struct {
	shut atomic.Pointer[string] // why; nil while it is open
}

var (
	settingUp = "users are being set up"
	stopping  = "the server is stopping"
)

// open lets clients in, unless the server is stopping.
func (g *gate) open() { g.shut.CompareAndSwap(&settingUp, nil) }

// refuse returns an error that clients take as a reason to try again soon, here or elsewhere, while the gate is shut.
func (g *gate) refuse() error {
	if why := g.shut.Load(); why != nil {
		return status.Error(codes.Unavailable, "stile serve: "+*why)
	}
	return nil
}

// options puts the gate in front of every call.
func (g *gate) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(
			func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				if err := g.refuse(); err != nil {
					return nil, err
				}
				return next(ctx, req)
			}),
		grpc.ChainStreamInterceptor(
			func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				if err := g.refuse(); err != nil {
					return err
				}
				return next(srv, stream)
			}),
	}
}

// root is etcd's name for the user, and the role, that may do everything.
const root = "root"

// wantsUsers reports whether nobody may get in before it is certain that users are required: because there is a password
// for root, or because nothing else keeps strangers out.
func (c Config) wantsUsers() bool {
	return c.RootPassword != "" || c.TLS.Cert != "" && c.TLS.ClientCA == "" && c.isExposed() && !c.Insecure
}

// requireUsers makes sure that authentication is enabled, and opens the gate. Without a password for root it has to be
// already. The members of a cluster may all do this at the same time; a late one finds it done.
func (n *Node) requireUsers(ctx context.Context) error {
	deadline := time.Now().Add(startup)
	for {
		enabled, err := n.usersRequired(ctx)
		if err == nil && enabled {
			if n.cfg.RootPassword != "" {
				n.noteOtherPassword()
			}
			n.gate.open()
			return nil
		}
		if err == nil && n.cfg.RootPassword == "" {
			return n.cfg.open()
		}
		if err == nil {
			err = n.enableUsers(ctx) // and look whether it has come to pass
		}
		if err != nil && time.Now().After(deadline) {
			return fmt.Errorf("enable authentication: %w", err)
		}
		// It fails between leaders, and when another member has been faster.
		select {
		case <-ctx.Done():
			return fmt.Errorf("enable authentication: %w", ctx.Err())
		case <-n.stopped:
			return n.explain(n.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (n *Node) usersRequired(ctx context.Context) (bool, error) {
	r, err := n.etcd.Server.AuthStatus(ctx, &etcdserverpb.AuthStatusRequest{})
	if err != nil {
		return false, err
	}
	return r.Enabled, nil
}

// enableUsers gives the user root the password, the role root and enables authentication. It can be done again from the
// beginning wherever it has failed.
func (n *Node) enableUsers(ctx context.Context) error {
	etcd := n.etcd.Server
	_, err := etcd.UserAdd(ctx, &etcdserverpb.AuthUserAddRequest{Name: root, Password: n.cfg.RootPassword})
	if errors.Is(err, auth.ErrUserAlreadyExist) {
		_, err = etcd.UserChangePassword(ctx,
			&etcdserverpb.AuthUserChangePasswordRequest{Name: root, Password: n.cfg.RootPassword})
	}
	if err != nil {
		return err
	}
	_, err = etcd.RoleAdd(ctx, &etcdserverpb.AuthRoleAddRequest{Name: root})
	if err != nil && !errors.Is(err, auth.ErrRoleAlreadyExist) {
		return err
	}
	if _, err := etcd.UserGrantRole(ctx, &etcdserverpb.AuthUserGrantRoleRequest{User: root, Role: root}); err != nil {
		return err
	}
	_, err = etcd.AuthEnable(ctx, &etcdserverpb.AuthEnableRequest{})
	return err
}

// noteOtherPassword tells the operator if the password of root is not the one that was given: an old one is left as it
// is.
func (n *Node) noteOtherPassword() {
	_, err := n.etcd.Server.AuthStore().CheckPassword(root, n.cfg.RootPassword)
	if errors.Is(err, auth.ErrAuthFailed) {
		n.cfg.Logger.Warn("the user root has another password than the one in --root-password-file, and keeps it; " +
			"to change it, use etcdctl user passwd root")
	}
}
