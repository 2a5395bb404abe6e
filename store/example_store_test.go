package store_test

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// A countedStore counts the sessions that were opened, and is otherwise the store that it wraps.
type countedStore struct {
	store.Store
	sessions *atomic.Int64
}

func (s countedStore) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	s.sessions.Add(1)
	return s.Store.Open(ctx, opts)
}

// A program wraps a store to count requests, to rename locks or to inject faults. All locks of a client share
// one session.
func ExampleStore() {
	var sessions atomic.Int64
	client, err := stile.New(countedStore{memstore.New(), &sessions}, nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	for _, name := range []string{"orders", "stock"} {
		hold, err := client.Mutex(name).Lock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer hold.Release(ctx)
	}
	fmt.Println("sessions:", sessions.Load())
	// Output: sessions: 1
}
