package etcdstore

import (
	"cmp"
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
)

// setOwner is [store.Extensions.SetOwner]. The watch of the entry's key ignores the put, because the
// lease is still the session's.
func (e *entry) setOwner(ctx context.Context, owner store.Owner) error {
	return e.change(ctx, "change the owner of the entry", true, func(v *value) { v.Owner = owner })
}

// change applies set to the entry's value. It puts the key again under the same lease, which keeps the
// create revision and so the order. Other clients wait for deletions and are not affected.
//
// The request names the mod revision that it replaces, so an attempt that is carried out late, after
// another, has no effect. Each attempt puts all that was set when it read which revision it replaces.
// So a put never undoes what another call has set.
//
// canWait is that of the [txn].
func (e *entry) change(ctx context.Context, op string, canWait bool, set func(*value)) error {
	se := e.session
	if !e.setValue(set) {
		return fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, op, store.ErrGone)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	reads := []clientv3.Op{clientv3.OpGet(e.key)}
	for {
		replaced := cmp.Or(e.modified.Load(), int64(e.order)) // before the value is read
		text, err := e.currentValue().encode()
		if err != nil {
			return se.store.wrapErr(op, err)
		}
		put := []clientv3.Op{clientv3.OpPut(e.key, text, clientv3.WithLease(se.lease))}
		unchanged := clientv3.Compare(clientv3.ModRevision(e.key), "=", replaced)
		t := txn{conditions: append(e.attachedCmps(), unchanged), then: put, otherwise: reads, canWait: canWait}
		var resp *clientv3.TxnResponse
		err = se.attempt(bounded, e.req.Name, func(commit commitFunc) (err error) {
			resp, err = commit(t)
			return err
		})
		if err != nil {
			return se.wrapErr(ctx, op, err)
		}
		if resp.Succeeded {
			e.modified.Store(resp.Header.Revision)
			return nil
		}
		kvs := resp.Responses[0].GetResponseRange().Kvs
		if len(kvs) == 0 || kvs[0].CreateRevision != int64(e.order) || kvs[0].Lease != int64(se.lease) {
			return fmt.Errorf("%s: %s: %w: another client removed or overwrote the entry", se.store, op, store.ErrGone)
		}
		e.modified.Store(kvs[0].ModRevision)
		if string(kvs[0].Value) == text {
			return nil // by an attempt that was not answered
		}
	}
}

// setValue applies set to the entry's current value. It reports false if the entry does not stand in
// its line.
func (e *entry) setValue(set func(*value)) bool {
	e.line.mu.Lock()
	defer e.line.mu.Unlock()
	if e.state != inLine {
		return false
	}
	set(&e.current)
	return true
}

// currentValue returns the entry's value as last set.
func (e *entry) currentValue() value {
	e.line.mu.Lock()
	defer e.line.mu.Unlock()
	return e.current
}

// attachedCmps are the conditions that the entry exists and is attached to the session's lease. A
// request under them that is carried out late has no effect on an entry that has left, or that
// outlasts the session.
func (e *entry) attachedCmps() []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(e.key), "=", int64(e.order)),
		clientv3.Compare(clientv3.LeaseValue(e.key), "=", e.session.lease),
	}
}
