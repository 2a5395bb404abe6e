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

// The example uses the memory store. With another store only the first line differs.
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
		log.Fatal(err) // not held
	}
	defer hold.Release(ctx)

	// Work until the context ends, which it does when the lock is lost. Pass the token to every
	// resource that can refuse smaller ones.
	charge := func(ctx context.Context, token uint64) {
		fmt.Println("charging, lock held:", ctx.Err() == nil, "token:", token > 0)
	}
	charge(hold.Context(), hold.Token())
	// Output: charging, lock held: true token: true
}

// The context of Lock limits how long it waits.
func ExampleMutex_Lock() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	// The context limits the wait, not the hold.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	hold, err := client.Mutex("nightly-backup").Lock(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		fmt.Println("not acquired within a minute")
		return
	case err != nil:
		log.Fatal(err)
	}
	fmt.Println("holding", hold.Name())

	if err := hold.Release(ctx); errors.Is(err, stile.ErrLost) {
		fmt.Println("another client may have held the lock meanwhile:", err)
	}
	fmt.Println("still valid:", hold.Valid())
	// Output:
	// holding nightly-backup
	// still valid: false
}

// TryLock does not wait. Its error describes the holder.
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

// Join returns at once, so that a select can wait for the lock and for something else.
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
	requests := make(chan string) // another event that the program waits for
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

// Do holds the lock while a function runs. It returns an error if the lock was lost meanwhile.
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
	fmt.Println("no error, and held throughout:", err == nil)
	// Output:
	// migrating
	// no error, and held throughout: true
}

// Many machines start a nightly job. The first one runs it and keeps the lock closed for an hour,
// so that machines whose clocks are slow do not run it again.
func ExampleHold_ReleaseAfter() {
	st := memstore.New()
	ctx := context.Background()
	run := func(machine string) {
		client, err := stile.New(st, nil)
		if err != nil {
			log.Fatal(err)
		}
		defer client.Close(ctx) // the lock stays closed even so
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

// One set of hooks counts attempts. Another starts a span for each hold and passes it on in the
// context. JoinHooks combines them.
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
		fmt.Println("working in the", ctx.Value(span{})) // spans of the work become children of the hold's span
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

// A watch can wait until a lock is free without joining its line.
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

	for line, err := range client.WatchLine(ctx, "deploy/shop") {
		if err != nil {
			log.Print(err) // the watch continues unless this error is final
			continue
		}
		if len(line.Holders) == 0 {
			fmt.Println("free")
			break
		}
	}
	// Output: free
}

// A page that shows all locks keeps a map of their lines.
func ExampleClient_WatchChanges() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
	for _, name := range []string{"deploy/mail", "deploy/shop"} {
		if _, err := client.Mutex(name).Lock(ctx); err != nil {
			log.Fatal(err)
		}
	}

	lines := make(map[string]stile.Line)
	for change, err := range client.WatchChanges(ctx, "deploy/") {
		if err != nil {
			log.Print(err) // the next change makes up for it
			continue
		}
		if change.All {
			clear(lines)
		}
		for _, line := range change.Lines {
			if lines[line.Name] = line; len(line.Holders)+len(line.Waiters) == 0 {
				delete(lines, line.Name)
			}
		}
		break // after the first reading, for this example
	}
	fmt.Println(len(lines), "locks are in use")
	// Output: 2 locks are in use
}

// Many readers, or one writer.
func ExampleRWMutex() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	config := client.RWMutex("config")

	first, err := config.RLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	second, err := config.RLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = config.TryLock(ctx)
	fmt.Println("a writer beside two readers:", errors.Is(err, stile.ErrHeld))
	_ = first.Release(ctx)
	_ = second.Release(ctx)

	err = config.Do(ctx, func(ctx context.Context, h *stile.Hold) error {
		fmt.Println("writing, newer than the readers:", h.Token() > first.Token())
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// a writer beside two readers: true
	// writing, newer than the readers: true
}

// A writer goes on as a reader. Readers that waited for it get the lock beside it.
func ExampleHold_Downgrade() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	config := client.RWMutex("config")

	hold, err := config.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer hold.Release(ctx)
	fmt.Println("writing a new version")
	if err := hold.Downgrade(ctx); err != nil {
		log.Fatal(err) // do not write any more; readers may still be kept out
	}
	fmt.Println("announcing the version, which cannot change meanwhile")

	reader, err := config.TryRLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("beside another reader")
	_ = reader.Release(ctx)
	// Output:
	// writing a new version
	// announcing the version, which cannot change meanwhile
	// beside another reader
}

// At most three imports run at a time, in all processes together.
func ExampleSemaphore() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	imports := client.Semaphore("imports", 3)
	for range 3 {
		hold, err := imports.Acquire(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer hold.Release(ctx)
	}
	_, err = imports.TryAcquire(ctx)
	fmt.Println("a fourth fails:", errors.Is(err, stile.ErrHeld))
	_, err = client.Semaphore("imports", 5).Acquire(ctx)
	fmt.Println("all agree on the number:", errors.Is(err, stile.ErrKind))
	// Output:
	// a fourth fails: true
	// all agree on the number: true
}

