package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// cutter makes attempts to take locks that are cut short in some way, and finds out what became of them.
type cutter struct {
	name    string
	proxy   *testservers.Proxy
	wire    *wire
	session store.Session
	direct  *clientv3.Client
	from    int64

	failed  map[string]bool // names of the locks that were not obtained
	inDoubt int64           // how many of them had been asked for when the attempt ended: each of those raises the guard
}

func newCutter(t *testing.T) *cutter {
	t.Helper()
	c := &cutter{
		name: newName(t), proxy: testservers.NewProxy(t, server(t).Endpoint()), wire: new(wire), failed: make(map[string]bool),
	}
	c.session = openSession(t, newStore(t, connectWith(t, c.wire.config(c.proxy.Addr())), ""))
	c.direct = server(t).Client(t)
	now, err := c.direct.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	c.from = now.Header.Revision + 1
	return c
}

// ready waits until the connection stands and the session knows the guard: otherwise the next attempt would not reach
// the server, or be void there, and show nothing.
func (c *cutter) ready(t *testing.T) {
	t.Helper()
	enqueue(t, c.session, c.name+"-other").withdraw(t)
}

// attempt takes the i-th lock with ctx, and gives it back if that works.
func (c *cutter) attempt(t *testing.T, ctx context.Context, i int) {
	t.Helper()
	name := fmt.Sprintf("%s/%d", c.name, i)
	c.wire.passed()
	j, err := tryEnqueue(ctx, c.session, name, i%2 == 0)
	switch {
	case err == nil:
		j.withdraw(t)
	case !errors.Is(err, ctx.Err()) || ctx.Err() == nil:
		t.Fatalf("attempt %d: %v", i, err)
	default:
		c.failed[name] = true
		// On a busy machine a context may end before anything is sent.
		if slices.Contains(c.wire.passed(), "Txn") {
			c.inDoubt++
		}
	}
}

// wantNoDebris checks that no entry of the attempts is left, that the session lives, and that another client gets the
// locks; and that there was something to clean up at all.
func (c *cutter) wantNoDebris(t *testing.T) {
	t.Helper()
	await(t, "all entries to be out", func() bool { return len(keysUnder(t, c.direct, c.name)) == 0 })
	await(t, "the session to be confirmed", func() bool { return c.session.Confirm(until(t, 2*time.Second)) == nil })

	put := c.put(t)
	t.Logf("%d attempts failed; %d of them had put an entry in; the guard was raised %d times",
		len(c.failed), put, guard(t, c.direct, c.session))
	if put < 20 {
		t.Errorf("only %d failed attempts had put an entry in: this test shows nothing", put)
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
	suffix := "/" + c.session.ID()
	for resp := range c.direct.Watch(ctx, c.name, clientv3.WithPrefix(), clientv3.WithFilterDelete(), clientv3.WithRev(c.from)) {
		for _, ev := range resp.Events {
			key := string(ev.Kv.Key)
			if key == c.name+mark {
				if _, err := c.direct.Delete(ctx, key); err != nil {
					t.Fatal(err)
				}
				return len(found)
			}
			if name := key[:len(key)-len(suffix)]; c.failed[name] {
				found[name] = true
			}
		}
	}
	t.Fatal("the watch ended")
	return 0
}

// Defect B3: the stock mutex leaves the key behind if the context ends during the Txn.
func TestContextEndsDuringEnqueue(t *testing.T) {
	t.Parallel()
	c := newCutter(t)
	const (
		rounds = 300
		delay  = 3 * time.Millisecond // so that there is something to hit
	)
	c.proxy.Delay(delay)
	for i := range rounds {
		c.ready(t)
		ctx, cancel := context.WithTimeout(t.Context(), 5*delay*time.Duration(i)/rounds)
		c.attempt(t, ctx, i)
		cancel()
	}
	c.proxy.Delay(0)
	c.wantNoDebris(t)
}

func TestConnectionIsCutDuringEnqueue(t *testing.T) {
	t.Parallel()
	c := newCutter(t)
	for i := range 60 {
		await(t, "the guard to be raised", func() bool { return guard(t, c.direct, c.session) >= c.inDoubt })
		c.ready(t)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		c.proxy.CutReplies()
		// Half of them are given up by the caller, and then cut; the others are cut under the caller.
		if i%4 < 2 {
			c.attempt(t, ctx, i)
			c.proxy.Reset()
		} else {
			cutting := time.AfterFunc(10*time.Millisecond, c.proxy.Reset)
			c.attempt(t, ctx, i)
			cutting.Stop()
		}
		c.proxy.Release()
		cancel()
	}
	c.wantNoDebris(t)
}

// A cut under a caller who has time is no error at all: the attempt is made again, and knows its own entry.
func TestCutConnectionIsNoErrorForTheCaller(t *testing.T) {
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
