package stile_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/memstore"
)

// The TTL is how long the locks of a crashed process stay closed. It also says how long an outage of the
// store may last: four tenths of it lose no lock.
func ExampleOptions() {
	client, err := stile.New(memstore.New(), &stile.Options{
		TTL:    30 * time.Second,
		Logger: slog.New(slog.NewJSONHandler(os.Stderr, nil)), // gets a warning before a lock is lost
	})
	if err != nil {
		log.Fatal(err) // lists all invalid options
	}
	ctx := context.Background()
	defer client.Close(ctx)

	terms, err := client.Terms(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the store grants", terms.TTL)
	// Output: the store grants 30s
}

// An owner tells people whom to ask about a lock. Everyone who can read the store can read it.
func ExampleOwner() {
	owner := stile.DefaultOwner() // host, process, user, command
	owner.Reason = "billing run of May"
	owner.Labels = map[string]string{"team": "payments"}
	client, err := stile.New(memstore.New(), &stile.Options{Owner: owner})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	hold, err := client.Mutex("invoices").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer hold.Release(ctx)

	line, err := client.Line(ctx, "invoices")
	if err != nil {
		log.Fatal(err)
	}
	for _, holder := range line.Holders {
		log.Print(holder.Owner) // in one line, as in ann@web-3 pid 812 (billing)
		fmt.Println("held for the", holder.Owner.Reason, "by the team", holder.Owner.Labels["team"])
	}
	// Output: held for the billing run of May by the team payments
}

// One lock has a reason of its own. Others see it when they find the lock held.
func ExampleLockOptions() {
	st := memstore.New()
	ctx := context.Background()
	deploy, err := stile.New(st, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer deploy.Close(ctx)
	other, err := stile.New(st, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer other.Close(ctx)

	schema := deploy.Mutex("schema").With(stile.LockOptions{
		Reason: "adds an index to orders, takes an hour",
		Labels: map[string]string{"ticket": "OPS-7"},
	})
	hold, err := schema.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer hold.Release(ctx)

	_, err = other.Mutex("schema").TryLock(ctx)
	if held, ok := errors.AsType[*stile.HeldError](err); ok {
		fmt.Println(held.Holder.Owner.Reason, held.Holder.Owner.Labels["ticket"])
	}
	// Output: adds an index to orders, takes an hour OPS-7
}

// A line shows the holders of a lock and its waiters.
func ExampleLine() {
	client, err := stile.New(memstore.New(), &stile.Options{Owner: stile.Owner{User: "ann"}})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	for range 2 {
		hold, err := client.Semaphore("builds", 5).Acquire(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer hold.Release(ctx)
	}

	line, err := client.Line(ctx, "builds")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %d hold it, %d wait\n", line.Name, len(line.Holders), len(line.Waiters))
	for _, holder := range line.Holders {
		fmt.Println(holder.Mode, "held by", holder.Owner.User)
	}
	for _, remark := range line.Remarks { // what is wrong with the line; here nothing
		fmt.Println(remark)
	}
	// Output:
	// builds: 2 hold it, 0 wait
	// slot/5 held by ann
	// slot/5 held by ann
}

// An operator removes an entry whose process hangs. Its token says which entry is meant, even if another
// one has taken its place meanwhile.
func ExampleEntry() {
	client, err := stile.New(memstore.New(), &stile.Options{Owner: stile.Owner{Command: "backup"}})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	hold, err := client.Mutex("db").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}

	line, err := client.Line(ctx, "db")
	if err != nil {
		log.Fatal(err)
	}
	for _, entry := range line.Holders {
		if entry.Foreign || entry.Owner.Command != "backup" {
			continue
		}
		if _, err := client.Break(ctx, "db", entry.Token); err != nil {
			log.Fatal(err)
		}
		<-hold.Lost()
		fmt.Println("removed the entry of", entry.Owner.Command)
	}
	// Output: removed the entry of backup
}

// A lock with a delay stays closed for a time after its holder has died. A HeldError says for how long.
func ExampleHeldError() {
	st := memstore.New()
	ctx := context.Background()
	opts := &stile.Options{LockDelay: time.Minute, Owner: stile.Owner{Command: "import"}}
	first, err := stile.New(st, opts)
	if err != nil {
		log.Fatal(err)
	}
	defer first.Close(ctx)
	second, err := stile.New(st, opts)
	if err != nil {
		log.Fatal(err)
	}
	defer second.Close(ctx)
	if _, err := first.Mutex("stock").Lock(ctx); err != nil {
		log.Fatal(err)
	}
	st.Expire(st.Sessions()[0]) // the first process dies

	_, err = second.Mutex("stock").TryLock(ctx)
	if held, ok := errors.AsType[*stile.HeldError](err); ok {
		if held.ClosedFor > 0 {
			fmt.Println("closed after a crash of", held.Holder.Owner.Command)
			log.Print("trying again in ", held.ClosedFor)
		} else {
			fmt.Println("held by", held.Holder.Owner)
		}
	}
	// Output: closed after a crash of import
}

// Two programs disagree about what a name is.
func ExampleKindError() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	hold, err := client.Mutex("gpu").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer hold.Release(ctx)

	_, err = client.Semaphore("gpu", 4).Acquire(ctx)
	if kind, ok := errors.AsType[*stile.KindError](err); ok {
		fmt.Printf("%q was requested as %v, and is in use as %v\n", kind.Name, kind.Mode, kind.Other.Mode)
	}
	// Output: "gpu" was requested as slot/4, and is in use as exclusive
}

// The cause of a hold's context says why work had to stop.
func ExampleLostError() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	hold, err := client.Mutex("stock").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.Break(ctx, "stock", hold.Token()); err != nil { // an operator's decision
		log.Fatal(err)
	}

	<-hold.Context().Done()
	if lost, ok := errors.AsType[*stile.LostError](context.Cause(hold.Context())); ok {
		switch lost.Reason {
		case stile.LostDeadline, stile.LostExpired:
			fmt.Println("the store was out of reach for too long; try again")
		case stile.LostEvicted:
			fmt.Printf("somebody removed the entry of %q; ask before another attempt\n", lost.Name)
		case stile.LostClosed:
			fmt.Println("this program ends")
		}
	}
	// Output: somebody removed the entry of "stock"; ask before another attempt
}

// A place in line shows how many are ahead, and can be given up.
func ExamplePlace() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	hold, err := client.Mutex("deploy").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}

	place, err := client.Mutex("deploy").Join(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ahead:", place.Ahead())
	select {
	case <-place.Ready():
		fmt.Println("deploying")
	case <-time.After(10 * time.Millisecond): // or the user cancels
		fmt.Println("left:", place.Leave(ctx))
	}
	if err := hold.Release(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// ahead: 1
	// left: <nil>
}

// A transfer needs two accounts. Each has a lock, and so a token of its own.
func ExampleMultiHold() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)
	update := func(ctx context.Context, account string, token uint64) { // refuses smaller tokens
		fmt.Println("updating", account, ctx.Err() == nil, token > 0)
	}

	both, err := client.LockAll(ctx, "accounts/7", "accounts/3")
	if err != nil {
		log.Fatal(err) // neither is held
	}
	defer both.Release(ctx)
	for _, name := range both.Names() {
		update(both.Context(), name, both.Token(name)) // the context ends when one of the locks is lost
	}
	// Output:
	// updating accounts/3 true true
	// updating accounts/7 true true
}

