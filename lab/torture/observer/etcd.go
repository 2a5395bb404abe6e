package observer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/stilelock/stile/lab/torture/history"
)

type etcd struct {
	*clientv3.Client

	prefix string
	token  func(uint64) uint64
}

func openEtcd(addrs []string, prefix string, token func(uint64) uint64) (*etcd, error) {
	cli, err := clientv3.New(clientv3.Config{
		Endpoints: addrs, DialKeepAliveTime: time.Second, DialKeepAliveTimeout: time.Second, Logger: zap.NewNop(),
	})
	return &etcd{cli, prefix, token}, err
}

// Follow follows the log from its first revision: what happened while no server answered is told late, but is told, unless
// it has been compacted away.
func (o *etcd) Follow(ctx context.Context, saw func(history.Entry)) {
	next := int64(1)
	for ctx.Err() == nil {
		watch, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
		for answer := range o.Client.Watch(watch, o.prefix, clientv3.WithPrefix(), clientv3.WithRev(next), clientv3.WithPrevKV()) {
			next = max(next, answer.CompactRevision)
			for _, ev := range answer.Events {
				next = ev.Kv.ModRevision + 1
				o.tell(ev, saw)
			}
			if answer.Err() != nil {
				break
			}
		}
		cancel()
		rest(ctx)
	}
}

func (o *etcd) tell(ev *clientv3.Event, saw func(history.Entry)) {
	key := string(ev.Kv.Key)
	e := history.Entry{Lock: lockOf(key), Key: key, Gone: ev.Type == mvccpb.DELETE}
	switch {
	case e.Gone && ev.PrevKv != nil:
		e.Token = o.token(uint64(ev.PrevKv.CreateRevision))
	case ev.IsCreate():
		e.Token = o.token(uint64(ev.Kv.CreateRevision))
	case !e.Gone:
		return // it was there before
	}
	saw(e)
}

// lockOf is the lock that a key is an entry of: what is before the last slash.
func lockOf(key string) string { return key[:max(0, strings.LastIndexByte(key, '/'))] }

func (o *etcd) Remaining(ctx context.Context) (map[string][]string, error) {
	all, err := o.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	left := map[string][]string{}
	for _, kv := range all.Kvs {
		lock := ""
		if strings.HasPrefix(string(kv.Key), o.prefix) {
			lock = lockOf(string(kv.Key))
		}
		left[lock] = append(left[lock], string(kv.Key))
	}
	return left, nil
}

// Evict deletes the whole line in one revision. Its first entry is looked up before, and nothing is done if that has left.
func (o *etcd) Evict(ctx context.Context, lock string, all bool) (Eviction, error) {
	prefix := lock + "/"
	first, err := o.Get(ctx, prefix, clientv3.WithFirstCreate()...)
	if err != nil || len(first.Kvs) == 0 {
		return Eviction{}, err
	}
	holder := first.Kvs[0]
	key, options := string(holder.Key), []clientv3.OpOption{clientv3.WithPrevKV()}
	if all {
		key, options = prefix, append(options, clientv3.WithPrefix())
	}
	deleted, err := o.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(string(holder.Key)), "=", holder.CreateRevision)).
		Then(clientv3.OpDelete(key, options...)).
		Commit()
	if err != nil {
		return Eviction{Took: []uint64{o.token(uint64(holder.CreateRevision))}}, err
	}
	if !deleted.Succeeded {
		return Eviction{}, nil
	}
	var took []uint64
	for _, kv := range deleted.Responses[0].GetResponseDeleteRange().PrevKvs {
		took = append(took, o.token(uint64(kv.CreateRevision)))
	}
	slices.Sort(took)
	return Eviction{What: fmt.Sprintf("etcdctl del %s: %d", key, len(took)), Took: took}, nil
}

func (o *etcd) Compact(ctx context.Context) error {
	now, err := o.Get(ctx, o.prefix)
	if err == nil {
		_, err = o.Client.Compact(ctx, now.Header.Revision)
	}
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	return nil
}

func (o *etcd) Close() { _ = o.Client.Close() }

// rest keeps a watch that fails at once from being tried without a pause.
func rest(ctx context.Context) {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
	}
}
