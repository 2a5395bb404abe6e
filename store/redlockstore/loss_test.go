package redlockstore_test

import (
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// A session is closed while its owner is being notified of its loss. No notification runs after
// Close has returned.
func TestClose_waitsForLossNotification(t *testing.T) {
	t.Parallel()
	st := newStore(t, optionsFor(testservers.StartRedisServers(t, 3)))
	notified, resume := make(chan struct{}), make(chan struct{})
	se, err := st.Open(t.Context(), store.SessionOptions{TTL: 2 * time.Second, Lost: func(error) {
		close(notified)
		<-resume
	}})
	if err != nil {
		t.Fatal(err)
	}
	<-notified // not confirmed
	closed := make(chan error, 1)
	go func() { closed <- se.Close(t.Context()) }()
	select {
	case err := <-closed:
		close(resume)
		t.Fatalf("Close returned %v during the notification", err)
	case <-time.After(100 * time.Millisecond):
	}
	close(resume)
	if err := <-closed; err != nil {
		t.Errorf("Close of a lost session: got %v", err)
	}
}
