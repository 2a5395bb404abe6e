package redisstore_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

func setRecord(t *testing.T, e *testEntry, value string) {
	t.Helper()
	if err := e.Extensions().SetRecord(t.Context(), []byte(value)); err != nil {
		t.Fatalf("SetRecord(%q): %v", value, err)
	}
}

func wantRecord(t *testing.T, st store.Store, name, want string) {
	t.Helper()
	if got, err := st.Capabilities().Record(t.Context(), name); err != nil || string(got) != want {
		t.Errorf("record: got %q, %v, want %q", got, err, want)
	}
}

// A request that was abandoned arrives after a later write, also after a removal. It has no effect.
func TestSetRecord_lateRequestChangesNothing(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	for _, later := range []string{"later", ""} {
		name := newName(t)
		st, interceptor := interceptedStore(t, server.Addr())
		e := hold(t, open(t, st, longTTL), name)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var deliver func(context.Context) []rueidis.RedisResult
		interceptor.next("setrecord", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
			deliver = send
			cancel()
			return failRequest(ctx, send)
		})
		if err := e.Extensions().SetRecord(ctx, []byte("early")); !errors.Is(err, context.Canceled) {
			t.Fatalf("SetRecord: got %v, want Canceled", err)
		}
		setRecord(t, e, later)
		for _, r := range deliver(t.Context()) {
			if err := r.Error(); err != nil {
				t.Error(err)
			}
		}
		wantRecord(t, st, name, later)
		e.leave(t)
		deliver(t.Context())
		wantRecord(t, st, name, later)
	}
}

// A repeated request arrives once more, after another reader has written. It has no effect.
func TestSetRecord_lateRepetition(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	for _, value := range []string{"value", ""} {
		name := newName(t)
		st, interceptor := interceptedStore(t, server.Addr())
		e, other := join(t, open(t, st, longTTL), name, line.Shared), join(t, open(t, st, longTTL), name, line.Shared)
		e.await(t, store.Admitted)
		other.await(t, store.Admitted)
		first := make(chan func(context.Context) []rueidis.RedisResult, 1)
		interceptor.next("setrecord", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
			first <- send
			return failRequest(ctx, send)
		})
		setRecord(t, e, value)
		setRecord(t, other, "other")
		for _, r := range (<-first)(t.Context()) {
			if err := r.Error(); err != nil {
				t.Error(err)
			}
		}
		wantRecord(t, st, name, "other")
		setRecord(t, e, "next")
		wantRecord(t, st, name, "next")
	}
}

// The address leads to another server, and the connection to the old one is still open. That one is a
// replica now, and lacks what has been written since.
// Promise: P7
func TestRecord_demotedMaster(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	old, now := servers[0], servers[1]
	var address atomic.Value
	address.Store(old.Addr())
	options := redisstore.ClientOptions("moves:6379")
	options.DialCtxFn = func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", address.Load().(string))
	}
	name, st := newName(t), newStore(t, connectWith(t, options), nil)
	wantRecord(t, st, name, "")
	address.Store(now.Addr())
	old.Do("REPLICAOF", "127.0.0.1", "1")
	setRecord(t, hold(t, open(t, storeAt(t, now.Addr()), longTTL), name), "value")
	wantRecord(t, st, name, "value")
}

// A master that has lost its replicas may have been replaced.
func TestRecord_masterWithoutReplicas(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name, st := newName(t), storeAt(t, server.Addr())
	setRecord(t, hold(t, open(t, st, longTTL), name), "value")
	server.Do("CONFIG", "SET", "min-replicas-to-write", "1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read := make(chan error, 1)
	go func() {
		_, err := st.Capabilities().Record(ctx, name)
		read <- err
	}()
	eventually(t, "the server refuses", func() bool { return errorStat(t, server, "NOREPLICAS") != "" })
	cancel()
	if err := <-read; !errors.Is(err, context.Canceled) {
		t.Errorf("Record without replicas: got %v, want Canceled", err)
	}
	server.Do("CONFIG", "SET", "min-replicas-to-write", "0")
	wantRecord(t, st, name, "value")
}

// The reply to a write is lost, and the entry is broken. The repetition finds the record.
func TestSetRecord_replyLost(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	for _, replaced := range []bool{false, true} {
		name := newName(t)
		st, interceptor := interceptedStore(t, server.Addr())
		direct := storeAt(t, server.Addr())
		e := hold(t, open(t, st, longTTL), name)
		interceptor.next("setrecord", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
			send(ctx)
			server.Do("DEL", name)
			if replaced {
				setRecord(t, hold(t, open(t, direct, longTTL), name), "next")
			}
			return failRequest(ctx, send)
		})
		err := e.Extensions().SetRecord(t.Context(), []byte("value"))
		switch {
		case replaced && !errors.Is(err, store.ErrNotKnown):
			t.Errorf("the record was replaced meanwhile: got %v, want ErrNotKnown", err)
		case !replaced && err != nil:
			t.Errorf("the record is there: got %v", err)
		}
		wantRecord(t, direct, name, map[bool]string{true: "next", false: "value"}[replaced])
	}
}

// A record does not expire. A record that was removed leaves a key for some minutes. A key of another
// client's is no record.
func TestSetRecord_key(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st := storeAt(t, server.Addr())
	e := hold(t, open(t, st, longTTL), name)
	cli := connect(t, server.Addr())
	ttl := func() int64 {
		ms, err := cli.Do(t.Context(), cli.B().Pttl().Key("{"+name+"}//r").Build()).AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		return ms
	}
	setRecord(t, e, "value")
	if ms := ttl(); ms != -1 {
		t.Errorf("TTL of a record: got %d ms, want none", ms)
	}
	setRecord(t, e, "")
	if ms := ttl(); ms <= 0 || ms > 600_000 {
		t.Errorf("TTL of a removed record: got %d ms, want ten minutes", ms)
	}
	server.Do("SET", "{"+name+"}//r", "something else")
	wantRecord(t, st, name, "")
	setRecord(t, e, "value")
	wantRecord(t, st, name, "value")
	server.Do("DEL", "{"+name+"}//r")
	server.Do("LPUSH", "{"+name+"}//r", "x")
	if got, err := st.Capabilities().Record(t.Context(), name); err == nil {
		t.Errorf("a key that is a list: got %q, want an error", got)
	}
	setRecord(t, e, "repaired")
	wantRecord(t, st, name, "repaired")
}
