package stilecron_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stilecron"
	"github.com/stilelock/stile/store/memstore"
)

func backup(_ context.Context, token uint64) error {
	fmt.Println("backup, with a token:", token > 0)
	return nil
}

// Each host makes the same Cron. Every night, one of them runs the job.
func Example() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer client.Close(ctx)

	nightly, err := cron.ParseStandard("0 3 * * *")
	if err != nil {
		log.Fatal(err)
	}
	c := cron.New()
	c.Schedule(nightly, cron.NewChain(
		stilecron.OncePerTick(ctx, client, "nightly-backup", nightly, cron.DefaultLogger),
	).Then(stilecron.Func(func(ctx context.Context, hold *stile.Hold) error {
		return backup(ctx, hold.Token()) // ctx ends if the lock is lost
	})))
	c.Start()

	cancel() // at the end of the program: ends the jobs' contexts and their waits
	<-c.Stop().Done()
	// Output:
}

// The job of this host runs. So that of another host is skipped.
func ExampleSkipIfHeld() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	sync := cron.NewChain(stilecron.SkipIfHeld(ctx, client, "sync", nil))
	other := sync.Then(cron.FuncJob(func() { fmt.Println("never printed") }))
	sync.Then(cron.FuncJob(func() {
		fmt.Println("synchronizing")
		other.Run()
	})).Run() // a Cron calls Run in each tick
	// Output: synchronizing
}

// A Func stops when its context ends, for example because the lock is lost.
func ExampleFunc() {
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer client.Close(ctx)

	job := stilecron.Func(func(held context.Context, hold *stile.Hold) error {
		if _, err := client.Break(ctx, hold.Name(), hold.Token()); err != nil { // an operator: stile break
			return err
		}
		select {
		case <-held.Done():
			fmt.Println("stopped, because the lock was lost:", hold.Err() != nil)
		case <-time.After(time.Hour):
		}
		return held.Err()
	})
	cron.NewChain(stilecron.DelayIfHeld(ctx, client, "export", nil)).Then(job).Run()
	// Output: stopped, because the lock was lost: true
}

// Two hosts call the job for the same tick.
func ExampleOncePerTick() {
	st := memstore.New()
	daily, err := cron.ParseStandard("CRON_TZ=UTC 0 3 * * *")
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	for _, host := range []string{"web-1", "web-2"} {
		client, err := stile.New(st, nil)
		if err != nil {
			log.Fatal(err)
		}
		defer client.Close(ctx)
		report := cron.FuncJob(func() { fmt.Println("report, on", host) })
		stilecron.OncePerTick(ctx, client, "report", daily, nil)(report).Run()
	}
	// Output: report, on web-1
}
