package stilesync_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stilesync"
	"github.com/stilelock/stile/store/memstore"
)

// A library that wants a sync.Locker gets a lock among all processes.
func ExampleLocker() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	lock := stilesync.New(client.Mutex("reports"))
	cond := sync.NewCond(lock) // stands for a library that knows nothing but sync.Locker
	cond.L.Lock()
	fmt.Println("held:", lock.Hold().Valid()) // for a guard: lock.Hold().Token()
	cond.L.Unlock()
	// Output: held: true
}
