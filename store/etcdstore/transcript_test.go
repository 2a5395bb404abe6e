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

// What Stile and etcd say to each other: testdata/transcript.txt. A scene in which the machine was so slow that a request
// was made again is played again.
func TestTranscript(t *testing.T) {
	etcd := startEtcd(t)
	var text transcript.Transcript
	for _, scene := range scenes {
		text.Scene(scene.title, scene.about)
		var s *stage
		for s = newStage(t, etcd.Endpoint()); ; s = newStage(t, etcd.Endpoint()) {
			scene.play(s)
			if !s.disturbed() {
				break
			}
			t.Logf("%s: a request was made again; the scene is played again", scene.title)
		}
		text.Line("%s", s.text())
	}
	text.Compare(t, "testdata/transcript.txt")
}

var scenes = []struct {
	title, about string
	play         func(*stage)
}{
	{
		"A free lock", `
"->" is a request to etcd, "<-" a reply or a watch event. The keys of the line begin with deploy/; an entry is
the key deploy/<lease>. Revisions are counted from the first that matters: r1, r2, r3. The epoch key is one that does
not exist as long as every request is answered.

Left out: renewals; a client's own watch event of its release; the epoch key, which every request for an entry
compares; and the new value that an entry gets after a second, with the time of acquisition.`,
		func(s *stage) {
			a := s.actor("A", never)
			s.step(a.lock)
			s.step(a.release)
			s.step(a.closeClient)
		},
	},
	{
		"A wait, and the hand-over", `
B is not the first in the line, so it watches who leaves. After it has heard of A's leaving it asks nothing more.
What happens in one paragraph happens at the same time: first stand A's lines, then B's.`,
		func(s *stage) {
			a, b := s.actor("A", never), s.actor("B", never)
			s.step(a.lock)
			s.step(b.join)
			s.step(a.release, b.hasLock)
			s.step(b.release)
		},
	},
	{
		"A loss", `
A has held the lock for 200 ms, so it watches its own entry. Somebody deletes that.`,
		func(s *stage) {
			a := s.actor("A", time.Millisecond)
			s.step(a.lock, a.watchesOwn)
			s.step(a.entryIsDeleted, a.isTold)
			s.step(a.release)
		},
	},
}

// A stage has the actors of one scene, in a folder of its own in etcd, and what they have said.
type stage struct {
	t        *testing.T
	endpoint string
	prefix   string

	mu    sync.Mutex
	said  strings.Builder
	now   []remark          // of the step that is being played
	names map[string]string // of keys and leases
	revs  []int64
	asked map[string]bool // requests that were made, with who made them
	again bool            // one was made again, or was not answered
}

type remark struct{ who, text string }

func newStage(t *testing.T, endpoint string) *stage {
	return &stage{t: t, endpoint: endpoint, prefix: newName(t) + "/", names: map[string]string{}, asked: map[string]bool{}}
}

func (s *stage) disturbed() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.again }
func (s *stage) text() string    { return strings.TrimRight(s.said.String(), "\n") }

// step plays what makes up one paragraph.
func (s *stage) step(parts ...func()) {
	for _, part := range parts {
		part()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortStableFunc(s.now, func(a, b remark) int { return strings.Compare(a.who, b.who) })
	for _, r := range s.now {
		fmt.Fprintf(&s.said, "%s  %s\n", r.who, r.text)
	}
	s.said.WriteString("\n")
	s.now = nil
}

func (s *stage) say(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = append(s.now, remark{who, fmt.Sprintf(format, args...)})
}

// exchange adds a request and its answer.
func (s *stage) exchange(who, request, answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.again = s.again || s.asked[who+request]
	s.asked[who+request] = true
	s.now = append(s.now, remark{who, "  -> " + request}, remark{who, "  <- " + answer})
}

func (s *stage) disturb() { s.mu.Lock(); defer s.mu.Unlock(); s.again = true }

// heard waits until somebody has said text in this step.
func (s *stage) heard(who, text string) {
	s.t.Helper()
	s.until(who+" has not said: "+text, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.again || slices.ContainsFunc(s.now, func(r remark) bool { return r.who == who && strings.Contains(r.text, text) })
	})
}

