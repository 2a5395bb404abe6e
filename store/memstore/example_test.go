package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/memstore"
)

// A test makes its code lose a lock, and checks that the work stops.
func ExampleStore() {
	st := memstore.New()
	client, err := stile.New(st, nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	err = client.Mutex("report").Do(ctx, func(ctx context.Context, _ *stile.Hold) error { // the tested code
		for _, session := range st.Sessions() {
			st.Expire(session) // as if its renewals had not arrived
		}
		<-ctx.Done()
		fmt.Println("stopped")
		return nil
	})
	fmt.Println("lost:", errors.Is(err, stile.ErrLost))
	// Output:
	// stopped
	// lost: true
}

// A test makes requests fail. Faults can depend on the operation, the session and the lock.
func ExampleFault() {
	st := memstore.New()
	client, err := stile.New(st, nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	st.SetFaults(func(c memstore.Call) memstore.Fault {
		if c.Op == memstore.Enqueue && c.Name == "orders" {
			return memstore.Fault{Err: errors.New("no connection")}
		}
		return memstore.Fault{}
	})
	for _, name := range []string{"orders", "stock"} {
		err := client.Mutex(name).Do(ctx, func(context.Context, *stile.Hold) error { return nil })
		fmt.Println(name, "failed:", err != nil)
	}
	// Output:
	// orders failed: true
	// stock failed: false
}
