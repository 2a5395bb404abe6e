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

// cutter makes attempts to take locks that are cut short in some way, and finds out what became of them.
type cutter struct {
	name   string
	proxy  *testservers.Proxy
	wire   *wire
	cli    *clientv3.Client
	direct *clientv3.Client
	from   int64

	tamper   atomic.Pointer[tamper]
	sessions []store.Session // one for each attempt: what clears up after one must not make the next void
	failed   map[string]bool // names of the locks that were not obtained
}

// tamper is what happens to a Txn. It is given what carries the Txn out: for the store, which may have given it up, or
// whether the store has or not.
type tamper func(carryOut func(whetherOrNot bool) error) error

func newCutter(t *testing.T) *cutter {
	t.Helper()
	c := &cutter{
		name: newName(t), proxy: testservers.NewProxy(t, server(t).Endpoint()), wire: new(wire), failed: make(map[string]bool),
	}
	cfg := c.wire.config(c.proxy.Addr())
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(c.between))
	c.cli, c.direct = connectWith(t, cfg), server(t).Client(t)
	now, err := c.direct.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	c.from = now.Header.Revision + 1
	return c
}

func (c *cutter) between(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	carryOut := func(whetherOrNot bool) error {
		if whetherOrNot {
			return invoke(context.WithoutCancel(ctx), method, req, reply, cc, opts...)
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	if path.Base(method) == "Txn" {
		if f := c.tamper.Swap(nil); f != nil {
			return (*f)(carryOut)
		}
	}
	return carryOut(false)
}

// ready opens the session for the next attempt. When that is done the connection stands.
func (c *cutter) ready(t *testing.T) {
	t.Helper()
	c.sessions = append(c.sessions, openSession(t, newStore(t, c.cli, "")))
}

// attempt takes the i-th lock with ctx, and gives it back if that works. It reports whether it did.
func (c *cutter) attempt(t *testing.T, ctx context.Context, i int) bool {
	t.Helper()
	j, err := tryEnqueue(ctx, c.sessions[len(c.sessions)-1], c.lock(i), i%2 == 0)
	switch {
	case err == nil:
		j.withdraw(t)
	case !errors.Is(err, ctx.Err()) || ctx.Err() == nil:
		t.Fatalf("attempt %d: %v", i, err)
	default:
		c.failed[c.lock(i)] = true
	}
	return err == nil
}

func (c *cutter) lock(i int) string { return fmt.Sprintf("%s/%d", c.name, i) }

// carriedOut reports whether the i-th lock's entry is in.
func (c *cutter) carriedOut(t *testing.T, i int) bool { return there(t, c.direct, c.lock(i)) }

// wantNoDebris checks that no entry of the attempts is left, that the sessions live and can be used, and that another client
// gets the locks; and that there was something to clean up, after so many attempts at least.
func (c *cutter) wantNoDebris(t *testing.T, least int) {
	t.Helper()
	await(t, "all entries to be out", func() bool { return len(keysUnder(t, c.direct, c.name)) == 0 })
	put := c.put(t)
	t.Logf("%d of %d attempts failed; %d of them had put an entry in", len(c.failed), len(c.sessions), put)
	if put < least {
		t.Errorf("only %d failed attempts had put an entry in, want %d: this test shows nothing", put, least)
	}
	for _, se := range c.sessions {
		if err := se.Confirm(t.Context()); err != nil {
			t.Fatalf("the session of an attempt does not live: %v", err)
		}
		enqueue(t, se, c.name+"-other").withdraw(t)
	}
	other := openSession(t, newStore(t, c.direct, ""))
	for name := range c.failed {
		j, err := tryEnqueue(t.Context(), other, name, true)
		if err != nil {
			t.Fatalf("another client does not get the lock: %v", err)
		}
		j.withdraw(t)
	}
	if keys := keysUnder(t, c.direct, c.name); len(keys) > 0 {
		t.Errorf("entries came back: %q", keys)
	}
}

// put returns how many of the failed attempts had been carried out by the server.
func (c *cutter) put(t *testing.T) int {
	t.Helper()
	const mark = "/mark"
	if _, err := c.direct.Put(t.Context(), c.name+mark, ""); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	found := make(map[string]bool)
	for resp := range c.direct.Watch(ctx, c.name, clientv3.WithPrefix(), clientv3.WithFilterDelete(), clientv3.WithRev(c.from)) {
		for _, ev := range resp.Events {
			key := string(ev.Kv.Key)
			if key == c.name+mark {
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
func TestEnqueue_contextEnds(t *testing.T) {
	t.Parallel()
	c := newCutter(t)
	const rounds = 6
	i, least := 0, 0
	for _, moment := range []struct {
		what string
		put  bool // the attempt fails, and has put an entry in
		// until begins the moment, for the i-th attempt, and returns the context that ends in it; over ends it.
		until func(i int) (ctx context.Context, over func())
	}{
		{"before it is sent", false, func(int) (context.Context, func()) {
			ctx, cancel := context.WithCancel(t.Context())
			f := tamper(func(carryOut func(bool) error) error {
				cancel()
				return carryOut(false)
			})
			c.tamper.Store(&f)
			return ctx, cancel
		}},
		{"somewhere on the way", false, func(i int) (context.Context, func()) {
			ctx, cancel := context.WithCancel(t.Context())
			f := tamper(func(carryOut func(bool) error) error {
				time.AfterFunc(time.Duration(i%rounds)*500*time.Microsecond, cancel)
				return carryOut(false)
			})
			c.tamper.Store(&f)
			return ctx, cancel
		}},
		{"when it has been carried out, and nobody was told", true, func(i int) (context.Context, func()) {
			c.proxy.CutReplies()
			return endsWhen(t, "the entry to be in", func() bool { return c.carriedOut(t, i) }), func() { c.proxy.Release() }
		}},
		{"when the reply is lost", true, func(int) (context.Context, func()) {
			ctx, cancel := context.WithCancel(t.Context())
			f := tamper(func(carryOut func(bool) error) error {
				_ = carryOut(true)
				cancel()
				return errLost
			})
			c.tamper.Store(&f)
			return ctx, cancel
		}},
		{"when the reply is there", false, func(int) (context.Context, func()) {
			ctx, cancel := context.WithCancel(t.Context())
			f := tamper(func(carryOut func(bool) error) error {
				err := carryOut(true)
				cancel()
				return err
			})
			c.tamper.Store(&f)
			return ctx, cancel
		}},
	} {
		for range rounds {
			c.ready(t)
			ctx, over := moment.until(i)
			succeeded := c.attempt(t, ctx, i)
			over()
			c.tamper.Store(nil)
			if moment.put {
				least++
				if succeeded {
					t.Errorf("the context ended %s, and the attempt succeeded", moment.what)
				}
			}
			i++
		}
	}
	c.wantNoDebris(t, least)
}

// Promise: P5
func TestEnqueue_connectionCut(t *testing.T) {
	t.Parallel()
	c := newCutter(t)
	const rounds = 20
	for i := range rounds {
		c.ready(t)
		c.proxy.CutReplies()
		// Half of them are given up by the caller, and then cut; the others are cut under the caller, who gives up when the
		// attempt is made again.
		var ctx context.Context
		if i%4 < 2 {
			ctx = endsWhen(t, "the entry to be in", func() bool { return c.carriedOut(t, i) })
		} else {
			cut := false
			ctx = endsWhen(t, "the attempt to be made again", func() bool {
				if !cut {
					if cut = c.carriedOut(t, i); cut {
						c.wire.passed()
						c.proxy.Reset()
					}
					return false
				}
				return c.wire.has("Txn")
			})
		}
		c.attempt(t, ctx, i)
		c.proxy.Reset()
		c.proxy.Release()
	}
	c.wantNoDebris(t, rounds)
}

// A cut under a caller who has time is no error at all: the attempt is made again, and knows its own entry.
func TestLock_succeedsDespiteCutConnection(t *testing.T) {
	t.Parallel()
	c := newCutter(t)
	for i := range 5 {
		name := fmt.Sprintf("%s/%d", c.name, i)
		// A session of its own each time: the clearing up after the time before would make the attempt void.
		se := openSession(t, newStore(t, connect(t, c.proxy.Addr()), ""))
		c.proxy.CutReplies()
		cutting := make(chan int64, 1)
		go func() {
			defer close(cutting)
			// The server has carried out what it will not be heard to have.
			for ctx := t.Context(); ctx.Err() == nil; time.Sleep(time.Millisecond) {
				resp, err := c.direct.Get(ctx, name+"/", clientv3.WithPrefix())
				if err == nil && len(resp.Kvs) > 0 {
					cutting <- resp.Kvs[0].CreateRevision
					break
				}
			}
			c.proxy.Reset()
			c.proxy.Release()
		}()
		j := enqueue(t, se, name)
		st := j.await(t, store.Admitted)
		if first := <-cutting; st.Order != uint64(first) {
			t.Errorf("the entry has order %d; the first attempt had put it in with %d", st.Order, first)
		}
		l, err := newStore(t, c.direct, "").Line(t.Context(), name)
		if err != nil || len(l.Entries) != 1 || l.Entries[0].Order != st.Order {
			t.Errorf("the line is %+v, %v; want one entry with order %d", l, err, st.Order)
		}
		j.withdraw(t)
	}
	await(t, "all entries to be out", func() bool { return len(keysUnder(t, c.direct, c.name)) == 0 })
}
