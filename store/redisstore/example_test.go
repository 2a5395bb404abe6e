package redisstore_test

import (
	"context"
	"log"
	"log/slog"
	"os"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/redisstore"
)

// The store has a client of its own, because it must be able to close all connections.
func ExampleStore() {
	opts := redisstore.ClientOptions("10.0.0.1:6379") // a master; also nodes of a cluster, or Sentinels
	opts.Password = os.Getenv("REDIS_PASSWORD")
	cli, err := rueidis.NewClient(opts)
	if err != nil {
		log.Fatal(err)
	}
	defer cli.Close()
	st, err := redisstore.New(cli, nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := stile.New(st, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
}

// With replicas, a hold is less likely to be forgotten when a replica takes over.
func ExampleOptions() {
	var cli rueidis.Client // see the example of Store
	st, err := redisstore.New(cli, &redisstore.Options{
		Prefix:       "locks:",
		WaitReplicas: 1, // a lock fails if no replica has it within a second
		Logger:       slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Print("locks are in ", st)
}
