package stile_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// graph describes a wait graph: "a>b" for each wait, then each cycle in brackets.
func graph(t *testing.T, c *stile.Client, prefix string) string {
	t.Helper()
	g, err := c.WaitGraph(t.Context(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, w := range g.Waits {
		parts = append(parts, w.Held+">"+w.For)
	}
	for _, cycle := range g.Cycles {
		parts = append(parts, fmt.Sprint(cycle))
	}
	return strings.Join(parts, " ")
}

func expectGraph(t *testing.T, c *stile.Client, want string) {
	t.Helper()
	synctest.Wait()
	if got := graph(t, c, ""); got != want {
		t.Errorf("the graph is %q, want %q", got, want)
	}
}

// Two clients each hold what the other one waits for. The graph shows that after a second, until one of
// them gives up.
func TestWaitGraph_deadlock(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		a, b := lock(t, ann, "a"), lock(t, bob, "b")
		began := time.Now()
		ctx, giveUp := context.WithCancel(a.Context())
		annWaits, bobWaits := wait(ctx, t, ann, "b"), wait(b.Context(), t, bob, "a")
		time.Sleep(time.Second - 1)
		expectGraph(t, ann, "")
		time.Sleep(time.Millisecond)
		expectGraph(t, ann, "a>b b>a [a b]")

		g, err := bob.WaitGraph(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		if first := g.Waits[0]; first.Holder.Token != a.Token() || first.Holder.Owner.Command != "ann" || !first.Since.Equal(began) || !g.Read.Equal(time.Now()) {
			t.Errorf("got %+v, read at %v; want ann's hold and the times", first, g.Read)
		}
		giveUp()
		annWaits.expectFailure(context.Canceled)
		expectGraph(t, ann, "b>a")
		release(t, a)
		release(t, bobWaits.expectHold())
		expectGraph(t, ann, "")
		if o := w.ownerOf("b"); len(o.Waits) > 0 {
			t.Errorf("the owner still has %v", o.Waits)
		}
		release(t, b)
	})
}

// A holder that waits in its own client, for a lock that another goroutine holds, waits too.
func TestWaitGraph_oneClient(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		a, b := lock(t, c, "a"), lock(t, c, "b")
		first, second := wait(a.Context(), t, c, "b"), wait(b.Context(), t, c, "a")
		time.Sleep(2 * time.Second)
		expectGraph(t, c, "a>b b>a [a b]")
		if _, err := c.Break(t.Context(), "a", a.Token()); err != nil { // ends the first wait, because its context ends
			t.Fatal(err)
		}
		first.expectFailure(stile.ErrLost)
		release(t, second.expectHold())
		release(t, b)
		expectGraph(t, c, "")
	})
}

// Short waits, waits without a hold and tries cost no request.
func TestWaitGraph_requests(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		b := lock(t, bob, "b")
		time.Sleep(time.Minute) // what is published about holds that last is published
		updates := w.recordOwnerUpdates(memstore.Fault{})
		a := lock(t, ann, "a")
		ctx, cancel := context.WithTimeout(a.Context(), time.Second-1)
		defer cancel()
		short := wait(ctx, t, ann, "b")
		time.Sleep(time.Second - 1)
		short.expectFailure(context.DeadlineExceeded)
		if _, err := ann.Mutex("b").TryLock(a.Context()); err == nil {
			t.Error("TryLock has succeeded")
		}
		if n := len(updates.all()); n != 0 {
			t.Errorf("%d requests, want none", n)
		}
		outside, stop := context.WithCancel(t.Context())
		unrelated := wait(outside, t, ann, "b")
		time.Sleep(time.Minute)
		if n := len(updates.all()); n != 1 {
			t.Errorf("%d requests, want one, which says when ann got the lock", n)
		}
		stop()
		unrelated.expectFailure(context.Canceled)
		release(t, a)
		release(t, b)
	})
}

// All holds that the context comes from wait: those of a nested Lock, of Do, and those that LockAll has
// already.
func TestWaitGraph_allHoldsOfContext(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		last := lock(t, bob, "z")
		var wg sync.WaitGroup
		ctx, giveUp := context.WithCancel(t.Context())
		wg.Go(func() {
			_ = ann.Mutex("a").Do(ctx, func(ctx context.Context, _ *stile.Hold) error {
				return ann.RWMutex("b").RDo(ctx, func(ctx context.Context, _ *stile.Hold) error {
					_, err := ann.LockAll(ctx, "z", "c", "d")
					return err
				})
			})
		})
		time.Sleep(2 * time.Second)
		expectGraph(t, bob, "a>z b>z c>z d>z")
		if got := graph(t, bob, "c"); got != "c>z" { // a prefix selects by the name that is held
			t.Errorf(`the graph of "c" is %q`, got)
		}
		giveUp()
		wg.Wait()
		release(t, last)
	})
}

// A place that was joined waits when Wait is called with the hold's context.
func TestWaitGraph_place(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		a, b := lock(t, ann, "a"), lock(t, bob, "b")
		p, err := ann.Mutex("b").Join(a.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		expectGraph(t, bob, "") // ann does not wait yet
		done := make(chan *stile.Hold)
		go func() {
			h, _ := p.Wait(a.Context())
			done <- h
		}()
		time.Sleep(5 * time.Second)
		expectGraph(t, bob, "a>b")
		release(t, b)
		h := <-done
		expectGraph(t, bob, "")
		release(t, h)
		release(t, a)
	})
}

