package etcdstore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// txnGate records the transactions of a client, and holds them up while it is closed.
type txnGate struct {
	mu     sync.Mutex
	closed bool
	held   []chan struct{} // one for each transaction that is held up, the oldest first
	sent   []*pb.TxnRequest
}

// newTxnGate returns a client and its gate, which is open.
func newTxnGate(t *testing.T, cfg clientv3.Config) (*clientv3.Client, *txnGate) {
	t.Helper()
	g := &txnGate{}
	t.Cleanup(g.open)
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(g.intercept))
	return connectWith(t, cfg), g
}

func (g *txnGate) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	txn, ok := req.(*pb.TxnRequest)
	if !ok || path.Base(method) != "Txn" {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	g.mu.Lock()
	g.sent = append(g.sent, txn)
	passed := make(chan struct{})
	if g.closed {
		g.held = append(g.held, passed)
	} else {
		close(passed)
	}
	g.mu.Unlock()
	select {
	case <-passed:
	case <-ctx.Done():
		return ctx.Err()
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (g *txnGate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// passOne lets the oldest transaction pass that is held up.
func (g *txnGate) passOne() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.held[0])
	g.held = g.held[1:]
}

func (g *txnGate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
	for _, passed := range g.held {
		close(passed)
	}
	g.held = nil
}

// awaitSent waits until n transactions have been sent in all.
func (g *txnGate) awaitSent(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d transactions are sent", n), func() bool { return len(g.all()) >= n })
}

// all returns the transactions that were sent.
func (g *txnGate) all() []*pb.TxnRequest {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.sent)
}

// sizes returns how many requests each transaction carries.
func sizes(txns []*pb.TxnRequest) (n []int) {
	for _, txn := range txns {
		n = append(n, max(1, len(nested(txn))))
	}
	return n
}

// nested returns the transactions in a batch; none if it is not a batch.
func nested(txn *pb.TxnRequest) (inner []*pb.TxnRequest) {
	if len(txn.Compare) > 0 {
		return nil // that of a single request, which may contain others
	}
	for _, op := range txn.Success {
		if t := op.GetRequestTxn(); t != nil {
			inner = append(inner, t)
		}
	}
	return inner
}

// creation is a call of [etcdstore.Batcher.Create] and its outcome.
type creation struct {
	key  string
	done chan struct{}
	resp *clientv3.TxnResponse
	err  error
}

// create calls Create in a goroutine.
func create(ctx context.Context, b etcdstore.Batcher, name, key, value string) *creation {
	c := &creation{key: key, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.resp, c.err = b.Create(ctx, name, key, value)
	}()
	return c
}

// wantCreated waits for the outcome, and checks that the call has created its key at the revision of the
// response.
func (c *creation) wantCreated(t *testing.T) int64 {
	t.Helper()
	<-c.done
	if c.err != nil {
		t.Errorf("create %s: %v", c.key, c.err)
		return 0
	}
	kvs := c.resp.Responses[len(c.resp.Responses)-1].GetResponseRange().Kvs
	if !c.resp.Succeeded || len(kvs) != 1 || string(kvs[0].Key) != c.key || kvs[0].CreateRevision != c.resp.Header.Revision {
		t.Errorf("create %s: got %+v, want it to have created its key", c.key, c.resp)
	}
	return c.resp.Header.Revision
}

// newGatedBatcher returns a batcher on a server, and the gate of its client.
func newGatedBatcher(t *testing.T, e etcd) (etcdstore.Batcher, *txnGate) {
	t.Helper()
	cli, gate := newTxnGate(t, clientv3.Config{Endpoints: []string{e.Endpoint()}})
	return etcdstore.NewBatcher(cli, longInterval), gate
}

// fill closes the gate and makes as many requests as may be under way before others wait. The returned
// function waits until they have succeeded.
func fill(t *testing.T, b etcdstore.Batcher, gate *txnGate) (await func()) {
	t.Helper()
	gate.close()
	var all []*creation
	for _, key := range ownNames(t, etcdstore.MaxUnderWay) {
		all = append(all, create(t.Context(), b, key, key, ""))
	}
	gate.awaitSent(t, len(all))
	return func() {
		t.Helper()
		for _, c := range all {
			c.wantCreated(t)
		}
	}
}

// queueUp makes a request that waits.
func queueUp(ctx context.Context, t *testing.T, b etcdstore.Batcher, name, key, value string) *creation {
	t.Helper()
	n := b.Waiting()
	c := create(ctx, b, name, key, value)
	eventually(t, "the request waits", func() bool { return b.Waiting() == n+1 })
	return c
}