func (s *stage) until(what string, f func() bool) {
	s.t.Helper()
	for late := time.Now().Add(soon); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			s.t.Fatal(what)
		}
	}
}

// An actor is a client of Stile, as another process would have it.
type actor struct {
	*stage
	name   string
	cli    *clientv3.Client
	client *stile.Client
	place  *stile.Place
	hold   *stile.Hold

	watchesNow chan struct{} // closed when it may watch its entry
	leaving    atomic.Bool   // what it hears of its entry from then on is its own doing
}

func (s *stage) actor(name string, lateWatch time.Duration) *actor {
	s.t.Helper()
	a := &actor{stage: s, name: name, watchesNow: make(chan struct{})}
	a.cli = connectWith(s.t, clientv3.Config{Endpoints: []string{s.endpoint}, DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(a.unary), grpc.WithChainStreamInterceptor(a.stream),
	}})
	st := newStore(s.t, a.cli, s.prefix)
	times := byEvents()
	times.HeldWatchDelay = lateWatch
	st.SetTimes(times)
	a.client = newClientOf(s.t, st, ample)
	return a
}

func (a *actor) lock() {
	a.say(a.name, "Lock")
	hold, err := a.client.Mutex("deploy").Lock(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	a.hold = hold
	a.returns("Lock returns")
}

func (a *actor) returns(what string) {
	a.say(a.name, "%s: the token is %s << 11", what, a.rev(int64(a.hold.Token()>>11)))
}

func (a *actor) join() {
	a.say(a.name, "Join")
	place, err := a.client.Mutex("deploy").Join(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	a.place = place
	a.heard(a.name, "-> read the line") // closes the gap before the watch
	a.until("it waits for one", func() bool { return a.place.Ahead() == 1 })
	a.say(a.name, "Ahead returns 1")
}

func (a *actor) hasLock() {
	hold, err := a.place.Wait(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	a.hold = hold
	a.returns("the place is ready")
}

func (a *actor) release() {
	a.say(a.name, "Release")
	a.leaving.Store(true)
	if err := a.hold.Release(a.t.Context()); err != nil {
		a.say(a.name, "Release returns an error: %v", a.tidy(err.Error()))
		return
	}
	a.say(a.name, "Release returns")
}

func (a *actor) closeClient() {
	a.say(a.name, "Close")
	if err := a.client.Close(a.t.Context()); err != nil {
		a.t.Fatal(err)
	}
	a.say(a.name, "Close returns")
}

func (a *actor) watchesOwn() {
	close(a.watchesNow)
	a.heard(a.name, "-> read A's entry")
}

func (a *actor) entryIsDeleted() {
	a.say(".", "somebody deletes A's entry")
	other := connect(a.t, a.endpoint)
	if _, err := other.Delete(a.t.Context(), a.prefix+"deploy/", clientv3.WithPrefix()); err != nil {
		a.t.Fatal(err)
	}
}

func (a *actor) isTold() {
	<-a.hold.Lost()
	a.say(a.name, "the hold's context ends: %s", a.tidy(a.hold.Err().Error()))
}

// tidy takes out of a text what differs from run to run.
func (a *actor) tidy(text string) string {
	text = strings.ReplaceAll(text, fmt.Sprint(a.hold.Token()), a.rev(int64(a.hold.Token()>>11))+" << 11")
	return strings.ReplaceAll(text, strings.TrimPrefix(a.endpoint, "http://"), "127.0.0.1:2379")
}

// unary writes down requests that are answered once.
func (a *actor) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	switch req := req.(type) {
	case *pb.LeaseGrantRequest, *pb.LeaseRevokeRequest, *pb.RangeRequest:
	case *pb.TxnRequest:
		if publishes(req) {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		a.learn(req)
	default:
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
		a.disturb()
		return err
	}
	switch req := req.(type) {
	case *pb.LeaseGrantRequest:
		a.exchange(a.name, fmt.Sprintf("grant a lease of %d s", req.TTL), "granted")
	case *pb.LeaseRevokeRequest:
		a.exchange(a.name, "revoke the lease, and with it all entries", "revoked")
	case *pb.RangeRequest:
		a.exchange(a.name, a.op(req), a.found(reply.(*pb.RangeResponse)))
	case *pb.TxnRequest:
		a.txn(req, reply.(*pb.TxnResponse))
	}
	return nil
}

// publishes reports whether a request says since when a lock is held.
func publishes(req *pb.TxnRequest) bool {
	return slices.ContainsFunc(req.Success, func(op *pb.RequestOp) bool {
		return strings.Contains(string(op.GetRequestPut().GetValue()), `"obtained":"2`)
	})
}

// learn takes a key that is put as the actor's.
func (a *actor) learn(req *pb.TxnRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, op := range req.Success {
		if put := op.GetRequestPut(); put != nil {
			a.names[string(put.Key)] = a.name + "'s entry"
		}
	}
}

func (a *actor) key(key []byte) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if name := a.names[string(key)]; name != "" {
		return name
	}
	return strings.TrimPrefix(string(key), a.prefix)
}

// rev names a revision by how many were named before it.
func (a *actor) rev(rev int64) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.Index(a.revs, rev)
	if i < 0 {
		i = len(a.revs)
		a.revs = append(a.revs, rev)
	}
	return fmt.Sprintf("r%d", i+1)
}

func (a *actor) txn(req *pb.TxnRequest, resp *pb.TxnResponse) {
	var ifs []string
	for _, c := range req.Compare {
		if strings.Contains(string(c.Key), "/.stile/") {
			continue // the epoch is unchanged
		}
		what := a.key(c.Key)
		switch {
		case len(c.RangeEnd) > 0:
			ifs = append(ifs, "nothing is below "+what)
		case c.GetCreateRevision() == 0:
			ifs = append(ifs, what+" is not there")
		default:
			ifs = append(ifs, fmt.Sprintf("%s is the one of %s", what, a.rev(c.GetCreateRevision())))
		}
	}
	request := "if " + strings.Join(ifs, " and ") + ": " + a.ops(req.Success)
	answer := "yes, at " + a.rev(resp.Header.Revision)
	if !resp.Succeeded {
		answer = "no"
	}
	for _, r := range resp.Responses {
		if r := r.GetResponseRange(); r != nil && resp.Succeeded {
			answer += "; " + a.found(r)
		}
	}
	a.exchange(a.name, request, answer)
}

func (a *actor) ops(ops []*pb.RequestOp) string {
	var texts []string
	for _, op := range ops {
		switch {
		case op.GetRequestPut() != nil:
			texts = append(texts, "put "+a.key(op.GetRequestPut().Key))
		case op.GetRequestDeleteRange() != nil:
			texts = append(texts, "delete "+a.key(op.GetRequestDeleteRange().Key))
		default:
			texts = append(texts, a.op(op.GetRequestRange()))
		}
	}
	return strings.Join(texts, ", ")
}

func (a *actor) op(r *pb.RangeRequest) string {
	if len(r.RangeEnd) > 0 {
		return "read the line"
	}
	return "read " + a.key(r.Key)
}

func (a *actor) found(r *pb.RangeResponse) string {
	var there []string
	for _, kv := range r.Kvs {
		there = append(there, fmt.Sprintf("%s, of %s", a.key(kv.Key), a.rev(kv.CreateRevision)))
	}
	if len(there) == 0 {
		return "nothing is there"
	}
	slices.Sort(there)
	return "there are: " + strings.Join(there, "; ")
}

// stream writes down watches.
func (a *actor) stream(
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
	a *actor
}

func (w *watchStream) SendMsg(m any) error {
	if create := m.(*pb.WatchRequest).GetCreateRequest(); create != nil {
		what := "who leaves the line"
		if len(create.RangeEnd) == 0 {
			<-w.a.watchesNow
			what = "what happens to " + w.a.key(create.Key)
		}
		w.a.say(w.a.name, "  -> watch %s, from now on", what)
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
		w.a.say(w.a.name, "  <- watching")
	case resp.Canceled:
		w.a.disturb()
	}
	for _, ev := range resp.Events {
		if w.a.leaving.Load() {
			continue
		}
		did := "put"
		if ev.Type == mvccpb.Event_DELETE {
			did = "deleted"
		}
		w.a.say(w.a.name, "  <- %s was %s at %s", w.a.key(ev.Kv.Key), did, w.a.rev(ev.Kv.ModRevision))
	}
	return nil
}
