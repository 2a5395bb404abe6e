package guard_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/store/memstore"
)

// A device cannot compare tokens. So the program in front of it does, in one step with each write.
func ExampleTokens() {
	var tokens guard.Tokens = &guard.Forgetful{} // fileguard, sqlguard and others remember for longer
	var mu sync.Mutex
	write := func(ctx context.Context, token uint64, text string) error {
		mu.Lock() // nobody writes between the comparison and this write
		defer mu.Unlock()
		if err := tokens.Raise(ctx, "printer", token); err != nil {
			return err
		}
		fmt.Println("printing", text)
		return nil
	}

	ctx := context.Background()
	fmt.Println(write(ctx, 4096, "page 1"))
	fmt.Println(write(ctx, 6144, "page 1 of the next holder"))
	fmt.Println(errors.Is(write(ctx, 4096, "page 2"), guard.ErrStale))
	// Output:
	// printing page 1
	// <nil>
	// printing page 1 of the next holder
	// <nil>
	// true
}

// A holder pauses, its lock passes on, and its late write is refused.
func ExampleForgetful() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	tokens := &guard.Forgetful{} // of a resource that ends with this process

	paused, err := client.Mutex("cache").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.Break(ctx, "cache", paused.Token()); err != nil {
		log.Fatal(err)
	}
	next, err := client.Mutex("cache").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer next.Release(ctx)
	fmt.Println("next holder:", tokens.Raise(ctx, "cache", next.Token()))
	fmt.Println("paused holder refused:", errors.Is(tokens.Raise(ctx, "cache", paused.Token()), guard.ErrStale))
	// Output:
	// next holder: <nil>
	// paused holder refused: true
}

// A guard's refusal says which token the resource has seen.
func ExampleStaleError() {
	ctx := context.Background()
	tokens := &guard.Forgetful{}
	if err := tokens.Raise(ctx, "orders", 6144); err != nil {
		log.Fatal(err)
	}

	err := tokens.Raise(ctx, "orders", 4096)
	if stale, ok := errors.AsType[*guard.StaleError](err); ok {
		fmt.Printf("%s has seen %d, so the hold with %d is over: stop writing\n", stale.Resource, stale.Newest, stale.Token)
	}
	// Output: orders has seen 6144, so the hold with 4096 is over: stop writing
}

// A function that passes a hold on to a presence guard, such as etcdguard.Do, takes a Hold, which every
// *stile.Hold is. A test can pass another one.
func ExampleHold() {
	write := func(hold guard.Hold) error {
		if hold.EntryKey() == "" {
			return fmt.Errorf("the lock %q is not in a store with a presence guard", hold.Name())
		}
		return nil // etcdguard.Do(hold.Context(), client, hold, …)
	}

	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	err = client.Mutex("config").Do(ctx, func(_ context.Context, hold *stile.Hold) error { return write(hold) })
	fmt.Println(err)
	// Output: the lock "config" is not in a store with a presence guard
}
