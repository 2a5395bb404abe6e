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

// gate refuses clients until users are required, so that no client gets in without authentication,
// and when the server is about to stop. The zero gate is open.
type gate struct {
	shut atomic.Pointer[string] // the reason; nil while the gate is open
}

var (
	settingUp = "authentication is being set up"
	stopping  = "the server is stopping"
)

// open admits clients, unless the server is stopping.
func (g *gate) open() { g.shut.CompareAndSwap(&settingUp, nil) }

// refuse returns an error while the gate is shut. Clients react to it with a retry, here or at
// another member.
func (g *gate) refuse() error {
	if why := g.shut.Load(); why != nil {
		return status.Error(codes.Unavailable, "stile serve: "+*why)
	}
	return nil
}

// options returns interceptors that check the gate before every call.
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

// root is etcd's name for the superuser and its role.
const root = "root"

// wantsUsers reports whether clients must be refused until authentication is known to be enabled:
// because there is a password for root, or because nothing else keeps out clients of other machines.
func (c Config) wantsUsers() bool {
	return c.RootPassword != "" || c.TLS.Cert != "" && c.TLS.ClientCA == "" && c.isExposed() && !c.Insecure
}

// requireUsers makes sure that authentication is enabled, and then opens the gate. Without a
// password for root, it must be enabled already. All members of a cluster may do this at the same
// time.
func (n *Node) requireUsers(ctx context.Context) error {
	deadline := time.Now().Add(startTimeout)
	for {
		enabled, err := n.usersRequired(ctx)
		if err == nil && enabled {
			if n.cfg.RootPassword != "" {
				n.warnOtherPassword()
			}
			n.gate.open()
			return nil
		}
		if err == nil && n.cfg.RootPassword == "" {
			return n.cfg.openError()
		}
		if err == nil {
			err = n.enableUsers(ctx) // the next round checks the result
		}
		if err != nil && time.Now().After(deadline) {
			return fmt.Errorf("enable authentication: %w", err)
		}
		// It fails while there is no leader, and when another member was faster.
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

// enableUsers sets the password of the user root, grants it the role root and enables
// authentication. It can be repeated after a failure at any step.
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

// warnOtherPassword logs a warning if root's password is not the configured one. It does not change
// the password.
func (n *Node) warnOtherPassword() {
	_, err := n.etcd.Server.AuthStore().CheckPassword(root, n.cfg.RootPassword)
	if errors.Is(err, auth.ErrAuthFailed) {
		n.cfg.Logger.Warn("the password of the user root differs from the one in --root-password-file and stays unchanged; " +
			"to change it, use etcdctl user passwd root")
	}
}
