package zkguard_test

import (
	"context"
	"errors"
	"log"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/store/zkstore/zkguard"
)

// Made elsewhere: a connection to the ensemble that has the data and the locks, and a client of the locks.
var (
	conn   *zk.Conn
	client *stile.Client
)

// The configuration changes only if the lock is held at that moment.
func ExampleDo() {
	err := client.Mutex("config").Do(context.Background(), func(ctx context.Context, hold *stile.Hold) error {
		rate := &zk.SetDataRequest{Path: "/billing/rate", Data: []byte("0.19"), Version: -1}
		_, err := zkguard.Do(ctx, conn, hold, "/billing/fence", zk.WorldACL(zk.PermAll), rate)
		return err
	})
	switch {
	case errors.Is(err, guard.ErrStale):
		log.Fatal("the lock is lost, and nothing has changed: ", err)
	case err != nil:
		log.Fatal(err)
	}
}
