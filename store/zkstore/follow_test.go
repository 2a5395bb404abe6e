package zkstore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/zkstore"
)

// With many slots any of the holders may free one.
// Bug: redisson #6664
func TestSlots_anyFreedSlotAdmitsNext(t *testing.T) {
	t.Parallel()
	const slots = 20
	name := newName(t)
	se := openSession(t, newStore(t, nil, server(t).Endpoint()))
	var in []*joined
	for range slots {
		p := enqueue(t, se, name, line.Slot(slots))
		p.await(t, store.Admitted)
		in = append(in, p)
	}
	for _, far := range []int{0, slots / 2, slots - 1} {
		m := newInterceptor(t, server(t).Endpoint())
		next := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Slot(slots))
		next.await(t, store.Waiting)
		m.awaitReplies(t, "getChildren", 2, nil) // the second sets the directory's watch
		in[far].withdraw(t)
		next.admitted(t)
	}
}

// In a long line an entry watches only the nearest entries ahead. When they have left, it must find
// the others.
func TestWaiter_waitsForAllAhead(t *testing.T) {
	t.Parallel()
	const ahead = 20
	name := newName(t)
	st := newStore(t, nil, server(t).Endpoint())
	var first []*joined
	for range ahead {
		first = append(first, enqueue(t, openSession(t, st), name, line.Exclusive))
	}
	last := enqueue(t, openSession(t, newStore(t, nil, server(t).Endpoint())), name, line.Exclusive)
	last.await(t, store.Waiting)
	for i := ahead - 1; i >= 0; i-- { // the nearest first
		select {
		case st := <-last.standings:
			if st.State != store.Waiting {
				t.Fatalf("the last entry, with %d entries ahead: got %v, want Waiting", i+1, st.State)
			}
		default:
		}
		first[i].withdraw(t)
	}
	last.admitted(t)
}