// A candidate waits in the background, and the program does other work meanwhile.
func ExampleCandidate() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	candidate, err := client.Election("scheduler").Join(ctx, "10.0.0.7:8080")
	if err != nil {
		log.Fatal(err)
	}
	requests := make(chan string) // other work
	select {
	case r := <-requests:
		fmt.Println("serving", r)
	case <-candidate.Ready():
		lead, err := candidate.Wait(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("leading as", lead.Value())
		if err := lead.Resign(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output: leading as 10.0.0.7:8080
}

// A leader moves to another address, and resigns.
func ExampleLeadership() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	lead, err := client.Election("scheduler").Campaign(ctx, "10.0.0.7:8080")
	if err != nil {
		log.Fatal(err)
	}
	if err := lead.Proclaim(ctx, "10.0.0.7:9090"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("leading as", lead.Value(), lead.Valid()) // pass lead.Context() and lead.Token() to the work
	if err := lead.Resign(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("leading:", lead.Valid())
	// Output:
	// leading as 10.0.0.7:9090 true
	// leading: false
}

// Another process finds the leader.
func ExampleLeader() {
	st := memstore.New()
	ctx := context.Background()
	server, err := stile.New(st, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close(ctx)
	lead, err := server.Election("scheduler").Campaign(ctx, "10.0.0.7:8080")
	if err != nil {
		log.Fatal(err)
	}
	defer lead.Resign(ctx)

	client, err := stile.New(st, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	switch leader, err := client.Election("scheduler").Leader(ctx); {
	case err != nil:
		log.Fatal(err)
	case leader == nil:
		fmt.Println("nobody leads")
	default:
		fmt.Println("connect to", leader.Value)
	}
	// Output: connect to 10.0.0.7:8080
}
