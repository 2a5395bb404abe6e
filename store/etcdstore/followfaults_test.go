package etcdstore_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/stilelock/stile/store"
)

// intercepted returns a client with a function that is called before each request without a stream.
func intercepted(t *testing.T, e etcd, before func(ctx context.Context, req any) error, more ...grpc.DialOption) *clientv3.Client {
	return connectWith(t, clientv3.Config{Endpoints: []string{e.Endpoint()}, DialOptions: append(more,
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if err := before(ctx, req); err != nil {
				return err
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
	)})
}

// A limit that changes before the lines were read is not reported before them.
func TestFollow_limitBeforeLines(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	open := make(chan struct{})
	var waiting atomic.Bool
	watches := &lossyWatches{opened: make(map[string]watchRequest)} // loses nothing, but counts
	cli := intercepted(t, e, func(ctx context.Context, req any) error {
		if r, ok := req.(*pb.RangeRequest); ok && string(r.Key) == "name" && r.Limit > 1 {
			waiting.Store(true)
			select {
			case <-open:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}, watches.option())
	other := newStore(t, e.Client(t), "")
	se := openSession(t, other)
	enqueue(t, se, "name").await(t, store.Admitted)
	changes := follow(t, newStore(t, cli, ""), "name")
	eventually(t, "the lines are being read, and the limits are watched", func() bool { return waiting.Load() && len(watches.last()) > 0 })
	if err := other.Capabilities().SetLimit(t.Context(), "name", 3); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the event has come", func() bool { return watches.lose.Load() < 0 })
	close(open)
	if c := nextChange(t, changes); !c.All {
		t.Errorf("the first change is %+v, want all lines", c)
	}
}

// After an error the next change has all lines.
func TestFollow_limitAfterError(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	var broken atomic.Bool
	cli := intercepted(t, e, func(ctx context.Context, req any) error {
		if r, ok := req.(*pb.RangeRequest); ok && string(r.Key) == "name" && broken.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	st := newStore(t, cli, "")
	times := noPollingTimes()
	times.ResyncInterval = time.Second
	st.SetTimes(times)
	other := newStore(t, e.Client(t), "")
	se := openSession(t, other)
	enqueue(t, se, "name").await(t, store.Admitted)
	changes, _ := followed(t, st, "name")
	broken.Store(true)
	n := 0
	for {
		n++
		if err := other.Capabilities().SetLimit(t.Context(), "name", n); err != nil {
			t.Fatal(err)
		}
		c := nextChange(t, changes)
		if c.Err != nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err := other.Capabilities().SetLimit(t.Context(), "name", 1000); err != nil {
		t.Fatal(err)
	}
	select {
	case c := <-changes:
		if !c.All && c.Err == nil {
			t.Errorf("after an error got %+v, want all lines", c)
		}
	case <-time.After(3 * time.Second):
	}
}

// A key that was created again after its deletion was lost is not two entries.
func TestFollow_lostDeleteOfSameKey(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	st, watches := newLossyStore(t, e)
	st.SetTimes(noPollingTimes())
	st.CompareAlways()
	cli := e.Client(t)
	se := openSession(t, newStore(t, cli, ""))
	held := enqueue(t, se, "name")
	held.await(t, store.Admitted)
	changes, all := followed(t, st, "")
	watches.lose.Store(1)
	held.withdraw(t)
	eventually(t, "the deletion is lost", func() bool { return watches.lose.Load() <= 0 })
	enqueue(t, se, "name").await(t, store.Admitted) // the same key
	for {
		c := nextChange(t, changes)
		if len(c.Lines) == 1 && len(c.Lines[0].Entries) == 1 && c.Lines[0].Entries[0].Order != all.Lines[0].Entries[0].Order {
			return
		}
	}
}

// If the lines cannot be read, but a small request succeeds, the reader learns of it.
func TestFollow_readingFailsForever(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	root := e.Client(t)
	var broken atomic.Bool
	var failures atomic.Int64
	cli := intercepted(t, e, func(ctx context.Context, req any) error {
		if _, ok := req.(*pb.TxnRequest); ok && broken.Load() {
			failures.Add(1)
			resp, err := root.Put(ctx, "other", "x") // somebody compacts while the lines are read
			if err == nil {
				_, err = root.Compact(ctx, resp.Header.Revision)
			}
			if err != nil {
				t.Log(err)
			}
		}
		return nil
	})
	se := openSession(t, newStore(t, root, ""))
	enqueue(t, se, "name").await(t, store.Admitted)
	broken.Store(true)
	changes := follow(t, newStore(t, cli, ""), "")
	if c := nextChange(t, changes); c.Err == nil {
		t.Errorf("got %s after %d failed readings, want an error", describe(c), failures.Load())
	}
}

// Names may begin like the keys of limits.
func TestFollow_limitsOfDotNames(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	st := newStore(t, e.Client(t), "")
	se := openSession(t, st)
	enqueue(t, se, ".scratch").await(t, store.Admitted)
	changes, _ := followed(t, st, ".s")
	for n := range 3 {
		if err := st.Capabilities().SetLimit(t.Context(), ".scratch", n+1); err != nil {
			t.Fatal(err)
		}
	}
	for last := 0; last < 3; {
		for _, l := range nextChange(t, changes).Lines {
			if l.Limit <= last {
				t.Fatalf("got the limit %d after %d", l.Limit, last)
			}
			last = l.Limit
		}
	}
}

// More strays than are kept do not make the comparison fail.
func TestFollow_manyStrays(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	cli := e.Client(t)
	for i := 0; i < 10_200; i += 100 {
		var puts []clientv3.Op
		for j := range 100 {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("other/key-%05d", i+j), "x"))
		}
		if _, err := cli.Txn(t.Context()).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	st := newStore(t, cli, "")
	st.SetTimes(noPollingTimes())
	st.CompareAlways()
	changes, _ := followed(t, st, "")
	for i := range 3 {
		if _, err := cli.Delete(t.Context(), fmt.Sprintf("other/key-%05d", i)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case c := <-changes:
		t.Errorf("got the change %s without a cause", describe(c))
	case <-time.After(3 * time.Second):
	}
}
