package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

func newNames(t *testing.T, n int) (names []string) {
	t.Helper()
	for range n {
		names = append(names, newName(t))
	}
	return names
}

// tryJoinAll adds an entry to each of the lines, in one step.
func tryJoinAll(ctx context.Context, se store.Session, st *redisstore.Store, try bool, names []string) ([]*testEntry, error) {
	var all []*testEntry
	var requests []store.Request
	for _, name := range names {
		s := &testEntry{name: name, changed: make(chan struct{})}
		all = append(all, s)
		requests = append(requests, store.Request{Name: name, Mode: line.Exclusive, Owner: store.Owner{Host: "test"}, Try: try, Notify: s.receive})
	}
	tickets, err := st.Capabilities().EnqueueAll(ctx, se, requests)
	if err != nil {
		return nil, err
	}
	for i, s := range all {
		s.Ticket = tickets[i]
	}
	return all, nil
}

func joinAll(t *testing.T, se store.Session, st *redisstore.Store, names []string) []*testEntry {
	t.Helper()
	all, err := tryJoinAll(t.Context(), se, st, false, names)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// wantNothingLeft waits until no line has keys, and no entry is registered.
func wantNothingLeft(t *testing.T, server *testservers.Redis, st *redisstore.Store, names []string) {
	t.Helper()
	for _, name := range names {
		eventually(t, "no key of the line is left", func() bool { return len(keysOf(t, server, name)) == 0 })
	}
	eventually(t, "no entry is registered", func() bool { return st.Entries() == 0 })
}

// The number of names makes no difference: one request, of one command, puts all entries in.
func TestEnqueueAll_oneRequest(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, interceptor := interceptedStore(t, server.Addr())
	se := open(t, st, longTTL)
	hold(t, se, newName(t)).leave(t) // loads the script
	for attempt := 1; ; attempt++ {
		interceptor.commands()
		before, _ := interceptor.counts()
		began := time.Now()
		set := joinAll(t, se, st, newNames(t, 10))
		took := time.Since(began)
		after, _ := interceptor.counts()
		sent := interceptor.commands()
		for _, s := range set {
			s.await(t, store.Admitted)
		}
		if took > time.Second/2 && attempt < 10 {
			continue // a busy server is asked again
		}
		if after-before != 1 || !slices.Equal(sent, []string{"EVALSHA"}) {
			t.Errorf("10 entries took %d requests with the commands %q, want one request with one EVALSHA", after-before, sent)
		}
		return
	}
}

// As many names as are allowed. One more is refused before anything is sent.
func TestEnqueueAll_largest(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, interceptor := interceptedStore(t, server.Addr())
	se := open(t, st, longTTL)
	names := newNames(t, redisstore.MaxSet+1)
	before, _ := interceptor.counts()
	_, err := tryJoinAll(t.Context(), se, st, false, names)
	if after, _ := interceptor.counts(); err == nil || !strings.Contains(err.Error(), fmt.Sprint(redisstore.MaxSet)) || after != before {
		t.Errorf("too many names: got %v after %d requests, want an error that names the limit, and no request", err, after-before)
	}
	for _, s := range joinAll(t, se, st, names[1:]) {
		s.await(t, store.Admitted)
	}
}

// Servers lose scripts when they are restarted.
func TestEnqueueAll_afterScriptFlush(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st := storeAt(t, server.Addr())
	se := open(t, st, longTTL)
	server.Do("SCRIPT", "FLUSH")
	for _, s := range joinAll(t, se, st, newNames(t, 3)) {
		s.await(t, store.Admitted)
		s.leave(t)
	}
}

// A refused call writes nothing at any moment: no last order, which stays when entries leave.
func TestEnqueueAll_refusedWritesNothing(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st := storeAt(t, server.Addr())
	se := open(t, st, longTTL)
	names := newNames(t, 3)
	join(t, open(t, storeAt(t, server.Addr()), longTTL), names[1], line.Slot(2)).await(t, store.Admitted)
	for _, try := range []bool{false, true} {
		_, err := tryJoinAll(t.Context(), se, st, try, names)
		if kind, ok := errors.AsType[*store.KindError](err); !ok || kind.Name != names[1] {
			t.Errorf("try %v: got %v, want a KindError for %q", try, err, names[1])
		}
	}
	hold(t, open(t, storeAt(t, server.Addr()), longTTL), names[2])
	if _, err := tryJoinAll(t.Context(), se, st, true, []string{names[0], names[2]}); !isHeld(err, names[2]) {
		t.Errorf("try: got %v, want a HeldError for %q", err, names[2])
	}
	for _, key := range redisstore.Keys("", names[0]) {
		if n, err := server.Do("EXISTS", key).AsInt64(); err != nil || n != 0 {
			t.Errorf("key %q exists (%d, %v), want it absent", key, n, err)
		}
	}
}

func isHeld(err error, name string) bool {
	held, ok := errors.AsType[*store.HeldError](err)
	return ok && held.Name == name
}

// The reply was lost. The repeated request finds all entries; if one is gone since, all are removed, also
// when the server has forgotten it without a trace.
// Promise: P5
func TestEnqueueAll_replyLost(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	for what, c := range map[string]struct {
		meanwhile func(*testing.T, *redisstore.Store, string)
		want      error
	}{
		"nothing happened": {func(*testing.T, *redisstore.Store, string) {}, nil},
		"one was broken": {func(t *testing.T, st *redisstore.Store, name string) {
			t.Helper()
			l, err := st.Line(t.Context(), name)
			if err != nil || len(l.Entries) != 1 {
				t.Errorf("line: got %+v, %v, want one entry", l, err)
			} else if _, err := st.Break(t.Context(), name, l.Entries[0].Order); err != nil {
				t.Error(err)
			}
		}, store.ErrGone},
		"one was forgotten": {func(_ *testing.T, _ *redisstore.Store, name string) {
			server.Do(append([]string{"DEL"}, redisstore.Keys("", name)...)...)
		}, store.ErrGone},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			st, interceptor := interceptedStore(t, server.Addr())
			se := open(t, st, longTTL)
			hold(t, se, newName(t)).leave(t) // loads the script
			names := newNames(t, 3)
			interceptor.next("joinall", func(_ context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
				if err := send(t.Context())[0].Error(); err != nil {
					t.Error(err)
				}
				c.meanwhile(t, st, names[1])
				return cutConnection(send)
			})
			set, err := tryJoinAll(t.Context(), se, st, false, names)
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			for _, s := range set {
				s.await(t, store.Admitted)
				s.leave(t)
			}
			wantNothingLeft(t, server, st, names)
		})
	}
}

