package etcdguard_test

import (
	"context"
	"errors"
	"log"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/store/etcdstore/etcdguard"
)

// Made elsewhere: a client of the cluster that has the data and the locks, and a client of the locks.
var (
	cli    *clientv3.Client
	client *stile.Client
)

// The configuration changes only if the lock is held at that moment.
func ExampleDo() {
	err := client.Mutex("config").Do(context.Background(), func(ctx context.Context, hold *stile.Hold) error {
		_, err := etcdguard.Do(ctx, cli, hold, "billing/fence", clientv3.OpPut("billing/rate", "0.19"))
		return err
	})
	switch {
	case errors.Is(err, guard.ErrStale):
		log.Fatal("the lock is lost, and nothing has changed: ", err)
	case err != nil:
		log.Fatal(err)
	}
}
