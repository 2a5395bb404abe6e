package zkstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func (j *joined) requeue(ctx context.Context) (*joined, error) {
	standings := make(chan store.Standing, 100)
	ticket, err := j.Extensions().Requeue(ctx, store.Owner{}, func(st store.Standing) { standings <- st })
	return &joined{ticket, j.name, standings}, err
}

// A request that was not answered may have been carried out. The next one finds the old entry, or the
// new one. If it finds neither, the outcome is not known.
// Promise: P5
func TestRequeue_unanswered(t *testing.T) {
	t.Parallel()
	conn := connect(t, server(t).Endpoint())
	for _, tt := range []struct {
		what                string
		carriedOut, evicted bool
		want                error
	}{
		{"carried out", true, false, nil},
		{"not carried out", false, false, nil},
		{"carried out, then evicted", true, true, store.ErrNotKnown},
		{"evicted, and not carried out", false, true, store.ErrNotKnown},
	} {
		m := newInterceptor(t, server(t).Endpoint())
		name := newName(t)
		j := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Exclusive)
		order := j.admitted(t).Order
		evict := func() {
			for _, node := range nodes(t, conn, "/"+name) {
				if err := conn.Delete("/"+name+"/"+node, -1); err != nil {
					t.Error(err)
				}
			}
		}
		lose, lost := once(opMulti, cut)
		decide := func(op int32, frame []byte) action {
			v := lose(op, frame)
			if v == cut && tt.evicted {
				evict()
			}
			return v
		}
		if tt.carriedOut {
			m.intercept(nil, decide)
		} else {
			m.intercept(decide, nil)
		}
		again, err := j.requeue(t.Context())
		receive(t, lost, "lost frame")
		if !errors.Is(err, tt.want) || errors.Is(err, store.ErrGone) {
			t.Fatalf("%s: Requeue: got %v, want %v", tt.what, err, tt.want)
		}
		want := 0
		if err == nil {
			want = 1
			if now := again.admitted(t).Order; now <= order {
				t.Errorf("%s: order: got %d after %d, want a larger one", tt.what, now, order)
			}
		}
		if left := nodes(t, conn, "/"+name); len(left) != want {
			t.Errorf("%s: nodes: got %q, want %d", tt.what, left, want)
		}
	}
}

// The caller gives up while the request is in flight, and the request is carried out. Both entries are
// removed.
// Promise: P5
func TestRequeue_canceledLeavesNothing(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	name := newName(t)
	j := enqueue(t, openSession(t, newStore(t, nil, m.addr())), name, line.Exclusive)
	j.admitted(t)
	next := enqueue(t, openSession(t, newStore(t, nil, server(t).Endpoint())), name, line.Exclusive)
	next.await(t, store.Waiting)
	hold, asked := once(opMulti, stall)
	m.intercept(hold, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := j.requeue(ctx); done <- err }()
	receive(t, asked, "the request")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("canceled Requeue: got %v, want context.Canceled", err)
	}
	m.resume()
	next.admitted(t)
	conn := connect(t, server(t).Endpoint())
	await(t, "only the next holder has a node", func() bool { return len(nodes(t, conn, "/"+name)) == 1 })
	next.expectNothing(t)
}
