package etcdstore

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
)

// Watch implements [store.Store].
func (s *Store) Watch(ctx context.Context, prefix string, changed func()) error {
	for ctx.Err() == nil {
		from := s.keys.prefix + prefix
		opts := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithCreatedNotify()}
		for resp := range s.cli.Watch(clientv3.WithRequireLeader(ctx), from, opts...) {
			if resp.Err() == nil {
				changed()
			}
		}
		rest(ctx, firstPause)
	}
	return ctx.Err()
}

// WithdrawAfter implements [store.Ticket].
func (e *entry) WithdrawAfter(context.Context, time.Duration) error {
	return fmt.Errorf("%s: %w", e.session.store, store.ErrUnsupported)
}
