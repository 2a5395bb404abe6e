package zkstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/zkstore"
)

func tryEnqueueAll(ctx context.Context, st store.Store, se store.Session, try bool, names ...string) ([]*joined, error) {
	var set []*joined
	var requests []store.Request
	for _, name := range names {
		j := &joined{name: name, standings: make(chan store.Standing, 100)}
		set = append(set, j)
		requests = append(requests, store.Request{Name: name, Try: try, Notify: func(st store.Standing) { j.standings <- st }})
	}
	tickets, err := st.Capabilities().EnqueueAll(ctx, se, requests)
	for i, ticket := range tickets {
		set[i].Ticket = ticket
	}
	return set, err
}

func enqueueAll(t *testing.T, st store.Store, se store.Session, names ...string) []*joined {
	t.Helper()
	set, err := tryEnqueueAll(t.Context(), st, se, false, names...)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// newNames returns n unique lock names.
func newNames(t *testing.T, n int) (names []string) {
	base := newName(t)
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%02d", base, i))
	}
	return names
}

// deleteNodes deletes the entries of a lock.
func deleteNodes(t *testing.T, conn *zk.Conn, name string) {
	t.Helper()
	for _, node := range nodes(t, conn, "/"+name) {
		if err := conn.Delete("/"+name+"/"+node, -1); err != nil {
			t.Error(err)
		}
	}
}

// The reply to the transaction is lost, or the transaction itself. Meanwhile another client may remove
// entries: one of them means that all are given up, and all that the call repeats the transaction.
// Promise: P5
func TestEnqueueAll_unanswered(t *testing.T) {
	t.Parallel()
	conn := connect(t, server(t).Endpoint())
	for _, tt := range []struct {
		what       string
		carriedOut bool
		evicted    int
		want       error
	}{
		{"not carried out", false, 0, nil},
		{"carried out", true, 0, nil},
		{"carried out, and one was removed", true, 1, store.ErrGone},
		{"carried out, and all were removed", true, 3, nil},
	} {
		m := newInterceptor(t, server(t).Endpoint())
		st, names := newStore(t, nil, m.addr()), newNames(t, 3)
		se := openSession(t, st)
		for _, j := range enqueueAll(t, st, se, names...) { // so that the directories exist
			j.withdraw(t)
		}
		lose, lost := once(opMulti, cut)
		decide := func(op int32, frame []byte) action {
			v := lose(op, frame)
			if v == cut {
				for _, name := range names[:tt.evicted] {
					deleteNodes(t, conn, name)
				}
			}
			return v
		}
		if tt.carriedOut {
			m.intercept(nil, decide)
		} else {
			m.intercept(decide, nil)
		}
		set, err := tryEnqueueAll(t.Context(), st, se, false, names...)
		receive(t, lost, "lost frame")
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.what, err, tt.want)
		}
		want := 0
		if err == nil {
			want = 1
		}
		for i, name := range names {
			if err == nil {
				set[i].admitted(t)
			} else {
				set[i].expectNothing(t)
			}
			if left := nodes(t, conn, "/"+name); len(left) != want {
				t.Errorf("%s: nodes of %s: got %q, want %d", tt.what, name, left, want)
			}
		}
	}
}

// Another client removes an entry after the reply to the transaction, and before the lines are read.
// Promise: P5
func TestEnqueueAll_oneRemovedBeforeReturn(t *testing.T) {
	t.Parallel()
	conn := connect(t, server(t).Endpoint())
	for which := range 2 {
		m := newInterceptor(t, server(t).Endpoint())
		st, names := newStore(t, nil, m.addr()), newNames(t, 2)
		se := openSession(t, st)
		for _, j := range enqueueAll(t, st, se, names...) {
			j.withdraw(t)
		}
		pause, paused := once(opMulti, pass)
		m.intercept(nil, func(op int32, frame []byte) action {
			select {
			case <-paused:
			default:
				if pause(op, frame); op == opMulti {
					deleteNodes(t, conn, names[which])
				}
			}
			return pass
		})
		set, err := tryEnqueueAll(t.Context(), st, se, false, names...)
		if !errors.Is(err, store.ErrGone) || !strings.Contains(err.Error(), names[which]) {
			t.Errorf("entry %d was removed: got %v, want ErrGone with the name %s", which, err, names[which])
		}
		for _, name := range names {
			if left := nodes(t, conn, "/"+name); len(left) != 0 { // at once, not only in the background
				t.Errorf("entry %d was removed: nodes of %s: got %q, want none", which, name, left)
			}
		}
		for _, j := range set {
			j.expectNothing(t)
		}
		if got := zkstore.Parts(se)[0].Bytes; got != 0 {
			t.Errorf("entry %d was removed: the session counts %d bytes, want 0", which, got)
		}
	}
}

