package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// A program that depends on a feature looks for it when it starts.
func ExampleCapabilities() {
	caps := memstore.New().Capabilities()
	switch {
	case !caps.Fencing:
		log.Fatal("this program needs fencing tokens: use another store than ", caps.Kind)
	case caps.Record == nil:
		log.Fatal("this program keeps records: use another store than ", caps.Kind)
	}
	fmt.Println("a TTL of a minute is allowed:", caps.MinTTL <= time.Minute && time.Minute <= caps.MaxTTL)
	// Output: a TTL of a minute is allowed: true
}

// A session keeps its entries for as long as it is confirmed. Clients of package stile do this by themselves.
func ExampleSession() {
	st := memstore.New()
	ctx := context.Background()
	session, err := st.Open(ctx, store.SessionOptions{
		TTL:  10 * time.Second,
		Lost: func(err error) { log.Print("all entries are gone: ", err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := session.Enqueue(ctx, store.Request{Name: "report", Notify: func(store.Standing) {}}); err != nil {
		log.Fatal(err)
	}
	if err := session.Confirm(ctx); err != nil { // again and again, well before the TTL has passed
		log.Fatal(err)
	}
	if err := session.Close(ctx); err != nil {
		log.Fatal(err)
	}

	fmt.Println("lost:", errors.Is(session.Confirm(ctx), store.ErrSessionLost))
	l, err := st.Line(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("entries:", len(l.Entries))
	// Output:
	// lost: true
	// entries: 0
}

// A client counts the deadline of its holds from before the request, so a late reply does not make it later.
func ExampleTerms() {
	ctx := context.Background()
	session, err := memstore.New().Open(ctx, store.SessionOptions{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)

	sent := time.Now()
	if err := session.Confirm(ctx); err != nil {
		log.Fatal(err)
	}
	terms := session.Terms()
	deadline := sent.Add(terms.TTL - terms.Slack) // package stile subtracts a margin for clocks, too
	fmt.Println("valid:", time.Now().Before(deadline))
	// Output: valid: true
}

// Two readers join a line. The function of a request gets every change of its standing.
func ExampleRequest() {
	ctx := context.Background()
	session, err := memstore.New().Open(ctx, store.SessionOptions{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)
	for _, user := range []string{"ann", "bob"} {
		ticket, err := session.Enqueue(ctx, store.Request{
			Name:  "config",
			Mode:  line.Shared,
			Owner: store.Owner{User: user, Since: time.Now()},
			Notify: func(s store.Standing) { // must not block
				fmt.Println(user, s.State)
			},
		})
		if err != nil {
			log.Fatal(err)
		}
		defer ticket.Withdraw(ctx)
	}
	// Output:
	// ann admitted
	// bob admitted
}

// A waiter follows its standing, from the end of the line to its removal.
func ExampleStanding() {
	ctx := context.Background()
	session, err := memstore.New().Open(ctx, store.SessionOptions{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	first, err := session.Enqueue(ctx, store.Request{Name: "report", Notify: func(store.Standing) {}})
	if err != nil {
		log.Fatal(err)
	}
	standings := make(chan store.Standing, 10)
	_, err = session.Enqueue(ctx, store.Request{Name: "report", Notify: func(s store.Standing) { standings <- s }})
	if err != nil {
		log.Fatal(err)
	}

	for {
		switch s := <-standings; s.State {
		case store.Waiting:
			fmt.Println("must leave first:", s.Ahead)
			_ = first.Withdraw(ctx)
		case store.Admitted:
			fmt.Println("admitted, with an order for tokens:", s.Order > 0)
			_ = session.Close(ctx)
		case store.Gone:
			fmt.Println("gone with its session:", errors.Is(s.Cause, store.ErrSessionLost))
			return
		}
	}
	// Output:
	// must leave first: 1
	// admitted, with an order for tokens: true
	// gone with its session: true
}

// The result of a withdrawal says whether the entry was in its line until then.
func ExampleTicket() {
	st := memstore.New()
	ctx := context.Background()
	session, err := st.Open(ctx, store.SessionOptions{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)
	ticket, err := session.Enqueue(ctx, store.Request{Name: "report", Notify: func(store.Standing) {}})
	if err != nil {
		log.Fatal(err)
	}

	switch err := ticket.Withdraw(ctx); {
	case err == nil:
		fmt.Println("held until now, and free")
	case errors.Is(err, store.ErrGone):
		fmt.Println("removed before, by somebody else")
	case errors.Is(err, store.ErrNotKnown):
		fmt.Println("free, and perhaps removed before")
	default:
		fmt.Println("the store goes on until the entry is removed:", err)
	}
	// Output: held until now, and free
}

// Features that a store may lack are functions, which are nil then.
func ExampleExtensions() {
	st := memstore.New()
	ctx := context.Background()
	session, err := st.Open(ctx, store.SessionOptions{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	ticket, err := session.Enqueue(ctx, store.Request{Name: "report", Notify: func(store.Standing) {}})
	if err != nil {
		log.Fatal(err)
	}

	if withdrawAfter := ticket.Extensions().WithdrawAfter; withdrawAfter != nil {
		err = withdrawAfter(ctx, time.Hour) // the entry stays, whatever becomes of the session
	} else {
		err = ticket.Withdraw(ctx)
	}
	if err != nil {
		log.Fatal(err)
	}
	if err := session.Close(ctx); err != nil {
		log.Fatal(err)
	}
	l, err := st.Line(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("entries:", len(l.Entries))
	// Output: entries: 1
}

// A line lists all entries, in order. The store says which of them are admitted.
func ExampleLine() {
	st := memstore.New()
	ctx := context.Background()
	session, err := st.Open(ctx, store.SessionOptions{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)
	for _, user := range []string{"ann", "bob"} {
		req := store.Request{Name: "report", Owner: store.Owner{User: user}, Notify: func(store.Standing) {}}
		if _, err := session.Enqueue(ctx, req); err != nil {
			log.Fatal(err)
		}
	}

	l, err := st.Line(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range l.Entries {
		fmt.Println(e.Owner.User, e.Mode, "admitted:", e.Admitted)
	}
	// Output:
	// ann exclusive admitted: true
	// bob exclusive admitted: false
}

// A program that shows locks follows their lines: it misses no state, and reads nothing again.
func ExampleChanges() {
	st := memstore.New()
	follow := st.Capabilities().Follow
	if follow == nil {
		log.Fatal("this store only says which lines may have changed: use Watch")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_ = follow(ctx, "deploy/", func(c store.Changes) {
		switch {
		case c.Err != nil:
			fmt.Println("the lines are not known:", c.Err)
			return
		case c.All: // at first, and after some states were left out
			fmt.Println("all:", len(c.Lines))
			go lockAndRelease(st, "deploy/web")
		}
		for _, l := range c.Lines {
			fmt.Printf("%s: %d entries\n", l.Name, len(l.Entries))
			if len(l.Entries) == 0 {
				cancel()
			}
		}
	})
	// Output:
	// all: 0
	// deploy/web: 1 entries
	// deploy/web: 0 entries
}

func lockAndRelease(st store.Store, name string) {
	ctx := context.Background()
	client, err := stile.New(st, nil)
	if err != nil {
		log.Fatal(err)
	}
	hold, err := client.Mutex(name).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := hold.Release(ctx); err != nil {
		log.Fatal(err)
	}
	_ = client.Close(ctx)
}

// An owner is for people: it says who holds a lock, what it waits for, and what it runs under.
func ExampleOwner() {
	owner := store.Owner{
		Host: "web-3", PID: 812, User: "ann", Command: "deploy.sh",
		Waits: []store.Wait{{Name: "db"}},
		Under: []store.Held{{Name: "release", Token: 4096}},
	}
	fmt.Println(owner)
	for _, w := range owner.Waits {
		fmt.Println("waits for", w.Name)
	}
	for _, h := range owner.Under {
		fmt.Println("runs while", h.Name, "is held, with token", h.Token)
	}
	// Output:
	// ann@web-3 pid 812 (deploy.sh)
	// waits for db
	// runs while release is held, with token 4096
}

// A try that finds others in the line says who they are.
func ExampleHeldError() {
	ctx := context.Background()
	session, err := memstore.New().Open(ctx, store.SessionOptions{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)
	req := store.Request{Name: "report", Owner: store.Owner{User: "ann"}, Try: true, Notify: func(store.Standing) {}}
	if _, err := session.Enqueue(ctx, req); err != nil {
		log.Fatal(err)
	}

	_, err = session.Enqueue(ctx, req)
	if held, ok := errors.AsType[*store.HeldError](err); ok && held.Holder != nil {
		fmt.Println(held.Name, "is held by", held.Holder.Owner.User)
	}
	// Output: report is held by ann
}

// A line has entries of one kind. The error shows the entry that the request does not agree with.
func ExampleKindError() {
	ctx := context.Background()
	session, err := memstore.New().Open(ctx, store.SessionOptions{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close(ctx)
	req := store.Request{Name: "builds", Mode: line.Slot(4), Notify: func(store.Standing) {}}
	if _, err := session.Enqueue(ctx, req); err != nil {
		log.Fatal(err)
	}

	req.Mode = line.Slot(8)
	_, err = session.Enqueue(ctx, req)
	if kind, ok := errors.AsType[*store.KindError](err); ok {
		fmt.Println(kind.Mode, "was requested; the line has", kind.Other.Mode)
	}
	// Output: slot/8 was requested; the line has slot/4
}

// A finding is printed for people, or as JSON for programs.
func ExampleFinding() {
	f := store.Finding{
		ID: "clocks", Severity: store.Attention, What: "the clock is 2 % fast",
		Advice: "look at its time service", Servers: []string{"10.0.0.3:6379"},
	}
	fmt.Printf("%v: %s: %s at %v\n", f.Severity, f.What, f.Advice, f.Servers)
	text, err := json.Marshal(f)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(text))
	// Output:
	// attention: the clock is 2 % fast: look at its time service at [10.0.0.3:6379]
	// {"id":"clocks","severity":"attention","what":"the clock is 2 % fast","advice":"look at its time service","servers":["10.0.0.3:6379"]}
}