// Each of two GPUs has one user at a time.
func ExampleSemaphore_Numbered() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	gpus := client.Semaphore("gpus", 2).Numbered()
	for range 2 {
		hold, err := gpus.Acquire(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer hold.Release(ctx)
		fmt.Println("training on GPU", hold.Slot())
	}
	// Output:
	// training on GPU 0
	// training on GPU 1
}

// An operator lowers the number of builds at a time, while they run.
func ExampleClient_Resize() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	builds := client.Semaphore("builds", 4)

	for range 2 {
		hold, err := builds.Acquire(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer hold.Release(ctx)
	}
	if err := client.Resize(ctx, "builds", 1); err != nil { // both go on; 0 would remove the limit
		log.Fatal(err)
	}
	_, err = builds.TryAcquire(ctx)
	fmt.Println("a third fails:", errors.Is(err, stile.ErrHeld))
	// Output: a third fails: true
}

// A scheduler that runs in one process at a time, and others that find it.
func ExampleElection() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	err = client.Election("scheduler").Run(ctx, "10.0.0.7:8080", func(ctx context.Context, l *stile.Leadership) error {
		fmt.Println("leading as", l.Value())
		return l.Proclaim(ctx, "10.0.0.7:9090") // others read the new value from now on
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: leading as 10.0.0.7:8080
}

// Observe says who leads, and when nobody does.
func ExampleElection_Observe() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer client.Close(ctx)

	lead, err := client.Election("scheduler").Campaign(ctx, "10.0.0.7:8080")
	if err != nil {
		log.Fatal(err)
	}
	connect := func(address string) {
		fmt.Println("leader:", address)
		_ = lead.Resign(ctx)
	}
	disconnect := func() {
		fmt.Println("nobody leads")
		stop()
	}

	for leader, err := range client.Election("scheduler").Observe(ctx) {
		switch {
		case err != nil:
			log.Print(err) // the leader is not known now; the loop ends by itself if the error is final
		case leader == nil:
			disconnect()
		default:
			connect(leader.Value)
		}
	}
	// Output:
	// leader: 10.0.0.7:8080
	// nobody leads
}

// Two locks, or none.
func ExampleClient_LockAll() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	both, err := client.LockAll(ctx, "accounts/7", "accounts/3")
	if err != nil {
		log.Fatal(err) // neither is held
	}
	defer both.Release(ctx)
	fmt.Println("holding", both.Names())
	// Output: holding [accounts/3 accounts/7]
}

// A batch job lets others in between its chunks, if any wait.
func ExampleHold_Yield() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	hold, err := client.Mutex("index").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer hold.Release(ctx) // of the hold that came of it, after a Yield
	chunks := []string{"a to m", "n to z"}

	place, err := client.Mutex("index").Join(ctx)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		other, err := place.Wait(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("another job in between")
		if err := other.Release(ctx); err != nil {
			log.Fatal(err)
		}
	}()

	for _, chunk := range chunks {
		fmt.Println("working on", chunk)
		select {
		case <-hold.Contended():
			if hold, err = hold.Yield(ctx); err != nil {
				log.Fatal(err) // the lock is not held
			}
		default: // nobody waits
		}
	}
	// Output:
	// working on a to m
	// another job in between
	// working on n to z
}

// A job that has to be done once, by one of many processes.
func ExampleHold_SetRecord() {
	ctx := context.Background()
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	migrate := func(ctx context.Context, hold *stile.Hold) error {
		done, err := client.Record(ctx, hold.Name()) // after the lock was obtained
		if err != nil || string(done) == "v42" {
			return err
		}
		fmt.Println("migrating to v42")
		return hold.SetRecord(ctx, []byte("v42"))
	}
	err = client.Mutex("schema").Do(ctx, migrate)
	again := client.Mutex("schema").Do(ctx, migrate) // as another process would
	fmt.Println(err, again)
	// Output:
	// migrating to v42
	// <nil> <nil>
}

// A holder of one lock waits for another, with the context of its hold.
func ExampleClient_WaitGraph() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	stock, err := client.Mutex("stock").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan error)
	go func() {
		done <- client.Mutex("orders").Do(ctx, func(ctx context.Context, _ *stile.Hold) error {
			return client.Mutex("stock").Do(ctx, func(context.Context, *stile.Hold) error { return nil })
		})
	}()

	graph := &stile.WaitGraph{}
	for len(graph.Waits) == 0 { // a wait is published when it has lasted for a second
		time.Sleep(100 * time.Millisecond)
		if graph, err = client.WaitGraph(ctx, ""); err != nil {
			log.Fatal(err)
		}
	}
	for _, wait := range graph.Waits {
		fmt.Printf("the holder of %q waits for %q\n", wait.Held, wait.For)
	}
	fmt.Println("deadlocks:", len(graph.Cycles))
	_ = stock.Release(ctx)
	if err := <-done; err != nil {
		log.Fatal(err)
	}
	// Output:
	// the holder of "orders" waits for "stock"
	// deadlocks: 0
}
