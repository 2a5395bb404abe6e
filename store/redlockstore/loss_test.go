package redlockstore_test

import (
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// A session is lost, and closed while its opener is being told so: nobody is told after Close has returned.
func TestCloseDuringALoss_waitsForWhoIsTold(t *testing.T) {
	t.Parallel()
	st := newStore(t, to(testservers.StartRedisServers(t, 3)))
	told, goOn := make(chan struct{}), make(chan struct{})
	se, err := st.Open(t.Context(), store.SessionOptions{TTL: 2 * time.Second, Lost: func(error) {
		close(told)
		<-goOn
	}})
	if err != nil {
		t.Fatal(err)
	}
	<-told // nobody confirms it
	closed := make(chan error, 1)
	go func() { closed <- se.Close(t.Context()) }()
	select {
	case err := <-closed:
		close(goOn)
		t.Fatalf("Close returned %v while the opener was being told of the loss", err)
	case <-time.After(100 * time.Millisecond):
	}
	close(goOn)
	if err := <-closed; err != nil {
		t.Errorf("Close of a session that was lost: %v", err)
	}
}