// queueUpAll makes requests for different locks that wait.
func queueUpAll(t *testing.T, b etcdstore.Batcher, names []string) (all []*creation) {
	t.Helper()
	for _, name := range names {
		all = append(all, queueUp(t.Context(), t, b, name, name, ""))
	}
	return all
}

// ownNames returns n different names.
func ownNames(t *testing.T, n int) (names []string) {
	prefix := newName(t)
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%03d", prefix, i))
	}
	return names
}

// get returns the value and the create revision of a key in the shared server; "" and zero if there is
// none.
func get(t *testing.T, key string) (value string, created int64) {
	t.Helper()
	resp, err := server(t).Client(t).Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		value, created = string(kv.Value), kv.CreateRevision
	}
	return value, created
}

// The requests that wait are sent together when one is answered, in one transaction with one revision.
// Each gets its own outcome, as if it had been sent alone.
// Promise: P4
func TestBatch_requestsThatWaitShareATransaction(t *testing.T) {
	t.Parallel()
	b, gate := newGatedBatcher(t, server(t))
	awaitFirst := fill(t, b, gate)
	names := ownNames(t, 20)
	if _, err := server(t).Client(t).Put(t.Context(), names[7], "taken"); err != nil {
		t.Fatal(err)
	}
	all := queueUpAll(t, b, names)
	gate.open()
	awaitFirst()
	revision := all[0].wantCreated(t)
	for i, c := range all {
		if i != 7 {
			if got := c.wantCreated(t); got != revision {
				t.Errorf("%s: created at revision %d, want %d as the others of the batch", c.key, got, revision)
			}
			continue
		}
		<-c.done
		if c.err != nil || c.resp.Succeeded || string(c.resp.Responses[0].GetResponseRange().Kvs[0].Value) != "taken" {
			t.Errorf("create %s, which exists: got %+v, %v", c.key, c.resp, c.err)
		}
	}
	sent := sizes(gate.all())
	if len(sent) != etcdstore.MaxUnderWay+1 || sent[len(sent)-1] != 20 {
		t.Errorf("got transactions of %v requests, want %d of 1, then one of 20", sent, etcdstore.MaxUnderWay)
	}
	eventually(t, "nothing is under way", func() bool { return b.UnderWay() == 0 })
}

// A request is sent at once, and alone, while few others are under way.
// Promise: P4
func TestBatch_aloneWaitsForNobody(t *testing.T) {
	t.Parallel()
	b, gate := newGatedBatcher(t, server(t))
	gate.close()
	var all []*creation
	for n, name := range ownNames(t, etcdstore.MaxUnderWay) {
		all = append(all, create(t.Context(), b, name, name, ""))
		gate.awaitSent(t, n+1) // although none is answered
	}
	gate.open()
	for _, c := range all {
		c.wantCreated(t)
	}
}

// A request that waits is sent although none of those under way is answered: another member of the cluster
// may answer it. A server far away is not much slower than without batches.
// Promise: P4
func TestBatch_waitsForNobodyForLong(t *testing.T) {
	t.Parallel()
	cli, gate := newTxnGate(t, clientv3.Config{Endpoints: []string{server(t).Endpoint()}})
	b := etcdstore.NewBatcher(cli, etcdstore.DefaultTimes().BatchDelay)
	awaitFirst := fill(t, b, gate)
	var all []*creation
	for n, name := range ownNames(t, 3) {
		all = append(all, create(t.Context(), b, name, name, ""))
		gate.awaitSent(t, etcdstore.MaxUnderWay+n+1)
	}
	gate.open()
	awaitFirst()
	for _, c := range all {
		c.wantCreated(t)
	}
	eventually(t, "nothing is under way", func() bool { return b.UnderWay() == 0 })
}

// A request whose lock's name is in the queue already is sent alone and at once: two requests that concern
// one line are never in one batch, and many must not wait for as many batches.
// Promise: P1
// Promise: P4
func TestBatch_nameOnlyOnce(t *testing.T) {
	t.Parallel()
	b, gate := newGatedBatcher(t, server(t))
	awaitFirst := fill(t, b, gate)
	keys := ownNames(t, 5)
	all := []*creation{queueUp(t.Context(), t, b, keys[0], keys[0], ""), queueUp(t.Context(), t, b, "line", keys[1], "")}
	for n, key := range keys[2:] {
		all = append(all, create(t.Context(), b, "line", key, ""))
		gate.awaitSent(t, etcdstore.MaxUnderWay+n+1)
	}
	gate.open()
	awaitFirst()
	revisions := make(map[int64]bool)
	for _, c := range all[1:] {
		revisions[c.wantCreated(t)] = true
	}
	if len(revisions) != 4 {
		t.Errorf("four requests of one lock have the revisions %v, want four different ones", revisions)
	}
	if sent := sizes(gate.all()); !slices.Equal(sent, []int{1, 1, 1, 1, 1, 1, 1, 2}) {
		t.Errorf("got transactions of %v requests, want the last to be the only batch", sent)
	}
}