// The caller gives up while the transaction is in flight, and it is carried out.
// Promise: P5
func TestEnqueueAll_canceledLeavesNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, server(t).Endpoint())
	m := newInterceptor(t, server(t).Endpoint())
	st, names := newStore(t, nil, m.addr()), newNames(t, 3)
	se := openSession(t, st)
	for _, j := range enqueueAll(t, st, se, names...) {
		j.withdraw(t)
	}
	hold, asked := once(opMulti, stall)
	m.intercept(nil, hold)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	var set []*joined
	go func() {
		var err error
		set, err = tryEnqueueAll(ctx, st, se, false, names...)
		done <- err
	}()
	receive(t, asked, "the reply")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("canceled call: got %v, want context.Canceled", err)
	}
	m.resume()
	for i, name := range names {
		await(t, "no node of "+name, func() bool { return len(nodes(t, conn, "/"+name)) == 0 })
		set[i].expectNothing(t)
	}
	await(t, "count of zero bytes", func() bool { return zkstore.Parts(se)[0].Bytes == 0 })
}

// The servers delete an empty directory, or another client does, after it was found or made.
func TestEnqueueAll_directoryDeleted(t *testing.T) {
	t.Parallel()
	conn := connect(t, server(t).Endpoint())
	m := newInterceptor(t, server(t).Endpoint())
	st, names := newStore(t, nil, m.addr()), newNames(t, 3)
	deleted := 0
	m.intercept(func(op int32, _ []byte) action {
		if op == opMulti && deleted < 3 {
			if err := conn.Delete("/"+names[deleted], -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
				t.Error(err)
			}
			deleted++
		}
		return pass
	}, nil)
	for _, j := range enqueueAll(t, st, openSession(t, st), names...) {
		j.admitted(t)
	}
	if deleted != 3 {
		t.Errorf("got %d transactions, want at least 3", deleted)
	}
}

// Ten free locks take one transaction, one read for the order, and one listing each.
func TestEnqueueAll_requests(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	st, names := newStore(t, nil, m.addr()), newNames(t, 10)
	se := openSession(t, st)
	for _, j := range enqueueAll(t, st, se, names...) {
		j.withdraw(t)
	}
	for _, try := range []bool{false, true} {
		var set []*joined
		var got map[string]int
		// ZooKeeper deletes empty containers each minute.
		for attempt := 1; attempt == 1 || got["createContainer"] > 0 && attempt <= 3; attempt++ {
			for _, j := range set {
				j.withdraw(t)
			}
			m.takeRequests()
			var err error
			if set, err = tryEnqueueAll(t.Context(), st, se, try, names...); err != nil {
				t.Fatal(err)
			}
			got = map[string]int{}
			for _, op := range m.takeRequests() {
				got[op]++
			}
		}
		listings := 10
		if try {
			listings = 20
		}
		delete(got, "setWatches") // nobody waits for these
		if got["multi"] != 1 || got["getData"] != 1 || got["getChildren"] != listings || len(got) != 3 {
			t.Errorf("try %v: got %v, want one multi, one getData and %d getChildren", try, got, listings)
		}
		orders := map[uint64]bool{}
		for _, j := range set {
			orders[j.admitted(t).Order] = true
			j.withdraw(t)
		}
		if len(orders) != 1 {
			t.Errorf("try %v: got the orders %v, want the same for all", try, orders)
		}
	}
}

