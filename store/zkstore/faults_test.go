package zkstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/zkstore"
)

// When a session has expired go-zookeeper opens another by itself, and goes on under the same connection.
func TestASessionThatExpiresIsLostForHoldersAndWaitersAndNoOtherIsOpened(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	st := newStore(t, nil, proxy.Addr())
	held, waited := newName(t), newName(t)
	other := openSession(t, newStore(t, nil, server(t).Endpoint()))
	enqueue(t, other, waited, line.Exclusive).await(t, store.Admitted)

	lost := make(chan error, 10)
	se := openFor(t, st, 1500*time.Millisecond, func(err error) { lost <- err })
	zkstore.KeepUnconfirmed(se)
	holder, waiter := enqueue(t, se, held, line.Exclusive), enqueue(t, se, waited, line.Exclusive)
	holder.await(t, store.Admitted)
	waiter.await(t, store.Waiting)

	proxy.Hold()
	next := enqueue(t, other, held, line.Exclusive)
	next.admitted(t)
	proxy.Reset() // what was held must not be said in the name of the session now
	proxy.Release()

	holder.gone(t, store.ErrSessionLost)
	waiter.gone(t, store.ErrSessionLost)
	select {
	case err := <-lost:
		if !errors.Is(err, store.ErrSessionLost) {
			t.Errorf("Lost was called with %v", err)
		}
	case <-time.After(soon):
		t.Fatal("Lost was not called")
	}
	if _, err := tryEnqueue(t.Context(), se, newName(t), line.Exclusive, false); !errors.Is(err, store.ErrSessionLost) {
		t.Errorf("getting in line with a session that has expired says %v", err)
	}
	await(t, "the end of all connections", func() bool { return proxy.Connections() == 0 })
	select {
	case err := <-lost:
		t.Errorf("Lost was called once more: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if n := proxy.Connections(); n != 0 {
		t.Errorf("there are %d connections for a session that has expired", n)
	}
}

func TestTheSameClientTakesTheLockAgainAfterALoss(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	c := newClient(t, newStore(t, nil, proxy.Addr()), 1500*time.Millisecond)
	name := newName(t)
	first := lock(t, c, name)
	proxy.Hold()
	receive(t, first.Lost(), "the loss of the first hold")
	proxy.Reset()
	proxy.Release()
	if err := first.Release(t.Context()); !errors.Is(err, stile.ErrLost) {
		t.Errorf("the release of what was lost says %v", err)
	}
	second := lock(t, c, name)
	if second.Token() <= first.Token() {
		t.Errorf("the token after the loss is %d, before it %d", second.Token(), first.Token())
	}
	if err := second.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// The bounds of a server's sessions were lowered, and it was restarted. To the servers a session lasts as long as the last
// of them has granted.
func TestASessionThatIsGrantedLessAfterAReconnectionIsLost(t *testing.T) {
	t.Parallel()
	m := newMeddler(t, server(t).Endpoint())
	lost := make(chan error, 1)
	se := openFor(t, newStore(t, nil, m.addr()), 20*time.Second, func(err error) { lost <- err })
	p := enqueue(t, se, newName(t), line.Exclusive)
	p.await(t, store.Admitted)

	m.reset() // and with the same bounds nothing happens
	confirmSoon(t, se)
	p.silent(t)

	m.on(nil, func(to int32, frame []byte) verdict {
		if to == 0 { // the greeting: behind its length and a version is how long the session lasts
			binary.BigEndian.PutUint32(frame[8:], 5000)
		}
		return pass
	})
	m.reset()
	p.gone(t, store.ErrSessionLost)
	if err := <-lost; !errors.Is(err, store.ErrSessionLost) || !strings.Contains(err.Error(), "only 5s") {
		t.Errorf("Lost was called with %v", err)
	}
}

// held is a hold of one session and an entry of another behind it, on an ensemble.
type held struct {
	sessions [2]store.Session
	hold     *joined
	next     *joined
}

func holdOn(t *testing.T, e *testservers.ZooKeeperEnsemble) held {
	t.Helper()
	const ttl = 60 * time.Second // elections take their time when a server is frozen
	var h held
	for i := range h.sessions {
		h.sessions[i] = openFor(t, newStore(t, nil, e.Endpoints()...), ttl, nil)
	}
	name := newName(t)
	h.hold = enqueue(t, h.sessions[0], name, line.Exclusive)
	h.hold.await(t, store.Admitted)
	h.next = enqueue(t, h.sessions[1], name, line.Exclusive)
	h.next.await(t, store.Waiting)
	return h
}

// survives checks that the sessions go on, and that the hold is held, can be released, and goes to the next in line then.
func (h held) survives(t *testing.T) {
	t.Helper()
	for _, se := range h.sessions {
		confirmSoon(t, se)
	}
	h.hold.silent(t)
	h.next.silent(t)
	ctx, cancel := until(t, soon)
	defer cancel()
	if err := h.hold.Withdraw(ctx); err != nil {
		t.Fatalf("releasing: %v", err)
	}
	h.next.admitted(t)
}

// confirmSoon confirms a session, and returns how long it took until that could be done.
func confirmSoon(t *testing.T, se store.Session) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		ctx, cancel := until(t, se.Terms().TTL/8)
		err := se.Confirm(ctx)
		cancel()
		took := time.Since(start)
		switch {
		case err == nil:
			return took
		case errors.Is(err, store.ErrSessionLost), took > soon:
			t.Fatalf("the session is not confirmed after %v: %v", took, err)
		}
	}
}

