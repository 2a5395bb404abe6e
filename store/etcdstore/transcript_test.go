package etcdstore_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/transcript"
)

// TestTranscript compares the requests to etcd, its replies and the results of the calls with
// testdata/transcript.txt. A scene is run again if a request was repeated, because the machine was
// slow.
func TestTranscript(t *testing.T) {
	etcd := startEtcd(t)
	var text transcript.Transcript
	for _, scene := range scenes {
		text.Scene(scene.title, scene.about)
		var s *transcriptEnv
		for s = newTranscriptEnv(t, etcd.Endpoint()); ; s = newTranscriptEnv(t, etcd.Endpoint()) {
			scene.run(s)
			if !s.wasRetried() {
				break
			}
			t.Logf("%s: a request was repeated; the scene is run again", scene.title)
		}
		text.Line("%s", s.text())
	}
	text.Compare(t, "testdata/transcript.txt")
}

var scenes = []struct {
	title, about string
	run          func(*transcriptEnv)
}{
	{
		"A free lock", `
"->" is a request to etcd, "<-" a reply or a watch event. The keys of the line begin with deploy/; an entry is
the key deploy/<lease>. Revisions are numbered in the order in which they are shown: r1, r2, r3. The epoch key does not
exist as long as every request is answered.

Left out: renewals; a client's own watch event of its release; the epoch key, which every request for an entry
compares; and the put that adds the time of acquisition to an entry's value after a second.`,
		func(s *transcriptEnv) {
			a := s.newClient("A", longInterval)
			s.step(a.lock)
			s.step(a.release)
			s.step(a.closeClient)
		},
	},
	{
		"A wait, and the hand-over", `
B is not first in the line, so it watches deletions in the line. When it receives the deletion of A's entry it sends no
further request. Events in one paragraph are concurrent; A's are listed first.`,
		func(s *transcriptEnv) {
			a, b := s.newClient("A", longInterval), s.newClient("B", longInterval)
			s.step(a.lock)
			s.step(b.join)
			s.step(a.release, b.awaitLock)
			s.step(b.release)
		},
	},
	{
		"A loss", `
A has held the lock for 200 ms, so it watches its own entry. Another client deletes the entry.`,
		func(s *transcriptEnv) {
			a := s.newClient("A", time.Millisecond)
			s.step(a.lock, a.watchKey)
			s.step(a.deleteEntry, a.awaitLoss)
			s.step(a.release)
		},
	},
}

// A transcriptEnv is the environment of one scene: its clients, a key prefix of its own, and the
// text so far.
type transcriptEnv struct {
	t        *testing.T
	endpoint string
	prefix   string

	mu        sync.Mutex
	out       strings.Builder
	lines     []recordedLine    // of the current step
	names     map[string]string // of keys
	revisions []int64
	sent      map[string]bool // requests that were sent, each after the client's name
	retried   bool            // a request was repeated or not answered
}

type recordedLine struct{ client, text string }

func newTranscriptEnv(t *testing.T, endpoint string) *transcriptEnv {
	return &transcriptEnv{t: t, endpoint: endpoint, prefix: newName(t) + "/", names: map[string]string{}, sent: map[string]bool{}}
}

func (s *transcriptEnv) wasRetried() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.retried }
func (s *transcriptEnv) text() string     { return strings.TrimRight(s.out.String(), "\n") }

// step runs the parts of one paragraph, and writes what was recorded meanwhile.
func (s *transcriptEnv) step(parts ...func()) {
	for _, part := range parts {
		part()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortStableFunc(s.lines, func(a, b recordedLine) int { return strings.Compare(a.client, b.client) })
	for _, r := range s.lines {
		fmt.Fprintf(&s.out, "%s  %s\n", r.client, r.text)
	}
	s.out.WriteString("\n")
	s.lines = nil
}

func (s *transcriptEnv) record(client, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, recordedLine{client, fmt.Sprintf(format, args...)})
}

// recordExchange records a request and its answer.
func (s *transcriptEnv) recordExchange(client, request, answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retried = s.retried || s.sent[client+request]
	s.sent[client+request] = true
	s.lines = append(s.lines, recordedLine{client, "  -> " + request}, recordedLine{client, "  <- " + answer})
}

func (s *transcriptEnv) markRetried() { s.mu.Lock(); defer s.mu.Unlock(); s.retried = true }

// awaitLine waits until a line of the client that contains text was recorded in this step.
func (s *transcriptEnv) awaitLine(client, text string) {
	s.t.Helper()
	s.eventually(client+" records: "+text, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.retried || slices.ContainsFunc(s.lines, func(r recordedLine) bool { return r.client == client && strings.Contains(r.text, text) })
	})
}

func (s *transcriptEnv) eventually(what string, f func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(testTimeout); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %v: %s", testTimeout, what)
		}
	}
}

