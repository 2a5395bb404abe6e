package zkstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/zkstore"
)

// The reply to the creation of an entry is lost, and the session lives on. go-zookeeper's Lock
// looks for its node without a sync, on a server that may lag behind, and leaves the node behind on
// every error.
// Promise: P5
// Bug: RedissonMultiLock
func TestEnqueue_createUnanswered(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	conn := connect(t, server(t).Endpoint())
	se := openSession(t, newStore(t, nil, m.addr()))
	for _, lose := range []struct {
		what string
		set  func() (done <-chan struct{})
	}{
		{"the reply", func() <-chan struct{} { f, done := once(opCreate2, cut); m.intercept(nil, f); return done }},
		{"the request", func() <-chan struct{} { f, done := once(opCreate2, cut); m.intercept(f, nil); return done }},
		{"the reply to the listing", func() <-chan struct{} { f, done := once(opGetChildren2, cut); m.intercept(nil, f); return done }},
	} {
		name := newName(t)
		enqueue(t, se, name, line.Exclusive).withdraw(t) // so that the directory is there
		done := lose.set()
		p := enqueue(t, se, name, line.Exclusive)
		receive(t, done, lose.what+" to be discarded")
		order := p.await(t, store.Admitted).Order
		children := nodes(t, conn, "/"+name)
		if len(children) != 1 {
			t.Fatalf("after the loss of %s: got nodes %q, want one", lose.what, children)
		}
		_, st, err := conn.Exists("/" + name + "/" + children[0])
		if err != nil {
			t.Fatal(err)
		}
		if uint64(st.Czxid) != order || fmt.Sprintf("%#x", st.EphemeralOwner) != se.ID() {
			t.Errorf("the node: got czxid %d and owner %#x, want %d and %s", st.Czxid, st.EphemeralOwner, order, se.ID())
		}
		p.withdraw(t)
	}
}

// Promise: P5
// Bug: CURATOR-462
func TestEnqueue_canceledLeavesNoNode(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	conn := connect(t, server(t).Endpoint())
	se := openSession(t, newStore(t, nil, proxy.Addr()))
	name := newName(t)
	enqueue(t, se, name, line.Exclusive).withdraw(t) // so that the directory is there

	for _, reset := range []bool{false, true} {
		proxy.CutReplies()
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer cancel()
			for len(nodes(t, conn, "/"+name)) == 0 && t.Context().Err() == nil {
				time.Sleep(time.Millisecond)
			}
		}()
		if _, err := tryEnqueue(ctx, se, name, line.Exclusive, false); !errors.Is(err, context.Canceled) {
			t.Fatalf("Enqueue with a canceled context: got %v, want context.Canceled", err)
		}
		if reset {
			proxy.Reset()
		}
		proxy.Release()
		await(t, "removal of the canceled entry", func() bool { return len(nodes(t, conn, "/"+name)) == 0 })
	}
}

