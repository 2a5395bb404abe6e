package zkstore_test

import (
	"context"
	"crypto/tls"
	"log"
	"os"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/zkstore"
)

// Locks are kept in a ZooKeeper ensemble.
func ExampleStore() {
	st, err := zkstore.New([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, nil) // port 2181
	if err != nil {
		log.Fatal(err)
	}
	defer st.Close()
	client, err := stile.New(st, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
}

// Only one user may access the locks, and only over TLS.
func ExampleOptions() {
	password := os.Getenv("ZOOKEEPER_PASSWORD")
	st, err := zkstore.New([]string{"zk-1.example.com:2281"}, &zkstore.Options{
		Root: "/billing/locks",
		Auth: []zkstore.Auth{{Scheme: "digest", Credentials: "billing:" + password}},
		ACL:  zk.DigestACL(zk.PermAll, "billing", password),
		TLS:  &tls.Config{MinVersion: tls.VersionTLS13},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer st.Close()
}
