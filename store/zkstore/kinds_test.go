package zkstore_test

import (
	"errors"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// wantKindError checks that an entry was refused because of another session's.
func wantKindError(t *testing.T, err error, foreign bool) {
	t.Helper()
	other, ok := errors.AsType[*store.KindError](err)
	if !ok || other.Other.Session == "" || other.Other.Foreign != foreign {
		t.Errorf("Enqueue: got %v, want a KindError that names a session, foreign: %v", err, foreign)
	}
}

// A foreign lock counts as a mutex. It waits for slots like any other entry, and slots are refused
// while it is in the line.
// Promise: P1
// Bug: hazelcast #20387
func TestKinds_slotAndForeignLock(t *testing.T) {
	t.Parallel()
	conn, name := connect(t, server(t).Endpoint()), newName(t)
	se := openSession(t, newStore(t, nil, server(t).Endpoint()))
	slot := enqueue(t, se, name, line.Slot(3))
	slot.await(t, store.Admitted)
	acquired, release := goZookeeper{conn}.join(t, "/"+name)
	await(t, "the foreign entry", func() bool { return len(nodes(t, conn, "/"+name)) == 2 })
	another := enqueue(t, se, name, line.Slot(3)) // the line's kind is that of its first entry
	another.withdraw(t)
	slot.withdraw(t)
	receive(t, acquired, "the foreign client to acquire the lock")

	for _, try := range []bool{false, true} {
		_, err := tryEnqueue(t.Context(), se, name, line.Slot(3), try)
		wantKindError(t, err, true)
	}
	if got := nodes(t, conn, "/"+name); len(got) != 1 {
		t.Errorf("nodes: got %q, want that of the foreign client", got)
	}
	release()
	enqueue(t, se, name, line.Slot(3)).withdraw(t)
}

// The connection is lost with the reply to the creation, or to the deletion, of an entry that is
// refused. The entry is deleted nevertheless.
// Promise: P5
func TestKinds_lostReplyOfRefused(t *testing.T) {
	t.Parallel()
	for what, op := range map[string]int32{"creation": opCreate2, "deletion": opDelete} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name := newName(t)
			conn := connect(t, server(t).Endpoint())
			enqueue(t, openSession(t, newStore(t, nil, server(t).Endpoint())), name, line.Slot(2)).await(t, store.Admitted)
			m := newInterceptor(t, server(t).Endpoint())
			se := openSession(t, newStore(t, nil, m.addr()))
			lost, done := once(op, cut)
			m.intercept(nil, lost)
			_, err := tryEnqueue(t.Context(), se, name, line.Exclusive, false)
			wantKindError(t, err, false)
			receive(t, done, "a lost reply")
			await(t, "only the first entry is left", func() bool { return len(nodes(t, conn, "/"+name)) == 1 })
		})
	}
}
