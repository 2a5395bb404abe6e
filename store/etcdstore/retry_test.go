package etcdstore_test

import (
	"context"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// A store sends at most MaxAttempts requests at the same time, and others wait. The renewal of a session does not wait,
// nor does the check of its entries after a broken connection, the removal of an entry, or the read by which a holder
// learns that its entry is gone.
func TestStore_limitsRequests(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	cli, intercept := interceptedClientAt(t, proxy.Addr())
	name, st := newName(t), newStore(t, cli, "")
	st.KeepPlaces()
	se := openSession(t, st)
	if err := se.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	held := hold(t, se, name, 2)

	var mu sync.Mutex
	var most, underWay int
	full, given := make(chan struct{}), make(chan struct{})
	fill := sync.OnceFunc(func() { close(full) })
	f := handler(func(_ context.Context, request string, send func() error) error {
		if request != "LeaseGrant" {
			return send()
		}
		mu.Lock()
		underWay++
		if most = max(most, underWay); most >= etcdstore.MaxAttempts {
			fill()
		}
		mu.Unlock()
		<-given // also after the timeout of the attempt
		mu.Lock()
		underWay--
		mu.Unlock()
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

	proxy.Refuse()
	proxy.Reset()
	deleteKey(t, held[0])
	proxy.Accept()
	held[0].awaitGone(t)
	eventually(t, "the session is renewed", func() bool { return se.Confirm(t.Context()) == nil })
	held[1].withdraw(t)

	cancel()
	close(given)
	calls.Wait()
	if most != etcdstore.MaxAttempts {
		t.Errorf("got %d requests at once, want %d", most, etcdstore.MaxAttempts)
	}
}

// Thirty-two waiters are far back in a line, and the servers are slow to sort it. Half of the waiters read it. The others
// wait with that, but have joined, and other locks can be locked.
func TestStore_limitsFarReads(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var most, underWay int
	full, given := make(chan struct{}), make(chan struct{})
	fill := sync.OnceFunc(func() { close(full) })
	cli, _ := interceptedClient(t, func(
		ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		r, ok := req.(*pb.RangeRequest)
		if !ok || r.SortOrder != pb.RangeRequest_DESCEND {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		mu.Lock()
		underWay++
		if most = max(most, underWay); most >= etcdstore.MaxFarReads {
			fill()
		}
		mu.Unlock()
		<-given // also after the timeout of the attempt
		mu.Lock()
		underWay--
		mu.Unlock()
		return invoke(ctx, method, req, reply, cc, opts...)
	})
	give := sync.OnceFunc(func() { close(given) })
	defer give()
	const ahead = 3
	l := newLongLine(t, ahead)
	st := newStore(t, cli, "")
	st.SetTimes(noPollingTimes())
	st.SetSizes(1, 1, 1)
	st.KeepPlaces()
	for range 2 * etcdstore.MaxFarReads {
		se := openSession(t, st)
		l.sessions, l.entries = append(l.sessions, se), append(l.entries, enqueue(t, se, l.name))
	}
	<-full
	hold(t, openSession(t, st), newName(t), 1)

	give()
	for i := ahead; i < len(l.entries); i++ {
		l.settled(t, i)
	}
	if most != etcdstore.MaxFarReads {
		t.Errorf("got %d reads at once, want %d", most, etcdstore.MaxFarReads)
	}
}
