package etcdstore_test

import (
	"context"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/etcdstore"
)

// wire notes what passes between an etcd client and the cluster, in order: unary requests as they are sent ("Txn")
// and answered ("Txn answered") or given up ("Txn failed"), watches as they are asked for ("watch from 0"), open
// ("watching") and bring events ("DELETE"). What keeps sessions alive is left out; see [wire.renewals].
type wire struct {
	// patient makes requests be waited for although the store has given them up: on a busy machine it does that, and asks
	// again. Tests need it that count requests.
	patient atomic.Bool

	mu      sync.Mutex
	log     []string
	watches map[string]string // for each prefix that was watched, the server's address of the watch that opened last
	renewal time.Time
	renewed int
}

func patientWire() *wire {
	w := &wire{}
	w.patient.Store(true)
	return w
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

// renewals returns when the last renewal of a session was sent, or a little later, and how many have been answered.
func (w *wire) renewals() (last time.Time, answered int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.renewal, w.renewed
}

// requests returns the unary requests and watches among what passed.
func requests(log []string) []string {
	return slices.DeleteFunc(slices.Clone(log), func(s string) bool {
		return strings.HasSuffix(s, " answered") || strings.HasSuffix(s, " failed") || s == "DELETE" || s == "watching"
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

// await waits until the given thing has passed, and forgets what came before it.
func (w *wire) await(t *testing.T, what string) {
	t.Helper()
	await(t, what, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		i := slices.Index(w.log, what)
		if i >= 0 {
			w.log = w.log[i+1:]
		}
		return i >= 0
	})
}

// has reports whether the given thing has passed.
func (w *wire) has(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.log, what)
}

// watchOf returns the address of the server that the last watch of a prefix was opened on; "" if there was none.
func (w *wire) watchOf(prefix string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watches[prefix]
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
	if w.patient.Load() {
		ctx = context.WithoutCancel(ctx)
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err != nil {
		w.note(name + " failed")
		return err
	}
	w.note(name + " answered")
	return nil
}

func (w *wire) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &wiredStream{ClientStream: s, wire: w}, nil
}

type wiredStream struct {
	grpc.ClientStream
	wire  *wire
	asked []string // the prefixes of the watches that have not opened yet: they do in the order of asking; see wire.mu
}

// opened notes where a watch has opened.
func (s *wiredStream) opened() {
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	if p, ok := peer.FromContext(s.Context()); ok && len(s.asked) > 0 {
		if s.wire.watches == nil {
			s.wire.watches = make(map[string]string)
		}
		s.wire.watches[s.asked[0]] = p.Addr.String()
		s.asked = s.asked[1:]
	}
}

func (s *wiredStream) SendMsg(m any) error {
	if req, ok := m.(*pb.WatchRequest); ok && req.GetCreateRequest() != nil {
		s.wire.mu.Lock()
		s.asked = append(s.asked, string(req.GetCreateRequest().Key))
		s.wire.mu.Unlock()
		if from := req.GetCreateRequest().StartRevision; from == 0 {
			s.wire.note("watch from 0")
		} else {
			s.wire.note("watch from the past")
		}
	}
	if _, ok := m.(*pb.LeaseKeepAliveRequest); ok {
		s.wire.mu.Lock()
		s.wire.renewal = time.Now()
		s.wire.mu.Unlock()
	}
	return s.ClientStream.SendMsg(m)
}

func (s *wiredStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if _, ok := m.(*pb.LeaseKeepAliveResponse); ok && err == nil {
		s.wire.mu.Lock()
		s.wire.renewed++
		s.wire.mu.Unlock()
	}
	if resp, ok := m.(*pb.WatchResponse); ok && err == nil {
		if resp.Created {
			s.opened()
			s.wire.note("watching")
		}
		for _, ev := range resp.Events {
			s.wire.note(ev.Type.String())
		}
	}
	return err
}

// newWiredClient returns a client, with its session open, and what passes between it and etcd from now on. It does nothing
// by the clock: how many requests it makes does not depend on how fast the machine is.
func newWiredClient(t *testing.T, lockDelay time.Duration) (*stile.Client, *wire) {
	t.Helper()
	w := patientWire()
	st := newStore(t, connectWith(t, w.config(server(t).Endpoint())), "")
	st.SetTimes(etcdstore.Times{HeldWatchDelay: never, IdleTimeout: never, RecheckInterval: never, WatchTimeout: never, ResyncInterval: never, RetryDelay: never})
	c := newDelayedClient(t, st, ample, lockDelay)
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

// Promise: P4
func TestRequests_uncontendedLockAndRelease(t *testing.T) {
	t.Parallel()
	c, w := newWiredClient(t, 0)
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

func TestRequests_failedTryLockWritesNothing(t *testing.T) {
	t.Parallel()
	c, w := newWiredClient(t, 0)
	name := newName(t)
	holder := newClient(t, server(t).Client(t), ample)
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
// Promise: P4
func TestRequests_handOverWithoutRead(t *testing.T) {
	t.Parallel()
	c, w := newWiredClient(t, 0)
	name := newName(t)
	other := newClient(t, server(t).Client(t), ample)

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

// Promise: P4
func TestWaiter_admittedOnlyByReleaseAhead(t *testing.T) {
	t.Parallel()
	c, w := newWiredClient(t, 0)
	name := newName(t)
	first, second := newClient(t, server(t).Client(t), ample), newClient(t, server(t).Client(t), ample)
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