// If the context of a request ends before its batch is sent, the request is never sent.
// Promise: P5
func TestBatch_contextEndsBeforeItIsSent(t *testing.T) {
	t.Parallel()
	b, gate := newGatedBatcher(t, server(t))
	awaitFirst := fill(t, b, gate)
	names := ownNames(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	before := queueUp(t.Context(), t, b, names[0], names[0], "")
	gone := queueUp(ctx, t, b, names[1], names[1], "")
	after := queueUp(t.Context(), t, b, names[2], names[2], "")
	cancel()
	<-gone.done
	if !errors.Is(gone.err, context.Canceled) || etcdstore.MaybeSent(gone.err) {
		t.Errorf("got error %v, want Canceled, and that it was not sent", gone.err)
	}
	gate.open()
	awaitFirst()
	before.wantCreated(t)
	after.wantCreated(t)
	if _, created := get(t, gone.key); created != 0 {
		t.Error("a request that was given up before it was sent was carried out")
	}
}

// If the context of a request ends while its batch is under way, its outcome is unknown. The others get
// theirs.
// Promise: P5
func TestBatch_contextEndsUnderWay(t *testing.T) {
	t.Parallel()
	b, gate := newGatedBatcher(t, server(t))
	awaitFirst := fill(t, b, gate)
	names := ownNames(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	gone := queueUp(ctx, t, b, names[0], names[0], "")
	stays := queueUp(t.Context(), t, b, names[1], names[1], "")
	gate.passOne()
	gate.awaitSent(t, etcdstore.MaxUnderWay+1)
	cancel()
	<-gone.done
	if !errors.Is(gone.err, context.Canceled) || !etcdstore.MaybeSent(gone.err) {
		t.Errorf("got error %v, want Canceled, and that it may have been sent", gone.err)
	}
	gate.open()
	awaitFirst()
	stays.wantCreated(t)
}

// A batch that all its requests have given up makes room for others, also if the server never answers.
// Promise: P7
func TestBatch_givenUpByAllMakesRoom(t *testing.T) {
	t.Parallel()
	b, gate := newGatedBatcher(t, server(t))
	awaitFirst := fill(t, b, gate)
	names := ownNames(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	gone := []*creation{queueUp(ctx, t, b, names[0], names[0], ""), queueUp(ctx, t, b, names[1], names[1], "")}
	gate.passOne()
	gate.awaitSent(t, etcdstore.MaxUnderWay+1)
	next := queueUp(t.Context(), t, b, names[2], names[2], "")
	cancel()
	for _, c := range gone {
		<-c.done
	}
	gate.awaitSent(t, etcdstore.MaxUnderWay+2)
	gate.open()
	next.wantCreated(t)
	awaitFirst()
}

// A batch is bounded in its number of requests and in its size, so that servers with default settings take
// it.
func TestBatch_isBounded(t *testing.T) {
	t.Parallel()
	b, gate := newGatedBatcher(t, server(t))
	awaitFirst := fill(t, b, gate)
	names := ownNames(t, 250)
	var all []*creation
	for i, name := range names {
		value := ""
		if i >= 100 { // the largest owners
			value = strings.Repeat("x", 9<<10)
		}
		all = append(all, queueUp(t.Context(), t, b, name, name, value))
	}
	gate.open()
	awaitFirst()
	for _, c := range all {
		c.wantCreated(t)
	}
	for _, txn := range gate.all() {
		if n, size := len(nested(txn)), proto.Size(txn); n > 100 || size > 600<<10 {
			t.Errorf("a batch has %d requests and %d bytes, want at most 100 and 600 KiB", n, size)
		}
	}
	if n := b.Limit(); n != 100 {
		t.Errorf("batches have been made smaller, to %d requests: a server has refused one", n)
	}
}

// If a server allows fewer operations in a transaction, or smaller requests, than by default, the requests
// of a batch that it refuses are sent one by one, and the batches that follow are smaller.
func TestBatch_serverAllowsLess(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		flag, value string
		least, most int // members of a batch
	}{
		{"--max-txn-ops=16", "", 2, 14},
		{"--max-txn-ops=2", "", 1, 1}, // not even two: nothing waits any more
		{"--max-request-bytes=20000", strings.Repeat("x", 2000), 2, 9},
	} {
		t.Run(tt.flag, func(t *testing.T) {
			t.Parallel()
			b, gate := newGatedBatcher(t, startEtcd(t, tt.flag))
			for range 8 {
				n := len(gate.all())
				gate.close()
				var all []*creation
				for _, name := range ownNames(t, etcdstore.MaxUnderWay+60) {
					all = append(all, create(t.Context(), b, name, name, tt.value))
				}
				eventually(t, "all requests have begun", func() bool { return b.UnderWay()+b.Waiting() == len(all) })
				gate.awaitSent(t, n+etcdstore.MaxUnderWay)
				gate.open()
				for _, c := range all {
					c.wantCreated(t)
				}
				eventually(t, "nothing is under way", func() bool { return b.UnderWay() == 0 })
			}
			if n := b.Limit(); n < tt.least || n > tt.most {
				t.Errorf("batches have up to %d requests, want between %d and %d", n, tt.least, tt.most)
			}
		})
	}
}

// An attempt that follows another is sent alone and at once: the batch may have been the reason why the first
// was not answered.
// Promise: P7
func TestBatch_repeatedAttemptIsAlone(t *testing.T) {
	t.Parallel()
	se := openSession(t, newBatchStore(t, server(t).Client(t)))
	name := newName(t)
	leave := etcdstore.BatcherOf(se).Occupy() // so a request that may be part of a batch is not sent
	resp, err := etcdstore.AttemptCreate(t.Context(), se, name, name, errLost)
	if err != nil || !resp.Succeeded {
		t.Errorf("second attempt: got %+v, %v", resp, err)
	}
	leave()
}

// If one request of a batch is refused, the others are not.
// Promise: P5
func TestBatch_refusalOfOneSparesTheOthers(t *testing.T) {
	t.Parallel()
	e := startEtcdWithAuth(t)
	cli, gate := newTxnGate(t, clientv3.Config{
		Endpoints: []string{e.Endpoint()}, Username: "app", Password: "secret-of-app", DialTimeout: testTimeout,
	})
	b := etcdstore.NewBatcher(cli, longInterval)
	gate.close()
	var first []*creation
	for _, name := range ownNames(t, etcdstore.MaxUnderWay) {
		first = append(first, create(t.Context(), b, name, "app/"+name, ""))
	}
	gate.awaitSent(t, len(first))
	var allowed []*creation
	for _, name := range ownNames(t, 5) {
		allowed = append(allowed, queueUp(t.Context(), t, b, name, "app/"+name, ""))
	}
	denied := queueUp(t.Context(), t, b, "denied", "elsewhere", "")
	gate.open()
	for _, c := range append(first, allowed...) {
		c.wantCreated(t)
	}
	<-denied.done
	if !errors.Is(denied.err, rpctypes.ErrPermissionDenied) {
		t.Errorf("got error %v, want ErrPermissionDenied", denied.err)
	}
	if n := b.Limit(); n != 100 {
		t.Errorf("batches have been made smaller, to %d requests, want as before", n)
	}
}

// newBatchStore returns a store whose requests wait for their batch until another request is answered, and
// whose removals are not repeated while they wait.
func newBatchStore(t *testing.T, cli *clientv3.Client) *etcdstore.Store {
	t.Helper()
	st, times := newStore(t, cli, ""), noPollingTimes()
	times.BatchDelay, times.RetryDelay = longInterval, longInterval
	times.HeldWatchDelay = longInterval // the read of a held key is a transaction, too
	st.SetTimes(times)
	return st
}

// A joining is a call of Enqueue and its outcome.
type joining struct {
	name  string
	done  chan struct{}
	entry *testEntry
	err   error
}

// joinTogether makes calls of Enqueue, for the names in their order, that wait until leave is called. On a
// busy machine some may have made their first attempt alone by then.
func joinTogether(ctx context.Context, t *testing.T, se store.Session, names []string) (all []*joining, leave func()) {
	t.Helper()
	b := etcdstore.BatcherOf(se)
	leave = b.Occupy()
	var returned atomic.Bool
	for _, name := range names {
		n, j := b.Waiting(), &joining{name: name, done: make(chan struct{})}
		go func() {
			defer close(j.done)
			j.entry, j.err = tryEnqueue(ctx, se, name, false)
			returned.Store(true)
		}()
		eventually(t, "the request waits", func() bool { return b.Waiting() > n || returned.Load() })
		all = append(all, j)
	}
	return all, leave
}

// batchCatcher handles the batches of a client in place of the gRPC client, and passes other requests.
type batchCatcher struct {
	caught atomic.Int32
	// handle gets the batch and the function that sends it.
	handle func(ctx context.Context, batch *pb.TxnRequest, send func() (*pb.TxnResponse, error)) error
}

func (c *batchCatcher) client(t *testing.T) *clientv3.Client {
	t.Helper()
	interceptor := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		txn, ok := req.(*pb.TxnRequest)
		if !ok || len(nested(txn)) == 0 {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		c.caught.Add(1)
		return c.handle(ctx, txn, func() (*pb.TxnResponse, error) {
			resp := &pb.TxnResponse{}
			err := invoke(context.WithoutCancel(ctx), method, req, resp, cc)
			return resp, err
		})
	}
	return connectWith(t, clientv3.Config{
		Endpoints: []string{server(t).Endpoint()}, DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(interceptor)},
	})
}

// A session's two entries in one line are inserted one after the other, although other requests are under
// way. If both were in one batch, both would be first.
// Promise: P1
func TestBatch_twoEntriesOfOneLine(t *testing.T) {
	t.Parallel()
	se := openSession(t, newBatchStore(t, server(t).Client(t)))
	name := newName(t)
	all, leave := joinTogether(t.Context(), t, se, []string{name, newName(t), name})
	leave()
	for _, j := range all {
		<-j.done
		if j.err != nil {
			t.Fatal(j.err)
		}
	}
	all[1].entry.await(t, store.Admitted)
	first, second := all[0].entry, all[2].entry
	one, two := <-first.standings, <-second.standings
	if one.Order == two.Order || one.State == two.State {
		t.Fatalf("two entries in one line: got standings %+v and %+v, want one admitted and one waiting", one, two)
	}
	if two.State == store.Admitted {
		first, second = second, first
	}
	first.withdraw(t)
	second.await(t, store.Admitted)
}

// A batch is carried out after its calls have returned with an error. None of its entries is inserted: each
// names the epoch of the session that it knew.
// Promise: P5
// Bug: CURATOR-498
func TestBatch_lateIsVoid(t *testing.T) {
	t.Parallel()
	late := make(chan func() (*pb.TxnResponse, error), 10)
	catcher := &batchCatcher{handle: func(ctx context.Context, _ *pb.TxnRequest, send func() (*pb.TxnResponse, error)) error {
		late <- send
		<-ctx.Done()
		return ctx.Err()
	}}
	direct, se := server(t).Client(t), openSession(t, newBatchStore(t, catcher.client(t)))
	for catcher.caught.Load() == 0 {
		names := ownNames(t, 3)
		ctx, cancel := context.WithCancel(t.Context())
		all, leave := joinTogether(ctx, t, se, names)
		leave()
		eventually(t, "the batch is sent, or the calls have returned", func() bool {
			return catcher.caught.Load() > 0 || etcdstore.BatcherOf(se).UnderWay() == 0
		})
		cancel()
		for _, j := range all {
			if <-j.done; j.err == nil {
				j.entry.withdraw(t)
			}
		}
		if catcher.caught.Load() == 0 {
			continue
		}
		eventually(t, "the epoch key is written", func() bool { return epochVersion(t, direct, se) > 0 })
		resp, err := (<-late)()
		if err != nil {
			t.Fatal(err)
		}
		for _, inner := range resp.Responses {
			if inner.GetResponseTxn().Succeeded {
				t.Errorf("a late batch has inserted an entry")
			}
		}
		for _, name := range names {
			eventually(t, "no entry is left", func() bool { return !keyExists(t, direct, name) })
		}
	}
}

// The reply to a batch is lost. Each call repeats its own request, alone, and recognizes its entry.
// Promise: P5
func TestBatch_replyIsLost(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		reply error
	}{{"connection lost", errLost}, {"out of space", rpctypes.ErrGRPCNoSpace}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			catcher := &batchCatcher{handle: func(_ context.Context, _ *pb.TxnRequest, send func() (*pb.TxnResponse, error)) error {
				_, err := send()
				return cmp.Or(err, tt.reply)
			}}
			direct, se := server(t).Client(t), openSession(t, newBatchStore(t, catcher.client(t)))
			var all []*joining
			for catcher.caught.Load() == 0 {
				var leave func()
				all, leave = joinTogether(t.Context(), t, se, ownNames(t, 3))
				leave()
				for _, j := range all {
					if <-j.done; j.err != nil {
						t.Fatalf("lock %s: %v", j.name, j.err)
					}
					j.entry.await(t, store.Admitted)
					if keys := keysUnder(t, direct, j.name); len(keys) != 1 {
						t.Errorf("got keys %q, want the entry once", keys)
					}
				}
			}

			// The same with the requests that delete the entries. What removed them is not known then.
			before := catcher.caught.Load()
			for i, err := range withdrawTogether(t, se, all) {
				if !errors.Is(err, store.ErrNotKnown) || errors.Is(err, store.ErrGone) {
					t.Errorf("Withdraw: got %v, want ErrNotKnown", err)
				}
				if keys := keysUnder(t, direct, all[i].name); len(keys) > 0 {
					t.Errorf("Withdraw has left %q", keys)
				}
			}
			if n := catcher.caught.Load() - before; n != 1 {
				t.Errorf("the entries were deleted in %d batches, want 1", n)
			}
		})
	}
}

