package zkstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/zkstore"
)

// When a session has expired go-zookeeper opens another by itself, and continues with the same
// client.
// Promise: P6
func TestSession_expires(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	m := newInterceptor(t, proxy.Addr())
	st := newStore(t, nil, m.addr())
	held, waited := newName(t), newName(t)
	other := openSession(t, newStore(t, nil, server(t).Endpoint()))
	enqueue(t, other, waited, line.Exclusive).await(t, store.Admitted)

	lost := make(chan error, 10)
	se := openSessionTTL(t, st, longTTL, func(err error) { lost <- err })
	holder, waiter := enqueue(t, se, held, line.Exclusive), enqueue(t, se, waited, line.Exclusive)
	holder.await(t, store.Admitted)
	waiter.await(t, store.Waiting)

	proxy.Hold()
	next := enqueue(t, other, held, line.Exclusive)
	m.expire(t, se, server(t).Endpoint())
	next.admitted(t)
	proxy.Reset() // discards the delayed frames, which must not reach the server now
	proxy.Release()

	holder.gone(t, store.ErrSessionLost)
	waiter.gone(t, store.ErrSessionLost)
	select {
	case err := <-lost:
		if !errors.Is(err, store.ErrSessionLost) {
			t.Errorf("Lost was called with %v, want an error matching ErrSessionLost", err)
		}
	case <-time.After(testTimeout):
		t.Fatal("Lost was not called")
	}
	if _, err := tryEnqueue(t.Context(), se, newName(t), line.Exclusive, false); !errors.Is(err, store.ErrSessionLost) {
		t.Errorf("Enqueue in an expired session: got %v, want ErrSessionLost", err)
	}
	await(t, "end of all connections", func() bool { return proxy.Connections() == 0 })
	select {
	case err := <-lost:
		t.Errorf("Lost was called again: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if n := proxy.Connections(); n != 0 {
		t.Errorf("got %d connections of an expired session, want none", n)
	}
}

func TestHold_relockedAfterLoss(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	// The TTL is long enough for the second lock on a busy machine.
	c := newClient(t, newStore(t, nil, proxy.Addr()), 20*time.Second)
	name := newName(t)
	first := lock(t, c, name)
	proxy.Hold()
	receive(t, first.Lost(), "loss of the first hold")
	proxy.Reset()
	proxy.Release()
	if err := first.Release(t.Context()); !errors.Is(err, stile.ErrLost) {
		t.Errorf("Release of a lost hold: got %v, want ErrLost", err)
	}
	second := lock(t, c, name)
	if second.Token() <= first.Token() {
		t.Errorf("token after the loss: got %d, want more than %d", second.Token(), first.Token())
	}
	if err := second.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// The server's bounds for TTLs were lowered, and it was restarted. For the servers a session lasts
// as long as the last of them has granted.
// Promise: P1
func TestSession_grantedLessAfterReconnection(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	lost := make(chan error, 1)
	se := openSessionTTL(t, newStore(t, nil, m.addr()), longTTL, func(err error) { lost <- err })
	p := enqueue(t, se, newName(t), line.Exclusive)
	p.await(t, store.Admitted)

	m.reset() // and with the same bounds nothing happens
	confirmEventually(t, se)
	p.expectNothing(t)

	m.intercept(nil, func(to int32, frame []byte) action {
		if to == 0 { // the handshake: behind length and version is the granted TTL
			binary.BigEndian.PutUint32(frame[8:], 5000)
		}
		return pass
	})
	m.reset()
	p.gone(t, store.ErrSessionLost)
	if err := <-lost; !errors.Is(err, store.ErrSessionLost) || !strings.Contains(err.Error(), "only 5s") {
		t.Errorf("Lost was called with %v, want an error matching ErrSessionLost", err)
	}
}

// heldLock is an entry that holds a lock in one session and an entry behind it in another, on an
// ensemble.
type heldLock struct {
	sessions [2]store.Session
	hold     *joined
	next     *joined
}

func lockAndWait(t *testing.T, e *testservers.ZooKeeperEnsemble, ttl time.Duration) heldLock {
	t.Helper()
	var h heldLock
	for i := range h.sessions {
		h.sessions[i] = openSessionTTL(t, newStore(t, nil, e.Endpoints()...), ttl, nil)
		keepConfirming(t, h.sessions[i])
	}
	name := newName(t)
	h.hold = enqueue(t, h.sessions[0], name, line.Exclusive)
	h.hold.await(t, store.Admitted)
	h.next = enqueue(t, h.sessions[1], name, line.Exclusive)
	h.next.await(t, store.Waiting)
	return h
}

// checkSurvives checks that the sessions live, that the hold can be released, and that the next
// entry is admitted then.
func (h heldLock) checkSurvives(t *testing.T) {
	t.Helper()
	for _, se := range h.sessions {
		confirmEventually(t, se)
	}
	h.hold.expectNothing(t)
	h.next.expectNothing(t)
	ctx, cancel := until(t, testTimeout)
	defer cancel()
	if err := h.hold.Withdraw(ctx); err != nil {
		t.Fatalf("Withdraw: %v", err)
	}
	h.next.admitted(t)
}

// keepConfirming confirms a session periodically, as a client does, until the test has ended.
func keepConfirming(t *testing.T, se store.Session) {
	t.Helper()
	var keeping sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	keeping.Go(func() {
		for ctx.Err() == nil {
			bounded, done := context.WithTimeout(ctx, se.Terms().TTL/8)
			if se.Confirm(bounded) == nil {
				select {
				case <-ctx.Done():
				case <-time.After(se.Terms().TTL / 8):
				}
			}
			done()
		}
	})
	t.Cleanup(func() { cancel(); keeping.Wait() })
}

// confirmEventually retries the confirmation of a session until it succeeds.
func confirmEventually(t *testing.T, se store.Session) {
	t.Helper()
	start := time.Now()
	for {
		ctx, cancel := until(t, min(se.Terms().TTL/8, testTimeout/8))
		err := se.Confirm(ctx)
		cancel()
		switch took := time.Since(start); {
		case err == nil:
			return
		case errors.Is(err, store.ErrSessionLost), took > testTimeout:
			t.Fatalf("the session was not confirmed within %v: %v", took, err)
		}
	}
}

// Promise: P7
func TestHold_survivesServerFailures(t *testing.T) {
	t.Parallel()
	e := exclusiveEnsemble(t)

	h := lockAndWait(t, e, 2*time.Minute) // a session notices only after an eighth of its TTL that its server is hung
	leader := e.Leader(t)
	leader.Pause()
	e.Abandon(leader)
	h.checkSurvives(t)
	leader.Resume()
	// At first it continues to lead. If it is killed while it copies another's data it may never
	// start again: ZooKeeper then reports that "the current epoch is older than the last zxid".
	follows := func() {
		t.Helper()
		await(t, "former leader to become a follower", func() bool {
			output, err := leader.Say("srvr")
			return err == nil && strings.Contains(output, "Mode: follower")
		})
	}
	follows()

	const long = 10 * time.Minute // on a busy machine, servers may take minutes to start
	h = lockAndWait(t, e, long)
	leader = e.Leader(t)
	leader.Kill()
	h.checkSurvives(t)
	leader.Start()
	follows()

	h = lockAndWait(t, e, long)
	for _, z := range e.Members() {
		z.Kill()
	}
	for _, z := range e.Members() {
		z.Start()
	}
	for _, z := range e.Members() {
		z.AwaitReady()
	}
	h.checkSurvives(t)
}

// A server that is hung, or cut off from the leader, costs no lock while the other servers are
// healthy.
// Promise: P7
func TestHold_survivesHungOrPartitionedServer(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	e := exclusiveEnsemble(t)
	for _, tt := range []struct {
		what       string
		hurt, heal func(*testservers.ZooKeeper)
	}{
		{"hung", (*testservers.ZooKeeper).Pause, (*testservers.ZooKeeper).Resume},
		{"cut off", (*testservers.ZooKeeper).CutOff, (*testservers.ZooKeeper).Reconnect},
	} {
		leader := e.Leader(t)
		se := openOnFollower(t, e, ttl)
		name := newName(t)
		p := enqueue(t, se, name, line.Exclusive)
		p.await(t, store.Admitted)
		at := slices.IndexFunc(e.Members(), func(z *testservers.ZooKeeper) bool { return z.Endpoint() == zkstore.Server(se) })
		victim := e.Members()[at]
		if victim == leader {
			t.Fatal("the session is connected to the leader")
		}
		confirmEventually(t, se)
		start := time.Now()
		tt.hurt(victim)
		confirmEventually(t, se)
		// The library would abandon the server after two thirds of the TTL, when a hold is lost.
		if took, limit := time.Since(start), ttl-se.Terms().Slack; took >= limit {
			t.Errorf("%s: confirmed after %v, want less than %v", tt.what, took, limit)
		}
		p.expectNothing(t)
		tt.heal(victim)
		victim.AwaitReady()
		p.withdraw(t)
	}
}

// openOnFollower opens a session that is connected to a follower.
func openOnFollower(t *testing.T, e *testservers.ZooKeeperEnsemble, ttl time.Duration) store.Session {
	t.Helper()
	leader := e.Leader(t).Endpoint()
	for range 50 {
		se := openSessionTTL(t, newStore(t, nil, e.Endpoints()...), ttl, nil)
		if zkstore.Server(se) != leader {
			return se
		}
		closeWithTimeout(se.Close)
	}
	t.Fatal("no session was opened at a follower")
	return nil
}

func TestClose_contextEndsAtSilentServer(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	se := openSession(t, newStore(t, nil, proxy.Addr()))
	proxy.Hold()
	ctx, cancel := until(t, time.Second)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- se.Close(ctx) }()
	select {
	case err := <-closed:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: got %v, want context.DeadlineExceeded", err)
		}
	case <-time.After(testTimeout): // the session would live for longer
		t.Error("Close did not return when its context ended")
	}
}

