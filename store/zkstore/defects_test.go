package zkstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// The reply to the creation of an entry is lost, and the session lives on. go-zookeeper's Lock looks for its node without
// a sync, on a server that may not have heard of it yet, and leaves it behind on every error.
func TestAnEntryWhoseCreationWasNotAnsweredIsFoundAgain(t *testing.T) {
	t.Parallel()
	m := newMeddler(t, server(t).Endpoint())
	conn := connect(t, server(t).Endpoint())
	se := openSession(t, newStore(t, nil, m.addr()))
	for _, lose := range []struct {
		what string
		set  func() (done <-chan struct{})
	}{
		{"the reply", func() <-chan struct{} { f, done := once(opCreate2, cut); m.on(nil, f); return done }},
		{"the request", func() <-chan struct{} { f, done := once(opCreate2, cut); m.on(f, nil); return done }},
		{"the reply to the listing", func() <-chan struct{} { f, done := once(opGetChildren2, cut); m.on(nil, f); return done }},
	} {
		name := newName(t)
		enqueue(t, se, name, line.Exclusive).withdraw(t) // so that the directory is there
		done := lose.set()
		p := enqueue(t, se, name, line.Exclusive)
		receive(t, done, lose.what+" to be lost")
		order := p.await(t, store.Admitted).Order
		children := nodes(t, conn, "/"+name)
		if len(children) != 1 {
			t.Fatalf("%s was lost, and then there are the nodes %q, want one", lose.what, children)
		}
		_, st, err := conn.Exists("/" + name + "/" + children[0])
		if err != nil {
			t.Fatal(err)
		}
		if uint64(st.Czxid) != order || fmt.Sprintf("%#x", st.EphemeralOwner) != se.ID() {
			t.Errorf("the node has czxid %d and owner %#x, want %d and %s", st.Czxid, st.EphemeralOwner, order, se.ID())
		}
		p.withdraw(t)
	}
}

func TestAnEntryWhoseCallerGaveUpWhileItWasMadeIsTakenOut(t *testing.T) {
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
			t.Fatalf("getting in line with a context that ended says %v", err)
		}
		if reset {
			proxy.Reset()
		}
		proxy.Release()
		await(t, "the end of an entry that nobody waits for", func() bool { return len(nodes(t, conn, "/"+name)) == 0 })
	}
}

// A lock in a directory of directories is taken for the first time by many at once. go-zookeeper's Lock makes persistent
// directories, which stay for ever, and gives up after three attempts.
func TestDirectoriesAreMadeByManyAtOnceAndAreContainers(t *testing.T) {
	t.Parallel()
	conn := connect(t, server(t).Endpoint())
	name := newName(t) + "/deep/deeper/deepest"
	var all sync.WaitGroup
	m := newMeddler(t, server(t).Endpoint())
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
		t.Errorf("%d entries stand in the line, want 8", n)
	}
	if passed := m.passed(); slices.Contains(passed, "create") || !slices.Contains(passed, "createContainer") {
		t.Errorf("the directories were made with %q, want createContainer", passed)
	}
}

// The watches of go-zookeeper's clients cannot be taken back, so a waiter that gives up leaves one. Here the next finds it
// and sets no other.
func TestWaitersThatGiveUpDoNotPileUpWatches(t *testing.T) {
	t.Parallel()
	z := testservers.StartZooKeeper(t) // whose watches are all ours
	m := newMeddler(t, z.Endpoint())
	name := newName(t)
	enqueue(t, openSession(t, newStore(t, nil, z.Endpoint())), name, line.Exclusive).await(t, store.Admitted)
	se := openSession(t, newStore(t, nil, m.addr()))

	for range 20 {
		if _, err := tryEnqueue(t.Context(), se, name, line.Exclusive, true); !isHeld(err) {
			t.Fatal(err)
		}
	}
	if passed := m.passed(); slices.Contains(passed, "create2") || slices.Contains(passed, "create") {
		t.Errorf("tries for a lock that is held have created something: %q", passed)
	}
	for range 20 {
		p := enqueue(t, se, name, line.Exclusive)
		p.await(t, store.Waiting)
		m.quietAfter(t)
		p.withdraw(t)
	}
	watches := func() int {
		said, err := z.Say("wchp")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(said, "\t0x")
	}
	// One of the holder's node, by the waiter, and perhaps one by the holder.
	await(t, "watches of nodes that have gone to go", func() bool { return watches() <= 2 })
}

