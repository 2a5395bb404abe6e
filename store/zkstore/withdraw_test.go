package zkstore_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// An entry ends with its session. A withdrawal that was in flight when the session ended must
// report that: "session lost" alone would mean that the entry may still exist.
func TestWithdraw_sessionEndsMeanwhile(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	se := openSession(t, newStore(t, nil, m.addr()))
	j, err := tryEnqueue(t.Context(), se, newName(t), line.Exclusive, false)
	if err != nil {
		t.Fatal(err)
	}
	j.await(t, store.Admitted)
	asked := make(chan struct{})
	once := sync.OnceFunc(func() { close(asked) })
	m.intercept(func(op int32, _ []byte) action {
		if op != opDelete {
			return pass
		}
		once()
		return discard
	}, nil)
	done := make(chan error, 1)
	go func() { done <- j.Withdraw(t.Context()) }()
	<-asked
	if err := se.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw while the session was closed: got %v, want ErrGone", err)
	}
}

// When the connection is lost during a withdrawal, the entry may have been broken before the
// request arrived; or the request removed it, and only the reply was lost. The two cannot be told
// apart, so success is not reported.
// Promise: P5
func TestWithdraw_unanswered(t *testing.T) {
	t.Parallel()
	conn := connect(t, server(t).Endpoint())
	for _, tt := range []struct {
		what string
		// broken is whether the request is lost and another client removes the entry. Otherwise the
		// reply is lost.
		broken bool
	}{
		{"broken", true},
		{"withdrawn", false},
	} {
		m := newInterceptor(t, server(t).Endpoint())
		name := newName(t)
		j := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Exclusive)
		j.await(t, store.Admitted)
		node := "/" + name + "/" + nodes(t, conn, "/"+name)[0]
		next := enqueue(t, openSession(t, newStore(t, nil, server(t).Endpoint())), name, line.Exclusive)
		next.await(t, store.Waiting)

		lose, done := once(opDelete, cut)
		if tt.broken {
			m.intercept(func(op int32, frame []byte) action {
				v := lose(op, frame)
				if v == cut {
					if err := conn.Delete(node, -1); err != nil {
						t.Error(err)
					}
				}
				return v
			}, nil)
		} else {
			m.intercept(nil, lose)
		}
		for range 2 { // a second call reports the same
			if err := j.Withdraw(t.Context()); !errors.Is(err, store.ErrNotKnown) || errors.Is(err, store.ErrGone) {
				t.Errorf("%s: Withdraw: got %v, want ErrNotKnown", tt.what, err)
			}
		}
		receive(t, done, "lost frame")
		next.admitted(t)
		j.expectNothing(t)
	}
}

// An entry that is known to have been removed by another client is reported as gone, without a
// request.
func TestWithdraw_brokenThenDisconnected(t *testing.T) {
	t.Parallel()
	conn := connect(t, server(t).Endpoint())
	m := newInterceptor(t, server(t).Endpoint())
	name := newName(t)
	j := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Exclusive)
	j.await(t, store.Admitted)
	if err := conn.Delete("/"+name+"/"+nodes(t, conn, "/"+name)[0], -1); err != nil {
		t.Fatal(err)
	}
	j.gone(t, store.ErrGone)
	m.reset()
	if err := j.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw: got %v, want ErrGone", err)
	}
}

// The caller gives up while the request is in flight, and the request is answered: its outcome is
// known.
// Promise: P5
func TestWithdraw_canceledIsCarriedOut(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	name := newName(t)
	j := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Exclusive)
	j.await(t, store.Admitted)
	next := enqueue(t, openSession(t, newStore(t, nil, server(t).Endpoint())), name, line.Exclusive)
	next.await(t, store.Waiting)
	hold, asked := once(opDelete, stall)
	m.intercept(hold, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.Withdraw(ctx) }()
	receive(t, asked, "the request")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("canceled Withdraw: got %v, want context.Canceled", err)
	}
	m.resume()
	next.admitted(t)
	await(t, "outcome of the withdrawal", func() bool { return errors.Is(j.Withdraw(t.Context()), store.ErrGone) })
}