// The cluster is full. The calls of a batch fail, and each makes sure once that its entry is not there. Nothing is
// tried again and again until there is space: callers that retry would pile that up.
func TestBatch_clusterIsFull(t *testing.T) {
	t.Parallel()
	var puts, deletes atomic.Int32
	interceptor := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		switch txn, ok := req.(*pb.TxnRequest); {
		case !ok:
		case hasPut(txn):
			puts.Add(1)
			return rpctypes.ErrGRPCNoSpace
		default:
			deletes.Add(1)
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	cli := connectWith(t, clientv3.Config{
		Endpoints: []string{server(t).Endpoint()}, DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(interceptor)},
	})
	se := openSession(t, newBatchStore(t, cli))
	all, leave := joinTogether(t.Context(), t, se, ownNames(t, 3))
	leave()
	for _, j := range all {
		if <-j.done; !errors.Is(j.err, rpctypes.ErrNoSpace) {
			t.Errorf("Enqueue: got %v, want ErrNoSpace", j.err)
		}
	}
	if err := se.Close(t.Context()); err != nil { // waits for what was started in the background
		t.Error(err)
	}
	if p, d := puts.Load(), deletes.Load(); p > 4 || d > 3 {
		t.Errorf("got %d requests with puts and %d with deletions, want one batch, and one of each for each call", p, d)
	}
}