// quietAfter waits until nothing has passed for a moment.
func (m *meddler) quietAfter(t *testing.T) {
	t.Helper()
	for range 1000 {
		time.Sleep(10 * time.Millisecond)
		if len(m.passed()) == 0 {
			return
		}
	}
	t.Fatal("it is never quiet")
}

func TestWhatIsAskedOfTheServer(t *testing.T) {
	t.Parallel()
	m := newMeddler(t, server(t).Endpoint())
	other := openSession(t, newStore(t, nil, server(t).Endpoint()))
	se := openSession(t, newStore(t, nil, m.addr()))
	name := newName(t)
	enqueue(t, se, name, line.Exclusive).withdraw(t) // so that the directory is there
	m.passed()

	wants := func(what string, want ...string) {
		t.Helper()
		if got := m.passed(); !slices.Equal(got, want) {
			t.Errorf("%s takes the requests %q, want %q", what, got, want)
		}
	}
	p := enqueue(t, se, name, line.Exclusive)
	p.await(t, store.Admitted)
	wants("taking a free lock", "create2", "getChildren")
	p.withdraw(t)
	wants("releasing it", "delete")

	holder := enqueue(t, other, name, line.Exclusive)
	p = enqueue(t, se, name, line.Exclusive)
	p.await(t, store.Waiting)
	m.quietAfter(t)
	m.passed()
	holder.withdraw(t)
	p.admitted(t)
	wants("the hand-over from the only one who was ahead")

	holder, middle := p, enqueue(t, other, name, line.Exclusive)
	p = enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Exclusive)
	p.await(t, store.Waiting)
	m.quietAfter(t)
	m.passed()
	middle.withdraw(t) // who waited gives up
	holder.withdraw(t)
	p.admitted(t)
	wants("the hand-over from one of two who were ahead", "delete")
}

func TestTheOrderIsTheTransactionThatMadeTheEntry(t *testing.T) {
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
			t.Fatalf("the order is %d, the node's czxid %d", order, st.Czxid)
		}
		p.withdraw(t)
	}
}

// At 2147483647 the servers stop counting, and give the same number to everybody.
func TestALineWhoseSequenceNumbersAreUsedUpIsRefused(t *testing.T) {
	t.Parallel()
	conn := connect(t, server(t).Endpoint())
	m := newMeddler(t, server(t).Endpoint())
	name := newName(t)
	se := openSession(t, newStore(t, nil, m.addr()))
	enqueue(t, se, name, line.Exclusive).withdraw(t)
	m.on(nil, func(to int32, frame []byte) verdict {
		if at := bytes.LastIndex(frame, []byte("-lock-00000")); to == opCreate2 && at > 0 {
			copy(frame[at+len("-lock-"):], "2147483647")
		}
		return pass
	})
	_, err := tryEnqueue(t.Context(), se, name, line.Exclusive, false)
	if err == nil || !strings.Contains(err.Error(), "/"+name+" are used up") {
		t.Errorf("getting in line says %v, and not what is used up", err)
	}
	await(t, "the end of the entry that was refused", func() bool { return len(nodes(t, conn, "/"+name)) == 0 })
}

