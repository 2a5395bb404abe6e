package etcdstore_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

// More entries than MaxRemovals are withdrawn at once, and the server does not answer. Only MaxRemovals removals are under
// way as long as those count that are not answered. When the server answers, all entries are removed.
func TestStore_limitsRemovals(t *testing.T) {
	const entries = etcdstore.MaxRemovals + 40
	for _, tt := range []struct {
		name  string
		place time.Duration
		want  int64
	}{
		{"each counts until it is answered", longInterval, etcdstore.MaxRemovals},
		{"each counts for a moment", time.Millisecond, entries},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cli, intercept := interceptedClient(t)
			st := newStore(t, cli, "")
			times := etcdstore.DefaultTimes()
			times.RetryDelay, times.RemovalPlace = longInterval, tt.place
			st.SetTimes(times)
			var held []*testEntry
			for range entries { // each in a session of its own: one session would remove many in one request
				held = append(held, enqueue(t, openSession(t, st), newName(t)))
			}
			for _, e := range held {
				e.await(t, store.Admitted)
			}

			var sent atomic.Int64
			given := make(chan struct{})
			type removal struct{} // the key of a value that the contexts of removals have
			f := handler(func(ctx context.Context, _ string, send func() error) error {
				if ctx.Value(removal{}) == nil {
					return send()
				}
				sent.Add(1)
				<-given
				return send()
			})
			intercept.Store(&f)
			ctx := context.WithValue(t.Context(), removal{}, true)
			var calls sync.WaitGroup
			for _, e := range held {
				calls.Go(func() {
					if err := e.Ticket.Withdraw(ctx); err != nil {
						t.Error(err)
					}
				})
			}
			eventually(t, "the places are taken", func() bool { return sent.Load() >= tt.want })
			for range 10 { // time for more of them
				if !keyExists(t, cli, held[0].name) {
					t.Error("an entry is gone although no removal was sent")
				}
			}
			if n := sent.Load(); n != tt.want {
				t.Errorf("got %d removals at once, want %d", n, tt.want)
			}
			close(given)
			calls.Wait()
		})
	}
}

// Thirty-two waiters of a store join a line far back, and their reads of it are not answered. Only sixteen of them read at
// the same time. The others have joined too, and the store can lock another lock. A waiter near the front, which has
// followed an entry until now, reads the line and is admitted in its turn.
func TestStore_limitsFarReads(t *testing.T) {
	t.Parallel()
	const ahead, limit = 4, 1 + 2 // limit is that of the reads, with the sizes of the line
	var near atomic.Int64         // the order of the waiter near the front
	var mu sync.Mutex
	var most, underWay int
	given := make(chan struct{})
	cli, _ := interceptedClient(t, func(
		ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		r, ok := req.(*pb.RangeRequest)
		if n := near.Load(); !ok || r.SortOrder != pb.RangeRequest_DESCEND || r.Limit != limit || n == 0 || r.MaxCreateRevision <= n {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		mu.Lock()
		underWay++
		most = max(most, underWay)
		mu.Unlock()
		<-given // also after the timeout of the attempt
		mu.Lock()
		underWay--
		mu.Unlock()
		return invoke(ctx, method, req, reply, cc, opts...)
	})
	give := sync.OnceFunc(func() { close(given) })
	defer give()
	l := newLongLine(t, ahead-1)
	st := newStore(t, cli, "")
	st.SetTimes(noPollingTimes())
	st.SetSizes(1, 1, 1)
	join := func() {
		se := openSession(t, st)
		l.sessions, l.entries = append(l.sessions, se), append(l.entries, enqueue(t, se, l.name))
	}
	join()
	l.settled(t, ahead-1)
	resp, err := cli.Get(t.Context(), sessionKey(l.name, l.sessions[ahead-1]))
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatal(resp, err)
	}
	near.Store(resp.Kvs[0].CreateRevision)
	for range 2 * etcdstore.MaxFarReads {
		join()
	}
	eventually(t, "the limit is reached", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return most >= etcdstore.MaxFarReads
	})
	hold(t, openSession(t, st), newName(t), 1)
	for range ahead - 1 {
		l.leave(t, 0)
	}
	l.entries[0].await(t, store.Admitted)

	give()
	for i := 1; i < len(l.entries); i++ {
		l.settled(t, i)
	}
	mu.Lock()
	defer mu.Unlock()
	if most != etcdstore.MaxFarReads {
		t.Errorf("got %d reads at once, want %d", most, etcdstore.MaxFarReads)
	}
}
