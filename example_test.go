package stile_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/memstore"
)

// A store in memory stands for the one you run; only the first line would differ.
func Example() {
	st := memstore.New()
	client, err := stile.New(st, nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	hold, err := client.Mutex("orders/42").Lock(ctx) // waits in line
	if err != nil {
		log.Fatal(err) // not held, and nothing left in the line
	}
	defer hold.Release(ctx)

	// Work until the context ends: it does when the lock is lost. Give the token to whatever can refuse an older one.
	charge := func(ctx context.Context, token uint64) {
		fmt.Println("charging, may go on:", ctx.Err() == nil, "token:", token > 0)
	}
	charge(hold.Context(), hold.Token())
	// Output: charging, may go on: true token: true
}

func ExampleMutex_Lock() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	// The context bounds the waiting, not the hold.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	hold, err := client.Mutex("nightly-backup").Lock(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		fmt.Println("others took too long")
		return
	case err != nil:
		log.Fatal(err)
	}
	fmt.Println("holding", hold.Name())

	if err := hold.Release(ctx); errors.Is(err, stile.ErrLost) {
		fmt.Println("somebody else may have been at work at the same time:", err)
	}
	fmt.Println("still valid:", hold.Valid())
	// Output:
	// holding nightly-backup
	// still valid: false
}

func ExampleMutex_TryLock() {
	st := memstore.New()
	ctx := context.Background()
	first, err := stile.New(st, &stile.Options{Owner: stile.Owner{User: "ann", Host: "web-3", PID: 812, Command: "deploy"}})
	if err != nil {
		log.Fatal(err)
	}
	defer first.Close(ctx)
	second, err := stile.New(st, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer second.Close(ctx)

	if _, err := first.Mutex("deploy/shop").TryLock(ctx); err != nil {
		log.Fatal(err)
	}
	_, err = second.Mutex("deploy/shop").TryLock(ctx)
	if held := (*stile.HeldError)(nil); errors.As(err, &held) {
		fmt.Println(err)
		fmt.Println("ask", held.Holder.Owner.User)
	}
	// Output:
	// stile: lock "deploy/shop" is held by ann@web-3 pid 812 (deploy)
	// ask ann
}

func ExampleMutex_Join() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	place, err := client.Mutex("report").Join(ctx)
	if err != nil {
		log.Fatal(err)
	}
	requests := make(chan string) // whatever else the program waits for
	select {
	case <-place.Ready():
		hold, err := place.Hold()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("holding", hold.Name())
		defer hold.Release(ctx)
	case r := <-requests:
		fmt.Println("no time for the report:", r, place.Leave(ctx))
	}
	// Output: holding report
}

func ExampleMutex_Do() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	err = client.Mutex("migrations").Do(ctx, func(ctx context.Context, h *stile.Hold) error {
		fmt.Println("migrating") // ctx ends if the lock is lost
		return ctx.Err()
	})
	fmt.Println("held to the end, and no error:", err == nil)
	// Output:
	// migrating
	// held to the end, and no error: true
}
