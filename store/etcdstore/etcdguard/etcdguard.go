// Package etcdguard is a guard for data in the etcd cluster that also keeps the locks.
//
// [Do] changes the data in a transaction. The same transaction checks that the hold's entry is still in
// the line. The cluster runs transactions one after the other. So if a change is made, the lock had not
// passed on by then, whatever pauses, crashes and delays there were.
//
// For an exclusive hold the transaction also compares tokens. The fence, a key beside the data, has the
// largest token that was used, and the transaction raises it, or is refused if the hold's token is
// smaller. So stale holders are still refused if the locks were restored and the data was not.
//
// All changes must go through the guard, and be made in the same cluster as the lock. If the lock is in
// another cluster, its entry is not found, and the change is refused. There is one exception: a cluster
// that was restored from a snapshot of the other has the same keys and revisions.
package etcdguard

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// Do runs ops in one transaction, if hold is still held and no larger token has been used at fence.
//
// fence is a key that belongs to the guard; all holders that change the same data use the same one. Do
// creates it, and its value is the largest token. Without ops, Do only checks, and closes the data to
// earlier holders. Holders that hold at the same time, readers and those of a semaphore's slots, have
// different tokens: for them Do checks only that the entry is in the line, and does not use fence.
//
// After a downgrade (Hold.Downgrade of package stile) a hold is shared. A request that was made for the
// exclusive hold and arrives after the downgrade is refused: readers may hold the lock by then.
//
// On success all ops have run, while the hold's entry was in the line, and the reply has their responses
// in their order. To run some only under a condition, make an operation with [clientv3.OpTxn]. Readers of
// one client share an entry: if hold is released during the call, the ops may run as long as another one
// of them reads.
//
// If the hold is over, the error is a [*guard.StaleError] and nothing has changed. If this process knows
// already that the hold is over, Do sends no request, and the error also matches the cause of the hold's
// context. If the lock is in a store whose entries have no keys (EntryKey of [guard.Hold]), or no hold can
// have the token, the error matches [guard.ErrBadToken]. After any other error the ops may have run, all or
// none; Do does not repeat them. Do is safe for concurrent use.
//
// kv is usually a [*clientv3.Client]. Its user must be allowed to read the hold's entry, and to read and
// write fence. A server accepts 128 operations in a transaction, unless it is configured otherwise; fence
// is one of them.
func Do(ctx context.Context, kv clientv3.KV, hold guard.Hold, fence string, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	token, key := hold.Token(), hold.EntryKey()
	if err := guard.CheckToken(fence, token); err != nil {
		return nil, err
	}
	if key == "" {
		return nil, fmt.Errorf("guard: %q: %d is %w of etcd, because the lock %q is in a store of another kind: "+
			"lock in the cluster that has the data, or use an order guard", fence, token, guard.ErrBadToken, hold.Name())
	}
	if hold.Context().Err() != nil {
		return nil, errors.Join(&guard.StaleError{Resource: fence, Token: token}, context.Cause(hold.Context()))
	}
	first := clientv3.OpGet(key, clientv3.WithCountOnly()) // without a read or a put, the check could be outdated
	present := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", int64(token>>store.TurnBits))}
	var unused []clientv3.Cmp
	var otherwise []clientv3.Op
	if hold.Mode() == line.Exclusive {
		present = append(present, clientv3.Compare(clientv3.Value(key), "<", sharedValue))
		first = clientv3.OpPut(fence, value(token))
		unused = []clientv3.Cmp{
			clientv3.Compare(clientv3.Value(fence), ">", value(0)[1:]), // fails if there is no fence, or a shorter text
			clientv3.Compare(clientv3.Value(fence), "<", value(token+1)),
		}
		otherwise = []clientv3.Op{clientv3.OpGet(fence)}
	}
	change := clientv3.OpTxn(unused, append([]clientv3.Op{first}, ops...), otherwise)
	for {
		reply, err := kv.Txn(ctx).If(present...).Then(change).Commit()
		if err != nil {
			return nil, fmt.Errorf("guard: %q: token %d: %w", fence, token, err)
		}
		if !reply.Succeeded {
			return nil, &guard.StaleError{Resource: fence, Token: token}
		}
		changed := reply.Responses[0].GetResponseTxn()
		if changed.Succeeded {
			return &clientv3.TxnResponse{Header: reply.Header, Succeeded: true, Responses: changed.Responses[1:]}, nil
		}
		if err := refusal(fence, token, changed.Responses[0].GetResponseRange().Kvs); err != nil {
			return nil, err
		}
		absent := clientv3.Compare(clientv3.CreateRevision(fence), "=", 0)
		if _, err := kv.Txn(ctx).If(absent).Then(clientv3.OpPut(fence, value(0))).Commit(); err != nil {
			return nil, fmt.Errorf("guard: %q: create the fence: %w", fence, err)
		}
	}
}

// sharedValue is the beginning of the value of an entry in shared mode, as etcdstore puts it. That of an
// exclusive entry is smaller.
const sharedValue = `{"stile":1,"mode":"shared"`

// refusal returns why the fence refuses a token. It returns nil if there is no fence yet.
func refusal(fence string, token uint64, kvs []*mvccpb.KeyValue) error {
	if len(kvs) == 0 {
		return nil
	}
	text := string(kvs[0].Value)
	newest, err := strconv.ParseUint(text, 10, 63)
	if err != nil || text != value(newest) || newest <= token {
		return fmt.Errorf("guard: %q: the value %.40q is not a guard's: if no stale holder can exist, delete the key", fence, text)
	}
	return &guard.StaleError{Resource: fence, Token: token, Newest: newest}
}

// value returns the value of a fence. Values are compared as texts, so all have the same length.
func value(token uint64) string { return fmt.Sprintf("%020d", token) }