// A transcriptClient is a Stile client with an etcd client of its own, as in another process.
type transcriptClient struct {
	*transcriptEnv
	name   string
	cli    *clientv3.Client
	client *stile.Client
	place  *stile.Place
	hold   *stile.Hold

	keyWatchAllowed chan struct{} // closed when the client may watch its entry
	leaving         atomic.Bool   // the client releases its lock: later events are not recorded
}

func (s *transcriptEnv) newClient(name string, heldWatchDelay time.Duration) *transcriptClient {
	s.t.Helper()
	a := &transcriptClient{transcriptEnv: s, name: name, keyWatchAllowed: make(chan struct{})}
	a.cli = connectWith(s.t, clientv3.Config{Endpoints: []string{s.endpoint}, DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(a.unary), grpc.WithChainStreamInterceptor(a.stream),
	}})
	st := newStore(s.t, a.cli, s.prefix)
	times := noPollingTimes()
	times.HeldWatchDelay = heldWatchDelay
	st.SetTimes(times)
	a.client = newClientOn(s.t, st, longTTL)
	return a
}

func (a *transcriptClient) lock() {
	a.record(a.name, "Lock")
	hold, err := a.client.Mutex("deploy").Lock(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	a.hold = hold
	a.recordHold("Lock returns")
}

func (a *transcriptClient) recordHold(what string) {
	a.record(a.name, "%s; token %s << 11", what, a.revision(int64(a.hold.Token()>>11)))
}

func (a *transcriptClient) join() {
	a.record(a.name, "Join")
	place, err := a.client.Mutex("deploy").Join(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	a.place = place
	a.awaitLine(a.name, "-> read the line") // the read covers what happened before the watch
	a.eventually("one entry is ahead", func() bool { return a.place.Ahead() == 1 })
	a.record(a.name, "Ahead returns 1")
}

func (a *transcriptClient) awaitLock() {
	hold, err := a.place.Wait(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	a.hold = hold
	a.recordHold("the place is ready")
}

func (a *transcriptClient) release() {
	a.record(a.name, "Release")
	a.leaving.Store(true)
	if err := a.hold.Release(a.t.Context()); err != nil {
		a.record(a.name, "Release returns an error: %v", a.normalize(err.Error()))
		return
	}
	a.record(a.name, "Release returns")
}

func (a *transcriptClient) closeClient() {
	a.record(a.name, "Close")
	if err := a.client.Close(a.t.Context()); err != nil {
		a.t.Fatal(err)
	}
	a.record(a.name, "Close returns")
}

func (a *transcriptClient) watchKey() {
	close(a.keyWatchAllowed)
	a.awaitLine(a.name, "-> read A's entry")
}

func (a *transcriptClient) deleteEntry() {
	a.record(".", "another client deletes A's entry")
	other := connect(a.t, a.endpoint)
	if _, err := other.Delete(a.t.Context(), a.prefix+"deploy/", clientv3.WithPrefix()); err != nil {
		a.t.Fatal(err)
	}
}

func (a *transcriptClient) awaitLoss() {
	<-a.hold.Lost()
	a.record(a.name, "the hold's context ends: %s", a.normalize(a.hold.Err().Error()))
}

// normalize replaces the parts of a text that differ from run to run.
func (a *transcriptClient) normalize(text string) string {
	text = strings.ReplaceAll(text, fmt.Sprint(a.hold.Token()), a.revision(int64(a.hold.Token()>>11))+" << 11")
	return strings.ReplaceAll(text, strings.TrimPrefix(a.endpoint, "http://"), "127.0.0.1:2379")
}

// unary records unary requests.
func (a *transcriptClient) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	switch req := req.(type) {
	case *pb.LeaseGrantRequest, *pb.LeaseRevokeRequest, *pb.RangeRequest:
	case *pb.TxnRequest:
		if setsObtained(req) {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		a.nameKeys(req)
	default:
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
		a.markRetried()
		return err
	}
	switch req := req.(type) {
	case *pb.LeaseGrantRequest:
		a.recordExchange(a.name, fmt.Sprintf("grant a lease of %d s", req.TTL), "granted")
	case *pb.LeaseRevokeRequest:
		a.recordExchange(a.name, "revoke the lease, which deletes all entries", "revoked")
	case *pb.RangeRequest:
		a.recordExchange(a.name, a.describeRead(req), a.describeResult(reply.(*pb.RangeResponse)))
	case *pb.TxnRequest:
		a.txn(req, reply.(*pb.TxnResponse))
	}
	return nil
}

// setsObtained reports whether a request sets since when a lock is held.
func setsObtained(req *pb.TxnRequest) bool {
	return slices.ContainsFunc(req.Success, func(op *pb.RequestOp) bool { return hasObtained(op.GetRequestPut().GetValue()) })
}

// hasObtained reports whether the value of an entry says since when the lock is held.
func hasObtained(value []byte) bool { return strings.Contains(string(value), `"obtained":"2`) }

// nameKeys names the keys that are put after the client.
func (a *transcriptClient) nameKeys(req *pb.TxnRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, op := range req.Success {
		if put := op.GetRequestPut(); put != nil {
			a.names[string(put.Key)] = a.name + "'s entry"
		}
	}
}

func (a *transcriptClient) key(key []byte) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if name := a.names[string(key)]; name != "" {
		return name
	}
	return strings.TrimPrefix(string(key), a.prefix)
}

// revision returns the name of a revision: the first one that is named is r1, the next one r2.
func (a *transcriptClient) revision(rev int64) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.Index(a.revisions, rev)
	if i < 0 {
		i = len(a.revisions)
		a.revisions = append(a.revisions, rev)
	}
	return fmt.Sprintf("r%d", i+1)
}

func (a *transcriptClient) txn(req *pb.TxnRequest, resp *pb.TxnResponse) {
	if len(req.Compare) == 0 && len(req.Success) == 1 && req.Success[0].GetRequestRange() != nil {
		a.recordExchange(a.name, a.describeRead(req.Success[0].GetRequestRange()), a.describeResult(resp.Responses[0].GetResponseRange()))
		return
	}
	var ifs []string
	for _, c := range req.Compare {
		if strings.Contains(string(c.Key), "/.stile/") {
			continue // the epoch is unchanged
		}
		what := a.key(c.Key)
		switch {
		case len(c.RangeEnd) > 0:
			ifs = append(ifs, "the line has no key")
		case c.GetCreateRevision() == 0:
			ifs = append(ifs, what+" does not exist")
		default:
			ifs = append(ifs, fmt.Sprintf("%s was created at %s", what, a.revision(c.GetCreateRevision())))
		}
	}
	request := "if " + strings.Join(ifs, " and ") + ": " + a.describeOps(req.Success)
	answer := "yes, at " + a.revision(resp.Header.Revision)
	if !resp.Succeeded {
		answer = "no"
	}
	for _, r := range resp.Responses {
		if r := r.GetResponseRange(); r != nil && resp.Succeeded {
			answer += "; " + a.describeResult(r)
		}
	}
	a.recordExchange(a.name, request, answer)
}

func (a *transcriptClient) describeOps(ops []*pb.RequestOp) string {
	var texts []string
	for _, op := range ops {
		switch {
		case op.GetRequestPut() != nil:
			texts = append(texts, "put "+a.key(op.GetRequestPut().Key))
		case op.GetRequestDeleteRange() != nil:
			texts = append(texts, "delete "+a.key(op.GetRequestDeleteRange().Key))
		default:
			texts = append(texts, a.describeRead(op.GetRequestRange()))
		}
	}
	return strings.Join(texts, ", ")
}

func (a *transcriptClient) describeRead(r *pb.RangeRequest) string {
	if len(r.RangeEnd) > 0 {
		return "read the line"
	}
	return "read " + a.key(r.Key)
}

func (a *transcriptClient) describeResult(r *pb.RangeResponse) string {
	var there []string
	for _, kv := range r.Kvs {
		there = append(there, fmt.Sprintf("%s (%s)", a.key(kv.Key), a.revision(kv.CreateRevision)))
	}
	if len(there) == 0 {
		return "no keys"
	}
	slices.Sort(there)
	return strings.Join(there, ", ")
}

// stream records watches.
func (a *transcriptClient) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	inner, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil || !strings.HasSuffix(method, "Watch") {
		return inner, err
	}
	return &watchStream{inner, a}, nil
}

type watchStream struct {
	grpc.ClientStream
	a *transcriptClient
}

func (w *watchStream) SendMsg(m any) error {
	if create := m.(*pb.WatchRequest).GetCreateRequest(); create != nil {
		what := "deletions in the line"
		if len(create.RangeEnd) == 0 {
			<-w.a.keyWatchAllowed
			what = w.a.key(create.Key)
		}
		w.a.record(w.a.name, "  -> watch %s, from now on", what)
	}
	return w.ClientStream.SendMsg(m)
}

func (w *watchStream) RecvMsg(m any) error {
	if err := w.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	resp := m.(*pb.WatchResponse)
	switch {
	case resp.Created:
		w.a.record(w.a.name, "  <- watching")
	case resp.Canceled:
		w.a.markRetried()
	}
	for _, ev := range resp.Events {
		if w.a.leaving.Load() || hasObtained(ev.Kv.Value) { // put only if the lock is still held after a second
			continue
		}
		did := "put"
		if ev.Type == mvccpb.Event_DELETE {
			did = "deleted"
		}
		w.a.record(w.a.name, "  <- %s was %s at %s", w.a.key(ev.Kv.Key), did, w.a.revision(ev.Kv.ModRevision))
	}
	return nil
}
