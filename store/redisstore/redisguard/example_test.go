package redisguard_test

import (
	"context"
	"errors"
	"log"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/store/redisstore/redisguard"
)

// Made elsewhere: a client of the server that has the data, and a hold of the lock that protects them.
var (
	ctx  context.Context
	cli  rueidis.Client
	hold *stile.Hold
)

// The script of a payment runs only if the token is not stale, in one step with the comparison.
func ExampleScript() {
	pay := redisguard.NewScript(`
		redis.call('HSET', KEYS[1], 'paid', ARGV[1])
		return redis.call('INCR', KEYS[2])`)
	keys := []string{"{orders}42", "{orders}paid"}
	paid, err := pay.Exec(ctx, cli, "{orders}fence", hold.Token(), keys, []string{"10"}).AsInt64()
	switch {
	case errors.Is(err, guard.ErrStale):
		log.Fatal("the lock is lost, and nothing was paid: ", err)
	case err != nil:
		log.Fatal(err)
	}
	log.Print("orders paid: ", paid)
}

// The token of a resource outside Redis, such as a device, is kept in Redis.
func ExampleTokens() {
	tokens := redisguard.Tokens{Client: cli, Prefix: "fence:"}
	if err := tokens.Raise(hold.Context(), "printer", hold.Token()); err != nil {
		log.Fatal(err) // do not print
	}
}
