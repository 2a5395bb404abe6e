package node

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/stilelock/stile/cmd/stile/internal/tether"
)

// errUsers refuses declarations where clients must log in: the right to end a lease would have to be
// checked again for a process that is dead.
var errUsers = errors.New("the server requires users")

// leases returns what package tether does with the server's leases. Revoke acts without a user. If users were
// required after a declaration, etcd refuses, and the TTL counts.
func (n *Node) leases() tether.Leases {
	return tether.Leases{
		Check: func(ctx context.Context, lease int64) error {
			if n.UsersRequired() {
				return errUsers
			}
			_, err := n.etcd.Server.LeaseTimeToLive(ctx, &etcdserverpb.LeaseTimeToLiveRequest{ID: lease})
			return err
		},
		Revoke: func(ctx context.Context, lease int64) error {
			_, err := n.etcd.Server.LeaseRevoke(ctx, &etcdserverpb.LeaseRevokeRequest{ID: lease})
			return err
		},
	}
}

// listenForTethers receives the declarations of clients that connect to a unix socket. Without them the
// server works too, so a failure is only logged.
func (n *Node) listenForTethers(socket string) {
	if err := n.tethers.Listen(socket + tether.Suffix); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		n.cfg.Logger.Warn("crashed processes keep their locks until the TTL: the socket for declarations cannot be opened",
			"error", err)
	}
}
