package etcdstore_test

import (
	"context"
	"errors"
	"path"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/stilelock/stile/store"
)

// tampering is what happens to a client's unary requests. It is given the name of the request, which is Txn, Range and
// so on, and what carries it out. It is called by several goroutines at a time: the store does some things in the
// background.
//
// What it carries out is waited for, although the store gives requests up on a busy machine, and makes them again: ctx is
// that of the store, and what becomes of it is the tampering's business.
type tampering func(ctx context.Context, request string, carryOut func() error) error

// tampered connects a client to the shared server whose requests are tampered with as soon as, and as long as, something is
// stored. The others see each request before that happens.
func tampered(t *testing.T, others ...grpc.UnaryClientInterceptor) (*clientv3.Client, *atomic.Pointer[tampering]) {
	t.Helper()
	return tamperedAt(t, server(t).Endpoint(), others...)
}

func tamperedAt(
	t *testing.T, endpoint string, others ...grpc.UnaryClientInterceptor,
) (*clientv3.Client, *atomic.Pointer[tampering]) {
	t.Helper()
	var now atomic.Pointer[tampering]
	between := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		f := now.Load()
		if f == nil {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		// The client's own reply is its own again when it has given the request up.
		var got atomic.Value
		err := (*f)(ctx, path.Base(method), func() error {
			late := proto.Clone(reply.(proto.Message))
			err := invoke(context.WithoutCancel(ctx), method, req, late, cc)
			got.Store(late)
			return err
		})
		if late, ok := got.Load().(proto.Message); ok {
			proto.Merge(reply.(proto.Message), late)
		}
		return err
	}
	return connectWith(t, clientv3.Config{
		Endpoints:   []string{endpoint},
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(append(others, between)...)},
	}), &now
}

var errLost = status.Error(codes.Unavailable, "lost on the way")

// removeKeys deletes everything under a lock's name, as an operator might.
func removeKeys(t *testing.T, name string) {
	t.Helper()
	if _, err := server(t).Client(t).Delete(context.WithoutCancel(t.Context()), name+"/", clientv3.WithPrefix()); err != nil {
		t.Error(err)
	}
}

// The reply to the first attempt is lost, the second attempt finds the entry, and all keys are
// deleted before the line is read. The entry must not be admitted because the line is empty.
func TestEnqueue_entryInDoubtVanishes(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	name := newName(t)
	a := newClient(t, cli, ample)
	release(t, lock(t, a, newName(t))) // so that the session is there
	var txns atomic.Int32
	var vanished atomic.Bool
	f := tampering(func(_ context.Context, request string, carryOut func() error) error {
		switch {
		case request == "Txn":
			if txns.Add(1) == 1 {
				_ = carryOut()
				return errLost
			}
		case request == "Range" && !vanished.Swap(true):
			removeKeys(t, name)
		}
		return carryOut()
	})
	now.Store(&f)
	h := lock(t, a, name)
	now.Store(nil)
	if !vanished.Load() {
		t.Fatal("the scenario has failed: the line was not read")
	}
	if keys := keysUnder(t, server(t).Client(t), name); len(keys) != 1 {
		t.Errorf("the lock is held, and its line has the keys %v", keys)
	}
	if _, err := newClient(t, server(t).Client(t), ample).Mutex(name).TryLock(t.Context()); err == nil {
		t.Error("two hold the lock")
	}
	release(t, h)
}

// All keys are deleted, including the epoch key of a session that has written it.
func TestSession_survivesLossOfEpochKey(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	se := openSession(t, newStore(t, cli, ""))
	name := newName(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := tampering(func(_ context.Context, _ string, carryOut func() error) error {
		_ = carryOut()
		cancel()
		return errLost
	})
	now.Store(&f)
	if _, err := tryEnqueue(ctx, se, name, false); err == nil {
		t.Fatal("the scenario has failed: the entry is in")
	}
	now.Store(nil)
	direct := server(t).Client(t)
	await(t, "the epoch key to be written", func() bool { return epochVersion(t, direct, se) > 0 })
	if _, err := direct.Delete(t.Context(), ".stile/"+se.ID()); err != nil {
		t.Fatal(err)
	}
	j, err := tryEnqueue(until(t, soon), se, name, false)
	if err != nil {
		t.Fatal(err)
	}
	j.await(t, store.Admitted)
	j.withdraw(t)
}

// The first Withdraw cannot delete the entry; the second must not report success without deleting
// it.
func TestWithdraw_againAfterFailure(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	se := openSession(t, newStore(t, cli, ""))
	name := newName(t)
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	f := tampering(func(context.Context, string, func() error) error { return errLost })
	now.Store(&f)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := j.Ticket.Withdraw(ctx); err == nil || errors.Is(err, store.ErrGone) {
		t.Fatalf("Withdraw returned %v, with the cluster out of reach", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := j.Ticket.Withdraw(ctx); err == nil || errors.Is(err, store.ErrGone) {
		t.Errorf("the second Withdraw returned %v, and the entry is still there", err)
	}
	now.Store(nil)
	if err := j.Ticket.Withdraw(t.Context()); err != nil && !errors.Is(err, store.ErrGone) && !errors.Is(err, store.ErrNotKnown) {
		t.Errorf("with the cluster back, Withdraw returned %v", err)
	}
	if keys := keysUnder(t, server(t).Client(t), name); len(keys) > 0 {
		t.Errorf("after that there is %v", keys)
	}
}

// The lease is revoked after the entry was inserted and before the reply is handled.
func TestEnqueue_sessionLostMeanwhile(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	se := openSession(t, newStore(t, cli, ""))
	direct := server(t).Client(t)
	f := tampering(func(_ context.Context, request string, carryOut func() error) error {
		err := carryOut()
		if request == "Txn" {
			now.Store(nil)
			if _, err := direct.Revoke(t.Context(), leaseOf(t, se)); err != nil {
				t.Error(err)
			}
			if err := se.Confirm(t.Context()); !errors.Is(err, store.ErrSessionLost) {
				t.Errorf("Confirm returned %v, want ErrSessionLost", err)
			}
		}
		return err
	})
	now.Store(&f)
	if _, err := tryEnqueue(t.Context(), se, newName(t), false); !errors.Is(err, store.ErrSessionLost) {
		t.Errorf("Enqueue returned %v, want ErrSessionLost", err)
	}
}

// Another entry is inserted between the read and the try. The error names that entry, not the
// caller's own.
func TestTry_namesHolder(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	name := newName(t)
	se, other := openSession(t, newStore(t, cli, "")), openSession(t, newStore(t, server(t).Client(t), ""))
	// Something else that begins with the name makes the try look twice.
	stray := name + "/below/it"
	if _, err := server(t).Client(t).Put(t.Context(), stray, ""); err != nil {
		t.Fatal(err)
	}
	var txns atomic.Int32
	f := tampering(func(_ context.Context, request string, carryOut func() error) error {
		if request == "Txn" {
			if txns.Add(1) == 2 {
				enqueue(t, other, name).await(t, store.Admitted)
			}
		}
		return carryOut()
	})
	now.Store(&f)
	_, err := tryEnqueue(t.Context(), se, name, true)
	held, ok := errors.AsType[*store.HeldError](err)
	if !ok || held.Holder == nil || held.Holder.Session != other.ID() {
		t.Errorf("the try returned %v, want that session %s holds it (this one is %s)", err, other.ID(), se.ID())
	}
}