// In go-zookeeper, the two are one: sending its credentials again after a reconnection can make a client stand still for
// ever, if the connection ends meanwhile.
func TestAClientWithCredentialsReconnectsThroughFailures(t *testing.T) {
	t.Parallel()
	m := newMeddler(t, server(t).Endpoint())
	opts := &zkstore.Options{
		Root: "/" + newName(t),
		Auth: []zkstore.Auth{{Scheme: "digest", Credentials: "ann:secret"}},
		ACL:  zk.DigestACL(zk.PermAll, "ann", "secret"),
	}
	name := newName(t)
	se := openSession(t, newStore(t, opts, m.addr()))
	p := enqueue(t, se, name, line.Exclusive)
	p.await(t, store.Admitted)

	// The connection ends before, during and after the authentication, for some time.
	cuts := 0
	m.on(func(op int32, _ []byte) verdict {
		if op == opAuth && cuts < 6 && cuts%2 == 0 {
			cuts++
			return cut
		}
		return pass
	}, func(to int32, _ []byte) verdict {
		if (to == opAuth || to == 0) && cuts < 6 && cuts%2 == 1 {
			cuts++
			return cut
		}
		return pass
	})
	m.reset()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	await(t, "a confirmation", func() bool { return se.Confirm(ctx) == nil })
	if cuts < 6 {
		t.Errorf("the connection was cut %d times, want 6: this test has tested little", cuts)
	}
	p.silent(t)
	p.withdraw(t)
	enqueue(t, se, name, line.Exclusive).await(t, store.Admitted)

	// Others, and the same user with another password, may do nothing there.
	for _, auth := range [][]zkstore.Auth{nil, {{Scheme: "digest", Credentials: "ann:wrong"}}} {
		st := newStore(t, &zkstore.Options{Root: opts.Root, Auth: auth}, server(t).Endpoint())
		if _, err := tryEnqueue(ctx, openSession(t, st), name, line.Exclusive, false); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("getting in line without permission says %v", err)
		}
		if _, err := st.Line(ctx, name); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("reading the line without permission says %v", err)
		}
		if err := st.Watch(ctx, "", func() {}); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("watching without permission says %v", err)
		}
	}
}

func TestCredentialsThatNoServerAcceptsAreAnErrorAtOnce(t *testing.T) {
	t.Parallel()
	st := newStore(t, &zkstore.Options{Auth: []zkstore.Auth{{Scheme: "unheard-of", Credentials: "secret"}}}, server(t).Endpoint())
	start := time.Now()
	_, err := st.Open(t.Context(), store.SessionOptions{TTL: 10 * time.Second})
	if !errors.Is(err, zk.ErrAuthFailed) || strings.Contains(err.Error(), "secret") {
		t.Errorf("opening a session says %v", err)
	}
	if took := time.Since(start); took > soon/3 {
		t.Errorf("it took %v", took)
	}
}

// All that such a server says is nothing.
func TestWhoIsTurnedAwayIsToldWhatMayBeWrong(t *testing.T) {
	t.Parallel()
	z := testservers.StartZooKeeper(t, "maxClientCnxns=1")
	if _, _, err := connect(t, z.Endpoint()).Exists("/"); err != nil {
		t.Fatal(err)
	}
	st := newStore(t, nil, z.Endpoint())
	await(t, "an error that names maxClientCnxns", func() bool { // by chance, it may also be that the connection broke as it was made
		ctx, cancel := until(t, time.Second)
		defer cancel()
		err := st.Ping(ctx)
		return err != nil && strings.Contains(err.Error(), "maxClientCnxns")
	})
}

func TestATTLThatTheServersDoNotGrantIsAnErrorThatNamesWhatTheyDo(t *testing.T) {
	t.Parallel()
	st := newStore(t, nil, server(t).Endpoint())
	if _, err := st.Open(t.Context(), store.SessionOptions{TTL: 5 * time.Minute}); err == nil ||
		!strings.Contains(err.Error(), "none above 1m0s") {
		t.Errorf("asking for five minutes says %v", err)
	}
	z := testservers.StartZooKeeper(t, "minSessionTimeout=3000")
	se := openFor(t, newStore(t, nil, z.Endpoint()), time.Second, nil)
	if got, want := se.Terms(), (store.Terms{TTL: 3 * time.Second, Slack: time.Second}); got != want {
		t.Errorf("asked for a second where three are the least, got %+v, want %+v", got, want)
	}
}

