package etcdstore

import (
	"context"
	"log/slog"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store/internal/attempts"
)

// watchHeld watches the key of an entry that has held its lock for a while, if it still stands. The watch of the line, if
// there is one, is for waiters: it filters out puts, and so does not show that the key was overwritten.
func (w *follower) watchHeld(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.state != standing {
		return
	}
	ctx, cancel := context.WithCancel(w.ctx)
	e.watched = cancel
	w.session.life.Start(func() {
		defer cancel()
		for ctx.Err() == nil {
			err := e.followKey(ctx)
			w.session.store.logger.LogAttrs(ctx, slog.LevelDebug, "watch of an entry ended; opening another",
				slog.String("lock", w.name), slog.Any("error", err))
			attempts.Rest(ctx, attempts.LongestPause)
		}
	})
}

// followKey watches the entry's key until the watch ends. The reading after the watch has begun shows what happened before.
func (e *entry) followKey(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := e.line
	for resp := range w.session.store.cli.Watch(ctx, e.key, clientv3.WithCreatedNotify()) {
		if resp.Err() != nil {
			return resp.Err()
		}
		if resp.Created {
			if err := e.readKey(ctx); err != nil {
				return err
			}
			w.keyWatchStands(e)
		}
		w.session.shown(resp.Header)
		for _, ev := range resp.Events {
			if ev.Type == clientv3.EventTypeDelete {
				w.keyIs(e, nil, ev.Kv.ModRevision)
			} else {
				w.keyIs(e, ev.Kv, ev.Kv.ModRevision)
			}
		}
	}
	return errEnded
}

// readKey reads the entry's key and handles what it shows.
func (e *entry) readKey(ctx context.Context) error {
	se := e.session
	var resp *clientv3.GetResponse
	before := se.seen.Load()
	err := attempt(ctx, func(ctx context.Context) (err error) {
		resp, err = se.store.cli.Get(ctx, e.key)
		return err
	})
	if err == nil {
		err = se.saw(before, resp.Header)
	}
	if err != nil {
		return err
	}
	var kv *mvccpb.KeyValue
	if len(resp.Kvs) > 0 {
		kv = resp.Kvs[0]
	}
	e.line.keyIs(e, kv, resp.Header.Revision)
	return nil
}

// keyIs handles what the entry's key was at a revision; nil if it was not there.
func (w *follower) keyIs(e *entry, kv *mvccpb.KeyValue, at int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.state != standing || uint64(at) < e.order:
	case kv == nil || uint64(kv.CreateRevision) != e.order:
		w.goneLocked(e, w.evicted())
	case kv.Lease != int64(w.session.lease):
		w.overwrittenLocked(e)
	}
}

// keyWatchStands marks that the watch of the entry's key stands.
func (w *follower) keyWatchStands(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.keyWatched = true
}
