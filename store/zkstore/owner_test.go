package zkstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// checkOwner checks that a line has one entry, with the given order and the given reason in its
// owner.
func checkOwner(t *testing.T, st store.Store, name string, order uint64, reason string) {
	t.Helper()
	l, err := st.Line(t.Context(), name)
	if err != nil || len(l.Entries) != 1 || l.Entries[0].Order != order || l.Entries[0].Owner.Reason != reason ||
		l.Entries[0].Mode != line.Exclusive {
		t.Errorf("line: got %+v, %v, want one entry with order %d and reason %q", l, err, order, reason)
	}
}

// The node has another version than the session knows.
func TestSetOwner_nodeChangedByOther(t *testing.T) {
	t.Parallel()
	name, st := newName(t), newStore(t, nil, server(t).Endpoint())
	j := enqueue(t, openSession(t, st), name, line.Exclusive)
	order := j.admitted(t).Order
	conn := connect(t, server(t).Endpoint())
	path := "/" + name + "/" + nodes(t, conn, "/"+name)[0]
	if _, err := conn.Set(path, []byte("seen by the operators"), -1); err != nil {
		t.Fatal(err)
	}
	for _, reason := range []string{"one", "two"} {
		if err := j.Extensions().SetOwner(t.Context(), store.Owner{Reason: reason}); err != nil {
			t.Fatal(err)
		}
		checkOwner(t, st, name, order, reason)
	}
	j.withdraw(t)
}

// No event tells a watch of a changed owner: it reports one from time to time.
func TestWatch_reportsChangedOwner(t *testing.T) {
	t.Parallel()
	name, st := newName(t), newStore(t, nil, server(t).Endpoint())
	st.SetResync(10 * time.Millisecond)
	j := enqueue(t, openSession(t, st), name, line.Exclusive)
	j.admitted(t)
	ctx, cancel := context.WithCancel(t.Context())
	changed, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- st.Watch(ctx, name, func([]string) {
			select {
			case changed <- struct{}{}:
			case <-ctx.Done():
			}
		})
	}()
	receive(t, changed, "the watch is established")
	if err := j.Extensions().SetOwner(t.Context(), store.Owner{Reason: "another"}); err != nil {
		t.Fatal(err)
	}
	receive(t, changed, "a call that may have begun before the change")
	receive(t, changed, "a call after the change")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Watch returned %v", err)
	}
	j.withdraw(t)
}

// A node of the same name that another client has created is not the entry.
// Promise: P1
// Bug: CURATOR-696
func TestSetOwner_nodeRecreatedByOther(t *testing.T) {
	t.Parallel()
	name := newName(t)
	m := newInterceptor(t, server(t).Endpoint())
	j := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Exclusive)
	j.admitted(t)
	conn := connect(t, server(t).Endpoint())
	path := "/" + name + "/" + nodes(t, conn, "/"+name)[0]
	hold, asked := once(opSetData, stall)
	m.intercept(hold, nil)
	result := make(chan error, 1)
	go func() { result <- j.Extensions().SetOwner(t.Context(), store.Owner{Reason: "mine"}) }()
	<-asked
	if err := conn.Delete(path, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	m.resume()
	if err := <-result; !errors.Is(err, store.ErrGone) {
		t.Errorf("SetOwner of an entry whose node was recreated: got %v, want ErrGone", err)
	}
	j.gone(t, store.ErrGone)
}

// The request or its reply is lost with the connection. The next attempt may find the version that
// the first has written.
func TestSetOwner_connectionLost(t *testing.T) {
	t.Parallel()
	for what, on := range map[string]func(m *interceptor, f func(int32, []byte) action){
		"request": func(m *interceptor, f func(int32, []byte) action) { m.intercept(f, nil) },
		"reply":   func(m *interceptor, f func(int32, []byte) action) { m.intercept(nil, f) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name := newName(t)
			m := newInterceptor(t, server(t).Endpoint())
			st := newStore(t, nil, m.addr())
			j := enqueue(t, openSession(t, st), name, line.Exclusive)
			order := j.admitted(t).Order
			lose, lost := once(opSetData, cut)
			on(m, lose)
			if err := j.Extensions().SetOwner(t.Context(), store.Owner{Reason: "mine"}); err != nil {
				t.Fatal(err)
			}
			select {
			case <-lost:
			default:
				t.Error("no frame was lost: the test is not effective")
			}
			checkOwner(t, st, name, order, "mine")
			j.withdraw(t)
		})
	}
}
