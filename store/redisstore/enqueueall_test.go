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

func tryEnqueueAll(ctx context.Context, st *redisstore.Store, se store.Session, try bool, names ...string) ([]*testEntry, error) {
	var set []*testEntry
	var reqs []store.Request
	for _, name := range names {
		s := &testEntry{name: name, changed: make(chan struct{})}
		set = append(set, s)
		reqs = append(reqs, store.Request{Name: name, Owner: store.Owner{Host: "test"}, Try: try, Notify: s.receive})
	}
	tickets, err := st.Capabilities().EnqueueAll(ctx, se, reqs)
	for i, ticket := range tickets {
		set[i].Ticket = ticket
	}
	return set, err
}

func newNames(t *testing.T, n int) []string {
	names := make([]string, 0, n)
	for range n {
		names = append(names, newName(t))
	}
	return names
}

// The request that joins several lines, or its reply, is lost. The repetition finds the entries, and adds
// no others.
// Promise: P5
func TestEnqueueAll_unanswered(t *testing.T) {
	for what, lose := range map[string]handler{"reply lost": loseReply, "request lost": failRequest} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := testservers.StartRedis(t)
			st, c := interceptedStore(t, server.Addr())
			se, names := open(t, st, longTTL), newNames(t, 3)
			hold(t, se, newName(t)).leave(t) // the server has the script
			c.next("join", lose)
			set, err := tryEnqueueAll(t.Context(), st, se, false, names...)
			if err != nil {
				t.Fatal(err)
			}
			for i, e := range set {
				e.await(t, store.Admitted)
				if n := lineLength(t, st, names[i]); n != 1 {
					t.Errorf("the line of %q has %d entries, want 1", names[i], n)
				}
				e.leave(t)
			}
		})
	}
}

// The caller gives up after the request was sent. It is carried out late, and adds nothing.
// Promise: P5
func TestEnqueueAll_lateRequestIsVoid(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, c := interceptedStore(t, server.Addr())
	se, names := open(t, st, longTTL), newNames(t, 2)
	hold(t, se, newName(t)).leave(t)
	ctx, cancel := context.WithCancel(t.Context())
	deliver, delivered := make(chan struct{}), make(chan struct{})
	c.next("join", func(_ context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		cancel()
		<-deliver
		defer close(delivered)
		return send(context.Background())
	})
	if _, err := tryEnqueueAll(ctx, st, se, false, names...); !errors.Is(err, context.Canceled) {
		t.Fatalf("EnqueueAll: got %v, want %v", err, context.Canceled)
	}
	other := open(t, storeAt(t, server.Addr()), longTTL)
	for _, name := range names { // once a void id is there, the late request can do nothing
		eventually(t, "the entry is void", func() bool {
			n, err := server.Do("EXISTS", redisstore.Keys("", name)[6]).AsInt64()
			return err == nil && n == 1
		})
	}
	close(deliver)
	<-delivered
	for _, name := range names {
		if n := lineLength(t, st, name); n != 0 {
			t.Errorf("the line of %q has %d entries, want none", name, n)
		}
		hold(t, other, name)
	}
}

// A server that does not know the script gets it once.
func TestEnqueueAll_afterFlush(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, c := interceptedStore(t, server.Addr())
	se, cli := open(t, st, longTTL), connect(t, server.Addr())
	for range 2 {
		if err := cli.Do(t.Context(), cli.B().ScriptFlush().Build()).Error(); err != nil {
			t.Fatal(err)
		}
		c.commands()
		set, err := tryEnqueueAll(t.Context(), st, se, false, newNames(t, 3)...)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"MULTI", "EVALSHA", "EVALSHA", "EVALSHA", "EXEC", "MULTI", "EVAL", "EVALSHA", "EVALSHA", "EXEC"}
		if got := c.commands(); !slices.Equal(got, want) {
			t.Errorf("got commands %q, want %q", got, want)
		}
		for _, e := range set {
			e.await(t, store.Admitted)
			e.leave(t)
		}
	}
}

// Several locks take one request.
func TestEnqueueAll_oneRequest(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, c := interceptedStore(t, server.Addr())
	se := open(t, st, longTTL)
	hold(t, se, newName(t)).leave(t)
	before, _ := c.counts()
	if _, err := tryEnqueueAll(t.Context(), st, se, false, newNames(t, 10)...); err != nil {
		t.Fatal(err)
	}
	if after, _ := c.counts(); after != before+1 {
		t.Errorf("got %d requests for 10 locks, want 1", after-before)
	}
}