// hasPut reports whether a transaction may put a key.
func hasPut(txn *pb.TxnRequest) bool {
	return slices.ContainsFunc(txn.Success, func(op *pb.RequestOp) bool {
		inner := op.GetRequestTxn()
		return op.GetRequestPut() != nil || inner != nil && hasPut(inner)
	})
}

// withdrawTogether withdraws entries in one batch. The store must be from newBatchStore.
func withdrawTogether(t *testing.T, se store.Session, all []*joining) (errs []error) {
	t.Helper()
	b, errs := etcdstore.BatcherOf(se), make([]error, len(all))
	leave := b.Occupy()
	var running sync.WaitGroup
	for i, j := range all {
		running.Go(func() { errs[i] = j.entry.Withdraw(t.Context()) })
	}
	eventually(t, "all requests wait", func() bool { return b.Waiting() == len(all) })
	leave()
	running.Wait()
	return errs
}

// Entries are deleted in batches too. One that somebody else has removed is reported, the others are not.
// Promise: P5
func TestBatch_withdraw(t *testing.T) {
	t.Parallel()
	cli, gate := newTxnGate(t, clientv3.Config{Endpoints: []string{server(t).Endpoint()}})
	se := openSession(t, newBatchStore(t, cli))
	var all []*joining
	for _, name := range ownNames(t, 5) {
		all = append(all, &joining{name: name, entry: enqueue(t, se, name)})
	}
	removeKeys(t, all[2].name)
	n := len(gate.all())
	for i, err := range withdrawTogether(t, se, all) {
		if want := i == 2; errors.Is(err, store.ErrGone) != want || (err != nil) != want {
			t.Errorf("Withdraw of entry %d: got %v, want ErrGone of entry 2 alone", i, err)
		}
		if keys := keysUnder(t, server(t).Client(t), all[i].name); len(keys) > 0 {
			t.Errorf("Withdraw has left %q", keys)
		}
	}
	if got := sizes(gate.all()[n:]); !slices.Equal(got, []int{5}) {
		t.Errorf("got transactions of %v requests, want one of 5", got)
	}
}

