package etcdstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
)

// mark is [store.Extensions.Mark]. The marker is a key without a lease, under a name that no other
// client uses. It is put only while the entry's key exists and is attached to the session's lease,
// so an attempt that is carried out late has no effect.
func (e *entry) mark(ctx context.Context) ([]store.Entry, error) {
	se := e.session
	op := "leave a marker"
	if ended := se.life.Err(); ended != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrGone, ended)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	unreleased, there, err := e.putMarker(bounded)
	switch {
	case err != nil:
		return nil, se.wrapErr(ctx, op, err)
	case !there:
		return nil, e.goneErr(op)
	}
	return unreleased, nil
}

// putMarker puts the marker, unless there are markers of entries that were not released. It reports
// whether the entry stands.
//
// If the line has no marker, which is the usual case with exclusive locks, one request is enough.
// Otherwise the line is read to find out which markers have no entry.
func (e *entry) putMarker(ctx context.Context) (unreleased []store.Entry, stands bool, err error) {
	s, name := e.session.store, e.req.Name
	marker := e.currentValue()
	marker.Session = e.session.ID()
	text, err := marker.encode()
	if err != nil {
		return nil, false, err
	}
	standing := e.attachedCmps()
	unmarked := clientv3.Compare(clientv3.CreateRevision(s.keys.markers(name)), "=", 0).WithPrefix()
	put := []clientv3.Op{clientv3.OpPut(s.keys.marker(name, e.order), text)}
	reads := []clientv3.Op{
		clientv3.OpGet(s.keys.line(name), clientv3.WithPrefix()),
		clientv3.OpGet(s.keys.markers(name), clientv3.WithPrefix()),
	}
	e.marked.Store(true) // before there can be a marker
	resp, err := s.commit(ctx, append(standing, unmarked), put, reads)
	if err != nil || resp.Succeeded {
		return nil, true, err
	}
	line, _ := s.keys.contenders(name, resp.Responses[0].GetResponseRange().Kvs)
	unreleased = s.keys.unreleased(name, resp.Responses[1].GetResponseRange().Kvs, line)
	if len(unreleased) > 0 {
		stands = slices.ContainsFunc(line, func(c listedEntry) bool { return c.ID == e.key && c.Order == e.order })
		return unreleased, stands, nil
	}
	resp, err = s.commit(ctx, standing, put, nil)
	return nil, err == nil && resp.Succeeded, err
}

// deleteMarkerOps returns the operation that deletes the entry's marker, if there may be one.
func (e *entry) deleteMarkerOps() []clientv3.Op {
	if !e.marked.Load() {
		return nil
	}
	return []clientv3.Op{clientv3.OpDelete(e.session.store.keys.marker(e.req.Name, e.order))}
}

// commit repeats a transaction until it is answered.
func (s *Store) commit(
	ctx context.Context, conditions []clientv3.Cmp, then, otherwise []clientv3.Op,
) (resp *clientv3.TxnResponse, err error) {
	err = s.attempt(ctx, func(ctx context.Context) (err error) {
		resp, err = s.cli.Txn(ctx).If(conditions...).Then(then...).Else(otherwise...).Commit()
		return err
	})
	return resp, err
}

// clearMarks is [store.Capabilities.ClearMarks].
func (s *Store) clearMarks(ctx context.Context, name string, orders []uint64) error {
	for chunk := range slices.Chunk(orders, maxDeletesPerTxn) {
		ops := make([]clientv3.Op, 0, len(chunk))
		for _, order := range chunk {
			ops = append(ops, clientv3.OpDelete(s.keys.marker(name, order)))
		}
		err := s.attemptWithTimeout(ctx, func(ctx context.Context) error {
			_, err := s.cli.Txn(ctx).Then(ops...).Commit()
			return err
		})
		if err != nil {
			return s.wrapErr("clear the markers", endedBy(ctx, err))
		}
	}
	return nil
}

// maxDeletesPerTxn is less than the 128 operations that a server allows in a transaction by
// default.
const maxDeletesPerTxn = 100

// markers returns the prefix of the keys of a line's markers. It does not match those of a line
// whose name continues after a slash, because no name contains two slashes in a row.
func (k keys) markers(name string) string { return k.prefix + reservedName + "/traces/" + name + "//" }

// marker returns the key of the marker of the entry with the given order.
func (k keys) marker(name string, order uint64) string {
	return k.markers(name) + strconv.FormatUint(order, 10)
}

// unreleased returns, in order, the entries that have left markers and are not in the line.
func (k keys) unreleased(name string, markers []*mvccpb.KeyValue, standing []listedEntry) []store.Entry {
	var found []store.Entry
	for _, kv := range markers {
		order, err := strconv.ParseUint(strings.TrimPrefix(string(kv.Key), k.markers(name)), 10, 64)
		if err != nil || slices.ContainsFunc(standing, func(c listedEntry) bool { return c.Order == order }) {
			continue // not a marker, or its entry still stands
		}
		v, _ := decode(kv.Value)
		found = append(found, store.Entry{Order: order, Mode: v.Mode, Session: v.Session, Owner: v.Owner})
	}
	slices.SortFunc(found, func(a, b store.Entry) int { return cmp.Compare(a.Order, b.Order) })
	return found
}
