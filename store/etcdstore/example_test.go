package etcdstore_test

import (
	"context"
	"log"
	"log/slog"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/etcdstore"
)

// Locks are kept in the etcd cluster that the program's client is connected to.
func ExampleStore() {
	cli, err := clientv3.New(clientv3.Config{
		Endpoints:            []string{"10.0.0.1:2379", "10.0.0.2:2379", "10.0.0.3:2379"},
		DialKeepAliveTime:    10 * time.Second, // close the connection to a member that does not answer
		DialKeepAliveTimeout: 3 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer cli.Close()
	st, err := etcdstore.New(cli, nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := stile.New(st, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
}

// A prefix keeps the locks apart from other keys of the cluster.
func ExampleOptions() {
	var cli *clientv3.Client // see the example of Store
	st, err := etcdstore.New(cli, &etcdstore.Options{
		Prefix: "billing/locks/",
		Logger: slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Print("locks are in ", st)
}
