package etcdstore_test

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/stilelock/stile/store"
)

func (j *testEntry) requeue(ctx context.Context) (*testEntry, error) {
	standings := make(chan store.Standing, 100)
	ticket, err := j.Extensions().Requeue(ctx, store.Owner{Host: "test"}, func(st store.Standing) { standings <- st })
	return &testEntry{ticket, j.name, standings}, err
}

// A request that was not answered may have been carried out. The next one finds the old entry, or the
// new one. If it finds neither, the outcome is not known.
// Promise: P5
func TestRequeue_afterUnansweredRequest(t *testing.T) {
	for _, tt := range []struct {
		name  string
		first func(t *testing.T, name string, send func() error) // handles the first request
		want  error
	}{
		{"carried out", func(t *testing.T, _ string, send func() error) { checkNoError(t, send()) }, nil},
		{"not carried out", func(*testing.T, string, func() error) {}, nil},
		{"carried out, then evicted", func(t *testing.T, name string, send func() error) {
			checkNoError(t, send())
			removeKeys(t, name)
		}, store.ErrNotKnown},
		{"evicted before", func(t *testing.T, name string, _ func() error) { removeKeys(t, name) }, store.ErrNotKnown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cli, intercept := interceptedClient(t)
			name := newName(t)
			j := enqueue(t, openSession(t, newStore(t, cli, "")), name)
			order := j.await(t, store.Admitted).Order
			f := handleTxn(1, func(send func() error) error {
				tt.first(t, name, send)
				return errLost
			})
			intercept.Store(&f)
			again, err := j.requeue(t.Context())
			if !errors.Is(err, tt.want) || errors.Is(err, store.ErrGone) {
				t.Fatalf("Requeue: got %v, want %v", err, tt.want)
			}
			want := 0
			if err == nil {
				want = 1
				if now := again.await(t, store.Admitted).Order; now <= order {
					t.Errorf("order: got %d after %d, want a larger one", now, order)
				}
			}
			if keys := keysUnder(t, server(t).Client(t), name); len(keys) != want {
				t.Errorf("keys: got %q, want %d", keys, want)
			}
		})
	}
}

// An attempt is carried out late, after another one, or after the caller has given up. It has no
// effect: the key that it replaces never exists again.
// Promise: P5
func TestRequeue_lateAttemptIsVoid(t *testing.T) {
	for _, gaveUp := range []bool{false, true} {
		t.Run(map[bool]string{false: "repeated", true: "given up"}[gaveUp], func(t *testing.T) {
			t.Parallel()
			cli, intercept := interceptedClient(t)
			direct, name := server(t).Client(t), newName(t)
			j := enqueue(t, openSession(t, newStore(t, cli, "")), name)
			j.await(t, store.Admitted)
			next := enqueue(t, openSession(t, newStore(t, direct, "")), name)
			next.await(t, store.Waiting)
			late := delayNext(intercept, "Txn")
			ctx := t.Context()
			if gaveUp {
				ctx = late.context(t)
			}
			again, err := j.requeue(ctx)
			if gaveUp != errors.Is(err, context.Canceled) || !gaveUp && err != nil {
				t.Fatalf("Requeue: got %v; given up: %v", err, gaveUp)
			}
			next.await(t, store.Admitted)
			if !gaveUp {
				again.withdraw(t)
			}
			eventually(t, "only the next holder has a key", func() bool { return len(keysUnder(t, direct, name)) == 1 })
			log := watchPuts(t, direct, name)
			late.deliver(t)
			if puts := log.soFar(t, direct, name); len(puts) > 0 {
				t.Errorf("got puts %q, want none", puts)
			}
			next.checkNotNotified(t)
		})
	}
}

// etcd's own Mutex waits for the deletion of the key ahead, so a requeue admits it. The requeued entry
// then waits for it.
func TestRequeue_stockMutex(t *testing.T) {
	t.Parallel()
	cli, name := server(t).Client(t), newName(t)
	j := enqueue(t, openSession(t, newStore(t, cli, "")), name)
	j.await(t, store.Admitted)
	session, err := concurrency.NewSession(cli)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	stock := concurrency.NewMutex(session, name)
	locked := make(chan error, 1)
	go func() { locked <- stock.Lock(t.Context()) }()
	eventually(t, "the stock mutex waits", func() bool { return len(keysUnder(t, cli, name)) == 2 })
	again, err := j.requeue(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := <-locked; err != nil {
		t.Fatal(err)
	}
	if st := <-again.standings; st.State != store.Waiting {
		t.Errorf("the requeued entry is %v while the stock mutex is locked, want waiting", st.State)
	}
	if err := stock.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	again.await(t, store.Admitted)
}