func TestHoldsSurviveWhatHappensToServers(t *testing.T) {
	t.Parallel()
	e := ensemble3(t, "syncLimit=4")

	h := holdOn(t, e)
	leader := e.Leader(t)
	leader.Kill()
	h.survives(t)
	leader.Restart()

	h = holdOn(t, e)
	leader = e.Leader(t)
	leader.Pause()
	h.survives(t)
	leader.Resume()
	// At first it goes on leading. And one that is killed while it learns from another may never start again: ZooKeeper then
	// finds that "the current epoch is older than the last zxid".
	await(t, "the leader of before to follow", func() bool {
		said, err := leader.Say("srvr")
		return err == nil && strings.Contains(said, "Mode: follower")
	})

	h = holdOn(t, e)
	for _, z := range e.Members() {
		z.Kill()
	}
	for _, z := range e.Members() {
		z.Start()
	}
	for _, z := range e.Members() {
		z.AwaitReady()
	}
	h.survives(t)
}

// Others are well: a server that is frozen, or cut off from the leader, costs nobody a lock.
func TestAHoldSurvivesThatItsServerIsHungOrCutOff(t *testing.T) {
	t.Parallel()
	const ttl = 8 * time.Second
	e := ensemble3(t)
	for _, tt := range []struct {
		what         string
		hurt, heal   func(*testservers.ZooKeeper)
		waitForReady bool
	}{
		{"hung", (*testservers.ZooKeeper).Pause, (*testservers.ZooKeeper).Resume, false},
		{"cut off", (*testservers.ZooKeeper).CutOff, (*testservers.ZooKeeper).Reconnect, true},
	} {
		leader := e.Leader(t)
		se := openOnFollower(t, e, ttl)
		name := newName(t)
		p := enqueue(t, se, name, line.Exclusive)
		p.await(t, store.Admitted)
		at := slices.IndexFunc(e.Members(), func(z *testservers.ZooKeeper) bool { return z.Endpoint() == zkstore.Server(se) })
		victim := e.Members()[at]
		if victim == leader {
			t.Fatal("the session is with the leader")
		}
		confirmSoon(t, se)
		tt.hurt(victim)
		t.Logf("%s: confirmed after %v", tt.what, confirmSoon(t, se))
		p.silent(t)
		tt.heal(victim)
		if tt.waitForReady {
			victim.AwaitReady()
		}
		p.withdraw(t)
	}
}

// openOnFollower opens a session that is connected to a follower.
func openOnFollower(t *testing.T, e *testservers.ZooKeeperEnsemble, ttl time.Duration) store.Session {
	t.Helper()
	leader := e.Leader(t).Endpoint()
	for range 50 {
		se := openFor(t, newStore(t, nil, e.Endpoints()...), ttl, nil)
		if zkstore.Server(se) != leader {
			return se
		}
		closeSoon(se.Close)
	}
	t.Fatal("no session comes to a follower")
	return nil
}

func TestClosingWaitsForASilentServerNoLongerThanItsCaller(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	se := openFor(t, newStore(t, nil, proxy.Addr()), 20*time.Second, nil)
	proxy.Hold()
	ctx, cancel := until(t, 2*time.Second)
	defer cancel()
	start := time.Now()
	if err := se.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("closing says %v", err)
	}
	if took := time.Since(start); took >= 20*time.Second {
		t.Errorf("closing took %v, as long as the session lives", took)
	}
}

// What it has put in is taken out as soon as it is heard of, and is in nobody's way longer than that, least of all its own.
func TestATryAfterOneThatWasGivenUpIsNotRefusedForThat(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	se, name := openFor(t, newStore(t, nil, proxy.Addr()), 20*time.Second, nil), newName(t)
	direct := newStore(t, nil, server(t).Endpoint())
	proxy.Delay(100*time.Millisecond, testservers.Down)
	for range 3 {
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
			t.Fatalf("a try that was given up: %v", err)
		}
		j, err := tryEnqueue(t.Context(), se, name, line.Exclusive, true)
		if err != nil {
			t.Fatal(err)
		}
		j.withdraw(t)
	}
}

// The wire client waits for a second.
func TestClosingWaitsForASlowServer(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	se := openFor(t, newStore(t, nil, proxy.Addr()), 20*time.Second, nil)
	name := newName(t)
	enqueue(t, se, name, line.Exclusive).await(t, store.Admitted)
	proxy.Delay(1500*time.Millisecond, testservers.Down)
	ctx, cancel := until(t, soon)
	defer cancel()
	if err := se.Close(ctx); err != nil {
		t.Error(err)
	}
	if l, err := newStore(t, nil, server(t).Endpoint()).Line(t.Context(), name); err != nil || len(l.Entries) != 0 {
		t.Errorf("after it the line is %+v, %v", l, err)
	}
}