// ownersTogether changes the owners of entries, in one batch if the machine is not too busy. The store must be from
// newBatchStore.
func ownersTogether(t *testing.T, se store.Session, all []*testEntry, reason string) (errs []error) {
	t.Helper()
	b := etcdstore.BatcherOf(se)
	errs = make([]error, len(all))
	leave := b.Occupy()
	var running sync.WaitGroup
	var returned atomic.Bool
	for i, e := range all {
		running.Go(func() {
			errs[i] = e.Extensions().SetOwner(t.Context(), store.Owner{Reason: reason})
			returned.Store(true)
		})
	}
	eventually(t, "all requests wait", func() bool { return b.Waiting() == len(all) || returned.Load() })
	leave()
	running.Wait()
	return errs
}

// wantReason checks what the owner of an entry says.
func wantReason(t *testing.T, e *testEntry, reason string) {
	t.Helper()
	if value, _ := get(t, e.Extensions().Key); !strings.Contains(value, `"reason":"`+reason+`"`) {
		t.Errorf("lock %s has the entry %s, want the reason %q", e.name, value, reason)
	}
}

func enqueueAll(t *testing.T, se store.Session, names []string) (all []*testEntry) {
	t.Helper()
	for _, name := range names {
		all = append(all, enqueue(t, se, name))
	}
	return all
}

