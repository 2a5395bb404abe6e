package redisstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// An entry goes with its session. A withdrawal that was under way when the session ended has to say so: "session lost" alone
// would mean that the entry may still stand.
func TestWithdrawWhoseSessionEndsMeanwhile_saysThatTheEntryHasGone(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, courier := storeBy(t, server.Addr())
	se := open(t, st, lasting)
	ticket := hold(t, se, newName(t))
	asked := make(chan struct{})
	courier.next("leave", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		close(asked)
		return failed(ctx, send) // it never leaves the client
	})
	done := make(chan error, 1)
	go func() { done <- ticket.Withdraw(t.Context()) }()
	<-asked
	if err := se.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw, whose session was closed meanwhile: %v, want ErrGone", err)
	}
}
