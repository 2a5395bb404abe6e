package etcdstore

import (
	"cmp"
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
)

// setOwner is [store.Extensions.SetOwner]. The key is put once more under the same lease: its create revision, which is the
// entry's order, stays. Other clients wait for keys to be deleted, so a put is nothing to them; and the watch of the
// entry's own key takes it for what it is, because the lease is still the session's. The request names the revision of the
// value that it replaces, so an attempt that is carried out late, after another, does nothing.
func (e *entry) setOwner(ctx context.Context, owner store.Owner) error {
	se := e.session
	doing := "change the owner of the entry"
	says, stands := e.describe(owner)
	if !stands {
		return fmt.Errorf("%s: %s: %w: the entry had left already", se.store, doing, store.ErrGone)
	}
	text, err := says.encode()
	if err != nil {
		return se.store.explain(doing, err)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	put := []clientv3.Op{clientv3.OpPut(e.key, text, clientv3.WithLease(se.lease))}
	look := []clientv3.Op{clientv3.OpGet(e.key)}
	for {
		unchanged := clientv3.Compare(clientv3.ModRevision(e.key), "=", cmp.Or(e.modified.Load(), int64(e.order)))
		resp, err := se.store.commit(bounded, append(e.isOurs(), unchanged), put, look)
		if err != nil {
			return se.explain(ctx, doing, err)
		}
		if resp.Succeeded {
			e.modified.Store(resp.Header.Revision)
			return nil
		}
		kvs := resp.Responses[0].GetResponseRange().Kvs
		if len(kvs) == 0 || kvs[0].CreateRevision != int64(e.order) || kvs[0].Lease != int64(se.lease) {
			return fmt.Errorf("%s: %s: %w: somebody has taken the entry out, or overwritten it", se.store, doing, store.ErrGone)
		}
		e.modified.Store(kvs[0].ModRevision)
		if string(kvs[0].Value) == text {
			return nil // by an attempt that was not answered
		}
	}
}

// describe makes the entry say that it has another owner, whenever it says anything from here on, and returns what it says.
// It reports false if the entry does not stand in its line.
func (e *entry) describe(owner store.Owner) (says value, stands bool) {
	e.line.mu.Lock()
	defer e.line.mu.Unlock()
	if e.state != standing {
		return value{}, false
	}
	e.says.Owner = owner
	return e.says, true
}

// said returns what the entry says of itself now.
func (e *entry) said() value {
	e.line.mu.Lock()
	defer e.line.mu.Unlock()
	return e.says
}

// isOurs is the condition that the entry is there, and goes with its session. What is made under it does nothing when it is
// carried out late: neither to an entry that has left, nor to one that was let go later.
func (e *entry) isOurs() []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(e.key), "=", int64(e.order)),
		clientv3.Compare(clientv3.LeaseValue(e.key), "=", e.session.lease),
	}
}
