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

// recorder records what passes between an etcd client and the cluster, in order: unary requests
// when they are sent ("Txn") and answered ("Txn answered") or given up ("Txn failed"); watches when
// they are requested ("watch from 0") and opened ("watching"), and their events ("DELETE").
// Renewals of sessions are left out; see [recorder.renewals].
type recorder struct {
	// ignoreCancel makes the client wait for replies to requests that the store has given up. On a
	// busy machine the store gives requests up and repeats them, which would disturb tests that
	// count requests.
	ignoreCancel atomic.Bool

	mu             sync.Mutex
	log            []string
	watchAddrs     map[string]string // by prefix, the address of the server on which the last watch was opened
	lastRenewal    time.Time
	renewalReplies int
}

func recorderWithoutCancel() *recorder {
	rec := &recorder{}
	rec.ignoreCancel.Store(true)
	return rec
}

func (rec *recorder) record(what string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.log = append(rec.log, what)
}

// takeLog returns what was recorded since its last call.
func (rec *recorder) takeLog() []string {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	log := rec.log
	rec.log = nil
	return log
}

// renewals returns when the last renewal of a session was sent, or slightly later, and how many
// renewals were answered.
func (rec *recorder) renewals() (last time.Time, answered int) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.lastRenewal, rec.renewalReplies
}

// requests returns the unary requests and watches in a log.
func requests(log []string) []string {
	return slices.DeleteFunc(slices.Clone(log), func(s string) bool {
		return strings.HasSuffix(s, " answered") || strings.HasSuffix(s, " failed") || s == "DELETE" || s == "watching"
	})
}

// awaitLast waits until last is the last line of the log.
func (rec *recorder) awaitLast(t *testing.T, last string) {
	t.Helper()
	eventually(t, "the log ends with "+last, func() bool {
		rec.mu.Lock()
		defer rec.mu.Unlock()
		return len(rec.log) > 0 && rec.log[len(rec.log)-1] == last
	})
}

// awaitLogged waits until what is in the log, and discards the log up to it.
func (rec *recorder) awaitLogged(t *testing.T, what string) {
	t.Helper()
	eventually(t, "the log contains "+what, func() bool {
		rec.mu.Lock()
		defer rec.mu.Unlock()
		i := slices.Index(rec.log, what)
		if i >= 0 {
			rec.log = rec.log[i+1:]
		}
		return i >= 0
	})
}

// logged reports whether what is in the log.
func (rec *recorder) logged(what string) bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return slices.Contains(rec.log, what)
}

// watchAddr returns the address of the server on which the last watch of a prefix was opened, or ""
// if there was none.
func (rec *recorder) watchAddr(prefix string) string {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.watchAddrs[prefix]
}

// config returns a client configuration with which the recorder records what the client does.
func (rec *recorder) config(endpoints ...string) clientv3.Config {
	return clientv3.Config{Endpoints: endpoints, DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(rec.unary), grpc.WithChainStreamInterceptor(rec.stream),
	}}
}

func (rec *recorder) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if txn, ok := req.(*pb.TxnRequest); ok && publishesObtained(txn) {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	name := path.Base(method)
	rec.record(name)
	if rec.ignoreCancel.Load() {
		ctx = context.WithoutCancel(ctx)
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err != nil {
		rec.record(name + " failed")
		return err
	}
	rec.record(name + " answered")
	return nil
}

// publishesObtained reports whether a request publishes when the client obtained a lock. The client sends
// it only if it still holds the lock after a second, as on a busy machine.
func publishesObtained(req *pb.TxnRequest) bool {
	return setsObtained(req) && slices.ContainsFunc(req.Compare, func(c *pb.Compare) bool { // the entry is there already
		return c.GetTarget() == pb.Compare_MOD && string(c.GetKey()) == string(req.Success[0].GetRequestPut().GetKey())
	})
}

func (rec *recorder) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &recordedStream{ClientStream: s, recorder: rec}, nil
}

type recordedStream struct {
	grpc.ClientStream
	recorder        *recorder
	pendingPrefixes []string // of the watches that were requested and not opened yet, in order; guarded by recorder.mu
}

// recordOpened records on which server a watch was opened.
func (s *recordedStream) recordOpened() {
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	if p, ok := peer.FromContext(s.Context()); ok && len(s.pendingPrefixes) > 0 {
		if s.recorder.watchAddrs == nil {
			s.recorder.watchAddrs = make(map[string]string)
		}
		s.recorder.watchAddrs[s.pendingPrefixes[0]] = p.Addr.String()
		s.pendingPrefixes = s.pendingPrefixes[1:]
	}
}

func (s *recordedStream) SendMsg(m any) error {
	if req, ok := m.(*pb.WatchRequest); ok && req.GetCreateRequest() != nil {
		s.recorder.mu.Lock()
		s.pendingPrefixes = append(s.pendingPrefixes, string(req.GetCreateRequest().Key))
		s.recorder.mu.Unlock()
		if from := req.GetCreateRequest().StartRevision; from == 0 {
			s.recorder.record("watch from 0")
		} else {
			s.recorder.record("watch from the past")
		}
	}
	if _, ok := m.(*pb.LeaseKeepAliveRequest); ok {
		s.recorder.mu.Lock()
		s.recorder.lastRenewal = time.Now()
		s.recorder.mu.Unlock()
	}
	return s.ClientStream.SendMsg(m)
}