// The entry of a canceled try is removed as soon as its creation is known. It does not block the
// next try of the same session.
func TestTry_afterCanceledTry(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	se, name := openSession(t, newStore(t, nil, m.addr())), newName(t)
	direct := newStore(t, nil, server(t).Endpoint())
	enqueue(t, se, name, line.Exclusive).withdraw(t) // so that the directory is there
	for range 3 {
		m.intercept(nil, func(to int32, _ []byte) action {
			if to == opCreate2 {
				return stall
			}
			return pass
		})
		ctx, cancel := context.WithCancel(t.Context())
		given := make(chan error, 1)
		go func() {
			_, err := tryEnqueue(ctx, se, name, line.Exclusive, true)
			given <- err
		}()
		await(t, "the entry", func() bool {
			l, err := direct.Line(t.Context(), name)
			return err == nil && len(l.Entries) == 1
		})
		cancel()
		if err := <-given; !errors.Is(err, context.Canceled) {
			t.Fatalf("canceled try: got %v, want context.Canceled", err)
		}

		// The next try reads the line while the entry is in it and its creation is not known. Then
		// the reply arrives.
		m.takeRequests()
		type outcome struct {
			entry *joined
			err   error
		}
		tried := make(chan outcome, 1)
		go func() {
			j, err := tryEnqueue(t.Context(), se, name, line.Exclusive, true)
			tried <- outcome{j, err}
		}()
		await(t, "the next try to read the line", func() bool { return slices.Contains(m.takeRequests(), "getChildren") })
		m.intercept(nil, nil)
		m.resume()
		o := <-tried
		if o.err != nil {
			t.Fatal(o.err)
		}
		o.entry.withdraw(t)
	}
}

