package zkstore_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// claim claims a slot number.
func (j *joined) claim(t *testing.T) int {
	t.Helper()
	number, _, err := j.Extensions().ClaimNumber(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// claims returns the numbers that are claimed.
func claims(t *testing.T, conn *zk.Conn, name string) []string {
	t.Helper()
	children, _, err := conn.Children("/" + name + "/~slots__9999999999")
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	slices.Sort(children)
	return children
}

// The request, or its reply, is lost with the connection. The entry has one number in the end.
func TestClaimNumber_connectionLost(t *testing.T) {
	t.Parallel()
	for what, on := range map[string]func(m *interceptor, f func(int32, []byte) action){
		"request": func(m *interceptor, f func(int32, []byte) action) { m.intercept(f, nil) },
		"reply":   func(m *interceptor, f func(int32, []byte) action) { m.intercept(nil, f) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name := newName(t)
			conn := connect(t, server(t).Endpoint())
			m := newInterceptor(t, server(t).Endpoint())
			j := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Slot(2))
			j.admitted(t)
			other := enqueue(t, openSession(t, newStore(t, nil, server(t).Endpoint())), name, line.Slot(2))
			other.admitted(t)
			if n := other.claim(t); n != 0 { // it also creates the directory of the claims
				t.Fatalf("number of the other holder: got %d, want 0", n)
			}
			lose, lost := once(opMulti, cut)
			on(m, lose)
			if n := j.claim(t); n != 1 {
				t.Errorf("number: got %d, want 1", n)
			}
			<-lost
			if got := claims(t, conn, name); !slices.Equal(got, []string{"0", "1"}) {
				t.Errorf("claims: got %v, want 0 and 1", got)
			}
			j.withdraw(t)
			if got := claims(t, conn, name); !slices.Equal(got, []string{"0"}) {
				t.Errorf("claims after the withdrawal: got %v, want 0", got)
			}
			other.withdraw(t)
		})
	}
}

// The caller gives up while its claim is in flight. The withdrawal leaves no claim.
// Promise: P5
func TestClaimNumber_givenUp(t *testing.T) {
	t.Parallel()
	name := newName(t)
	conn := connect(t, server(t).Endpoint())
	m := newInterceptor(t, server(t).Endpoint())
	se := openSession(t, newStore(t, nil, m.addr()))
	first := enqueue(t, se, name, line.Slot(2))
	first.admitted(t)
	first.claim(t)
	j := enqueue(t, se, name, line.Slot(2))
	j.admitted(t)
	ctx, cancel := context.WithCancel(t.Context())
	hold, stalled := once(opMulti, stall) // the reply
	m.intercept(nil, hold)
	result := make(chan error, 1)
	go func() {
		_, _, err := j.Extensions().ClaimNumber(ctx)
		result <- err
	}()
	<-stalled
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatalf("ClaimNumber: got %v, want Canceled", err)
	}
	if got := claims(t, conn, name); len(got) != 2 {
		t.Fatalf("precondition failed: got claims %v, want two", got)
	}
	m.intercept(nil, nil)
	m.resume()
	j.withdraw(t)
	await(t, "the claim is removed", func() bool { return slices.Equal(claims(t, conn, name), []string{"0"}) })
	first.withdraw(t)
}

// An entry is deleted by hand, and its claim is left. Its client deletes it, and the next holder waits
// for that.
// Promise: P5
func TestClaimNumber_entryDeletedByHand(t *testing.T) {
	t.Parallel()
	name := newName(t)
	conn := connect(t, server(t).Endpoint())
	st := newStore(t, nil, server(t).Endpoint())
	j := enqueue(t, openSession(t, st), name, line.Slot(1))
	j.admitted(t)
	j.claim(t)
	if err := conn.Delete(j.Extensions().Key, -1); err != nil {
		t.Fatal(err)
	}
	next := enqueue(t, openSession(t, st), name, line.Slot(1))
	next.admitted(t)
	if n := next.claim(t); n != 0 {
		t.Errorf("number of the next holder: got %d, want 0", n)
	}
	j.gone(t, store.ErrGone)
	next.withdraw(t)
	await(t, "no claim is left", func() bool { return len(claims(t, conn, name)) == 0 })
}

// A break removes the claim in the same transaction as the entry.
// Promise: P5
func TestClaimNumber_broken(t *testing.T) {
	t.Parallel()
	name := newName(t)
	conn := connect(t, server(t).Endpoint())
	m := newInterceptor(t, server(t).Endpoint())
	j := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Slot(1))
	order := j.admitted(t).Order
	j.claim(t)
	hold, _ := once(opMulti, stall)
	m.intercept(hold, nil) // the holder cannot remove anything
	if _, err := newStore(t, nil, server(t).Endpoint()).Break(t.Context(), name, order); err != nil {
		t.Fatal(err)
	}
	if got := claims(t, conn, name); len(got) != 0 {
		t.Errorf("claims after the break: got %v, want none", got)
	}
	m.intercept(nil, nil)
	m.resume()
	j.gone(t, store.ErrGone)
}

// The requests of SetLimit find what an attempt without a reply has done.
func TestSetLimit_connectionLost(t *testing.T) {
	t.Parallel()
	name := newName(t)
	m := newInterceptor(t, server(t).Endpoint())
	st := newStore(t, nil, m.addr())
	for _, step := range []struct {
		op    int32
		limit int
	}{{1, 4}, {opSetData, 2}, {opDelete, 0}} {
		lose, _ := once(step.op, cut)
		m.intercept(nil, lose)
		if err := st.Capabilities().SetLimit(t.Context(), name, step.limit); err != nil {
			t.Fatal(err)
		}
		m.intercept(nil, nil)
		if l, err := st.Line(t.Context(), name); err != nil || l.Limit != step.limit {
			t.Errorf("limit: got %d, %v, want %d", l.Limit, err, step.limit)
		}
	}
}
