package zkstore_test

import (
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

const recheckSoon = 20 * time.Millisecond

// joinThrough returns a waiter in the line of a name, behind others, whose requests pass an interceptor.
func joinThrough(t *testing.T, m *interceptor, name string) *joined {
	t.Helper()
	st := newStore(t, nil, m.addr())
	st.SetBlockerChecks(recheckSoon, noRecheck)
	p := enqueue(t, openSession(t, st), name, line.Exclusive)
	p.await(t, store.Waiting)
	return p
}

// A waiter lists its line when it joins, and not again while nobody joins or leaves, however long that takes.
func TestRecheck_listsOnlyWhatHasChanged(t *testing.T) {
	t.Parallel()
	name := newName(t)
	others := openSession(t, newStore(t, nil, server(t).Endpoint()))
	holder := enqueue(t, others, name, line.Exclusive)
	holder.admitted(t)
	m := newInterceptor(t, server(t).Endpoint())
	p := joinThrough(t, m, name)
	m.awaitReplies(t, "exists", 20, nil) // these are the rechecks
	if n := m.replies()["getChildren"]; n != 1 {
		t.Errorf("while nothing happened, the waiter has listed the line %d times, want once, as it joined", n)
	}
	before := m.replies()
	behind := enqueue(t, others, name, line.Exclusive)
	m.awaitReplies(t, "getChildren", 1, before)
	before = m.replies()
	m.awaitReplies(t, "exists", 20, before)
	if n := m.replies()["getChildren"] - before["getChildren"]; n != 0 {
		t.Errorf("after one listing of a line with a new entry, the waiter has listed it %d times more", n)
	}
	behind.withdraw(t)
	holder.withdraw(t)
	p.admitted(t)
}

// A waiter notices what has happened although it gets no event.
// Promise: P7
func TestRecheck_missedEvents(t *testing.T) {
	t.Parallel()
	withoutEvents := func(to int32, _ []byte) action {
		if to == -1 {
			return discard
		}
		return pass
	}
	t.Run("the holder leaves", func(t *testing.T) {
		t.Parallel()
		name := newName(t)
		holder := enqueue(t, openSession(t, newStore(t, nil, server(t).Endpoint())), name, line.Exclusive)
		holder.admitted(t)
		m := newInterceptor(t, server(t).Endpoint())
		m.intercept(nil, withoutEvents)
		p := joinThrough(t, m, name)
		holder.withdraw(t)
		p.admitted(t)
	})
	t.Run("the waiter is removed", func(t *testing.T) {
		t.Parallel()
		name, conn := newName(t), connect(t, server(t).Endpoint())
		holder := enqueue(t, openSession(t, newStore(t, nil, server(t).Endpoint())), name, line.Exclusive)
		holder.admitted(t)
		before := nodes(t, conn, "/"+name)
		m := newInterceptor(t, server(t).Endpoint())
		m.intercept(nil, withoutEvents)
		p := joinThrough(t, m, name)
		for _, n := range nodes(t, conn, "/"+name) {
			if n != before[0] {
				if err := conn.Delete("/"+name+"/"+n, -1); err != nil {
					t.Fatal(err)
				}
			}
		}
		p.gone(t, store.ErrGone)
	})
}

// A session's entries in one line have joined at different times. A recheck corrects what each of them knows,
// although the line has not changed since the last of them joined.
func TestRecheck_secondEntryOfSession(t *testing.T) {
	t.Parallel()
	name := newName(t)
	others := openSession(t, newStore(t, nil, server(t).Endpoint()))
	holder := enqueue(t, others, name, line.Exclusive)
	holder.admitted(t)
	next := enqueue(t, others, name, line.Exclusive)
	m := newInterceptor(t, server(t).Endpoint())
	m.intercept(nil, func(to int32, _ []byte) action {
		if to == -1 {
			return discard
		}
		return pass
	})
	st := newStore(t, nil, m.addr())
	st.SetBlockerChecks(time.Second, noRecheck) // usually not before the second has joined; the test may pass in vain otherwise
	se := openSession(t, st)
	first := enqueue(t, se, name, line.Exclusive)
	first.await(t, store.Waiting)
	m.awaitReplies(t, "getData", 2, nil) // the watches of both, whose events are lost
	next.withdraw(t)
	holder.withdraw(t)
	enqueue(t, se, name, line.Exclusive).await(t, store.Waiting) // its listing shows that the line has become shorter

	first.admitted(t)
}

// A waiter that is far back watches only the entries nearest to it. When these begin to leave, those before have
// left: one listing shows that, instead of a request for each of them.
func TestWaiter_farBackListsOnceWhenItComesNear(t *testing.T) {
	t.Parallel()
	const ahead = 40
	name := newName(t)
	se := openSession(t, newStore(t, nil, server(t).Endpoint()))
	var first []*joined
	for range ahead {
		first = append(first, enqueue(t, se, name, line.Exclusive))
	}
	m := newInterceptor(t, server(t).Endpoint())
	p := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Exclusive)
	p.await(t, store.Waiting)
	m.awaitReplies(t, "getData", 8, nil) // their watches
	before := m.replies()
	for _, j := range first {
		j.withdraw(t)
	}
	p.admitted(t)
	if n := m.replies()["getChildren"] - before["getChildren"]; n > 1 {
		t.Errorf("the waiter has listed the line %d times, want at most once", n)
	}
	if n := m.replies()["getData"] - before["getData"]; n > 8 {
		t.Errorf("the waiter has asked for %d entries, want at most 8", n)
	}
}