// Since 5.5 a Curator writer may become a reader: it creates a reader's node with its own number
// and deletes its own node.
// Bug: CURATOR-276
func TestWaiter_behindCuratorDowngrade(t *testing.T) {
	t.Parallel()
	name := newName(t)
	conn := connect(t, server(t).Endpoint())
	create := func(path string, flags int32) {
		t.Helper()
		if _, err := conn.Create(path, nil, flags, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	const guidPart = "/_c_01234567-89ab-4def-8123-456789abcdef-"
	writer, reader := "/"+name+guidPart+"__WRIT__0000000000", "/"+name+guidPart+"__READ__0000000000"
	create("/"+name, zk.FlagPersistent)
	create(writer, zk.FlagEphemeral)

	se := openSession(t, newStore(t, &zkstore.Options{ReadWrite: true}, server(t).Endpoint()))
	p := enqueue(t, se, name, line.Exclusive)
	p.await(t, store.Waiting)
	awaitWatch(t, server(t), se, writer)
	create(reader, zk.FlagEphemeral)
	if err := conn.Delete(writer, -1); err != nil {
		t.Fatal(err)
	}
	awaitWatch(t, server(t), se, reader) // so the line has been read since
	confirm(t, se)                       // so all events have been delivered
	select {
	case st := <-p.standings:
		if st.State == store.Admitted {
			t.Fatal("the entry was admitted while Curator's reader holds the lock")
		}
	default:
	}
	if err := conn.Delete(reader, -1); err != nil {
		t.Fatal(err)
	}
	p.admitted(t)
}

func TestHold_goneAfterNodeWasChanged(t *testing.T) {
	t.Parallel()
	name := newName(t)
	conn := connect(t, server(t).Endpoint())
	se := openSession(t, newStore(t, nil, server(t).Endpoint()))
	p := enqueue(t, se, name, line.Exclusive)
	p.await(t, store.Admitted)
	node := "/" + name + "/" + nodes(t, conn, "/"+name)[0]
	for range 3 {
		awaitWatch(t, server(t), se, node)
		if _, err := conn.Set(node, []byte("__REVOKE__"), -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.Delete(node, -1); err != nil {
		t.Fatal(err)
	}
	p.gone(t, store.ErrGone)
	if err := p.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw of a deleted entry: got %v, want ErrGone", err)
	}
}

// Promise: P7
func TestWaiter_behindUnreadableEntry(t *testing.T) {
	t.Parallel()
	name := newName(t)
	secret := newStore(t, &zkstore.Options{
		Auth: []zkstore.Auth{{Scheme: "digest", Credentials: "ann:secret"}},
		ACL:  zk.DigestACL(zk.PermAll, "ann", "secret"),
	}, server(t).Endpoint())
	m := newInterceptor(t, server(t).Endpoint())
	open := newStore(t, nil, m.addr())
	se := openSession(t, open)
	// This creates the directory with an ACL that allows everybody everything.
	enqueue(t, se, name, line.Exclusive).withdraw(t)
	holding := openSession(t, secret)
	holder := enqueue(t, holding, name, line.Exclusive)
	holder.await(t, store.Admitted)
	if _, err := tryEnqueue(t.Context(), se, name, line.Exclusive, true); !isHeld(err) {
		t.Errorf("try for a lock with an unreadable holder: got %v, want a HeldError", err)
	}
	if lines, err := store.CollectLines(open.Lines(t.Context(), name)); err != nil || len(lines) != 1 || len(lines[0].Entries) != 1 ||
		lines[0].Entries[0].Session != holding.ID() || lines[0].Entries[0].Foreign {
		t.Errorf("line with an unreadable entry: got %+v, %v, want one entry of the holder's session", lines, err)
	}
	// The directory is listed a second time, with a watch, because the holder's node cannot be
	// watched.
	before := m.replies()
	first := enqueue(t, se, name, line.Exclusive)
	first.await(t, store.Waiting)
	m.awaitReplies(t, "getChildren", 2, before)
	first.withdraw(t)
	before = m.replies()
	p := enqueue(t, se, name, line.Exclusive)
	p.await(t, store.Waiting)
	m.awaitReplies(t, "getChildren", 2, before)
	holder.withdraw(t)
	p.admitted(t)
}

// A try does not wait for the removal of such an entry.
func TestTry_ownEntryNotDeletable(t *testing.T) {
	t.Parallel()
	se, name := openSession(t, newStore(t, nil, server(t).Endpoint())), newName(t)
	j := enqueue(t, se, name, line.Exclusive)
	conn := connect(t, server(t).Endpoint())
	if _, err := conn.SetACL("/"+name, zk.WorldACL(zk.PermRead|zk.PermCreate|zk.PermAdmin), -1); err != nil {
		t.Fatal(err)
	}
	if err := j.Withdraw(t.Context()); err == nil {
		t.Fatal("Withdraw succeeded without permission")
	}
	ctx, cancel := until(t, testTimeout)
	defer cancel()
	_, err := tryEnqueue(ctx, se, name, line.Exclusive, true)
	if held, ok := errors.AsType[*store.HeldError](err); !ok || held.Holder == nil || held.Holder.Session != se.ID() {
		t.Errorf("try: got %v, want a HeldError with the entry's session", err)
	}
	if _, err := conn.SetACL("/"+name, zk.WorldACL(zk.PermAll), -1); err != nil {
		t.Fatal(err)
	}
}

// The deletion of a holder's entry is refused because the directory's ACL was changed. It succeeds
// when the ACL is changed back.
func TestWithdraw_refusedIsRetried(t *testing.T) {
	t.Parallel()
	name := newName(t)
	conn := connect(t, server(t).Endpoint())
	p := enqueue(t, openSession(t, newStore(t, nil, server(t).Endpoint())), name, line.Exclusive)
	p.await(t, store.Admitted)
	if _, err := conn.SetACL("/"+name, zk.WorldACL(zk.PermRead|zk.PermAdmin), -1); err != nil {
		t.Fatal(err)
	}
	if err := p.Withdraw(t.Context()); !errors.Is(err, zk.ErrNoAuth) {
		t.Fatalf("Withdraw without permission: got %v, want zk.ErrNoAuth", err)
	}
	if _, err := conn.SetACL("/"+name, zk.WorldACL(zk.PermAll), -1); err != nil {
		t.Fatal(err)
	}
	await(t, "removal of the entry", func() bool { return len(nodes(t, conn, "/"+name)) == 0 })
}

func TestWatch_rootCreatedLater(t *testing.T) {
	t.Parallel()
	root := "/" + newName(t) + "/deep"
	st := newStore(t, &zkstore.Options{Root: root}, server(t).Endpoint())
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan struct{}, 100)
	done := make(chan error, 1)
	go func() { done <- st.Watch(ctx, "a", func([]string) { changed <- struct{}{} }) }()
	receive(t, changed, "watch to open")

	p := enqueue(t, openSession(t, st), "a/b", line.Exclusive)
	for {
		receive(t, changed, "notification of the first entry") // not a periodic one: see noRecheck
		lines, err := store.CollectLines(st.Lines(t.Context(), "a"))
		if err != nil {
			t.Fatal(err)
		}
		if len(lines) == 1 && lines[0].Name == "a/b" {
			break
		}
	}
	p.withdraw(t)
	receive(t, changed, "notification of its removal")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Watch: got %v, want context.Canceled", err)
	}
}

// All nodes of a line are deleted in one transaction while several entries wait, and the servers
// send the events one after another. No waiter may be admitted because the others are gone.
// Promise: P1
// Bug: etcd #16221
func TestWaiter_allNodesDeletedInOneTransaction(t *testing.T) {
	t.Parallel()
	z, name, conn := server(t), newName(t), connect(t, server(t).Endpoint())
	join := func() *joined {
		return enqueue(t, openSession(t, newStore(t, nil, z.Endpoint())), name, line.Exclusive)
	}
	join().admitted(t)
	var waiting []*joined
	for range 5 {
		j := join()
		j.await(t, store.Waiting)
		waiting = append(waiting, j)
	}
	dir := "/" + name
	all := nodes(t, conn, dir)
	await(t, "all nodes to be watched", func() bool {
		return !slices.ContainsFunc(all, func(n string) bool { return len(watchers(t, z, dir+"/"+n)) == 0 })
	})
	const sequence = 10 // digits at the end
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(a[len(a)-sequence:], b[len(b)-sequence:]) })
	var deletes []any
	for _, n := range all {
		deletes = append(deletes, &zk.DeleteRequest{Path: dir + "/" + n, Version: -1})
	}
	if _, err := conn.Multi(deletes...); err != nil {
		t.Fatal(err)
	}
	for _, j := range waiting {
		for {
			st := j.next(t)
			if st.State == store.Admitted {
				t.Error("an entry was admitted after its node was deleted")
			}
			if st.State != store.Waiting {
				break
			}
		}
	}
}
