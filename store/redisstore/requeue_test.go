package redisstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

func (s *testEntry) requeue(ctx context.Context) (*testEntry, error) {
	again := &testEntry{name: s.name, changed: make(chan struct{})}
	ticket, err := s.Extensions().Requeue(ctx, store.Owner{Host: "test"}, again.receive)
	again.Ticket = ticket
	return again, err
}

// A request that was not answered may have been carried out. The next one finds the old entry, or the
// new one. If it finds neither, the outcome is not known.
// Promise: P5
func TestRequeue_replyLost(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	type request = func(context.Context) []rueidis.RedisResult
	for what, c := range map[string]struct {
		carriedOut, evicted bool
		want                error
	}{
		"carried out":                  {true, false, nil},
		"not carried out":              {false, false, nil},
		"carried out, then evicted":    {true, true, store.ErrNotKnown},
		"evicted, and not carried out": {false, true, store.ErrNotKnown},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name := newName(t)
			st, interceptor := interceptedStore(t, server.Addr())
			ticket := hold(t, open(t, st, longTTL), name)
			old, _, _ := ticket.standing()
			interceptor.next("requeue", func(_ context.Context, send request) []rueidis.RedisResult {
				if c.carriedOut {
					if err := send(t.Context())[0].Error(); err != nil {
						t.Error(err)
					}
				}
				if c.evicted {
					l, err := st.Line(t.Context(), name)
					if err != nil || len(l.Entries) != 1 {
						t.Errorf("line: got %+v, %v, want one entry", l, err)
					} else if _, err := st.Break(t.Context(), name, l.Entries[0].Order); err != nil {
						t.Error(err)
					}
				}
				return cutConnection(send)
			})
			again, err := ticket.requeue(t.Context())
			if !errors.Is(err, c.want) || errors.Is(err, store.ErrGone) {
				t.Fatalf("Requeue: got %v, want %v", err, c.want)
			}
			if err != nil {
				eventually(t, "nothing is left", func() bool { return lineLength(t, st, name) == 0 })
				return
			}
			if now, _ := again.await(t, store.Admitted); now.Order <= old.Order {
				t.Errorf("order: got %d after %d, want a larger one", now.Order, old.Order)
			}
			again.leave(t)
			if n := lineLength(t, st, name); n != 0 {
				t.Errorf("got %d entries at the end, want 0", n)
			}
		})
	}
}

func lineLength(t *testing.T, st *redisstore.Store, name string) int {
	t.Helper()
	l, err := st.Line(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return len(l.Entries)
}

// The caller has given up, and its request arrives late: before the removal of the entries, or after.
// Promise: P5
func TestRequeue_lateRequestIsVoid(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, interceptor := interceptedStore(t, server.Addr())
	ticket := hold(t, open(t, st, longTTL), name)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var deliver func(context.Context) []rueidis.RedisResult
	interceptor.next("requeue", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		deliver = send
		cancel()
		return failRequest(ctx, send)
	})
	if _, err := ticket.requeue(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("Requeue: got %v, want Canceled", err)
	}
	eventually(t, "the entry is removed", func() bool { return lineLength(t, st, name) == 0 })
	if err := deliver(t.Context())[0].Error(); err != nil {
		t.Error(err)
	}
	if n := lineLength(t, st, name); n != 0 {
		t.Errorf("the late request has put %d entries in, want 0", n)
	}
}

// Other lockers, which set the lock's key if it does not exist, do not get the lock in between.
func TestRequeue_keyStaysSet(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	ticket := hold(t, open(t, storeAt(t, server.Addr()), longTTL), name)
	key := redisstore.Keys("", name)[0]
	stop, done := make(chan struct{}), make(chan struct{})
	cli := connect(t, server.Addr())
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := cli.Do(t.Context(), cli.B().Set().Key(key).Value("other").Nx().Build()).Error(); !rueidis.IsRedisNil(err) {
				t.Errorf("SET NX: got %v, want nil, because the key exists", err)
				return
			}
		}
	}()
	for range 20 {
		again, err := ticket.requeue(t.Context())
		if err != nil {
			t.Error(err)
			break
		}
		again.await(t, store.Admitted)
		ticket = again
	}
	close(stop)
	<-done
}
