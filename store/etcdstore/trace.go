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
	"github.com/stilelock/stile/store/internal/attempts"
)

// LeaveTrace implements [store.Ticket]. The trace is a key without a lease, under a name that no other client looks at.
// It is put there only while the entry's own key is, and is the session's, so an attempt that is carried out late does
// nothing.
func (e *entry) LeaveTrace(ctx context.Context) ([]store.Entry, error) {
	se := e.session
	doing := fmt.Sprintf("leave a trace of the entry for lock %q", e.req.Name)
	if ended := se.alive(); ended != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrGone, ended)
	}
	bounded, cancel := attempts.Within(ctx, se.life)
	defer cancel()
	vanished, there, err := e.leaveTrace(bounded)
	switch {
	case err != nil:
		return nil, se.explain(ctx, doing, err)
	case !there:
		return nil, e.takenOut(doing)
	}
	return vanished, nil
}

// leaveTrace puts the trace there, unless entries have vanished that have left theirs. It reports whether the entry stands.
//
// If there is no trace at all, which is the rule with exclusive locks, one request does it. Otherwise the line has to be
// read, to tell whose the traces are.
func (e *entry) leaveTrace(ctx context.Context) (vanished []store.Entry, stands bool, err error) {
	s, name := e.session.store, e.req.Name
	trace := e.says
	trace.Session = e.session.ID()
	text, err := trace.encode()
	if err != nil {
		return nil, false, err
	}
	standing := []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(e.key), "=", int64(e.order)),
		clientv3.Compare(clientv3.LeaseValue(e.key), "=", e.session.lease), // and not let go later
	}
	untraced := clientv3.Compare(clientv3.CreateRevision(s.keys.traces(name)), "=", 0).WithPrefix()
	put := []clientv3.Op{clientv3.OpPut(s.keys.trace(name, e.order), text)}
	look := []clientv3.Op{
		clientv3.OpGet(s.keys.line(name), clientv3.WithPrefix()),
		clientv3.OpGet(s.keys.traces(name), clientv3.WithPrefix()),
	}
	e.traced.Store(true) // before there can be a trace
	resp, err := s.commit(ctx, append(standing, untraced), put, look)
	if err != nil || resp.Succeeded {
		return nil, true, err
	}
	line, _ := s.keys.contenders(name, resp.Responses[0].GetResponseRange().Kvs)
	vanished = s.keys.vanished(name, resp.Responses[1].GetResponseRange().Kvs, line)
	if len(vanished) > 0 {
		stands = slices.ContainsFunc(line, func(c contender) bool { return c.ID == e.key && c.Order == e.order })
		return vanished, stands, nil
	}
	resp, err = s.commit(ctx, standing, put, nil)
	return nil, err == nil && resp.Succeeded, err
}

// untrace is what a departure does besides: it does away with the trace, if there may be one.
func (e *entry) untrace() []clientv3.Op {
	if !e.traced.Load() {
		return nil
	}
	return []clientv3.Op{clientv3.OpDelete(e.session.store.keys.trace(e.req.Name, e.order))}
}

// commit makes a transaction until it is answered.
func (s *Store) commit(
	ctx context.Context, conditions []clientv3.Cmp, then, otherwise []clientv3.Op,
) (resp *clientv3.TxnResponse, err error) {
	err = attempt(ctx, func(ctx context.Context) (err error) {
		resp, err = s.cli.Txn(ctx).If(conditions...).Then(then...).Else(otherwise...).Commit()
		return err
	})
	return resp, err
}

// ForgetTraces implements [store.Store].
func (s *Store) ForgetTraces(ctx context.Context, name string, orders []uint64) error {
	for some := range slices.Chunk(orders, mostForgotten) {
		ops := make([]clientv3.Op, 0, len(some))
		for _, order := range some {
			ops = append(ops, clientv3.OpDelete(s.keys.trace(name, order)))
		}
		err := patiently(ctx, func(ctx context.Context) error {
			_, err := s.cli.Txn(ctx).Then(ops...).Commit()
			return err
		})
		if err != nil {
			return s.explain(fmt.Sprintf("forget the traces of lock %q", name), endedBy(ctx, err))
		}
	}
	return nil
}

// mostForgotten is how many traces are deleted in one request: fewer than a server allows by default, which is 128.
const mostForgotten = 100

// traces is what the keys of all traces of a line begin with. No name has two slashes in a row, so those of a line whose
// name goes on after a slash do not.
func (k keys) traces(name string) string { return k.prefix + reserved + "/traces/" + name + "//" }

// trace returns the key of the trace of the entry with the given order.
func (k keys) trace(name string, order uint64) string {
	return k.traces(name) + strconv.FormatUint(order, 10)
}

// vanished returns the entries of a line that have left traces and do not stand there any more, in order.
func (k keys) vanished(name string, traces []*mvccpb.KeyValue, standing []contender) []store.Entry {
	var found []store.Entry
	for _, kv := range traces {
		order, err := strconv.ParseUint(strings.TrimPrefix(string(kv.Key), k.traces(name)), 10, 64)
		if err != nil || slices.ContainsFunc(standing, func(c contender) bool { return c.Order == order }) {
			continue // not one of ours, or all is well
		}
		v, _ := decode(kv.Value)
		found = append(found, store.Entry{Order: order, Mode: v.Mode, Session: v.Session, Owner: v.Owner})
	}
	slices.SortFunc(found, func(a, b store.Entry) int { return cmp.Compare(a.Order, b.Order) })
	return found
}