// Many clients acquire a lock in nested directories for the first time, at the same time.
// go-zookeeper's Lock creates persistent directories, which stay forever, and gives up after three
// attempts.
func TestEnqueue_createsContainersConcurrently(t *testing.T) {
	t.Parallel()
	conn := connect(t, server(t).Endpoint())
	name := newName(t) + "/deep/deeper/deepest"
	var all sync.WaitGroup
	m := newInterceptor(t, server(t).Endpoint())
	for range 8 {
		se := openSession(t, newStore(t, nil, m.addr()))
		all.Go(func() {
			if _, err := tryEnqueue(t.Context(), se, name, line.Exclusive, false); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := len(nodes(t, conn, "/"+name)); n != 8 {
		t.Errorf("got %d entries in the line, want 8", n)
	}
	if passed := m.takeRequests(); slices.Contains(passed, "create") || !slices.Contains(passed, "createContainer") {
		t.Errorf("requests: got %q, want createContainer and no create", passed)
	}
}

// go-zookeeper's clients cannot cancel watches, so a waiter that gives up leaves one. The next
// waiter uses it and sets no other.
func TestWaiter_sharesWatchOfHolder(t *testing.T) {
	t.Parallel()
	z := server(t)
	m := newInterceptor(t, z.Endpoint())
	conn := connect(t, z.Endpoint())
	name := newName(t)
	enqueue(t, openSession(t, newStore(t, nil, z.Endpoint())), name, line.Exclusive).await(t, store.Admitted)
	holder := "/" + name + "/" + nodes(t, conn, "/"+name)[0]
	se := openSession(t, newStore(t, nil, m.addr()))

	for range 10 {
		if _, err := tryEnqueue(t.Context(), se, name, line.Exclusive, true); !isHeld(err) {
			t.Fatal(err)
		}
	}
	if passed := m.takeRequests(); slices.Contains(passed, "create2") || slices.Contains(passed, "create") {
		t.Errorf("tries for a held lock: got requests %q, want no creation", passed)
	}
	const waiters = 10
	for n := range waiters {
		before := m.replies()
		p := enqueue(t, se, name, line.Exclusive)
		p.await(t, store.Waiting)
		m.awaitReplies(t, "setWatches", 1, before) // of its own node
		if n == 0 {
			m.awaitReplies(t, "getData", 1, before) // of the holder's
		}
		p.withdraw(t)
	}
	if err := se.Confirm(t.Context()); err != nil { // earlier requests have been answered when it returns
		t.Fatal(err)
	}
	passed := m.takeRequests()
	watches := func(request string) int {
		return len(slices.DeleteFunc(slices.Clone(passed), func(r string) bool { return r != request }))
	}
	if own, others := watches("setWatches"), watches("getData"); own != waiters || others != 1 {
		t.Errorf("%d waiters: got %d watches of their own nodes and %d of the holder's, want one for each and one",
			waiters, own, others)
	}
	if all := watchers(t, z, holder); len(slices.DeleteFunc(all, func(id string) bool { return id != se.ID() })) != 1 {
		t.Errorf("watchers of the holder's node: got %q, want the waiters' session once", watchers(t, z, holder))
	}
	output, err := z.Say("wchp")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(output) {
		if path := strings.TrimSpace(l); strings.HasPrefix(path, "/"+name+"/") && path != holder {
			t.Errorf("watch of a deleted node: %s", path)
		}
	}
}

// Promise: P4
// Bug: solid_queue #630
func TestSession_requests(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	other := openSession(t, newStore(t, nil, server(t).Endpoint()))
	se := openSession(t, newStore(t, nil, m.addr()))
	name := newName(t)
	before := m.replies()
	first := enqueue(t, se, name, line.Exclusive) // so that the directory is there
	first.await(t, store.Admitted)
	m.awaitReplies(t, "setWatches", 1, before)
	first.withdraw(t)
	m.takeRequests()

	expect := func(what string, want ...string) {
		t.Helper()
		if got := m.takeRequests(); !slices.Equal(got, want) {
			t.Errorf("%s: got requests %q, want %q", what, got, want)
		}
	}
	before = m.replies()
	p := enqueue(t, se, name, line.Exclusive)
	p.await(t, store.Admitted)
	m.awaitReplies(t, "setWatches", 1, before) // Enqueue does not wait for that: see TestHold_brokenAtOnce
	expect("acquiring a free lock", "create2", "getChildren", "setWatches")
	p.withdraw(t)
	expect("releasing it", "delete")

	holder := enqueue(t, other, name, line.Exclusive)
	before = m.replies()
	p = enqueue(t, se, name, line.Exclusive)
	p.await(t, store.Waiting)
	m.awaitReplies(t, "getData", 1, before) // the holder's node is watched
	m.awaitReplies(t, "setWatches", 1, before)
	m.takeRequests()
	holder.withdraw(t)
	p.admitted(t)
	confirm(t, se)
	expect("handover from the only entry ahead, and a confirmation", "exists", "multi")

	holder, middle := p, enqueue(t, other, name, line.Exclusive)
	before = m.replies()
	last := openSession(t, newStore(t, nil, m.addr()))
	p = enqueue(t, last, name, line.Exclusive)
	p.await(t, store.Waiting)
	m.awaitReplies(t, "getData", 2, before) // the two ahead
	m.awaitReplies(t, "setWatches", 1, before)
	m.takeRequests()
	middle.withdraw(t) // the waiter gives up
	holder.withdraw(t)
	p.admitted(t)
	confirm(t, last)
	expect("handover from one of two entries ahead, and a confirmation", "delete", "exists", "multi")
}

// confirm confirms a session. Requests that the session sent earlier have been answered when it
// returns.
func confirm(t *testing.T, se store.Session) {
	t.Helper()
	if err := se.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Promise: P2
func TestOrder_isCreatingTransaction(t *testing.T) {
	t.Parallel()
	conn := connect(t, server(t).Endpoint())
	se := openSession(t, newStore(t, nil, server(t).Endpoint()))
	name := newName(t)
	for range 20 {
		p := enqueue(t, se, name, line.Exclusive)
		order := p.await(t, store.Admitted).Order
		_, st, err := conn.Exists("/" + name + "/" + nodes(t, conn, "/"+name)[0])
		if err != nil {
			t.Fatal(err)
		}
		if uint64(st.Czxid) != order {
			t.Fatalf("order: got %d, want the node's czxid %d", order, st.Czxid)
		}
		p.withdraw(t)
	}
}

// At 2147483647 the servers stop counting: all later nodes get the same number.
// Promise: P1
func TestEnqueue_sequenceNumbersUsedUp(t *testing.T) {
	t.Parallel()
	conn := connect(t, server(t).Endpoint())
	m := newInterceptor(t, server(t).Endpoint())
	name := newName(t)
	se := openSession(t, newStore(t, nil, m.addr()))
	enqueue(t, se, name, line.Exclusive).withdraw(t)
	m.intercept(nil, func(to int32, frame []byte) action {
		if at := bytes.LastIndex(frame, []byte("-lock-00000")); to == opCreate2 && at > 0 {
			copy(frame[at+len("-lock-"):], "2147483647")
		}
		return pass
	})
	_, err := tryEnqueue(t.Context(), se, name, line.Exclusive, false)
	if err == nil || !strings.Contains(err.Error(), "/"+name+" are used up") {
		t.Errorf("Enqueue: got %v, want an error that names the directory and the used-up numbers", err)
	}
	await(t, "removal of the refused entry", func() bool { return len(nodes(t, conn, "/"+name)) == 0 })
}

// go-zookeeper presents its credentials again after each reconnection, and may hang forever if the
// connection ends meanwhile.
// Promise: P7
func TestAuth_reconnectsThroughFailures(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	opts := &zkstore.Options{
		Root: "/" + newName(t),
		Auth: []zkstore.Auth{{Scheme: "digest", Credentials: "ann:secret"}},
		ACL:  zk.DigestACL(zk.PermAll, "ann", "secret"),
	}
	name := newName(t)
	se := openSession(t, newStore(t, opts, m.addr()))
	p := enqueue(t, se, name, line.Exclusive)
	p.await(t, store.Admitted)

	// The connection ends before, during and after the authentication, several times.
	cuts := 0 // guarded by the interceptor's mutex while the functions are set
	m.intercept(func(op int32, _ []byte) action {
		if op == opAuth && cuts < 6 && cuts%2 == 0 {
			cuts++
			return cut
		}
		return pass
	}, func(to int32, _ []byte) action {
		if (to == opAuth || to == 0) && cuts < 6 && cuts%2 == 1 {
			cuts++
			return cut
		}
		return pass
	})
	m.reset()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	await(t, "a confirmation", func() bool { return se.Confirm(ctx) == nil })
	m.intercept(nil, nil)
	if cuts < 6 {
		t.Errorf("the connection was cut %d times, want 6: the test is not effective", cuts)
	}
	p.expectNothing(t)
	p.withdraw(t)
	enqueue(t, se, name, line.Exclusive).await(t, store.Admitted)

	// Other users, and the same user with another password, have no permissions there.
	for _, auth := range [][]zkstore.Auth{nil, {{Scheme: "digest", Credentials: "ann:wrong"}}} {
		st := newStore(t, &zkstore.Options{Root: opts.Root, Auth: auth}, server(t).Endpoint())
		if _, err := tryEnqueue(ctx, openSession(t, st), name, line.Exclusive, false); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("Enqueue without permission: got %v, want zk.ErrNoAuth", err)
		}
		if _, err := st.Line(ctx, name); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("Line without permission: got %v, want zk.ErrNoAuth", err)
		}
		if err := st.Watch(ctx, "", func([]string) {}); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("Watch without permission: got %v, want zk.ErrNoAuth", err)
		}
	}
}

func TestAuth_rejectedCredentialsFailAtOnce(t *testing.T) {
	t.Parallel()
	st := newStore(t, &zkstore.Options{Auth: []zkstore.Auth{{Scheme: "unheard-of", Credentials: "secret"}}}, server(t).Endpoint())
	start := time.Now()
	_, err := st.Open(t.Context(), store.SessionOptions{TTL: 10 * time.Second})
	if !errors.Is(err, zk.ErrAuthFailed) || strings.Contains(err.Error(), "secret") {
		t.Errorf("Open: got %v, want zk.ErrAuthFailed without the password", err)
	}
	// Without a final reply it would take testTimeout.
	if took := time.Since(start); took > testTimeout/3 {
		t.Errorf("Open returned after %v, want at once", took)
	}
}

// Such a server closes the connection without a reply.
func TestPing_tooManyConnections(t *testing.T) {
	t.Parallel()
	z := restricted(t)
	// Only this test connects from this address.
	m := newInterceptorFrom(t, net.IPv4(127, 0, 77, 77), z.Endpoint())
	st := newStore(t, optionsWith(ann), m.addr())
	if err := st.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range maxConnections {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: m.from}}).Dial("tcp", z.Endpoint())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	patience := 500 * time.Millisecond
	// The connection may also break while it is made, or the server may not have counted the others
	// yet.
	await(t, "an error that names maxClientCnxns", func() bool {
		m.reset()
		patience *= 2
		ctx, cancel := until(t, patience)
		defer cancel()
		err := st.Ping(ctx)
		return err != nil && strings.Contains(err.Error(), "maxClientCnxns")
	})
}