// The library itself waits for a second.
func TestClose_slowServer(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	se := openSession(t, newStore(t, nil, proxy.Addr()))
	name := newName(t)
	enqueue(t, se, name, line.Exclusive).await(t, store.Admitted)
	proxy.Delay(1500*time.Millisecond, testservers.Down)
	ctx, cancel := until(t, testTimeout)
	defer cancel()
	if err := se.Close(ctx); err != nil {
		t.Error(err)
	}
	if l, err := newStore(t, nil, server(t).Endpoint()).Line(t.Context(), name); err != nil || len(l.Entries) != 0 {
		t.Errorf("line after Close: got %+v, %v, want no entries", l, err)
	}
}

func TestOpen_abandonsSilentServer(t *testing.T) {
	t.Parallel()
	hung := testservers.NewProxy(t, server(t).Endpoint())
	hung.Hold()
	for range 50 { // in half of the rounds the hung server is tried first
		// The library would abandon it after more than six times as long, which is longer than the
		// store waits.
		se := openSessionTTL(t, newStore(t, nil, hung.Addr(), server(t).Endpoint()), time.Minute, nil)
		asked := hung.Connections() > 0
		closeWithTimeout(se.Close)
		hung.Reset()
		if asked {
			return
		}
	}
	t.Fatal("no attempt began with the first of the two servers")
}

func TestConfirm_namesSilentServer(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	const ttl = 30 * time.Second
	se := openSessionTTL(t, newStore(t, nil, proxy.Addr()), ttl, nil)
	proxy.Hold()
	ctx, cancel := until(t, ttl/8)
	defer cancel()
	err := se.Confirm(ctx)
	proxy.Release()
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), proxy.Addr()+": connected, but no answer") {
		t.Errorf("Confirm with a hung server: got %v, want a timeout that names the server", err)
	}
}

