// Leader runs asynq's scheduler in one process of many. asynq has no interface for a lock or an
// election: a scheduler in each process would enqueue every task once for each process. Here all
// processes work, and only the leader of an election schedules.
//
//	cd examples/leader && REDIS_ADDR=localhost:6379 go run .
//
// Run it in three terminals, and stop the leader with Ctrl-C: the next one takes over at once. After
// kill -9 it does when the TTL has passed, 15 seconds. [Example_river] and [Example_temporal], in
// others_test.go, do the same with other libraries: start in the function that is given to
// [stile.Election.Run], wait until its context ends, stop, and return.
//
// What it does not protect from: a leader that is stopped for longer than the TTL may enqueue a task
// after the next leader has begun, before it notices. So a task may be enqueued twice around a change of the leader,
// and one that was due meanwhile may be left out. Handlers must tolerate that anyway, because asynq
// delivers at least once. Each task has the token of its leader, with which a handler can tell an earlier
// leader's tasks.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/hibiken/asynq"
	"github.com/redis/rueidis"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/redisstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("REDIS_ADDR")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr string) error {
	options := redisstore.ClientOptions()
	options.InitAddress = []string{addr}
	conn, err := rueidis.NewClient(options)
	if err != nil {
		return err
	}
	defer conn.Close()
	store, err := redisstore.New(conn, nil)
	if err != nil {
		return err
	}
	client, err := stile.New(store, nil)
	if err != nil {
		return err
	}
	defer client.Close(ctx)

	redis := asynq.RedisClientOpt{Addr: addr}
	worker := asynq.NewServer(redis, asynq.Config{LogLevel: asynq.WarnLevel})
	err = worker.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		fmt.Printf("working on a %s of leader %s\n", t.Type(), t.Payload())
		return nil
	}))
	if err != nil {
		return err
	}
	defer worker.Shutdown()

	return client.Election("scheduler").Run(ctx, "", func(ctx context.Context, l *stile.Leadership) error {
		return schedule(ctx, redis, l.Token())
	})
}

// schedule enqueues tasks until ctx ends.
func schedule(ctx context.Context, redis asynq.RedisConnOpt, token uint64) error {
	scheduler := asynq.NewScheduler(redis, &asynq.SchedulerOpts{LogLevel: asynq.WarnLevel}) // it can be started once
	if _, err := scheduler.Register("@every 1s", asynq.NewTask("report", fmt.Append(nil, token))); err != nil {
		return err
	}
	if err := scheduler.Start(); err != nil {
		return err
	}
	fmt.Println("leading with token", token)
	<-ctx.Done()
	scheduler.Shutdown() // before the next leader begins, unless the leadership was lost
	fmt.Println("stopped scheduling with token", token)
	return nil
}
