package etcdstore_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// hold takes n locks and waits until their keys are watched.
func hold(t *testing.T, se store.Session, name string, n int) []*testEntry {
	t.Helper()
	var held []*testEntry
	for i := range n {
		e := enqueue(t, se, fmt.Sprintf("%s/%d", name, i))
		e.await(t, store.Admitted)
		held = append(held, e)
	}
	for _, e := range held {
		eventually(t, "its key is watched", func() bool { return etcdstore.KeyWatched(se, e.name) })
	}
	return held
}

// deleteKey deletes the key of an entry, as stile break does.
func deleteKey(t *testing.T, e *testEntry) {
	t.Helper()
	resp, err := server(t).Client(t).Delete(t.Context(), e.Extensions().Key)
	if err != nil || resp.Deleted != 1 {
		t.Fatalf("delete the key of %q: %+v, %v", e.name, resp, err)
	}
}

// Any number of held locks has one stream and two goroutines. Each holder is notified of the loss of its own
// entry, and no other.
// Promise: P6
func TestHeldKeys_oneStream(t *testing.T) {
	cli := server(t).Client(t) // not parallel, because it counts goroutines
	name, st := newName(t), newStore(t, cli, "")
	se, other := openSession(t, st), openSession(t, st)
	hold(t, other, name+"/other", 1)
	before := runtime.NumGoroutine()
	held := hold(t, se, name, 300)
	eventually(t, "300 locks more, no goroutines more", func() bool { return runtime.NumGoroutine() < before+20 })
	for _, i := range []int{0, 150, 299} {
		deleteKey(t, held[i])
		held[i].awaitGone(t)
	}
	overwrite(t, held[7].Extensions().Key)
	held[7].awaitGone(t)
	for _, i := range []int{1, 8, 298} {
		held[i].checkNotNotified(t)
	}
	if err := se.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, running := st.KeysWatched(); n != 1 || !running {
		t.Errorf("after one of two sessions was closed: got %d keys watched, running %v; want that of the other session", n, running)
	}
}

// Without held locks there is no stream and no goroutine; the next held lock is watched again.
func TestHeldKeys_endWithTheLast(t *testing.T) {
	t.Parallel()
	name, st := newName(t), newStore(t, server(t).Client(t), "")
	se := openSession(t, st)
	for i := range 3 {
		for _, e := range hold(t, se, fmt.Sprint(name, i), 2) {
			e.withdraw(t)
		}
		if i != 1 {
			eventually(t, "the goroutines end", func() bool { _, running := st.KeysWatched(); return !running })
		}
	}
	e := hold(t, se, name, 1)[0]
	deleteKey(t, e)
	e.awaitGone(t)
}

// Entries that are removed or overwritten while there is no connection are noticed after it.
// Promise: P6
func TestHeldKeys_outage(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	name, st := newName(t), newStore(t, connect(t, proxy.Addr()), "")
	held := hold(t, openSession(t, st), name, 250) // the keys are read a hundred at a time
	proxy.Refuse()
	proxy.Reset()
	deleteKey(t, held[0])
	overwrite(t, held[120].Extensions().Key)
	deleteKey(t, held[249])
	proxy.Accept()
	for _, i := range []int{0, 120, 249} {
		held[i].awaitGone(t)
	}
	deleteKey(t, held[3]) // the others are still watched
	held[3].awaitGone(t)
	held[1].checkNotNotified(t)
}

// A watch that the server refuses is requested again. The others stay.
// Promise: P6
func TestHeldKeys_refused(t *testing.T) {
	t.Parallel()
	var requested atomic.Int64
	var first int64
	spoil := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		return spoiledStream{s, &requested, &first}, err
	}
	cli := connectWith(t, clientv3.Config{
		Endpoints: []string{server(t).Endpoint()}, DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(spoil)},
	})
	held := hold(t, openSession(t, newStore(t, cli, "")), newName(t), 3)
	if n := requested.Load(); n != 4 {
		t.Errorf("got %d requests for watches, want one for each lock, and another for the second one", n)
	}
	for _, e := range held {
		deleteKey(t, e)
		e.awaitGone(t)
	}
}

// spoiledStream makes the server refuse the second watch that is requested: its id is in use.
type spoiledStream struct {
	grpc.ClientStream
	requested *atomic.Int64
	first     *int64
}

func (s spoiledStream) SendMsg(m any) error {
	if req, ok := m.(*pb.WatchRequest); ok && req.GetCreateRequest() != nil {
		switch create := req.GetCreateRequest(); s.requested.Add(1) {
		case 1:
			*s.first = create.WatchId
		case 2:
			create.WatchId = *s.first
		}
	}
	return s.ClientStream.SendMsg(m)
}

// A key that cannot be read after its watch has started is read again. The others are read meanwhile.
// Promise: P6
func TestHeldKeys_unread(t *testing.T) {
	t.Parallel()
	var denied atomic.Pointer[string] // a key
	deny := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if txn, ok := req.(*pb.TxnRequest); ok && len(txn.Compare) == 0 {
			for _, op := range txn.Success {
				if key := denied.Load(); key != nil && string(op.GetRequestRange().GetKey()) == *key {
					return rpctypes.ErrGRPCPermissionDenied
				}
			}
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	cli, _ := interceptedClient(t, deny)
	se, name := openSession(t, newStore(t, cli, "")), newName(t)
	unread := name + "/1/" + se.ID()
	denied.Store(&unread)
	var held []*testEntry
	for i := range 3 {
		held = append(held, enqueue(t, se, fmt.Sprintf("%s/%d", name, i)))
	}
	for _, i := range []int{0, 2} {
		eventually(t, "its key is watched", func() bool { return etcdstore.KeyWatched(se, held[i].name) })
	}
	if etcdstore.KeyWatched(se, held[1].name) {
		t.Error("a key that was not read counts as watched")
	}
	denied.Store(nil)
	eventually(t, "the key is read", func() bool { return etcdstore.KeyWatched(se, held[1].name) })
}