// A wait that begins or ends while a request is under way is published after it.
func TestWaitGraph_slowStore(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		a, b := lock(t, ann, "a"), lock(t, bob, "b")
		w.recordOwnerUpdates(memstore.Fault{ReplyDelay: 3 * time.Second})
		waiter := wait(a.Context(), t, ann, "b")
		time.Sleep(2 * time.Second) // the request is under way
		release(t, b)
		h := waiter.expectHold()
		time.Sleep(time.Minute)
		expectGraph(t, bob, "")
		release(t, h)
		release(t, a)
	})
}

// Waits do not count towards the maximum size of an owner, and at most sixteen are published. Those that
// a program puts into its own owner are not.
func TestWaitGraph_many(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		bob := w.client("bob")
		ann := w.client("ann", func(o *stile.Options) {
			o.Owner.Waits = []store.Wait{{Name: "forged"}}
			o.Owner.Labels = map[string]string{"x": strings.Repeat("x", stile.MaxOwnerBytes-100)}
		})
		a := lock(t, ann, "a")
		ctx, giveUp := context.WithCancel(a.Context())
		var waiters []*waiter
		var holds []*stile.Hold
		for i := range 20 {
			name := fmt.Sprintf("%02d%s", i, strings.Repeat("n", 500))
			holds = append(holds, lock(t, bob, name))
			waiters = append(waiters, wait(ctx, t, ann, name))
		}
		time.Sleep(10 * time.Second)
		g, err := bob.WaitGraph(t.Context(), "")
		if err != nil || len(g.Waits) != 16 {
			t.Errorf("got %d waits, %v; want 16", len(g.Waits), err)
		}
		giveUp()
		for i, wt := range waiters {
			wt.expectFailure(context.Canceled)
			release(t, holds[i])
		}
		release(t, a)
	})
}

// Processes under a lock of another process are clients of their own. Their entries say which lock that
// is, and a holder of it must be in the line.
func TestWaitGraph_processes(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		a, b := lock(t, ann, "a"), lock(t, bob, "b")
		under := func(name string, token uint64) *stile.Client {
			return w.client("under "+name, func(o *stile.Options) {
				o.Owner.Under = []store.Held{{Name: "gone", Token: 7 << 11}, {Name: name, Token: token}}
			})
		}
		first := wait(t.Context(), t, under("a", a.Token()), "b")
		expectGraph(t, ann, "a>b")
		ctx, giveUp := context.WithCancel(t.Context())
		second := wait(ctx, t, under("b", b.Token()), "a")
		expectGraph(t, ann, "a>b b>a [a b]")
		if got := graph(t, ann, "b"); got != "b>a [a b]" {
			t.Errorf(`the graph of "b" is %q`, got)
		}
		giveUp()
		second.expectFailure(context.Canceled)
		release(t, a) // what the entry of the first waiter says is not true any more
		expectGraph(t, ann, "")
		release(t, b)
		release(t, first.expectHold())
	})
}

// The locks that an owner is under do not count towards its size, but are limited too.
func TestOwner_under(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		under := make([]store.Held, stile.MaxUnder)
		for i := range under {
			under[i] = store.Held{Name: strings.Repeat("x", store.MaxNameBytes), Token: 1 << 11}
		}
		client := func(under []store.Held) (*stile.Client, error) {
			return stile.New(w.store, &stile.Options{Owner: stile.Owner{Command: "c", Under: under}})
		}
		c, err := client(under)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context())
		release(t, lock(t, c, "a"))
		for what, bad := range map[string][]store.Held{"one too many": append(under, under[0]), "an invalid name": {{Name: "/"}}} {
			if _, err := client(bad); err == nil || !strings.Contains(err.Error(), "its field Under") {
				t.Errorf("%s: got error %v", what, err)
			}
		}
	})
}

func TestWaitGraph_unsupported(t *testing.T) {
	c, err := stile.New(noOwnerUpdatesStore{memstore.New()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.WaitGraph(t.Context(), "")
	expectError(t, err, stile.ErrUnsupported)
}

func TestCycles(t *testing.T) {
	for _, test := range []struct{ edges, want string }{
		{"", "[]"},
		{"a>b b>c", "[]"},
		{"a>a", "[[a]]"},
		{"b>a a>b", "[[a b]]"},
		{"c>a a>b b>c", "[[a b c]]"},
		{"x>a a>b b>a b>y", "[[a b]]"},
		{"a>b b>a c>d d>c", "[[a b] [c d]]"},
		{"a>b b>c c>a b>a", "[[a b] [a b c]]"},
		{"a>b b>a a>b", "[[a b]]"},
		{"a>b b>c c>d d>b", "[[b c d]]"},
	} {
		next := map[string][]string{}
		for edge := range strings.FieldsSeq(test.edges) {
			from, to, _ := strings.Cut(edge, ">")
			next[from] = append(next[from], to)
		}
		if got := fmt.Sprint(stile.Cycles(next)); got != test.want {
			t.Errorf("%s: got %s, want %s", test.edges, got, test.want)
		}
	}
}
