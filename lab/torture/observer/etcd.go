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

// Follow reads the log from its first revision. So it reports changes that happened while no server
// replied too, late, unless they have been compacted.
func (o *etcd) Follow(ctx context.Context, emit func(history.Entry)) {
	next := int64(1)
	for ctx.Err() == nil {
		watchCtx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
		for resp := range o.Client.Watch(watchCtx, o.prefix, clientv3.WithPrefix(), clientv3.WithRev(next), clientv3.WithPrevKV()) {
			next = max(next, resp.CompactRevision)
			for _, ev := range resp.Events {
				next = ev.Kv.ModRevision + 1
				o.emitEvent(ev, emit)
			}
			if resp.Err() != nil {
				break
			}
		}
		cancel()
		pause(ctx)
	}
}

func (o *etcd) emitEvent(ev *clientv3.Event, emit func(history.Entry)) {
	key := string(ev.Kv.Key)
	e := history.Entry{Lock: lockOf(key), Key: key, Gone: ev.Type == mvccpb.DELETE}
	switch {
	case e.Gone && ev.PrevKv != nil:
		e.Token = o.token(uint64(ev.PrevKv.CreateRevision))
	case ev.IsCreate():
		e.Token = o.token(uint64(ev.Kv.CreateRevision))
	case !e.Gone:
		return // an update of a known entry
	}
	emit(e)
}

// lockOf returns the lock whose entry a key is: everything before the last slash.
func lockOf(key string) string { return key[:max(0, strings.LastIndexByte(key, '/'))] }

func (o *etcd) Remaining(ctx context.Context) (map[string][]string, error) {
	all, err := o.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	left := map[string][]string{}
	for _, kv := range all.Kvs {
		if strings.HasPrefix(string(kv.Key), ".stile/records/") { // they stay until they are forgotten
			continue
		}
		lock := ""
		if strings.HasPrefix(string(kv.Key), o.prefix) {
			lock = lockOf(string(kv.Key))
		}
		left[lock] = append(left[lock], string(kv.Key))
	}
	return left, nil
}

// Evict deletes the first entry, or the whole line, in one revision. It reads the first entry
// before; if that entry has left since, it deletes nothing.
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

func (o *etcd) Length(ctx context.Context, lock string) (int, error) {
	counted, err := o.Get(ctx, lock+"/", clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithSerializable())
	if err != nil {
		return 0, err
	}
	return int(counted.Count), nil
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

// pause waits before a watch is reopened, so that one that fails at once is not reopened in a tight
// loop.
func pause(ctx context.Context) {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
	}
}
