package zkstore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/zkstore"
)

// A follower that is cut off from its leader still answers its clients' pings. The leader receives
// nothing from these clients, and ends their sessions. A client that took a reply to a ping for a
// confirmation would believe in its holds until the follower notices, a minute here.
//
// There are several holders, whose confirmations are in different phases when the follower is cut
// off.
// Promise: P6
func TestHold_lostBeforeNextIsAdmitted(t *testing.T) {
	t.Parallel()
	const (
		holders = 8
		// A hold is lost after two thirds of it. The rest is for a busy machine to notify the
		// holders.
		ttl = 15 * time.Second
	)
	e := exclusiveEnsemble(t)
	follower := e.Followers(t)[0]
	var rest []string
	for _, z := range e.Members() {
		if z != follower {
			rest = append(rest, z.Endpoint())
		}
	}
	waiting := newClient(t, newStore(t, nil, rest...), 5*time.Minute)
	plain := connect(t, follower.Endpoint())
	var held []*stile.Hold
	var next []*stile.Place
	for range holders {
		name := newName(t)
		holding := newClient(t, newStore(t, nil, follower.Endpoint()), ttl)
		held = append(held, lock(t, holding, name))
		next = append(next, join(t, waiting, name))
		time.Sleep(ttl / 3 / holders)
	}

	follower.CutOff()
	cut := time.Now()
	valid := 0
	for _, h := range held {
		if h.Valid() {
			valid++
		}
	}
	if valid == 0 {
		t.Error("all holds were lost before the partition: the test is not effective")
	}
	for i, p := range next {
		receive(t, p.Ready(), "next entry to be admitted after the partition")
		if held[i].Context().Err() == nil {
			t.Errorf("the next entry was admitted %v after the partition, and the context of hold %d has not ended", time.Since(cut), i)
		}
		if held[i].Valid() {
			t.Errorf("the next entry was admitted, and hold %d is still valid", i)
		}
	}
	// A client that relies on pings would not notice.
	if _, _, err := plain.Exists("/"); err != nil {
		t.Errorf("the partitioned follower does not answer its clients (%v): the test is not effective", err)
	}
	follower.Reconnect()
	follower.AwaitReady()
	for _, p := range next {
		h, err := p.Wait(t.Context())
		if err == nil {
			err = h.Release(t.Context())
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// A leader that all others have left, and that has not noticed, still answers everything that needs
// no majority: pings, reads and syncs. Meanwhile the others may have ended the session.
// Promise: P1
func TestConfirm_holdsNeedMajority(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	swallowed := make(chan struct{}, 10)
	withoutMajority := func(to int32, _ []byte) action {
		if to == opMulti {
			swallowed <- struct{}{}
			return discard
		}
		return pass
	}
	other := openSession(t, newStore(t, nil, server(t).Endpoint()))
	// confirm cancels the confirmation when a reply was discarded.
	confirm := func(se store.Session) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		confirmed := make(chan error, 1)
		go func() { confirmed <- se.Confirm(ctx) }()
		select {
		case err := <-confirmed:
			return err
		case <-swallowed:
			cancel()
			return <-confirmed
		}
	}

	se := openSession(t, newStore(t, nil, m.addr()))
	m.intercept(nil, withoutMajority)
	if err := confirm(se); err != nil {
		t.Errorf("Confirm of a session without holds: %v", err)
	}
	p := enqueue(t, se, newName(t), line.Exclusive)
	p.await(t, store.Admitted)
	if err := confirm(se); !errors.Is(err, context.Canceled) {
		t.Errorf("Confirm of a session with a hold, without a majority: got %v, want context.Canceled", err)
	}
	m.intercept(nil, nil)
	if err := confirm(se); err != nil {
		t.Errorf("Confirm with a majority: %v", err)
	}
	p.withdraw(t)

	// A waiter is admitted while a sync is in flight.
	name := newName(t)
	holder := enqueue(t, other, name, line.Exclusive)
	before := m.replies()
	p = enqueue(t, se, name, line.Exclusive)
	p.await(t, store.Waiting)
	m.awaitReplies(t, "getData", 1, before) // the holder's node is watched
	m.intercept(func(op int32, _ []byte) action {
		if op == opSync {
			if err := holder.Withdraw(t.Context()); err != nil {
				t.Error(err)
			}
		}
		return pass
	}, withoutMajority)
	if err := confirm(se); !errors.Is(err, context.Canceled) {
		t.Errorf("Confirm of a session whose entry was admitted meanwhile: got %v, want context.Canceled", err)
	}
	p.admitted(t)
}

// A session with waiters only is confirmed by a sync, which such a leader answers. A read at this
// leader may show an old state, so no entry is admitted before a majority has answered.
// Promise: P1
func TestWaiter_readNeedsMajority(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	other := openSession(t, newStore(t, nil, server(t).Endpoint()))
	name := newName(t)
	holder := enqueue(t, other, name, line.Exclusive)
	before := m.replies()
	p := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Exclusive)
	p.await(t, store.Waiting)
	m.awaitReplies(t, "getData", 1, before) // the holder's node is watched

	asked := m.loseMajority(0, 0, func() { // no event reports it; the read that follows shows it
		if err := holder.Withdraw(t.Context()); err != nil {
			t.Error(err)
		}
	})
	m.reset()
	m.checkNeedsMajority(t, p, asked)
}

// The read may be the one that sets the watch of a node ahead.
// Promise: P1
func TestWaiter_missingNodeAheadNeedsMajority(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	name := newName(t)
	holder := enqueue(t, openSession(t, newStore(t, nil, server(t).Endpoint())), name, line.Exclusive)
	se := openSession(t, newStore(t, nil, m.addr()))
	asked := m.loseMajority(opGetData, 0, func() {
		if err := holder.Withdraw(t.Context()); err != nil {
			t.Error(err)
		}
	})
	p := enqueue(t, se, name, line.Exclusive)
	p.await(t, store.Waiting)
	m.checkNeedsMajority(t, p, asked)
}

// Or it may be the request that watches the entries of a session again, two of which may be in one
// line: the missing node of one concerns the other.
// Promise: P1
func TestWaiter_missingOwnNodeNeedsMajority(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	conn := connect(t, server(t).Endpoint())
	name := newName(t)
	enqueue(t, openSession(t, newStore(t, nil, server(t).Endpoint())), name, line.Shared).await(t, store.Admitted)
	se := openSession(t, newStore(t, nil, m.addr()))
	before := m.replies()
	writer := enqueue(t, se, name, line.Exclusive)
	writer.await(t, store.Waiting)
	m.awaitReplies(t, "getData", 1, before)
	two := nodes(t, conn, "/"+name)
	// The holder's name ends with 0.
	own := two[slices.IndexFunc(two, func(node string) bool { return strings.HasSuffix(node, "1") })]
	reader := enqueue(t, se, name, line.Shared)
	reader.await(t, store.Waiting)
	m.awaitReplies(t, "getData", 2, before)

	asked := m.loseMajority(0, opGetChildren2, func() {
		if err := conn.Delete("/"+name+"/"+own, -1); err != nil {
			t.Error(err)
		}
	})
	m.reset()
	writer.gone(t, store.ErrGone)
	m.checkNeedsMajority(t, reader, asked)
}

// loseMajority discards the replies to transactions and to the operation unanswered. It calls do
// before the first request of the operation when is forwarded; 0 is the handshake. The channel
// receives a value for each transaction.
func (m *interceptor) loseMajority(when, unanswered int32, do func()) (asked <-chan struct{}) {
	transactions := make(chan struct{}, 100)
	once := sync.OnceFunc(do)
	m.intercept(func(op int32, _ []byte) action {
		if op == when {
			once()
		}
		return pass
	}, func(to int32, _ []byte) action {
		switch to {
		case opMulti:
			transactions <- struct{}{}
			return discard
		case 0:
		case unanswered:
			return discard
		}
		return pass
	})
	return transactions
}

// checkNeedsMajority checks that an entry is admitted only after a transaction was answered.
func (m *interceptor) checkNeedsMajority(t *testing.T, p *joined, asked <-chan struct{}) {
	t.Helper()
	select {
	case <-asked:
	case st := <-p.standings:
		t.Fatalf("got standing %v before a transaction was answered", st.State)
	case <-time.After(testTimeout):
		t.Fatal("no transaction was requested")
	}
	p.expectNothing(t)
	m.intercept(nil, nil)
	m.reset()
	p.admitted(t)
}

func TestConfirm_topNotReadable(t *testing.T) {
	t.Parallel()
	z := restricted(t)
	conn := z.connect(t)
	root := "/" + newName(t)
	if _, err := conn.Create(root, nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.SetACL("/", zk.DigestACL(zk.PermAll, "ann", "secret"), -1); err != nil {
		t.Fatal(err)
	}
	bob := optionsWith(zkstore.Auth{Scheme: "digest", Credentials: "bob:secret"})
	bob.Root = root
	se := openSession(t, newStore(t, bob, z.Endpoint()))
	if _, err := store.CollectLines(newStore(t, &zkstore.Options{Auth: bob.Auth}, z.Endpoint()).Lines(t.Context(), "")); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("Lines at the root: got %v, want zk.ErrNoAuth: the test is not effective", err)
	}
	enqueue(t, se, "a", line.Exclusive).await(t, store.Admitted)
	if err := se.Confirm(t.Context()); err != nil {
		t.Error(err)
	}
}