// The store's own connection has no session to lose. TestReadingTTL_leavesTimeForPing checks that a
// server is abandoned in time for [zkstore.Store.Ping].
func TestPing_survivesHungServer(t *testing.T) {
	t.Parallel()
	for range 50 {
		proxy := testservers.NewProxy(t, server(t).Endpoint())
		st := newStore(t, nil, proxy.Addr(), server(t).Endpoint())
		if err := st.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		if proxy.Connections() == 0 {
			continue // the other server was tried first
		}
		proxy.Hold()
		if err := st.Ping(t.Context()); err != nil {
			t.Errorf("Ping with another, healthy server: %v", err)
		}
		return
	}
	t.Fatal("no attempt began with the first of the two servers")
}

// After a restore from a backup, or in an ensemble that was set up again, the servers have seen
// fewer transactions than their clients, and refuse them.
// Promise: P7
func TestReader_returnsToServersWithOlderData(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	st := newStore(t, nil, m.addr())
	if err := st.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused := make(chan struct{}, 1)
	m.intercept(func(op int32, frame []byte) action {
		// Behind length and version is the last transaction that the client has seen.
		if op == 0 && binary.BigEndian.Uint64(frame[8:]) > 0 {
			select {
			case refused <- struct{}{}:
			default:
			}
			return cut
		}
		return pass
	}, nil)
	m.reset()
	receive(t, refused, "client to report its last transaction")
	await(t, "client to reconnect", func() bool { return st.Ping(t.Context()) == nil })
}

// A connection that is slow to open is not a connection without replies: abandoning it whenever a
// confirmation times out would lose the session.
// Promise: P7
func TestReconnect_slowerThanConfirmation(t *testing.T) {
	t.Parallel()
	const (
		ttl      = 18 * time.Second
		timeout  = ttl / 9        // of the confirmation, long before the connection is abandoned
		patience = ttl/6 - ttl/60 // a handshake may take three seconds
	)
	m := newInterceptor(t, server(t).Endpoint())
	for range 50 {
		se := openSessionTTL(t, newStore(t, nil, m.addr()), ttl, nil)
		confirmEventually(t, se)
		handshakes := make(chan struct{}, 100)
		request := func(op int32, _ []byte) action {
			if op == 0 {
				handshakes <- struct{}{}
			}
			return pass
		}
		m.intercept(request, func(to int32, _ []byte) action {
			if to == 0 {
				return stall
			}
			return pass
		})
		start := time.Now()
		m.reset()
		receive(t, handshakes, "a reconnection")
		ctx, cancel := until(t, timeout)
		err := se.Confirm(ctx)
		cancel()
		m.intercept(request, nil)
		m.resume()
		confirmEventually(t, se)
		busy := time.Since(start) > patience
		m.intercept(nil, nil)
		again := len(handshakes)
		closeWithTimeout(se.Close)
		switch {
		case busy || !errors.Is(err, context.DeadlineExceeded):
			t.Logf("inconclusive on a busy machine: took %v, want less than %v; Confirm: %v", time.Since(start), patience, err)
			continue
		case again > 0:
			t.Errorf("a connection was abandoned during its handshake: got %d more handshakes, want none", again)
		}
		return
	}
	t.Fatal("no handshake was fast enough")
}

// go-zookeeper restores its watches after a reconnection, and only logs if that fails. This package
// retries.
// Promise: P7
// Bug: redisson #3891
func TestWaiter_retriesFailedWatches(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	name := newName(t)
	other := openSession(t, newStore(t, nil, server(t).Endpoint()))
	holder := enqueue(t, other, name, line.Exclusive)
	holder.await(t, store.Admitted)
	before := m.replies()
	p := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Exclusive)
	p.await(t, store.Waiting)
	watched := func(since map[string]int) {
		t.Helper()
		m.awaitReplies(t, "setWatches", 1, since) // its own node
		m.awaitReplies(t, "getData", 1, since)    // the holder's
	}
	watched(before)

	for _, op := range []int32{opGetData, opSetWatches} {
		failed, done := once(op, cut)
		before = m.replies()
		m.intercept(func(op int32, frame []byte) action {
			if op == opSetWatches && binary.BigEndian.Uint64(frame[12:]) != math.MaxInt64 { // see rewriteDelete
				t.Error("the library restores watches too")
			}
			return failed(op, frame)
		}, nil)
		m.reset()
		receive(t, done, "failed request for the watches")
		watched(before)
	}
	holder.withdraw(t)
	p.admitted(t)
}
