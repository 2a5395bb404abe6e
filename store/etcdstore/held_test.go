package etcdstore_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
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

// A program may have replaced the client's Watcher. Its own sees the watches of held keys.
// Promise: P6
func TestHeldKeys_namespace(t *testing.T) {
	t.Parallel()
	cli, space := server(t).Client(t), newName(t)+"/"
	cli.KV, cli.Watcher, cli.Lease = namespace.NewKV(cli.KV, space), namespace.NewWatcher(cli.Watcher, space), namespace.NewLease(cli.Lease, space)
	st := newStore(t, cli, "")
	held := hold(t, openSession(t, st), newName(t), 3)
	direct := server(t).Client(t)
	if resp, err := direct.Delete(t.Context(), space+held[1].Extensions().Key); err != nil || resp.Deleted != 1 {
		t.Fatalf("delete the key: %+v, %v", resp, err)
	}
	held[1].awaitGone(t)
	for _, e := range []*testEntry{held[0], held[2]} {
		e.checkNotNotified(t)
		e.withdraw(t)
	}
	eventually(t, "the goroutines end", func() bool { _, running := st.KeysWatched(); return !running })
}

// forgetTokens makes a server forget the tokens of the user "app".
func forgetTokens(t *testing.T, root *clientv3.Client) {
	t.Helper()
	if _, err := root.UserChangePassword(t.Context(), "app", "secret-of-app"); err != nil {
		t.Fatal(err)
	}
}

// The server has forgotten the token with which the stream was opened, and refuses each further watch on it.
// Promise: P6, P7
func TestHeldKeys_tokenForgotten(t *testing.T) {
	t.Parallel()
	e := startEtcdWithAuth(t)
	app := func() store.Session {
		return openSession(t, newStore(t, connectWith(t, clientv3.Config{
			Endpoints: []string{e.Endpoint()}, Username: "app", Password: "secret-of-app", DialTimeout: testTimeout,
		}), "app/"))
	}
	root := connectWith(t, clientv3.Config{Endpoints: []string{e.Endpoint()}, Username: "root", Password: "rootpw", DialTimeout: testTimeout})
	holder, waiter := app(), app()
	one := hold(t, holder, "one", 1)[0]
	first := enqueue(t, waiter, one.name) // keeps the etcd client's stream open
	first.await(t, store.Waiting)
	eventually(t, "its line is watched", func() bool { return etcdstore.LineWatched(waiter, one.name) })

	forgetTokens(t, root)
	two := hold(t, holder, "two", 2)
	second := enqueue(t, waiter, two[0].name)
	second.await(t, store.Waiting)
	eventually(t, "its line is watched", func() bool { return etcdstore.LineWatched(waiter, two[0].name) })
	two[0].withdraw(t)
	second.await(t, store.Admitted)
	if _, err := root.Delete(t.Context(), two[1].Extensions().Key); err != nil {
		t.Fatal(err)
	}
	two[1].awaitGone(t)
	one.checkNotNotified(t)
}

// compactionSeen counts the watches that a server has ended because of a compaction.
type compactionSeen struct {
	grpc.ClientStream
	seen *atomic.Int64
}

func (s compactionSeen) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if r, ok := m.(*pb.WatchResponse); ok && err == nil && r.CompactRevision > 0 {
		s.seen.Add(1)
	}
	return err
}

// The server ends a watch that is behind a compaction, but does not free its id.
// Promise: P6
func TestHeldKeys_compaction(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	direct, proxy := e.Client(t), testservers.NewProxy(t, e.Endpoint())
	var seen atomic.Int64
	cli := connectWith(t, clientv3.Config{Endpoints: []string{proxy.Addr()}, DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(
		func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			return compactionSeen{s, &seen}, err
		})}})
	st := newStore(t, cli, "")
	held := hold(t, openSession(t, st), newName(t), 1)[0]
	key := held.Extensions().Key
	got, err := direct.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	proxy.Hold(testservers.Down)
	var revision int64
	for range 400 { // more than the server buffers for a stream
		value := string(got.Kvs[0].Value) + strings.Repeat(" ", 20_000)
		resp, err := direct.Put(t.Context(), key, value, clientv3.WithLease(clientv3.LeaseID(got.Kvs[0].Lease)))
		if err != nil {
			t.Fatal(err)
		}
		revision = resp.Header.Revision
	}
	if _, err := direct.Compact(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	proxy.Release(testservers.Down)
	eventually(t, "the server ends the watch", func() bool { return seen.Load() > 0 })
	held.checkNotNotified(t)
	if _, err := direct.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	held.awaitGone(t)
}

// When nothing is held any more, the goroutines end, whatever the connection is like.
func TestHeldKeys_endInAnyState(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(*testservers.Proxy){
		"silent":      func(p *testservers.Proxy) { p.Hold() },
		"refused":     func(p *testservers.Proxy) { p.Refuse(); p.Reset() },
		"new, silent": func(p *testservers.Proxy) { p.Reset(); p.Hold() },
	} {
		for _, closed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, client closed %v", what, closed), func(t *testing.T) {
				t.Parallel()
				proxy := testservers.NewProxy(t, server(t).Endpoint())
				cli := connect(t, proxy.Addr())
				st := newStore(t, cli, "")
				se := openSession(t, st)
				hold(t, se, newName(t), 20)
				spoil(proxy)
				if closed {
					_ = cli.Close()
				}
				etcdstore.LoseSession(se)
				eventually(t, "the goroutines end", func() bool { _, running := st.KeysWatched(); return !running })
			})
		}
	}
}
