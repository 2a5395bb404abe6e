package stilek8s_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"k8s.io/client-go/tools/leaderelection"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stilek8s"
	"github.com/stilelock/stile/store/memstore"
)

// client-go's LeaderElector leads while it holds the lock.
func ExampleLock() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lock, ctx := stilek8s.New(ctx, client, "controllers/dns", "host-1")
	callbacks := leaderelection.LeaderCallbacks{
		OnStartedLeading: func(context.Context) { // the context ends if the lock is lost
			fmt.Println("leading, with a token:", lock.Hold().Token() > 0)
			cancel()
		},
		OnStoppedLeading: func() {},
	}
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{ // ctx ends if the lock is lost
		Lock:            lock,
		ReleaseOnCancel: true,
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		Callbacks:       callbacks,
	})
	// Output: leading, with a token: true
}