// The caller gives up, and the request arrives before or after the entries were removed.
// Promise: P5
func TestEnqueueAll_lateRequestIsVoid(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, interceptor := interceptedStore(t, server.Addr())
	se := open(t, st, longTTL)
	hold(t, se, newName(t)).leave(t) // loads the script
	for _, early := range []bool{true, false} {
		names := newNames(t, 3)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var deliver func(context.Context) []rueidis.RedisResult
		interceptor.next("joinall", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
			if deliver = send; early {
				send(t.Context())
			}
			cancel()
			return failRequest(ctx, send)
		})
		if _, err := tryJoinAll(ctx, se, st, false, names); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want Canceled", err)
		}
		wantNothingLeft(t, server, st, names)
		if err := deliver(t.Context())[0].Error(); err != nil {
			t.Error(err)
		}
		wantNothingLeft(t, server, st, names)
	}
}

// Too few replicas have the entries.
// Promise: P5
func TestEnqueueAll_notReplicated(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	master, replica := servers[0], servers[1]
	replica.ReplicaOf(master)
	st := newStore(t, connect(t, master.Addr()), &redisstore.Options{WaitReplicas: 1, WaitTimeout: testTimeout})
	se := open(t, st, longTTL)
	for _, s := range joinAll(t, se, st, newNames(t, 2)) {
		s.leave(t)
	}
	replica.ReplicaOf(nil)
	st.WaitFor(time.Millisecond)
	names := newNames(t, 2)
	if _, err := tryJoinAll(t.Context(), se, st, false, names); !errors.Is(err, redisstore.ErrNotReplicated) {
		t.Errorf("got %v, want ErrNotReplicated", err)
	}
	wantNothingLeft(t, master, st, names)
}

// A client that has subscribed and does not receive the message is skipped, but not if its entry is one of
// a set.
// Promise: P3
func TestEnqueueAll_notPassed(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	for id, want := range map[string]string{"away.x": "in", "away.set.x": "wait"} {
		name := newName(t)
		holder := hold(t, open(t, storeAt(t, server.Addr()), longTTL), name)
		raw := rawClient{server, name}
		if got := raw.sendFor(t, id, longTTL, "nobody", "l"); got != "wait" {
			t.Errorf("the first waiter: got %q, want wait", got)
		}
		if got := raw.sendFor(t, "behind.x", longTTL, "somebody", ""); got != "wait" {
			t.Errorf("the second waiter: got %q, want wait", got)
		}
		holder.leave(t)
		if got := raw.sendFor(t, "behind.x", longTTL, "somebody", ""); got != want {
			t.Errorf("behind %q, whose client is away: got %q, want %q", id, got, want)
		}
	}
}

// The same with a store whose connections are down. It learns of the admission when it is back.
// Promise: P3
func TestEnqueueAll_notPassedWhileDisconnected(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	proxy := testservers.NewProxy(t, server.Addr())
	name := newName(t)
	reader, st := storeAt(t, server.Addr()), newStore(t, connect(t, proxy.Addr()), nil)
	holder := hold(t, open(t, reader, longTTL), name)
	away := joinAll(t, open(t, st, longTTL), st, []string{name, newName(t)})[0]
	behind := join(t, open(t, storeAt(t, server.Addr()), longTTL), name, line.Exclusive)
	behind.checkWaits(t)
	proxy.Hold()
	proxy.Reset()
	eventually(t, "the server has noticed that a subscriber is away", func() bool {
		there, err := server.Do("PUBSUB", "CHANNELS", "//wake/*").AsStrSlice()
		return err == nil && len(there) == 2
	})
	holder.leave(t)
	l, err := reader.Line(t.Context(), name)
	if err != nil || len(l.Entries) != 2 || !l.Entries[0].Admitted || l.Entries[1].Admitted {
		t.Errorf("line: got %+v, %v, want the entry of the set admitted and the other one waiting", l.Entries, err)
	}
	proxy.Release()
	away.await(t, store.Admitted)
	behind.checkWaits(t)
	away.leave(t)
	behind.await(t, store.Admitted)
}

// In a cluster there is no such step, and LockAll takes the locks one after another.
func TestEnqueueAll_notInCluster(t *testing.T) {
	t.Parallel()
	if clusterStore(t, testservers.StartRedisCluster(t, 3)).Capabilities().EnqueueAll != nil {
		t.Error("a store on a cluster has EnqueueAll")
	}
}
