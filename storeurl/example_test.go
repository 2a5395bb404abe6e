package storeurl_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/storeurl"
)

// The configuration of a program says where its locks are kept. Close the clients before the connections.
func ExampleConn() {
	ctx := context.Background()
	conn, err := storeurl.Open(ctx, "mem:", nil) // or etcd://…, redis://…, zk://…
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	for _, warning := range conn.Warnings {
		log.Print(warning)
	}

	client, err := stile.New(conn.Store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	hold, err := client.Mutex("report").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer hold.Release(ctx)
	fmt.Println("holding", hold.Name())
	// Output: holding report
}

// The logger gets what the store has to say to operators, such as lost connections.
func ExampleOptions() {
	url := os.Getenv("LOCKS") // such as etcds://app@db-1,db-2,db-3/locks?password_file=/run/secrets/etcd
	conn, err := storeurl.Open(context.Background(), url, &storeurl.Options{
		Logger: slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	})
	if err != nil {
		log.Fatalf("cannot use %s: %v", storeurl.Redact(url), err)
	}
	defer conn.Close()
}