func TestAServerThatAcceptsConnectionsAndSaysNothingIsGivenUp(t *testing.T) {
	t.Parallel()
	hung := testservers.NewProxy(t, server(t).Endpoint())
	hung.Hold()
	const ttl = 20 * time.Second
	for range 4 { // in half of them it is asked first
		st := newStore(t, nil, hung.Addr(), server(t).Endpoint())
		start := time.Now()
		se := openFor(t, st, ttl, nil)
		if took := time.Since(start); took > ttl/3 {
			t.Errorf("opening a session took %v", took)
		}
		closeSoon(se.Close)
	}
}

func TestAConfirmationThatIsNotAnsweredSaysWhichServerIsSilent(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	const ttl = 6 * time.Second
	se := openFor(t, newStore(t, nil, proxy.Addr()), ttl, nil)
	proxy.Hold()
	ctx, cancel := until(t, ttl/8)
	defer cancel()
	err := se.Confirm(ctx)
	proxy.Release()
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), proxy.Addr()+": the server is connected, and does not answer") {
		t.Errorf("a server that is hung: %v", err)
	}
}

// The same is asked of the store's own connection, which has no session to lose.
func TestAPingIsAnsweredThoughTheServerItWasSentToIsHung(t *testing.T) {
	t.Parallel()
	for range 20 {
		proxy := testservers.NewProxy(t, server(t).Endpoint())
		st := newStore(t, nil, proxy.Addr(), server(t).Endpoint())
		if err := st.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		if proxy.Connections() == 0 {
			continue // the other was asked first
		}
		proxy.Hold()
		if err := st.Ping(t.Context()); err != nil {
			t.Errorf("with a server that is well: %v", err)
		}
		return
	}
	t.Fatal("the first of two servers is never asked")
}

// After a backup was restored, or when an ensemble has been set up anew, the servers have seen less than their clients, and
// let in none of them.
func TestReadersComeBackToServersThatHaveSeenLessThanThey(t *testing.T) {
	t.Parallel()
	m := newMeddler(t, server(t).Endpoint())
	st := newStore(t, nil, m.addr())
	if err := st.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused := make(chan struct{}, 1)
	m.on(func(op int32, frame []byte) verdict {
		if op == 0 && binary.BigEndian.Uint64(frame[8:]) > 0 { // behind length and version is what the client has seen
			select {
			case refused <- struct{}{}:
			default:
			}
			return cut
		}
		return pass
	}, nil)
	m.reset()
	receive(t, refused, "a client to say that it has seen something")
	await(t, "the client to come back", func() bool { return st.Ping(t.Context()) == nil })
}

// A connection that takes its time to be made is not one on which nothing is answered: giving it up for each confirmation
// that was not answered meanwhile would lose the session.
func TestAReconnectionThatIsSlowerThanAConfirmationIsWaitedFor(t *testing.T) {
	t.Parallel()
	const ttl = 12 * time.Second // of which a greeting may take a sixth, and a confirmation an eighth here
	m := newMeddler(t, server(t).Endpoint())
	se := openFor(t, newStore(t, nil, m.addr()), ttl, nil)
	m.on(nil, func(to int32, _ []byte) verdict {
		if to == 0 {
			time.Sleep(ttl/8 + ttl/48)
		}
		return pass
	})
	m.reset()
	confirmSoon(t, se)
}

// go-zookeeper sends its watches anew after a reconnection, and only logs if that fails. Here it is tried again.
func TestAWaiterWhoseWatchesWereNotSetAgainIsAdmitted(t *testing.T) {
	t.Parallel()
	m := newMeddler(t, server(t).Endpoint())
	name := newName(t)
	other := openSession(t, newStore(t, nil, server(t).Endpoint()))
	holder := enqueue(t, other, name, line.Exclusive)
	holder.await(t, store.Admitted)
	p := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Exclusive)
	p.await(t, store.Waiting)
	m.quiet(t, "getData")

	failed, done := once(opGetData, cut)
	m.on(func(op int32, frame []byte) verdict {
		if op == opSetWatches {
			t.Error("the library sets watches too")
		}
		return failed(op, frame)
	}, nil)
	m.reset()
	receive(t, done, "the watches to be set again, in vain")
	m.quiet(t, "getData")
	holder.withdraw(t)
	p.admitted(t)
}

// quiet waits until a request of the given name has passed, and nothing more for a moment; but not until lines are read
// although nothing was heard.
func (m *meddler) quiet(t *testing.T, name string) {
	t.Helper()
	seen := false
	for end := time.Now().Add(beforeRecheck); time.Now().Before(end); {
		passed := m.passed()
		seen = seen || slices.Contains(passed, name)
		if len(passed) == 0 && seen {
			return
		}
		time.Sleep(30 * time.Millisecond)
	}
	t.Fatalf("no %s has passed in %v", name, beforeRecheck)
}
