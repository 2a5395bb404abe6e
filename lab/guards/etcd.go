package guards

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/store/etcdstore/etcdguard"
)

// etcdJournal is a key for each token, in the order of their revisions.
type etcdJournal struct {
	client *clientv3.Client
	key    string
}

func openEtcd(_ context.Context, s Servers, name string) (Journal, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Etcd}, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	return &etcdJournal{client, "journal/" + name + "/"}, nil
}

func (j *etcdJournal) put(token uint64) clientv3.Op {
	return clientv3.OpPut(j.key+rand.Text(), fmt.Sprint(token))
}

func (j *etcdJournal) Append(ctx context.Context, hold guard.Hold) error {
	_, err := etcdguard.Do(ctx, j.client, hold, "fence of "+j.key, j.put(hold.Token()))
	return err
}

func (j *etcdJournal) AppendPlain(ctx context.Context, token uint64) error {
	_, err := j.client.Do(ctx, j.put(token))
	return err
}

func (j *etcdJournal) Tokens(ctx context.Context) ([]uint64, error) {
	reply, err := j.client.Get(ctx, j.key, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return nil, err
	}
	var all strings.Builder
	for _, kv := range reply.Kvs {
		all.Write(kv.Value)
		all.WriteByte(' ')
	}
	return parseTokens(all.String())
}

func (j *etcdJournal) Close() error { return j.client.Close() }
