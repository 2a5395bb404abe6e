package etcdstore

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// setRecord is [store.Extensions.SetRecord]. The record is a key without a lease. The transaction that
// puts it names the revision that it replaces, so an attempt that is carried out late, after another
// write, has no effect. For the same reason a removed record leaves a key without a value: after a
// deletion, an old attempt to put the first record could not be told from a new one. If the entry is
// exclusive, that key is under the session's lease: no other client has attempts under way, and no attempt
// has an effect after its session has ended. Otherwise it stays until an exclusive entry replaces it.
func (e *entry) setRecord(ctx context.Context, value []byte) error {
	se, s := e.session, e.session.store
	op := "write the record"
	if !e.stands() {
		return fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", s, op, store.ErrGone)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	// The writer makes the text different from that of every other call.
	key, text := s.keys.record(e.req.Name), fmt.Sprintf("%d.%d %s", e.order, e.recordCalls.Add(1), value)
	reads := []clientv3.Op{clientv3.OpGet(key), clientv3.OpGet(e.key)}
	unanswered := false
	resp, err := s.commit(bounded, nil, reads, nil)
	for {
		if err != nil {
			return se.wrapErr(ctx, op, err)
		}
		seen, last := int64(0), ""
		if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
			seen, last = kvs[0].ModRevision, string(kvs[0].Value)
		}
		own := resp.Responses[1].GetResponseRange().Kvs
		switch {
		case last == text:
			return nil // by an attempt that was not answered
		case len(own) > 0 && own[0].CreateRevision == int64(e.order) && own[0].Lease == int64(se.lease):
		case unanswered:
			return fmt.Errorf("%s: %s: an earlier request was not answered: %w", s, op, store.ErrNotKnown)
		default:
			return fmt.Errorf("%s: %s: %w: another client removed or overwrote the entry", s, op, store.ErrGone)
		}
		put := clientv3.OpPut(key, text)
		if len(value) == 0 && e.req.Mode == line.Exclusive && !isShared(own[0].Value) {
			put = clientv3.OpPut(key, text, clientv3.WithLease(se.lease))
		}
		unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", seen)
		err = s.attempt(bounded, func(ctx context.Context) (err error) {
			resp, err = s.cli.Txn(ctx).If(append(e.attachedCmps(), unchanged)...).Then(put).Else(reads...).Commit()
			unanswered = unanswered || err != nil && !refused(err)
			return err
		})
		if err == nil && resp.Succeeded {
			return nil
		}
	}
}

// record is [store.Capabilities.Record].
func (s *Store) record(ctx context.Context, name string) ([]byte, error) {
	if err := s.keys.check(name); err != nil {
		return nil, fmt.Errorf("%s: %w", s, err)
	}
	var resp *clientv3.GetResponse
	err := s.attemptWithTimeout(ctx, func(ctx context.Context) (err error) {
		resp, err = s.cli.Get(ctx, s.keys.record(name))
		return err
	})
	if err != nil {
		return nil, s.wrapErr("read the record", endedBy(ctx, err))
	}
	if len(resp.Kvs) == 0 {
		return nil, nil
	}
	_, value, _ := strings.Cut(string(resp.Kvs[0].Value), " ")
	return []byte(value), nil
}

// record returns the key of the record of a line. Its last part is empty, so it is the key of no entry,
// in no store.
func (k keys) record(name string) string { return k.prefix + reservedName + "/records/" + name + "//" }
