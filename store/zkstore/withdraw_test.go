package zkstore_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// An entry goes with its session. A withdrawal that was under way when the session ended has to say so: "session lost" alone
// would mean that the entry may still stand.
func TestWithdrawWhoseSessionEndsMeanwhile_saysThatTheEntryHasGone(t *testing.T) {
	t.Parallel()
	m := newMeddler(t, server(t).Endpoint())
	se := openSession(t, newStore(t, nil, m.addr()))
	j, err := tryEnqueue(t.Context(), se, newName(t), line.Exclusive, false)
	if err != nil {
		t.Fatal(err)
	}
	j.await(t, store.Admitted)
	asked := make(chan struct{})
	once := sync.OnceFunc(func() { close(asked) })
	m.on(func(op int32, _ []byte) verdict {
		if op != opDelete {
			return pass
		}
		once()
		return swallow
	}, nil)
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
