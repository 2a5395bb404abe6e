package etcdstore_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stilelock/stile/store"
)

// An entry goes with its session. A withdrawal that was under way when the session ended has to say so: "session lost" alone
// would mean that the entry may still stand.
func TestWithdrawWhoseSessionEndsMeanwhile_saysThatTheEntryHasGone(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	se := openSession(t, newStore(t, cli, ""))
	j, err := tryEnqueue(t.Context(), se, newName(t), false)
	if err != nil {
		t.Fatal(err)
	}
	j.await(t, store.Admitted)
	asked := make(chan struct{})
	once := sync.OnceFunc(func() { close(asked) })
	f := tampering(func(ctx context.Context, request string, carryOut func() error) error {
		if request != "Txn" {
			return carryOut()
		}
		once()
		<-ctx.Done() // it never leaves the client
		return ctx.Err()
	})
	now.Store(&f)
	done := make(chan error, 1)
	go func() { done <- j.Withdraw(t.Context()) }()
	<-asked
	if err := se.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw, whose session was closed meanwhile: %v, want ErrGone", err)
	}
}
