package etcdstore_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// More requests come at once than a store sends: the others wait. The renewal of a session does not wait with them,
// even if the session has to check its entries after a broken connection.
func TestStore_limitsRequests(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	st := newStore(t, cli, "")
	se := openSession(t, st)
	if err := se.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := se.Confirm(ended); err == nil {
		t.Fatal("precondition failed: the renewal was answered, so the session has no entries to check")
	}

	var underWay, most, checked atomic.Int32
	full, given := make(chan struct{}), make(chan struct{})
	f := handler(func(_ context.Context, request string, send func() error) error {
		if request != "LeaseGrant" {
			checked.Add(1)
			return send()
		}
		n := underWay.Add(1)
		defer underWay.Add(-1)
		for last := most.Load(); n > last; last = most.Load() {
			if most.CompareAndSwap(last, n) && n == etcdstore.MaxAttempts {
				close(full)
			}
		}
		<-given // also after its timeout, so that its place is not free in between
		return errLost
	})
	intercept.Store(&f)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls sync.WaitGroup
	for range etcdstore.MaxAttempts + 100 {
		calls.Go(func() {
			if _, err := st.Open(ctx, store.SessionOptions{TTL: longTTL}); err == nil {
				t.Error("a session was opened without an answer")
			}
		})
	}
	<-full
	bounded, stop := context.WithTimeout(t.Context(), longTTL)
	defer stop()
	if err := se.Confirm(bounded); err != nil {
		t.Errorf("Confirm: %v", err)
	}
	if checked.Load() == 0 {
		t.Error("precondition failed: the session has not checked its entries")
	}
	cancel()
	close(given)
	calls.Wait()
	if got := most.Load(); got != etcdstore.MaxAttempts {
		t.Errorf("got %d requests at once, want %d", got, etcdstore.MaxAttempts)
	}
}
