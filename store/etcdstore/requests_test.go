package etcdstore_test

import (
	"context"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/stilelock/stile"
)

// wire notes what passes between an etcd client and the cluster, in order: unary requests as they are sent ("Txn")
// and answered ("Txn answered"), watches as they are asked for ("watch from 0"), open ("watching") and bring events
// ("DELETE"). What keeps sessions alive is left out.
type wire struct {
	mu  sync.Mutex
	log []string
}

func (w *wire) note(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, what)
}

// passed returns what has passed since it was called last.
func (w *wire) passed() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	log := w.log
	w.log = nil
	return log
}

// requests returns the unary requests and watches among what passed.
func requests(log []string) []string {
	return slices.DeleteFunc(slices.Clone(log), func(s string) bool {
		return strings.HasSuffix(s, " answered") || s == "DELETE" || s == "watching"
	})
}

// quiet waits until the last that passed is the given thing.
func (w *wire) quiet(t *testing.T, last string) {
	t.Helper()
	await(t, last, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.log) > 0 && w.log[len(w.log)-1] == last
	})
}

// config configures a client so that the wire notes what it does.
func (w *wire) config(endpoints ...string) clientv3.Config {
	return clientv3.Config{Endpoints: endpoints, DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(w.unary), grpc.WithChainStreamInterceptor(w.stream),
	}}
}

func (w *wire) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	name := path.Base(method)
	w.note(name)
	err := invoke(ctx, method, req, reply, cc, opts...)
	w.note(name + " answered")
	return err
}

func (w *wire) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &wiredStream{s, w}, nil
}

type wiredStream struct {
	grpc.ClientStream
	wire *wire
}

func (s *wiredStream) SendMsg(m any) error {
	if req, ok := m.(*pb.WatchRequest); ok && req.GetCreateRequest() != nil {
		if from := req.GetCreateRequest().StartRevision; from == 0 {
			s.wire.note("watch from 0")
		} else {
			s.wire.note("watch from the past")
		}
	}
	return s.ClientStream.SendMsg(m)
}

func (s *wiredStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if resp, ok := m.(*pb.WatchResponse); ok && err == nil {
		if resp.Created {
			s.wire.note("watching")
		}
		for _, ev := range resp.Events {
			s.wire.note(ev.Type.String())
		}
	}
	return err
}

// newWiredClient returns a client, with its session open, and what passes between it and etcd from now on.
func newWiredClient(t *testing.T) (*stile.Client, *wire) {
	t.Helper()
	w := &wire{}
	c := newClient(t, connectWith(t, w.config(server(t).Endpoint())), 20*time.Second)
	release(t, lock(t, c, newName(t)))
	w.passed()
	return c, w
}

func wantRequests(t *testing.T, doing string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(requests(got), want) {
		t.Errorf("%s: what passed was %q, want the requests %q", doing, got, want)
	}
}

func TestUncontendedLockIsOneTxnAndReleaseIsOneTxn(t *testing.T) {
	t.Parallel()
	c, w := newWiredClient(t)
	name := newName(t)
	for range 3 {
		h := lock(t, c, name)
		wantRequests(t, "Lock", w.passed(), "Txn")
		release(t, h)
		wantRequests(t, "Release", w.passed(), "Txn")
	}
	h, err := c.Mutex(name).TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantRequests(t, "TryLock of a free lock", w.passed(), "Txn")
	release(t, h)
}

func TestFailedTryLockWritesNothing(t *testing.T) {
	t.Parallel()
	c, w := newWiredClient(t)
	name := newName(t)
	holder := newClient(t, server(t).Client(t), 20*time.Second)
	lock(t, holder, name)
	before, err := server(t).Client(t).Get(t.Context(), name, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Mutex(name).TryLock(t.Context()); err == nil {
		t.Fatal("TryLock took a lock that is held")
	}
	wantRequests(t, "TryLock of a held lock", w.passed(), "Txn", "Range")
	after, err := server(t).Client(t).Get(t.Context(), name, clientv3.WithPrefix(), clientv3.WithMinModRev(before.Header.Revision+1))
	if err != nil || len(after.Kvs) > 0 {
		t.Errorf("TryLock of a held lock left %v, %v", after.Kvs, err)
	}
}

// The stock mutex asks for a watch from the past, which etcd serves every 100 ms, and reads twice after the event
// (defect B7).
func TestHandOverNeedsNoLateWatchAndNoRead(t *testing.T) {
	t.Parallel()
	c, w := newWiredClient(t)
	name := newName(t)
	other := newClient(t, server(t).Client(t), 20*time.Second)

	held := lock(t, other, name)
	place := join(t, c, name)
	w.quiet(t, "Range answered")
	// The first Txn takes the line to be free and is cheap; the second takes it as it is.
	wantRequests(t, "waiting for the first time", w.passed(), "Txn", "Txn", "watch from 0", "Range")

	release(t, held)
	h := holdSoon(t, place)
	if got := w.passed(); !slices.Equal(got, []string{"DELETE"}) {
		t.Errorf("the hand-over: what passed was %q, want the event of the release and nothing else", got)
	}
	release(t, h)
	wantRequests(t, "Release", w.passed(), "Txn")

	// The watch stays open for a while: now one request is all.
	held = lock(t, other, name)
	place = join(t, c, name)
	release(t, held)
	h = holdSoon(t, place)
	wantRequests(t, "waiting again", w.passed(), "Txn")
	release(t, h)
}

func TestOnlyTheReleaseNextInLineAdmits(t *testing.T) {
	t.Parallel()
	c, w := newWiredClient(t)
	name := newName(t)
	first, second := newClient(t, server(t).Client(t), 20*time.Second), newClient(t, server(t).Client(t), 20*time.Second)
	held := lock(t, first, name)
	between := join(t, second, name)
	last := join(t, c, name)
	if n := last.Ahead(); n != 2 {
		t.Errorf("%d are ahead of the third in line, want 2", n)
	}
	w.quiet(t, "Range answered")
	w.passed()
	release(t, held)
	h := holdSoon(t, between)
	await(t, "the third to hear of the release", func() bool { return last.Ahead() == 1 })
	release(t, h)
	holdSoon(t, last)
	if got := w.passed(); !slices.Equal(got, []string{"DELETE", "DELETE"}) {
		t.Errorf("two hand-overs ahead of the third in line: what passed was %q, want their events and nothing else", got)
	}
}