// Owners are changed in batches too. SetOwner of an entry that somebody else has removed returns ErrGone. The others
// succeed.
func TestBatch_owners(t *testing.T) {
	t.Parallel()
	cli, gate := newTxnGate(t, clientv3.Config{Endpoints: []string{server(t).Endpoint()}})
	se := openSession(t, newBatchStore(t, cli))
	all := enqueueAll(t, se, ownNames(t, 5))
	removeKeys(t, all[2].name)
	reason, round := "", 0
	eventually(t, "one transaction changes all owners", func() bool {
		round++
		reason = fmt.Sprint("round ", round)
		n := len(gate.all())
		for i, err := range ownersTogether(t, se, all, reason) {
			if want := i == 2; errors.Is(err, store.ErrGone) != want || (err != nil) != want {
				t.Fatalf("SetOwner of entry %d: got %v, want ErrGone of entry 2 alone", i, err)
			}
		}
		return slices.Equal(sizes(gate.all()[n:]), []int{len(all)})
	})
	for i, e := range all {
		if i != 2 {
			wantReason(t, e, reason)
		}
	}
}

// The reply to a batch of owners is lost. Each call repeats its own request, alone, and recognizes its owner.
func TestBatch_replyToOwnersIsLost(t *testing.T) {
	t.Parallel()
	for what, reply := range map[string]error{"connection lost": errLost, "out of space": rpctypes.ErrGRPCNoSpace} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			catcher := &batchCatcher{handle: func(_ context.Context, _ *pb.TxnRequest, send func() (*pb.TxnResponse, error)) error {
				_, err := send()
				return cmp.Or(err, reply)
			}}
			se := openSession(t, newBatchStore(t, catcher.client(t)))
			all := enqueueAll(t, se, ownNames(t, 3))
			round := 0
			eventually(t, "a batch of owners", func() bool {
				round++
				reason := fmt.Sprint("round ", round)
				if err := errors.Join(ownersTogether(t, se, all, reason)...); err != nil {
					t.Fatal(err)
				}
				for _, e := range all {
					wantReason(t, e, reason)
				}
				return catcher.caught.Load() > 0
			})
		})
	}
}

// A batch of owners that is carried out late does not undo what was set since.
func TestBatch_lateOwnersAreVoid(t *testing.T) {
	t.Parallel()
	late := make(chan func() (*pb.TxnResponse, error), 10)
	catcher := &batchCatcher{handle: func(_ context.Context, _ *pb.TxnRequest, send func() (*pb.TxnResponse, error)) error {
		late <- send
		return errLost
	}}
	se := openSession(t, newBatchStore(t, catcher.client(t)))
	all := enqueueAll(t, se, ownNames(t, 3))
	eventually(t, "a batch of owners", func() bool {
		if err := errors.Join(ownersTogether(t, se, all, "first")...); err != nil {
			t.Fatal(err)
		}
		return catcher.caught.Load() > 0
	})
	for _, e := range all {
		if err := e.Extensions().SetOwner(t.Context(), store.Owner{Reason: "second"}); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := (<-late)()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resp.Responses {
		if r.GetResponseTxn().Succeeded {
			t.Error("the late batch has changed an entry")
		}
	}
	for _, e := range all {
		wantReason(t, e, "second")
	}
}

// A request that can wait, like the change of an owner, is sent at once only if no other is under way. So those that
// cannot are sent at once beside many of them.
func TestBatch_thatCanWait(t *testing.T) {
	t.Parallel()
	b, gate := newGatedBatcher(t, server(t))
	gate.close()
	names := ownNames(t, 3+etcdstore.MaxUnderWay)
	all := make([]*creation, 0, len(names))
	anyTime := func(name string) {
		c := &creation{key: name, done: make(chan struct{})}
		all = append(all, c)
		go func() {
			defer close(c.done)
			c.resp, c.err = b.CreateAnyTime(t.Context(), name, name, "")
		}()
	}
	anyTime(names[0])
	gate.awaitSent(t, 1)
	anyTime(names[1])
	eventually(t, "the second request waits", func() bool { return b.Waiting() == 1 })
	anyTime(names[2])
	eventually(t, "the third request waits", func() bool { return b.Waiting() == 2 })
	for i := range etcdstore.MaxUnderWay - 1 { // the others are sent at once
		all = append(all, create(t.Context(), b, names[3+i], names[3+i], ""))
		gate.awaitSent(t, 2+i)
	}
	last := names[len(names)-1]
	all = append(all, queueUp(t.Context(), t, b, last, last, ""))
	gate.open()
	for _, c := range all {
		c.wantCreated(t)
	}
	if got, want := sizes(gate.all()), []int{1, 1, 1, 1, 3}; !slices.Equal(got, want) {
		t.Errorf("got transactions of %v requests, want %v", got, want)
	}
}

// The values of a request's context, like the trace that it belongs to, do not concern the others of its batch.
func TestBatch_hasNoValuesOfOneContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	seen := make(chan any, 10)
	catcher := &batchCatcher{handle: func(ctx context.Context, _ *pb.TxnRequest, _ func() (*pb.TxnResponse, error)) error {
		seen <- ctx.Value(key{})
		return errLost
	}}
	b := etcdstore.NewBatcher(catcher.client(t), longInterval)
	leave := b.Occupy()
	var all []*creation
	for _, name := range ownNames(t, 2) {
		all = append(all, queueUp(context.WithValue(t.Context(), key{}, name), t, b, name, name, ""))
	}
	leave()
	for _, c := range all {
		<-c.done
	}
	if value := <-seen; value != nil {
		t.Errorf("the batch has the value %v from the context of a request", value)
	}
}

