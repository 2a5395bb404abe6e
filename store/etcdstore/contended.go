package etcdstore

import (
	"context"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store/internal/attempts"
)

// notifyContended is [store.Extensions.NotifyContended]. It opens a watch for entries that join,
// which the line's watch filters out, so only owners that call it cause these events.
func (e *entry) notifyContended(f func()) {
	w := e.line
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.state != inLine || e.contended != nil {
		return
	}
	w.prepareLocked()
	ctx, cancel := context.WithCancel(w.ctx)
	e.contended = cancel
	e.session.life.Start(func() {
		defer cancel()
		for ctx.Err() == nil {
			if e.awaitContention(ctx) {
				f()
				return
			}
			attempts.Sleep(ctx, attempts.MaxPause)
		}
	})
}

// awaitContention waits until an entry that is not admitted stands behind this one. It returns
// false if ctx or the watch ends first.
func (e *entry) awaitContention(ctx context.Context) bool {
	s := e.session.store
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	joins, ended := s.watcher.watch(ctx, s.keys.line(e.req.Name),
		clientv3.WithPrefix(), clientv3.WithFilterDelete(), clientv3.WithCreatedNotify())
	// The first response reports that the watch has started; the read that follows shows earlier entries.
	for resp := range joins {
		if err := resp.Err(); err != nil {
			ended(err)
			return false
		}
		if !resp.Created && !slices.ContainsFunc(resp.Events, (*clientv3.Event).IsCreate) {
			continue // an entry was changed
		}
		if e.currentValue().Mode == line.Exclusive && slices.ContainsFunc(resp.Events, e.isBehind) {
			return true // whatever joins behind an exclusive entry waits
		}
		l, _, err := s.read(ctx, e.req.Name)
		if err != nil {
			return false
		}
		for _, other := range l.Entries {
			if other.Order > e.order && !other.Admitted {
				return true
			}
		}
	}
	return false
}

// isBehind reports whether an event shows that another entry has joined the line behind this one.
func (e *entry) isBehind(ev *clientv3.Event) bool {
	name, _, ok := e.session.store.keys.parse(ev.Kv)
	return ok && ev.IsCreate() && name == e.req.Name && uint64(ev.Kv.CreateRevision) > e.order
}