// An entry is broken before a repetition of the request. The call fails, and leaves nothing.
func TestEnqueueAll_brokenMeanwhile(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st, c := interceptedStore(t, server.Addr())
	se, names := open(t, st, longTTL), newNames(t, 3)
	hold(t, se, newName(t)).leave(t)
	operator := storeAt(t, server.Addr())
	c.next("join", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		send(ctx)
		l, err := operator.Line(context.Background(), names[1])
		if err != nil || len(l.Entries) != 1 {
			t.Errorf("got line %+v, %v; want one entry", l, err)
			return failRequest(ctx, send)
		}
		if _, err := operator.Break(context.Background(), names[1], l.Entries[0].Order); err != nil {
			t.Error(err)
		}
		return failRequest(ctx, send)
	})
	if _, err := tryEnqueueAll(t.Context(), st, se, false, names...); !errors.Is(err, store.ErrGone) {
		t.Fatalf("EnqueueAll: got %v, want an error matching ErrGone", err)
	}
	for _, name := range names {
		eventually(t, "the line is empty", func() bool { return lineLength(t, operator, name) == 0 })
	}
}

// More locks than one step may take are refused with the number.
func TestEnqueueAll_tooMany(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st := storeAt(t, server.Addr())
	var names []string
	for i := range redisstore.MaxTogether + 1 {
		names = append(names, fmt.Sprint("several/", i))
	}
	se := open(t, st, longTTL)
	_, err := tryEnqueueAll(t.Context(), st, se, false, names...)
	if want := fmt.Sprint(redisstore.MaxTogether); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("EnqueueAll of %d names: got %v, want an error with the number %s", len(names), err, want)
	}
	set, err := tryEnqueueAll(t.Context(), st, se, false, names[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range set {
		e.await(t, store.Admitted)
	}
}

// A user that may not use transactions learns what is missing.
func TestEnqueueAll_lacksPermission(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, "user clerk on >secret ~* &* +@all -multi")
	options := redisstore.ClientOptions(server.Addr())
	options.Username, options.Password = "clerk", "secret"
	st := newStore(t, connectWith(t, options), nil)
	_, err := tryEnqueueAll(t.Context(), st, open(t, st, longTTL), false, newNames(t, 2)...)
	if err == nil || !strings.Contains(err.Error(), "multi") || !strings.Contains(err.Error(), "docs/stores.md") {
		t.Errorf("got %v, want an error that names the command and the page", err)
	}
}

// Without enough replicas the call fails and leaves nothing.
func TestEnqueueAll_notReplicated(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	servers[1].ReplicaOf(servers[0])
	st := newStore(t, connect(t, servers[0].Addr()), &redisstore.Options{WaitReplicas: 1})
	se, names := open(t, st, longTTL), newNames(t, 2)
	set, err := tryEnqueueAll(t.Context(), st, se, false, names...)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range set {
		e.await(t, store.Admitted)
		e.leave(t)
	}
	servers[1].Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := tryEnqueueAll(ctx, st, se, false, names...); err == nil {
		t.Error("EnqueueAll without replicas succeeded")
	}
	for _, name := range names {
		eventually(t, "the line is empty", func() bool { return lineLength(t, st, name) == 0 })
	}
}

// The connections of a waiter break while the holder leaves. Others pass its entry, unless that joined
// several lines: then it has its turn first.
// Promise: P3
func TestEnqueueAll_isNotPassed(t *testing.T) {
	for _, several := range []bool{false, true} {
		t.Run(fmt.Sprintf("several %v", several), func(t *testing.T) {
			t.Parallel()
			server := testservers.StartRedis(t)
			name := newName(t)
			holder := hold(t, open(t, storeAt(t, server.Addr()), longTTL), name)
			proxy := testservers.NewProxy(t, server.Addr())
			st := storeAt(t, proxy.Addr())
			se := open(t, st, longTTL)
			var away *testEntry
			if several {
				set, err := tryEnqueueAll(t.Context(), st, se, false, newName(t), name)
				if err != nil {
					t.Fatal(err)
				}
				away = set[1]
			} else {
				away = join(t, se, name, line.Exclusive)
			}
			away.checkWaits(t)
			behind := join(t, open(t, storeAt(t, server.Addr()), longTTL), name, line.Exclusive)
			behind.checkWaits(t)
			proxy.Refuse()
			proxy.Reset()
			eventually(t, "the server has closed the connections", func() bool {
				n, err := server.Do("PUBSUB", "CHANNELS", "//wake/*").AsStrSlice()
				return err == nil && len(n) == 2
			})
			holder.leave(t)
			if !several {
				behind.await(t, store.Admitted)
				return
			}
			l, err := storeAt(t, server.Addr()).Line(t.Context(), name)
			if err != nil || len(l.Entries) != 2 || l.Entries[0].Session != se.ID() || !l.Entries[0].Admitted || l.Entries[1].Admitted {
				t.Fatalf("got line %+v, %v; want the entry of session %s admitted, and the other one waiting", l.Entries, err, se.ID())
			}
			proxy.Accept()
			away.await(t, store.Admitted)
			behind.checkWaits(t)
			away.leave(t)
			behind.await(t, store.Admitted)
		})
	}
}