// The removal of an entry waits for its batch. Meanwhile the session joins the line again, which is sent alone,
// with another key. With the same, each request could find the other's entry.
// Promise: P5
func TestBatch_joinOvertakesWithdraw(t *testing.T) {
	t.Parallel()
	se := openSession(t, newBatchStore(t, server(t).Client(t)))
	name := newName(t)
	old := enqueue(t, se, name)
	old.await(t, store.Admitted)
	b, withdrawn := etcdstore.BatcherOf(se), make(chan error, 1)
	leave := b.Occupy()
	go func() { withdrawn <- old.Withdraw(t.Context()) }()
	eventually(t, "the removal waits", func() bool { return b.Waiting() == 1 })
	next := enqueue(t, se, name)
	if key := next.Extensions().Key; key == old.Extensions().Key {
		t.Errorf("both entries have the key %q", key)
	}
	leave()
	if err := <-withdrawn; err != nil {
		t.Errorf("Withdraw: %v", err)
	}
	next.await(t, store.Admitted)
	next.withdraw(t)
}

// Sessions are renewed, and sets of locks are taken, although other requests wait. A set is never part of a
// batch, so no batch has two sets that share a name.
// Promise: P6
func TestBatch_doesNotDelayOthers(t *testing.T) {
	t.Parallel()
	st := newBatchStore(t, server(t).Client(t))
	se := openSession(t, st)
	ctx, cancel := context.WithCancel(t.Context())
	all, leave := joinTogether(ctx, t, se, ownNames(t, 2))
	if err := se.Confirm(t.Context()); err != nil {
		t.Errorf("Confirm: %v", err)
	}
	set, err := tryEnqueueAll(t.Context(), st, se, false, ownNames(t, 2)...)
	if err != nil {
		t.Fatalf("EnqueueAll: %v", err)
	}
	for _, e := range set {
		e.await(t, store.Admitted)
	}
	cancel()
	for _, j := range all {
		<-j.done
	}
	leave()
}

// A session that is closed ends the calls that wait for a batch.
func TestBatch_closedSession(t *testing.T) {
	t.Parallel()
	se := openSession(t, newBatchStore(t, server(t).Client(t)))
	all, leave := joinTogether(t.Context(), t, se, ownNames(t, 3))
	if err := se.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for _, j := range all {
		if <-j.done; j.err != nil && !errors.Is(j.err, store.ErrSessionLost) {
			t.Errorf("Enqueue: got %v, want ErrSessionLost", j.err)
		}
	}
	leave()
}

// If the lease is gone, all calls of the batch return that the session is lost.
func TestBatch_leaseIsGone(t *testing.T) {
	t.Parallel()
	cli := server(t).Client(t)
	se := openSession(t, newBatchStore(t, cli))
	if _, err := cli.Revoke(t.Context(), leaseOf(t, se)); err != nil {
		t.Fatal(err)
	}
	all, leave := joinTogether(t.Context(), t, se, ownNames(t, 3))
	leave()
	for _, j := range all {
		if <-j.done; !errors.Is(j.err, store.ErrSessionLost) {
			t.Errorf("Enqueue: got %v, want ErrSessionLost", j.err)
		}
	}
}