// Not in parallel with others: it counts goroutines.
func TestNothingStaysBehind(t *testing.T) {
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
			se, err := st.Open(t.Context(), store.SessionOptions{TTL: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			sessions = append(sessions, se)
			if _, err := tryEnqueue(t.Context(), se, name, line.Exclusive, false); err != nil {
				t.Fatal(err)
			}
			j := enqueue(t, se, name, line.Shared)
			j.NotifyContended(func() {})
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			if err := st.Watch(ctx, "", func() {}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Watch says %v", err)
			}
			cancel()
		}
		if _, err := st.Lines(t.Context(), ""); err != nil {
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
	await(t, "the end of all goroutines", func() bool { return runtime.NumGoroutine() <= before })
}

// The library has no names for the newer answers of servers. They are answers all the same: there is no use in asking again.
func TestAnAnswerThatTheLibraryHasNoNameForIsAnError(t *testing.T) {
	t.Parallel()
	z := testservers.StartZooKeeper(t, "enforceQuota=true", "enforce.auth.enabled=true", "enforce.auth.schemes=digest")
	ann := &zkstore.Options{Auth: []zkstore.Auth{{Scheme: "digest", Credentials: "ann:secret"}}}
	nobody, known := newStore(t, nil, z.Endpoint()), newStore(t, ann, z.Endpoint())
	enqueue(t, openSession(t, known), "a", line.Exclusive).await(t, store.Admitted)

	// The directory and one entry are all that the quota allows.
	conn := connect(t, z.Endpoint())
	if err := conn.AddAuth("digest", []byte("ann:secret")); err != nil {
		t.Fatal(err)
	}
	for _, node := range []struct{ path, data string }{
		{"/zookeeper/quota/a", ""},
		{"/zookeeper/quota/a/zookeeper_stats", "count=2,bytes=0"},
		{"/zookeeper/quota/a/zookeeper_limits", "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=2"},
	} {
		if _, err := conn.Create(node.path, []byte(node.data), 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		st   *zkstore.Store
		want string
	}{{known, "quota"}, {nobody, "authenticate"}} {
		ctx, cancel := until(t, soon)
		_, err := tryEnqueue(ctx, openSession(t, tt.st), "a", line.Exclusive, false)
		if err == nil || !strings.Contains(err.Error(), tt.want) || ctx.Err() != nil {
			t.Errorf("getting in line says %v, and nothing of %q", err, tt.want)
		}
		cancel()
	}
}

// Not in parallel with others: it counts goroutines.
func TestCallsThatWereGivenUpDoNotPileUpWhileNoServerAnswers(t *testing.T) {
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
			t.Fatal("a server that is not there answers")
		}
		cancel()
	}
	await(t, "the end of what works for calls that have returned", func() bool { return runtime.NumGoroutine() < before+calls/4 })
}

// Not in parallel with others: it counts goroutines.
func TestReconnectionsLeaveNothingBehind(t *testing.T) {
	z := testservers.StartZooKeeper(t) // whose connections and watches are all ours
	m := newMeddler(t, z.Endpoint())
	st := newStore(t, nil, m.addr())
	sessions := []store.Session{openSession(t, st), openSession(t, st)}
	name := newName(t)
	enqueue(t, sessions[0], name, line.Exclusive).await(t, store.Admitted)
	next := enqueue(t, sessions[1], name, line.Exclusive)
	next.await(t, store.Waiting)
	await(t, "the two to watch their nodes, and one the other's", func() bool {
		said, err := z.Say("wchp")
		return err == nil && strings.Count(said, "\t0x") == 3
	})
	reconnect := func(times int) {
		for range times {
			m.reset()
			for _, se := range sessions {
				confirmSoon(t, se)
			}
		}
	}
	reconnect(5)
	before := runtime.NumGoroutine()
	reconnect(50)
	await(t, "the end of what worked for connections that were lost", func() bool { return runtime.NumGoroutine() <= before })
	await(t, "the end of all connections but three", func() bool { // two, and the one by which it is asked
		said, err := z.Say("cons")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(said, " /") <= 3
	})
	next.silent(t)
}
