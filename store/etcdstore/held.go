package etcdstore

import (
	"context"
	"log/slog"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store/internal/attempts"
)

// watchHeld watches the key of an entry that has held its lock for heldWatchDelay, if it still
// stands. The watch of the line filters out puts, so it does not show that the key was overwritten.
func (w *lineWatch) watchHeld(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.state != inLine {
		return
	}
	w.prepareLocked()
	ctx, cancel := context.WithCancel(w.ctx)
	e.stopKeyWatch = cancel
	w.session.life.Start(func() {
		defer cancel()
		for ctx.Err() == nil {
			err := e.followKey(ctx)
			w.session.store.logger.LogAttrs(ctx, slog.LevelDebug, "watch of an entry ended; opening another",
				slog.String("lock", w.name), slog.Any("error", err))
			attempts.Sleep(ctx, attempts.MaxPause)
		}
	})
}

// followKey watches the entry's key until the watch ends. The read after the watch has started
// covers what happened before.
func (e *entry) followKey(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := e.line
	for resp := range w.session.store.cli.Watch(ctx, e.key, clientv3.WithCreatedNotify()) {
		if resp.Err() != nil {
			return resp.Err()
		}
		if resp.Created {
			kv, at, err := w.session.readKey(ctx, e.key)
			if err != nil {
				return err
			}
			w.handleKey(e, kv, at)
			w.markKeyWatched(e)
		}
		w.session.noteRevision(resp.Header)
		for _, ev := range resp.Events {
			w.handleKeyEvent(e, ev)
		}
	}
	return errWatchEnded
}

// readKey reads a key with a linearizable read: its state at a revision; nil if it did not exist.
func (se *session) readKey(ctx context.Context, key string) (kv *mvccpb.KeyValue, at int64, err error) {
	var resp *clientv3.GetResponse
	before := se.seenRevision.Load()
	err = se.store.attempt(ctx, func(ctx context.Context) (err error) {
		resp, err = se.store.cli.Get(ctx, key)
		return err
	})
	if err == nil {
		err = se.checkRevision(before, resp.Header)
	}
	if err != nil {
		return nil, 0, err
	}
	if len(resp.Kvs) > 0 {
		kv = resp.Kvs[0]
	}
	return kv, resp.Header.Revision, nil
}

// handleKeyEvent handles an event of the entry's key.
func (w *lineWatch) handleKeyEvent(e *entry, ev *clientv3.Event) {
	if ev.Type == clientv3.EventTypeDelete {
		w.handleKey(e, nil, ev.Kv.ModRevision)
	} else {
		w.handleKey(e, ev.Kv, ev.Kv.ModRevision)
	}
}

// handleKey handles the state of the entry's key at a revision; kv is nil if the key did not exist.
func (w *lineWatch) handleKey(e *entry, kv *mvccpb.KeyValue, at int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.state != inLine || uint64(at) < e.order:
	case kv == nil || uint64(kv.CreateRevision) != e.order:
		w.goneLocked(e, w.evictedErr())
	case kv.Lease != int64(w.session.lease):
		w.overwrittenLocked(e)
	}
}

// markKeyWatched records that the watch of the entry's key has started.
func (w *lineWatch) markKeyWatched(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.keyWatched = true
}