func TestOpen_ttlOutOfServersBounds(t *testing.T) {
	t.Parallel()
	st := newStore(t, nil, server(t).Endpoint())
	if _, err := st.Open(t.Context(), store.SessionOptions{TTL: time.Hour}); err == nil ||
		!strings.Contains(err.Error(), "at most 30m0s") {
		t.Errorf("Open with a TTL of an hour: got %v, want an error with the maximum", err)
	}
	var terms store.Terms
	await(t, "a session", func() bool { // one of three seconds may end at once on a busy machine
		se, err := newStore(t, optionsWith(ann), restricted(t).Endpoint()).Open(t.Context(), store.SessionOptions{TTL: time.Second})
		if err != nil {
			return false
		}
		terms = se.Terms()
		closeWithTimeout(se.Close)
		return true
	})
	if want := (store.Terms{TTL: restrictedMinTTL, Slack: restrictedMinTTL / 3, Attempt: restrictedMinTTL * 3 / 10}); terms != want {
		t.Errorf("terms for a TTL of 1s where the minimum is 3s: got %+v, want %+v", terms, want)
	}
}

// Not in parallel with others: it counts goroutines.
// Promise: P5
func TestClose_leavesNoGoroutines(t *testing.T) {
	z := server(t)
	before := runtime.NumGoroutine()
	st, err := zkstore.New([]string{z.Endpoint()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	name := newName(t)
	for range 3 {
		var sessions []store.Session
		for range 3 {
			se, err := st.Open(t.Context(), store.SessionOptions{TTL: longTTL})
			if err != nil {
				t.Fatal(err)
			}
			sessions = append(sessions, se)
			if _, err := tryEnqueue(t.Context(), se, name, line.Exclusive, false); err != nil {
				t.Fatal(err)
			}
			j := enqueue(t, se, name, line.Shared)
			j.Extensions().NotifyContended(func() {})
			ctx, cancel := context.WithCancel(t.Context())
			// Watch calls cancel once when the watch is open.
			if err := st.Watch(ctx, "", func([]string) { cancel() }); !errors.Is(err, context.Canceled) {
				t.Errorf("Watch: got %v, want context.Canceled", err)
			}
			cancel()
		}
		if _, err := store.CollectLines(st.Lines(t.Context(), "")); err != nil {
			t.Fatal(err)
		}
		for _, se := range sessions {
			if err := se.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, "end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })
}

// The library has no names for the newer errors of servers. They are final all the same: a retry is
// useless.
func TestErrors_unknownToLibrary(t *testing.T) {
	t.Parallel()
	z := restricted(t)
	nobody, somebody := newStore(t, nil, z.Endpoint()), newStore(t, optionsWith(ann), z.Endpoint())
	name := newName(t)
	enqueue(t, openSession(t, somebody), name, line.Exclusive).await(t, store.Admitted)

	// The quota allows the directory and one entry.
	conn := z.connect(t)
	for _, node := range []struct{ path, data string }{
		{"/zookeeper/quota/" + name, ""},
		{"/zookeeper/quota/" + name + "/zookeeper_stats", "count=2,bytes=0"},
		{"/zookeeper/quota/" + name + "/zookeeper_limits", "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=2"},
	} {
		if _, err := conn.Create(node.path, []byte(node.data), 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		st   *zkstore.Store
		want string
	}{{somebody, "quota"}, {nobody, "require an authentication"}} {
		ctx, cancel := until(t, testTimeout)
		_, err := tryEnqueue(ctx, openSession(t, tt.st), name, line.Exclusive, false)
		if err == nil || !strings.Contains(err.Error(), tt.want) || ctx.Err() != nil {
			t.Errorf("Enqueue: got %v, want an error with %q", err, tt.want)
		}
		cancel()
	}
}

// Not in parallel with others: it counts goroutines.
func TestPing_canceledCallsLeaveNoGoroutines(t *testing.T) {
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	st := newStore(t, nil, proxy.Addr())
	if err := st.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Refuse()
	proxy.Reset()
	before := runtime.NumGoroutine()
	const calls = 200
	for range calls {
		ctx, cancel := until(t, time.Millisecond)
		if err := st.Ping(ctx); err == nil {
			t.Fatal("Ping succeeded although the server refuses connections")
		}
		cancel()
	}
	await(t, "end of the goroutines of canceled calls", func() bool { return runtime.NumGoroutine() < before+calls/4 })
}

// Not in parallel with others: it counts goroutines.
func TestReconnect_leavesNothingBehind(t *testing.T) {
	z := server(t)
	m := newInterceptor(t, z.Endpoint())
	st := newStore(t, nil, m.addr())
	sessions := []store.Session{openSession(t, st), openSession(t, st)}
	name := newName(t)
	before := m.replies()
	enqueue(t, sessions[0], name, line.Exclusive).await(t, store.Admitted)
	next := enqueue(t, sessions[1], name, line.Exclusive)
	next.await(t, store.Waiting)
	m.awaitReplies(t, "setWatches", 2, before) // the two watch their nodes, and one the other's
	m.awaitReplies(t, "getData", 1, before)
	reconnect := func(times int) {
		for range times {
			m.reset()
			for _, se := range sessions {
				confirmEventually(t, se)
			}
		}
	}
	reconnect(5)
	running := runtime.NumGoroutine()
	const times = 25
	reconnect(times)
	await(t, "end of the goroutines of lost connections", func() bool { return runtime.NumGoroutine() <= running+times/5 })
	await(t, "end of all connections except two", func() bool { return m.connections() <= 2 })
	next.expectNothing(t)
}
