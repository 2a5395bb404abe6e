package etcdstore_test

import (
	"context"
	"errors"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/stilelock/stile/store"
)

// A handler handles a unary request of a client in place of the gRPC client. It gets the name of
// the request, such as Txn or Range, and send, which sends it. Handlers are called concurrently,
// because the store does some work in the background.
//
// ctx is the store's context. It may end before send returns, because the store gives up slow
// requests and repeats them; send ignores that and waits for the reply.
//
// request is the method's name, or "Txn that reads" for a Txn that writes nothing. With it a test finds the
// request that it means, though a busy machine may repeat those before it.
type handler func(ctx context.Context, request string, send func() error) error

// interceptedClient returns a client of the shared server, and the handler of its requests; without
// a handler they are sent unchanged. Interceptors in first see each request before the handler
// does.
func interceptedClient(t *testing.T, first ...grpc.UnaryClientInterceptor) (*clientv3.Client, *atomic.Pointer[handler]) {
	t.Helper()
	return interceptedClientAt(t, server(t).Endpoint(), first...)
}

func interceptedClientAt(
	t *testing.T, endpoint string, first ...grpc.UnaryClientInterceptor,
) (*clientv3.Client, *atomic.Pointer[handler]) {
	t.Helper()
	var intercept atomic.Pointer[handler]
	interceptor := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		f := intercept.Load()
		if f == nil {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		// The client may use its own reply again once it has given up the request, so send fills
		// a copy.
		var answered atomic.Value
		request := path.Base(method)
		if txn, ok := req.(*pb.TxnRequest); ok && !writes(txn) {
			request = "Txn that reads"
		}
		err := (*f)(ctx, request, func() error {
			copied := proto.Clone(reply.(proto.Message))
			err := invoke(context.WithoutCancel(ctx), method, req, copied, cc)
			answered.Store(copied)
			return err
		})
		if copied, ok := answered.Load().(proto.Message); ok {
			proto.Merge(reply.(proto.Message), copied)
		}
		return err
	}
	return connectWith(t, clientv3.Config{
		Endpoints:   []string{endpoint},
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(append(first, interceptor)...)},
	}), &intercept
}

// writes reports whether a Txn may put or delete a key.
func writes(txn *pb.TxnRequest) bool {
	return slices.ContainsFunc(slices.Concat(txn.Success, txn.Failure), func(op *pb.RequestOp) bool { return op.GetRequestRange() == nil })
}

var errLost = status.Error(codes.Unavailable, "message lost")

// removeKeys deletes all keys under a lock's name, as an operator might.
func removeKeys(t *testing.T, name string) {
	t.Helper()
	if _, err := server(t).Client(t).Delete(context.WithoutCancel(t.Context()), name+"/", clientv3.WithPrefix()); err != nil {
		t.Error(err)
	}
}

// The reply to the first attempt is lost, the second attempt finds the entry, and all keys are
// deleted before the line is read. The entry must not be admitted because the line is empty.
// Bug: etcd #16221
func TestEnqueue_entryInDoubtVanishes(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	name := newName(t)
	a := newClient(t, cli, longTTL)
	release(t, lock(t, a, newName(t))) // opens the session
	var txns atomic.Int32
	var deleted atomic.Bool
	remove := sync.OnceFunc(func() {
		removeKeys(t, name)
		deleted.Store(true)
	})
	f := handler(func(_ context.Context, request string, send func() error) error {
		switch {
		case request == "Txn":
			if txns.Add(1) == 1 {
				_ = send()
				return errLost
			}
		case request == "Range":
			remove()
		}
		return send()
	})
	intercept.Store(&f)
	h := lock(t, a, name)
	intercept.Store(nil)
	if !deleted.Load() {
		t.Fatal("precondition failed: the line was not read")
	}
	if keys := keysUnder(t, server(t).Client(t), name); len(keys) != 1 {
		t.Errorf("the lock is held: got keys %v, want one", keys)
	}
	if _, err := newClient(t, server(t).Client(t), longTTL).Mutex(name).TryLock(t.Context()); err == nil {
		t.Error("two clients hold the lock")
	}
	release(t, h)
}