func (s *recordedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if _, ok := m.(*pb.LeaseKeepAliveResponse); ok && err == nil {
		s.recorder.mu.Lock()
		s.recorder.renewalReplies++
		s.recorder.mu.Unlock()
	}
	if resp, ok := m.(*pb.WatchResponse); ok && err == nil {
		if resp.Created {
			s.recordOpened()
			s.recorder.record("watching")
		}
		for _, ev := range resp.Events {
			s.recorder.record(ev.Type.String())
		}
	}
	return err
}

// newRecordedClient returns a client with an open session, and a recorder of its requests from now
// on. It does nothing periodically, so the number of its requests does not depend on the speed of
// the machine.
func newRecordedClient(t *testing.T, lockDelay time.Duration) (*stile.Client, *recorder) {
	t.Helper()
	rec := recorderWithoutCancel()
	st := newStore(t, connectWith(t, rec.config(server(t).Endpoint())), "")
	st.SetTimes(etcdstore.Times{HeldWatchDelay: longInterval, IdleTimeout: longInterval, RecheckInterval: longInterval, WatchTimeout: longInterval, ResyncInterval: longInterval, RetryDelay: longInterval})
	c := newLockDelayClient(t, st, longTTL, lockDelay)
	release(t, lock(t, c, newName(t)))
	rec.takeLog()
	return c, rec
}

func wantRequests(t *testing.T, op string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(requests(got), want) {
		t.Errorf("%s: got log %q, want requests %q", op, got, want)
	}
}

// Promise: P4
func TestRequests_uncontendedLockAndRelease(t *testing.T) {
	t.Parallel()
	c, rec := newRecordedClient(t, 0)
	name := newName(t)
	for range 3 {
		h := lock(t, c, name)
		wantRequests(t, "Lock", rec.takeLog(), "Txn")
		release(t, h)
		wantRequests(t, "Release", rec.takeLog(), "Txn")
	}
	h, err := c.Mutex(name).TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantRequests(t, "TryLock of a free lock", rec.takeLog(), "Txn")
	release(t, h)
}

func TestRequests_failedTryLockWritesNothing(t *testing.T) {
	t.Parallel()
	c, rec := newRecordedClient(t, 0)
	name := newName(t)
	holder := newClient(t, server(t).Client(t), longTTL)
	lock(t, holder, name)
	before, err := server(t).Client(t).Get(t.Context(), name, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Mutex(name).TryLock(t.Context()); err == nil {
		t.Fatal("TryLock of a held lock succeeded")
	}
	wantRequests(t, "TryLock of a held lock", rec.takeLog(), "Txn", "Range")
	// After a second the holder puts its own key again, to publish when it obtained the lock.
	after, err := server(t).Client(t).Get(t.Context(), name, clientv3.WithPrefix(), clientv3.WithMinCreateRev(before.Header.Revision+1))
	if err != nil || len(after.Kvs) > 0 {
		t.Errorf("TryLock of a held lock wrote %v, %v; want nothing", after.Kvs, err)
	}
}

// The stock mutex opens a watch from the past, which etcd serves every 100 ms, and reads twice
// after the event (defect B7).
// Promise: P4
// Bug: solid_queue #630
func TestRequests_handOverWithoutRead(t *testing.T) {
	t.Parallel()
	c, rec := newRecordedClient(t, 0)
	name := newName(t)
	other := newClient(t, server(t).Client(t), longTTL)

	held := lock(t, other, name)
	place := join(t, c, name)
	rec.awaitLast(t, "Range answered")
	wantRequests(t, "first wait", rec.takeLog(), "Txn", "watch from 0", "Range")

	release(t, held)
	h := awaitHold(t, place)
	if got := rec.takeLog(); !slices.Equal(got, []string{"DELETE"}) {
		t.Errorf("hand-over: got log %q, want the event of the release alone", got)
	}
	release(t, h)
	wantRequests(t, "Release", rec.takeLog(), "Txn")

	// The watch stays open for a while, so now one request is enough.
	held = lock(t, other, name)
	place = join(t, c, name)
	release(t, held)
	h = awaitHold(t, place)
	wantRequests(t, "second wait", rec.takeLog(), "Txn")
	release(t, h)
}

// Promise: P4
func TestWaiter_admittedOnlyByReleaseAhead(t *testing.T) {
	t.Parallel()
	c, rec := newRecordedClient(t, 0)
	name := newName(t)
	first, second := newClient(t, server(t).Client(t), longTTL), newClient(t, server(t).Client(t), longTTL)
	held := lock(t, first, name)
	between := join(t, second, name)
	last := join(t, c, name)
	if n := last.Ahead(); n != 2 {
		t.Errorf("%d entries are ahead of the third, want 2", n)
	}
	rec.awaitLast(t, "Range answered")
	rec.takeLog()
	release(t, held)
	h := awaitHold(t, between)
	eventually(t, "the third entry is notified of the release", func() bool { return last.Ahead() == 1 })
	release(t, h)
	awaitHold(t, last)
	if got := rec.takeLog(); !slices.Equal(got, []string{"DELETE", "DELETE"}) {
		t.Errorf("two hand-overs: got log %q, want their events alone", got)
	}
}
