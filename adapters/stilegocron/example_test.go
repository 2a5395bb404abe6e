package stilegocron_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stilegocron"
	"github.com/stilelock/stile/store/memstore"
)

func backup(_ context.Context, token uint64) error {
	fmt.Println("backup, with a token:", token > 0)
	return nil
}

// Each host makes the same scheduler. Every night, one of them runs the job.
func ExampleLocker() {
	ctx := context.Background()
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	locker := stilegocron.NewLocker(client, stilegocron.Options{Prefix: "cron/", Every: 24 * time.Hour})
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		log.Fatal(err)
	}
	_, err = s.NewJob(
		gocron.DailyJob(1, gocron.NewAtTimes(gocron.NewAtTime(3, 0, 0))),
		locker.Task(func(ctx context.Context, hold *stile.Hold) error {
			return backup(ctx, hold.Token()) // ctx ends if the lock is lost
		}),
		gocron.WithName("backup"), // the lock is cron/backup
	)
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	fmt.Println(s.Shutdown()) // ends the jobs' contexts, and waits for the jobs
	// Output: <nil>
}

// Jobs with another interval have a locker of their own.
func ExampleOptions() {
	ctx := context.Background()
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	s, err := gocron.NewScheduler()
	if err != nil {
		log.Fatal(err)
	}
	hourly := stilegocron.NewLocker(client, stilegocron.Options{Prefix: "cron/", Every: time.Hour})
	ended := make(chan bool)
	_, err = s.NewJob(
		gocron.DurationJob(time.Hour),
		hourly.Task(func(context.Context, *stile.Hold) error {
			fmt.Println("report")
			close(ended)
			return nil
		}),
		gocron.WithName("report"),
		gocron.WithDistributedJobLocker(hourly),
		gocron.WithStartAt(gocron.WithStartImmediately()),
	)
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	<-ended
	fmt.Println(s.Shutdown())
	// Output:
	// report
	// <nil>
}

// One host leads, and runs all jobs.
func ExampleElector() {
	ctx := context.Background()
	client, err := stile.New(memstore.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	elector := stilegocron.NewElector(client, "scheduler", "web-1")
	defer elector.Close()
	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		log.Fatal(err)
	}
	leaders := make(chan string, 1)
	_, err = s.NewJob(
		gocron.DurationJob(10*time.Millisecond),
		elector.Task(func(_ context.Context, lead *stile.Leadership) error { // ctx ends with the leadership
			select {
			case leaders <- lead.Value():
			default: // the run before has said it
			}
			return nil
		}),
	)
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	fmt.Println("leading as", <-leaders)
	fmt.Println(s.Shutdown())
	// Output:
	// leading as web-1
	// <nil>
}
