package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// An interrupter attempts to take locks, interrupts the attempts, and checks that they leave
// nothing behind.
type interrupter struct {
	name          string
	proxy         *testservers.Proxy
	recorder      *recorder
	cli           *clientv3.Client
	direct        *clientv3.Client
	startRevision int64

	handler  atomic.Pointer[txnHandler]
	sessions []store.Session // one for each attempt, because the cleanup of one attempt would void the next
	failed   map[string]bool // names of the locks that were not taken
}

// txnHandler handles a Txn in place of the client. It may call send, which sends the request: with
// the store's context, or, if ignoreCancel is set, also after the store has given it up.
type txnHandler func(send func(ignoreCancel bool) error) error

func newInterrupter(t *testing.T) *interrupter {
	t.Helper()
	c := &interrupter{
		name: newName(t), proxy: testservers.NewProxy(t, server(t).Endpoint()), recorder: new(recorder), failed: make(map[string]bool),
	}
	cfg := c.recorder.config(c.proxy.Addr())
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(c.intercept))
	c.cli, c.direct = connectWith(t, cfg), server(t).Client(t)
	resp, err := c.direct.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	c.startRevision = resp.Header.Revision + 1
	return c
}

func (c *interrupter) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	send := func(ignoreCancel bool) error {
		if ignoreCancel {
			return invoke(context.WithoutCancel(ctx), method, req, reply, cc, opts...)
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	if path.Base(method) == "Txn" {
		if f := c.handler.Swap(nil); f != nil {
			return (*f)(send)
		}
	}
	return send(false)
}

// nextSession opens the session for the next attempt. When it returns the connection is open.
func (c *interrupter) nextSession(t *testing.T) {
	t.Helper()
	c.sessions = append(c.sessions, openSession(t, newStore(t, c.cli, "")))
}

// attempt takes the i-th lock with ctx, and releases it. It reports whether the lock was taken.
func (c *interrupter) attempt(t *testing.T, ctx context.Context, i int) bool {
	t.Helper()
	j, err := tryEnqueue(ctx, c.sessions[len(c.sessions)-1], c.lockName(i), i%2 == 0)
	switch {
	case err == nil:
		j.withdraw(t)
	case !errors.Is(err, ctx.Err()) || ctx.Err() == nil:
		t.Fatalf("attempt %d: %v", i, err)
	default:
		c.failed[c.lockName(i)] = true
	}
	return err == nil
}

func (c *interrupter) lockName(i int) string { return fmt.Sprintf("%s/%d", c.name, i) }

// entryExists reports whether the i-th lock has an entry.
func (c *interrupter) entryExists(t *testing.T, i int) bool {
	return keyExists(t, c.direct, c.lockName(i))
}

// wantNothingLeft checks that no entry of the attempts is left, that the sessions are alive and
// usable, and that another client gets the locks. At least minInserted failed attempts must have
// inserted an entry, because otherwise there was nothing to clean up.
func (c *interrupter) wantNothingLeft(t *testing.T, minInserted int) {
	t.Helper()
	eventually(t, "all entries are deleted", func() bool { return len(keysUnder(t, c.direct, c.name)) == 0 })
	inserted := c.countInserted(t)
	t.Logf("%d of %d attempts failed; %d of these inserted an entry", len(c.failed), len(c.sessions), inserted)
	if inserted < minInserted {
		t.Errorf("only %d failed attempts inserted an entry; the test needs at least %d", inserted, minInserted)
	}
	for _, se := range c.sessions {
		if err := se.Confirm(t.Context()); err != nil {
			t.Fatalf("the session of an attempt was lost: %v", err)
		}
		enqueue(t, se, c.name+"-other").withdraw(t)
	}
	other := openSession(t, newStore(t, c.direct, ""))
	for name := range c.failed {
		j, err := tryEnqueue(t.Context(), other, name, true)
		if err != nil {
			t.Fatalf("another client cannot take the lock: %v", err)
		}
		j.withdraw(t)
	}
	if keys := keysUnder(t, c.direct, c.name); len(keys) > 0 {
		t.Errorf("deleted entries are back: %q", keys)
	}
}

// countInserted returns how many of the failed attempts inserted an entry.
func (c *interrupter) countInserted(t *testing.T) int {
	t.Helper()
	const sentinel = "/mark"
	if _, err := c.direct.Put(t.Context(), c.name+sentinel, ""); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	found := make(map[string]bool)
	for resp := range c.direct.Watch(ctx, c.name, clientv3.WithPrefix(), clientv3.WithFilterDelete(), clientv3.WithRev(c.startRevision)) {
		for _, ev := range resp.Events {
			key := string(ev.Kv.Key)
			if key == c.name+sentinel {
				if _, err := c.direct.Delete(ctx, key); err != nil {
					t.Fatal(err)
				}
				return len(found)
			}
			if name := path.Dir(key); c.failed[name] {
				found[name] = true
			}
		}
	}
	t.Fatal("the watch ended")
	return 0
}

// Defect B3: the stock mutex leaves the key behind if the context ends during the Txn.
// Promise: P5
// Bug: etcd #21128
func TestEnqueue_contextEnds(t *testing.T) {
	t.Parallel()
	c := newInterrupter(t)
	const rounds = 6
	i, minInserted := 0, 0
	for _, tt := range []struct {
		when     string
		inserted bool // the attempt inserts an entry and fails
		// interrupt sets up the i-th attempt. It returns the context, which ends at the given
		// moment, and a function that ends the interruption.
		interrupt func(i int) (ctx context.Context, end func())
	}{
		{"before the request is sent", false, func(int) (context.Context, func()) {
			ctx, cancel := context.WithCancel(t.Context())
			f := txnHandler(func(send func(bool) error) error {
				cancel()
				return send(false)
			})
			c.handler.Store(&f)
			return ctx, cancel
		}},
		{"while the request or the reply is in flight", false, func(i int) (context.Context, func()) {
			ctx, cancel := context.WithCancel(t.Context())
			f := txnHandler(func(send func(bool) error) error {
				time.AfterFunc(time.Duration(i%rounds)*500*time.Microsecond, cancel)
				return send(false)
			})
			c.handler.Store(&f)
			return ctx, cancel
		}},
		{"after the request was carried out, before a reply", true, func(i int) (context.Context, func()) {
			c.proxy.CutReplies()
			return contextUntil(t, "the entry is inserted", func() bool { return c.entryExists(t, i) }), func() { c.proxy.Release() }
		}},
		{"after the reply was lost", true, func(int) (context.Context, func()) {
			ctx, cancel := context.WithCancel(t.Context())
			// The store may repeat the request while this one is slow. A repetition must not succeed before the context ends.
			var repeated txnHandler
			repeated = func(func(bool) error) error {
				c.handler.Store(&repeated)
				<-ctx.Done()
				return ctx.Err()
			}
			f := txnHandler(func(send func(bool) error) error {
				c.handler.Store(&repeated)
				_ = send(true)
				cancel()
				return errLost
			})
			c.handler.Store(&f)
			return ctx, cancel
		}},
		{"after the reply arrived", false, func(int) (context.Context, func()) {
			ctx, cancel := context.WithCancel(t.Context())
			f := txnHandler(func(send func(bool) error) error {
				err := send(true)
				cancel()
				return err
			})
			c.handler.Store(&f)
			return ctx, cancel
		}},
	} {
		for range rounds {
			c.nextSession(t)
			ctx, end := tt.interrupt(i)
			succeeded := c.attempt(t, ctx, i)
			end()
			c.handler.Store(nil)
			if tt.inserted {
				minInserted++
				if succeeded {
					t.Errorf("the context ended %s: the attempt succeeded, want an error", tt.when)
				}
			}
			i++
		}
	}
	c.wantNothingLeft(t, minInserted)
}

// Promise: P5
// Bug: RedissonMultiLock
func TestEnqueue_connectionCut(t *testing.T) {
	t.Parallel()
	c := newInterrupter(t)
	const rounds = 20
	for i := range rounds {
		c.nextSession(t)
		c.proxy.CutReplies()
		// Half of the attempts are given up by the caller before the connection is cut. During the
		// others it is cut first, and the caller gives up when the attempt is repeated.
		var ctx context.Context
		if i%4 < 2 {
			ctx = contextUntil(t, "the entry is inserted", func() bool { return c.entryExists(t, i) })
		} else {
			cut := false
			ctx = contextUntil(t, "the attempt is repeated", func() bool {
				if !cut {
					if cut = c.entryExists(t, i); cut {
						c.recorder.takeLog()
						c.proxy.Reset()
					}
					return false
				}
				return c.recorder.logged("Txn")
			})
		}
		c.attempt(t, ctx, i)
		c.proxy.Reset()
		c.proxy.Release()
	}
	c.wantNothingLeft(t, rounds)
}

// A cut connection is not an error if the caller's context lasts: the attempt is repeated, and
// recognizes the entry of the first one.
func TestLock_succeedsDespiteCutConnection(t *testing.T) {
	t.Parallel()
	c := newInterrupter(t)
	for i := range 5 {
		name := fmt.Sprintf("%s/%d", c.name, i)
		// Each lock has its own session, because the cleanup of the previous one would void the
		// attempt.
		se := openSession(t, newStore(t, connect(t, c.proxy.Addr()), ""))
		c.proxy.CutReplies()
		firstRevision := make(chan int64, 1)
		go func() {
			defer close(firstRevision)
			// The server has carried out the request, and its reply will not arrive.
			for ctx := t.Context(); ctx.Err() == nil; time.Sleep(time.Millisecond) {
				resp, err := c.direct.Get(ctx, name+"/", clientv3.WithPrefix())
				if err == nil && len(resp.Kvs) > 0 {
					firstRevision <- resp.Kvs[0].CreateRevision
					break
				}
			}
			c.proxy.Reset()
			c.proxy.Release()
		}()
		j := enqueue(t, se, name)
		st := j.await(t, store.Admitted)
		if first := <-firstRevision; st.Order != uint64(first) {
			t.Errorf("got order %d, want %d, with which the first attempt inserted the entry", st.Order, first)
		}
		l, err := newStore(t, c.direct, "").Line(t.Context(), name)
		if err != nil || len(l.Entries) != 1 || l.Entries[0].Order != st.Order {
			t.Errorf("got line %+v, %v; want one entry with order %d", l, err, st.Order)
		}
		j.withdraw(t)
	}
	eventually(t, "all entries are deleted", func() bool { return len(keysUnder(t, c.direct, c.name)) == 0 })
}