// All keys are deleted, including the epoch key of a session that has written it.
func TestSession_survivesLossOfEpochKey(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	se := openSession(t, newStore(t, cli, ""))
	name := newName(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := handler(func(_ context.Context, _ string, send func() error) error {
		_ = send()
		cancel()
		return errLost
	})
	intercept.Store(&f)
	if _, err := tryEnqueue(ctx, se, name, false); err == nil {
		t.Fatal("precondition failed: the entry was inserted")
	}
	intercept.Store(nil)
	direct := server(t).Client(t)
	eventually(t, "the epoch key is written", func() bool { return epochVersion(t, direct, se) > 0 })
	if _, err := direct.Delete(t.Context(), ".stile/"+se.ID()); err != nil {
		t.Fatal(err)
	}
	j, err := tryEnqueue(contextFor(t, testTimeout), se, name, false)
	if err != nil {
		t.Fatal(err)
	}
	j.await(t, store.Admitted)
	j.withdraw(t)
}

// The first Withdraw cannot delete the entry; the second must not report success without deleting
// it.
// Bug: etcd #22123
func TestWithdraw_againAfterFailure(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	se := openSession(t, newStore(t, cli, ""))
	name := newName(t)
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	f := handler(func(context.Context, string, func() error) error { return errLost })
	intercept.Store(&f)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := j.Ticket.Withdraw(ctx); err == nil || errors.Is(err, store.ErrGone) {
		t.Fatalf("Withdraw, cluster unreachable: got %v, want another error than ErrGone", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := j.Ticket.Withdraw(ctx); err == nil || errors.Is(err, store.ErrGone) {
		t.Errorf("second Withdraw, entry still there: got %v, want another error than ErrGone", err)
	}
	intercept.Store(nil)
	if err := j.Ticket.Withdraw(t.Context()); err != nil && !errors.Is(err, store.ErrGone) && !errors.Is(err, store.ErrNotKnown) {
		t.Errorf("Withdraw, cluster reachable again: got %v", err)
	}
	if keys := keysUnder(t, server(t).Client(t), name); len(keys) > 0 {
		t.Errorf("got keys %v after Withdraw, want none", keys)
	}
}

// The lease is revoked after the entry was inserted and before the reply is handled.
func TestEnqueue_sessionLostMeanwhile(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	se := openSession(t, newStore(t, cli, ""))
	direct := server(t).Client(t)
	f := handler(func(_ context.Context, request string, send func() error) error {
		err := send()
		if request == "Txn" {
			intercept.Store(nil)
			if _, err := direct.Revoke(t.Context(), leaseOf(t, se)); err != nil {
				t.Error(err)
			}
			if err := se.Confirm(t.Context()); !errors.Is(err, store.ErrSessionLost) {
				t.Errorf("Confirm: got %v, want ErrSessionLost", err)
			}
		}
		return err
	})
	intercept.Store(&f)
	if _, err := tryEnqueue(t.Context(), se, newName(t), false); !errors.Is(err, store.ErrSessionLost) {
		t.Errorf("Enqueue: got %v, want ErrSessionLost", err)
	}
}

// Another entry is inserted between the read and the try. The error names that entry, not the
// caller's own.
func TestTry_namesHolder(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	name := newName(t)
	se, other := openSession(t, newStore(t, cli, "")), openSession(t, newStore(t, server(t).Client(t), ""))
	// Another key that begins with the name makes the try read the line before it inserts the
	// entry.
	stray := name + "/below/it"
	if _, err := server(t).Client(t).Put(t.Context(), stray, ""); err != nil {
		t.Fatal(err)
	}
	f := handleTxn(2, func(send func() error) error {
		enqueue(t, other, name).await(t, store.Admitted)
		return send()
	})
	intercept.Store(&f)
	_, err := tryEnqueue(t.Context(), se, name, true)
	held, ok := errors.AsType[*store.HeldError](err)
	if !ok || held.Holder == nil || held.Holder.Session != other.ID() {
		t.Errorf("Try: got %v, want a HeldError that names session %s (this one is %s)", err, other.ID(), se.ID())
	}
}