// Another client takes one lock after a try has found all free.
// Promise: P5
func TestEnqueueAll_tryOvertaken(t *testing.T) {
	t.Parallel()
	conn := connect(t, server(t).Endpoint())
	m := newInterceptor(t, server(t).Endpoint())
	st, names := newStore(t, nil, m.addr()), newNames(t, 3)
	se := openSession(t, st)
	for _, j := range enqueueAll(t, st, se, names...) {
		j.withdraw(t)
	}
	overtake, _ := once(opMulti, stall)
	m.intercept(func(op int32, frame []byte) action {
		if overtake(op, frame) == stall {
			_, err := conn.CreateProtectedEphemeralSequential("/"+names[1]+"/lock-", nil, zk.WorldACL(zk.PermAll))
			if err != nil {
				t.Error(err)
			}
		}
		return pass
	}, nil)
	set, err := tryEnqueueAll(t.Context(), st, se, true, names...)
	if held, ok := errors.AsType[*store.HeldError](err); !ok || held.Name != names[1] {
		t.Errorf("overtaken try: got %v, want a HeldError for %s", err, names[1])
	}
	for i, name := range names {
		set[i].expectNothing(t)
		if got, want := len(nodes(t, conn, "/"+name)), i%2; got != want {
			t.Errorf("nodes of %s: got %d, want %d", name, got, want)
		}
	}
}

// All entries of a call are in one ZooKeeper session, even if another one has room for some.
func TestGroup_setInOneSession(t *testing.T) {
	t.Parallel()
	names := newNames(t, 6)
	st := smallStore(t, 3, names[0], server(t).Endpoint())
	se := openSession(t, st)
	enqueue(t, se, names[0], line.Exclusive).admitted(t)
	set := enqueueAll(t, st, se, names[1:4]...)
	parts := ids(se)
	for _, j := range set {
		j.admitted(t)
		if got := sessionOf(t, j.name); len(parts) != 2 || got != parts[1] {
			t.Errorf("entry %s: got session %s of %v, want the second", j.name, got, parts)
		}
	}
	for _, j := range enqueueAll(t, st, se, names[4:]...) {
		j.admitted(t)
		if got := sessionOf(t, j.name); len(ids(se)) != 2 || got != parts[0] {
			t.Errorf("entry %s: got session %s of %v, want the first, which has room", j.name, got, ids(se))
		}
	}
	if err := se.Confirm(t.Context()); err != nil {
		t.Error(err)
	}
}

// The largest request is accepted by servers with the default limits, and a larger one is refused with
// the number that fits.
func TestEnqueueAll_tooMany(t *testing.T) {
	t.Parallel()
	st := newStore(t, nil, server(t).Endpoint())
	se := openSession(t, st)
	base := newName(t)
	var names []string
	for i := range 5000 {
		names = append(names, fmt.Sprintf("%s/%04d%s", base, i, strings.Repeat("x", 400)))
	}
	_, err := tryEnqueueAll(t.Context(), st, se, false, names...)
	if err == nil {
		t.Fatal("EnqueueAll for 5000 locks succeeded")
	}
	fit := 0
	if _, rest, found := strings.Cut(err.Error(), "the first "); !found {
		t.Fatalf("error: got %v, want the number of locks that fit", err)
	} else if _, err := fmt.Sscan(rest, &fit); err != nil {
		t.Fatal(err)
	}
	if _, err := tryEnqueueAll(t.Context(), st, se, false, names[:fit+1]...); err == nil {
		t.Errorf("EnqueueAll for %d locks succeeded, and the error said that %d fit", fit+1, fit)
	}
	for _, j := range enqueueAll(t, st, se, names[:fit]...) {
		j.admitted(t)
	}
	t.Logf("%d locks fit", fit)
}

// Another client's lock sees an entry of a set like any other.
// Promise: P1
func TestInterop_set(t *testing.T) {
	t.Parallel()
	conn := connect(t, server(t).Endpoint())
	for what, r := range map[string]rival{
		"Curator":      startCurator(t, "mutex"),
		"go-zookeeper": goZookeeper{connect(t, server(t).Endpoint())},
	} {
		st, names := newStore(t, nil, server(t).Endpoint()), newNames(t, 2)
		se := openSession(t, st)
		set := enqueueAll(t, st, se, names...)
		for i, j := range set {
			j.admitted(t)
			path := "/" + names[i]
			mine := nodes(t, conn, path)[0]
			acquired, release := r.join(t, path)
			await(t, what+" to watch Stile's entry", func() bool {
				return slices.ContainsFunc(watchers(t, server(t), path+"/"+mine), func(id string) bool { return id != se.ID() })
			})
			select {
			case <-acquired:
				t.Fatalf("%s acquired a held lock", what)
			default:
			}
			j.withdraw(t)
			receive(t, acquired, what+" to acquire the lock")
			if i == 1 {
				behind := enqueueAll(t, st, se, names...)
				behind[1].await(t, store.Waiting)
				release()
				behind[1].admitted(t)
				continue
			}
			release()
		}
	}
}
