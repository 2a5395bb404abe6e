package redlockstore_test

import (
	"context"
	"log"
	"log/slog"
	"os"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/redlockstore"
)

// Three servers that know nothing of each other keep locks together. One of them may fail.
func ExampleStore() {
	var masters []rueidis.ClientOption
	for _, addr := range []string{"10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"} {
		masters = append(masters, rueidis.ClientOption{InitAddress: []string{addr}, Password: os.Getenv("REDIS_PASSWORD")})
	}
	st, err := redlockstore.New(masters, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer st.Close()
	client, err := stile.New(st, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
}

// A prefix keeps the locks apart from other keys of the servers.
func ExampleOptions() {
	var masters []rueidis.ClientOption // see the example of Store
	st, err := redlockstore.New(masters, &redlockstore.Options{
		Prefix: "locks:",
		Logger: slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer st.Close()
}
