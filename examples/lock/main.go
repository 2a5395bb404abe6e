// Lock acquires a lock on the store that STILE_URL names, holds it until it is lost or the user
// presses Ctrl-C, and releases it.
//
//	cd examples && STILE_URL=etcd://localhost:2379 go run ./lock orders/42
//
// Run it twice to see one process wait for the other. Stop the etcd server, or delete the key, to
// see how a hold is lost.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/storeurl"
)

func main() {
	if len(os.Args) != 2 || os.Getenv("STILE_URL") == "" {
		log.Fatal("usage: STILE_URL=etcd://localhost:2379 lock NAME")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("STILE_URL"), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url, name string) error {
	conn, err := storeurl.Open(ctx, url, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	client, err := stile.New(conn.Store, nil)
	if err != nil {
		return err
	}
	defer client.Close(ctx)

	return client.Mutex(name).Do(ctx, func(ctx context.Context, h *stile.Hold) error {
		fmt.Printf("holding %q with token %d; Ctrl-C releases it\n", name, h.Token())
		<-ctx.Done()
		return h.Err() // nil, unless the lock was lost
	})
}
