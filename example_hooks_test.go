package stile_test

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/memstore"
)

// A gauge of the callers that wait for a lock goes up when an attempt starts, and down when it ends.
func ExampleAttemptStartEvent() {
	var waiting atomic.Int64
	client, err := stile.New(memstore.New(), &stile.Options{Hooks: stile.Hooks{
		AttemptStart: func(ctx context.Context, e stile.AttemptStartEvent) context.Context {
			if !e.Try { // TryLock does not wait
				waiting.Add(1)
			}
			return ctx
		},
		AttemptEnd: func(_ context.Context, e stile.AttemptEndEvent) {
			if !e.Try {
				waiting.Add(-1)
			}
		},
	}})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	hold, err := client.Mutex("report").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer hold.Release(ctx)
	if _, err := client.Mutex("report").Join(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("waiting:", waiting.Load())
	// Output: waiting: 1
}

// A hook reports the attempts that took long or ran out of time.
func ExampleAttemptEndEvent() {
	client, err := stile.New(memstore.New(), &stile.Options{Hooks: stile.Hooks{
		AttemptEnd: func(_ context.Context, e stile.AttemptEndEvent) {
			if e.Outcome == stile.TimedOut || e.Waited > 10*time.Second {
				fmt.Printf("lock %q in mode %v: %v\n", e.Name, e.Mode, e.Outcome)
			}
		},
	}})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	hold, err := client.Mutex("report").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer hold.Release(ctx)
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err = client.Mutex("report").Lock(short)
	fmt.Println("acquired:", err == nil)
	// Output:
	// lock "report" in mode exclusive: timeout
	// acquired: false
}

// An audit log says how each hold ended.
func ExampleHoldEndEvent() {
	client, err := stile.New(memstore.New(), &stile.Options{Hooks: stile.Hooks{
		HoldEnd: func(_ context.Context, e stile.HoldEndEvent) {
			switch {
			case e.Reason == stile.EndLost:
				fmt.Printf("%s: lost, so look at its last writes\n", e.Name)
			case e.Err != nil:
				fmt.Printf("%s: %v, not confirmed: %v\n", e.Name, e.Reason, e.Err)
			default:
				fmt.Printf("%s: %v\n", e.Name, e.Reason) // e.Held says how long it was held
			}
		},
	}})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	hold, err := client.Mutex("report").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := hold.Release(ctx); err != nil {
		log.Fatal(err)
	}
	hold, err = client.Mutex("backup").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.Break(ctx, "backup", hold.Token()); err != nil { // as an operator does
		log.Fatal(err)
	}
	<-hold.Lost()
	// Output:
	// report: released
	// backup: lost, so look at its last writes
}

// A hook counts the locks that others wait for while this process holds them.
func ExampleContentionEvent() {
	contended := make(chan string, 1)
	client, err := stile.New(memstore.New(), &stile.Options{Hooks: stile.Hooks{
		Contended: func(_ context.Context, e stile.ContentionEvent) { contended <- e.Name },
	}})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	hold, err := client.Mutex("index").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer hold.Release(ctx)
	if _, err := client.Mutex("index").Join(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("others wait for", <-contended)
	// Output: others wait for index
}

// A service is not ready while its locks are at risk. Its readiness probe reads a variable that hooks set.
func ExampleRiskEvent() {
	var ready atomic.Bool
	client, err := stile.New(memstore.New(), &stile.Options{Hooks: stile.Hooks{
		SessionOpened:    func(stile.SessionEvent) { ready.Store(true) },
		SessionRecovered: func(stile.SessionEvent) { ready.Store(true) },
		SessionAtRisk: func(e stile.RiskEvent) {
			ready.Store(false)
			log.Printf("session %s is lost in %v unless it is renewed; last error: %v", e.Session, e.Left, e.Err)
		},
		SessionLost: func(stile.SessionLossEvent) { ready.Store(false) },
	}})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if _, err := client.Mutex("jobs").Lock(ctx); err != nil {
		log.Fatal(err)
	}
	client.Close(ctx) // waits for the hooks
	fmt.Println("was ready:", ready.Load())
	// Output: was ready: true
}

// The loss of a session is the loss of all holds at once, so it deserves an alert.
func ExampleSessionLossEvent() {
	st := memstore.New()
	alerts := make(chan string, 1)
	client, err := stile.New(st, &stile.Options{
		Hooks: stile.Hooks{SessionLost: func(e stile.SessionLossEvent) {
			log.Printf("session %s: %v: %v", e.Session, e.Reason, e.Err)
			alerts <- "all locks of this process are lost"
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	if _, err := client.Mutex("jobs").Lock(ctx); err != nil {
		log.Fatal(err)
	}

	st.Expire(st.Sessions()[0]) // a store that breaks its promise, for this example
	fmt.Println(<-alerts)
	// Output: all locks of this process are lost
}

// Round trips of renewals show a store that gets slow, long before a lock is lost.
func ExampleRenewalEvent() {
	const ttl = 10 * time.Second
	healthy := make(chan bool, 100)
	client, err := stile.New(memstore.New(), &stile.Options{
		TTL: ttl,
		Hooks: stile.Hooks{SessionRenewed: func(e stile.RenewalEvent) {
			healthy <- e.Err == nil && e.RoundTrip < ttl/10 // a program sends both to its metrics
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	if _, err := client.Mutex("jobs").Lock(ctx); err != nil {
		log.Fatal(err)
	}
	for !<-healthy {
		log.Print("the store is slow, or has not answered")
	}
	fmt.Println("the store answers in time")
	// Output: the store answers in time
}
