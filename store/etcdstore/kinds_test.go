package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// enqueueMode enqueues an entry that is admitted at once or refused.
func enqueueMode(ctx context.Context, se store.Session, name string, mode line.Mode) (store.Ticket, error) {
	return se.Enqueue(ctx, store.Request{Name: name, Mode: mode, Notify: func(store.Standing) {}})
}

// wantKindError checks that an entry was refused because of another session's.
func wantKindError(t *testing.T, err error, session string, foreign bool) {
	t.Helper()
	other, ok := errors.AsType[*store.KindError](err)
	if !ok || other.Other.Session != session || other.Other.Foreign != foreign {
		t.Errorf("Enqueue: got %v, want a KindError that names session %s, foreign: %v", err, session, foreign)
	}
}

// The keys that are read with the insertion are all of other lines.
func TestKinds_keysOfOtherLinesFirst(t *testing.T) {
	t.Parallel()
	name := newName(t)
	se, holder := openSession(t, newStore(t, server(t).Client(t), "")), openSession(t, newStore(t, server(t).Client(t), ""))
	for i := range 10 {
		enqueue(t, se, fmt.Sprintf("%s/-%d", name, i)).await(t, store.Admitted)
	}
	if _, err := enqueueMode(t.Context(), holder, name, line.Slot(2)); err != nil {
		t.Fatal(err)
	}
	_, err := enqueueMode(t.Context(), se, name, line.Exclusive)
	wantKindError(t, err, holder.ID(), false)
}

// A lock of etcd's own package counts as a mutex.
// Bug: hazelcast #20387
func TestKinds_slotBehindStockMutex(t *testing.T) {
	t.Parallel()
	cli, name := server(t).Client(t), newName(t)
	stock, err := concurrency.NewSession(cli, concurrency.WithTTL(300))
	if err != nil {
		t.Fatal(err)
	}
	defer stock.Close()
	if err := concurrency.NewMutex(stock, name).Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = enqueueMode(t.Context(), openSession(t, newStore(t, cli, "")), name, line.Slot(2))
	wantKindError(t, err, fmt.Sprintf("%x", stock.Lease()), true)
	if keys := keysUnder(t, cli, name); len(keys) != 1 {
		t.Errorf("the line has the keys %q, want that of the stock mutex", keys)
	}
}

// The reply to the insertion, or to the deletion, of an entry that is refused is lost. The entry is
// deleted nevertheless.
// Promise: P5
func TestKinds_lostReplyOfRefused(t *testing.T) {
	t.Parallel()
	for lost := range 2 {
		t.Run([]string{"insertion", "deletion"}[lost], func(t *testing.T) {
			t.Parallel()
			name := newName(t)
			direct := server(t).Client(t)
			holder := openSession(t, newStore(t, direct, ""))
			if _, err := enqueueMode(t.Context(), holder, name, line.Slot(2)); err != nil {
				t.Fatal(err)
			}
			cli, intercept := interceptedClient(t)
			se := openSession(t, newStore(t, cli, ""))
			var txns atomic.Int32
			f := handler(func(_ context.Context, request string, send func() error) error {
				err := send()
				if request == "Txn" && int(txns.Add(1)) == lost+1 {
					return errLost
				}
				return err
			})
			intercept.Store(&f)
			_, err := enqueueMode(t.Context(), se, name, line.Exclusive)
			wantKindError(t, err, holder.ID(), false)
			eventually(t, "only the holder's key is left", func() bool { return len(keysUnder(t, direct, name)) == 1 })
			if n := txns.Load(); int(n) <= lost {
				t.Errorf("precondition failed: %d Txns", n)
			}
		})
	}
}

// An exclusive entry reads only a few entries of a long line.
func TestKinds_exclusiveInLongLineOfSlots(t *testing.T) {
	t.Parallel()
	name := newName(t)
	holder := openSession(t, newStore(t, server(t).Client(t), ""))
	for range 20 {
		if _, err := enqueueMode(t.Context(), holder, name, line.Slot(30)); err != nil {
			t.Fatal(err)
		}
	}
	se := openSession(t, newStore(t, server(t).Client(t), ""))
	_, err := enqueueMode(t.Context(), se, name, line.Exclusive)
	wantKindError(t, err, holder.ID(), false)
}
