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
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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
		hold, err := place.Wait(ctx)
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

// A nightly job on many machines: whoever comes first does it, and the others, whose clocks are behind, not once more.
func ExampleHold_ReleaseAfter() {
	st := memstore.New()
	ctx := context.Background()
	run := func(machine string) {
		client, err := stile.New(st, nil)
		if err != nil {
			log.Fatal(err)
		}
		defer client.Close(ctx) // the lock stays closed without it
		hold, err := client.Mutex("nightly-backup").TryLock(ctx)
		if errors.Is(err, stile.ErrHeld) {
			fmt.Println(machine, "has nothing to do")
			return
		} else if err != nil {
			log.Fatal(err)
		}
		fmt.Println(machine, "makes a backup")
		if err := hold.ReleaseAfter(ctx, time.Hour); err != nil {
			log.Fatal(err)
		}
	}
	run("web-1")
	run("web-2")
	// Output:
	// web-1 makes a backup
	// web-2 has nothing to do
}

// Metrics are counters; a span begins where its start is called, and travels in the context.
func ExampleHooks() {
	attempts := make(map[stile.Outcome]int) // one goroutine here; otherwise use a mutex or a metrics library
	metrics := stile.Hooks{
		AttemptEnd: func(_ context.Context, e stile.AttemptEndEvent) { attempts[e.Outcome]++ },
	}
	type span struct{}
	tracing := stile.Hooks{
		HoldStart: func(ctx context.Context, e stile.HoldStartEvent) context.Context {
			return context.WithValue(ctx, span{}, "hold of "+e.Name)
		},
		HoldEnd: func(ctx context.Context, e stile.HoldEndEvent) {
			fmt.Println(ctx.Value(span{}), "ended:", e.Reason)
		},
	}
	client, err := stile.New(memstore.New(), &stile.Options{Hooks: stile.JoinHooks(metrics, tracing)})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	err = client.Mutex("report").Do(ctx, func(ctx context.Context, _ *stile.Hold) error {
		fmt.Println("working in the", ctx.Value(span{})) // so that spans of the work are children
		_, err := client.Mutex("report").TryLock(ctx)
		fmt.Println("refused:", errors.Is(err, stile.ErrHeld))
		return nil
	})
	fmt.Println(err, attempts)
	// Output:
	// working in the hold of report
	// refused: true
	// hold of report ended: released
	// <nil> map[acquired:1 refused:1]
}

func ExampleClient_WatchLine() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	hold, err := client.Mutex("deploy/shop").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	time.AfterFunc(10*time.Millisecond, func() { hold.Release(ctx) })

	// Wait until the lock is free, without standing in line for it.
	for line, err := range client.WatchLine(ctx, "deploy/shop") {
		if err != nil {
			log.Print(err) // the watch goes on, if it can
			continue
		}
		if len(line.Holders) == 0 {
			fmt.Println("free")
			break
		}
	}
	// Output: free
}
