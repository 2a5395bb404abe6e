package stile_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func TestNew_reportsAllBadOptions(t *testing.T) {
	huge := stile.Owner{Labels: map[string]string{"essay": strings.Repeat("x", stile.MaxOwnerBytes)}}
	tests := []struct {
		name string
		st   store.Store
		opts *stile.Options
		want []string
	}{
		{"no store", nil, nil, []string{"no store"}},
		{"a TTL below the store's minimum", memstore.New(), &stile.Options{TTL: time.Millisecond}, []string{"TTL of 1ms", "10ms to 5m0s"}},
		{"a negative TTL", memstore.New(), &stile.Options{TTL: -time.Second}, []string{"TTL of -1s", "10ms to 5m0s"}},
		{"a TTL above the maximum", memstore.New(), &stile.Options{TTL: stile.MaxTTL + 1}, []string{"TTL of 5m0.000000001s", "10ms to 5m0s"}},
		{"a TTL above the store's maximum", shortTTLStore{memstore.New()}, &stile.Options{TTL: time.Minute + 1}, []string{"TTL of 1m0.000000001s", "10ms to 1m0s"}},
		{"an owner that is too large", memstore.New(), &stile.Options{Owner: huge}, []string{"maximum is 8192", "shorten its labels, reason or value"}},
		{"an owner that cannot be encoded as JSON", memstore.New(), &stile.Options{Owner: stile.Owner{PID: 1, Since: time.Unix(1<<60, 0)}}, []string{"the owner: ", "year"}},
		{"two bad options", memstore.New(), &stile.Options{TTL: 1, Owner: huge}, []string{"TTL of 1ns", "shorten its labels, reason or value"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := stile.New(tt.st, tt.opts)
			if err == nil || c != nil {
				t.Fatalf("New: got %v, %v, want nil and an error", c, err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error: got %q, want %q in it", err, want)
				}
			}
		})
	}
}

// shortTTLStore is a store whose maximum TTL is one minute.
type shortTTLStore struct{ *memstore.Store }

func (shortTTLStore) Capabilities() store.Capabilities {
	caps := memstore.New().Capabilities()
	caps.MaxTTL = time.Minute
	return caps
}

func TestOptions_limitsAreValid(t *testing.T) {
	for _, ttl := range []time.Duration{0, memstore.MinTTL, stile.MaxTTL} {
		if _, err := stile.New(memstore.New(), &stile.Options{TTL: ttl}); err != nil {
			t.Errorf("New with a TTL of %v: %v", ttl, err)
		}
	}
}

func TestOptions_zeroMeansDefaults(t *testing.T) {
	for name, opts := range map[string]*stile.Options{"nil": nil, "zero": {}} {
		scenario(t, func(t *testing.T, w *testEnv) {
			c, err := stile.New(w.store, opts)
			if err != nil {
				t.Fatalf("%s options: %v", name, err)
			}
			defer c.Close(t.Context())
			lock(t, c, "a")
			l, err := c.Line(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if got := l.Holders[0].Remaining; got != stile.DefaultTTL {
				t.Errorf("%s options: got a TTL of %v, want %v", name, got, stile.DefaultTTL)
			}
			host, _ := os.Hostname()
			o := l.Holders[0].Owner
			if o.Host != host || o.PID != os.Getpid() || o.User == "" || o.Command != filepath.Base(os.Args[0]) || o.Since.IsZero() {
				t.Errorf("%s options: got the owner %+v, want this process", name, o)
			}
		})
	}
}

func TestClient_opensSessionOnFirstUse(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		if _, err := c.Lines(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		if ids := w.store.Sessions(); len(ids) > 0 {
			t.Errorf("sessions before the first lock: got %v, want none", ids)
		}
		lock(t, c, "a")
		lock(t, c, "b")
		if ids := w.store.Sessions(); len(ids) != 1 {
			t.Errorf("sessions after two locks: got %v, want one", ids)
		}
	})
}

// Bug: hazelcast-nodejs-client #898
func TestClient_concurrentCallsOpenOneSession(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		w.faults(memstore.Fault{Delay: time.Second}, on(memstore.Open))
		var waiters []*waiter
		for _, name := range []string{"a", "b", "c"} {
			waiters = append(waiters, wait(t.Context(), t, c, name))
		}
		for _, wt := range waiters {
			wt.expectHold()
		}
		if ids := w.store.Sessions(); len(ids) != 1 {
			t.Errorf("sessions: got %v, want one", ids)
		}
	})
}

func TestMutex_badNames(t *testing.T) {
	names := []struct{ what, name, want string }{
		{"empty", "", "empty"},
		{"too long", strings.Repeat("x", store.MaxNameBytes+1), "maximum is 512"},
		{"not UTF-8", "a\xff", "UTF-8"},
		{"control character", "a\nb", "control character"},
		{"zero byte", "a\x00b", "control character"},
		{"slash in front", "/a", `"/"`},
		{"slash at the end", "a/", `"/"`},
		{"empty part", "a//b", `"//"`},
		{"dot", "a/./b", `"."`},
		{"dot dot", "../a", `".."`},
	}
	methods := map[string]func(context.Context, *stile.Client, string) error{
		"Lock": func(ctx context.Context, c *stile.Client, name string) error {
			_, err := c.Mutex(name).Lock(ctx)
			return err
		},
		"TryLock": func(ctx context.Context, c *stile.Client, name string) error {
			_, err := c.Mutex(name).TryLock(ctx)
			return err
		},
		"Join": func(ctx context.Context, c *stile.Client, name string) error {
			_, err := c.Mutex(name).Join(ctx)
			return err
		},
		"Do": func(ctx context.Context, c *stile.Client, name string) error {
			return c.Mutex(name).Do(ctx, func(context.Context, *stile.Hold) error { panic("f was called") })
		},
	}
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		for _, tt := range names {
			for method, call := range methods {
				err := call(t.Context(), c, tt.name)
				if !errors.Is(err, stile.ErrBadName) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s with a bad name (%s): got error %v, want ErrBadName with %s in it", method, tt.what, err, tt.want)
				}
				if err != nil && len(err.Error()) > 200 {
					t.Errorf("%s with a bad name (%s): the error has %d bytes, want 200 at most", method, tt.what, len(err.Error()))
				}
			}
		}
		for _, prefix := range []string{"\xff", "a\n", strings.Repeat("x", store.MaxNameBytes+1)} {
			if _, err := c.Lines(t.Context(), prefix); !errors.Is(err, stile.ErrBadName) {
				t.Errorf("Lines with the prefix %.10q: got error %v, want ErrBadName", prefix, err)
			}
		}
		if ids := w.store.Sessions(); len(ids) > 0 {
			t.Errorf("sessions after calls with bad names: got %v, want none", ids)
		}
	})
}

func TestMutex_goodNames(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		for _, name := range []string{"a", "a/b", "a b", "…", "a.b", "a/..b", strings.Repeat("x", store.MaxNameBytes)} {
			if got := lock(t, c, name).Name(); got != name {
				t.Errorf("Name of a hold of %q: got %q", name, got)
			}
		}
	})
}

func TestLock_returnsStoreError(t *testing.T) {
	full := errors.New("database space exceeded: free some")
	for _, op := range on(memstore.Open, memstore.Enqueue) {
		scenario(t, func(t *testing.T, w *testEnv) {
			c := w.client("ann")
			w.faults(memstore.Fault{Err: full}, on(op))
			wait(t.Context(), t, c, "a").expectFailure(full)
			_, err := c.Mutex("a").TryLock(t.Context())
			expectError(t, err, full)
			if !strings.Contains(err.Error(), `"a"`) {
				t.Errorf("the error %q lacks the name of the lock", err)
			}
			w.heal()
			lock(t, c, "a")
		})
	}
}

func TestClose(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		held := lock(t, ann, "a")
		behind := wait(t.Context(), t, ann, "a")
		lock(t, bob, "b")
		inLine := wait(t.Context(), t, ann, "b")
		next := wait(t.Context(), t, bob, "a")

		before := time.Now()
		if err := ann.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		expectLost(t, held, stile.LostClosed)
		behind.expectFailure(stile.ErrClosed)
		inLine.expectFailure(stile.ErrClosed)
		next.expectHoldNow()
		if ids := w.store.Sessions(); len(ids) != 1 {
			t.Errorf("sessions after Close: got %v, want only the other client's", ids)
		}
		if d := time.Since(before); d != 0 {
			t.Errorf("Close took %v, want 0", d)
		}
		asLost(t, held.Release(t.Context()))
	})
}

func TestClose_laterCallsReturnErrClosed(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		for range 2 {
			if err := c.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			m := c.Mutex("a")
			_, err := m.Lock(t.Context())
			expectError(t, err, stile.ErrClosed)
			_, err = m.TryLock(t.Context())
			expectError(t, err, stile.ErrClosed)
			_, err = m.Join(t.Context())
			expectError(t, err, stile.ErrClosed)
			err = m.Do(t.Context(), func(context.Context, *stile.Hold) error { panic("f was called") })
			expectError(t, err, stile.ErrClosed)
			_, err = c.Lines(t.Context(), "")
			expectError(t, err, stile.ErrClosed)
			_, err = c.Line(t.Context(), "a")
			expectError(t, err, stile.ErrClosed)
			_, err = c.Break(t.Context(), "a", 256)
			expectError(t, err, stile.ErrClosed)
		}
		if ids := w.store.Sessions(); len(ids) > 0 {
			t.Errorf("sessions of a closed client: got %v, want none", ids)
		}
	})
}

func TestClose_againRetries(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		lock(t, c, "a")
		unreachable := errors.New("no route to host")
		w.faults(memstore.Fault{Err: unreachable}, on(memstore.Close))
		expectError(t, c.Close(t.Context()), unreachable)
		w.expectLine("a", "ann")
		w.heal()
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.expectLine("a")
	})
}

// Close returns when its context ends. A session that it could not end in the store ends with its
// TTL.
func TestClose_storeUnreachable(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		held := lock(t, ann, "a")
		behind := wait(t.Context(), t, ann, "a")
		lock(t, bob, "b")
		inLine := wait(t.Context(), t, ann, "b")
		next := wait(t.Context(), t, bob, "a")
		w.cut(w.session("ann"))
		enqueuing := wait(t.Context(), t, ann, "c")

		before := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		expectError(t, ann.Close(ctx), context.DeadlineExceeded)
		if d := time.Since(before); d != 100*time.Millisecond {
			t.Errorf("Close took %v, want the 100ms of its context", d)
		}
		expectLost(t, held, stile.LostClosed)
		for _, wt := range []*waiter{behind, inLine, enqueuing} {
			wt.expectFailure(stile.ErrClosed)
		}
		next.expectHoldWithin(ttl)
	})
}

func TestClose_endedContextAllowsTwoSeconds(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		lock(t, c, "a")
		if err := c.Close(ended); err != nil {
			t.Errorf("Close with an ended context: %v", err)
		}
		w.expectLine("a")
	})
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		lock(t, c, "a")
		w.cut(w.session("ann"))
		before := time.Now()
		if err := c.Close(ended); err == nil {
			t.Error("Close without the store: got nil, want an error")
		}
		if d := time.Since(before); d != 2*time.Second {
			t.Errorf("Close without the store took %v, want 2s", d)
		}
	})
}

func TestClose_whileSessionOpens(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		w.faults(memstore.Fault{ReplyDelay: time.Second}, on(memstore.Open))
		opener := wait(t.Context(), t, c, "a")
		alsoOpening := wait(t.Context(), t, c, "b")
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		opener.expectFailure(stile.ErrClosed)
		alsoOpening.expectFailure(stile.ErrClosed)
		if ids := w.store.Sessions(); len(ids) > 0 {
			t.Errorf("sessions after Close: got %v, want none", ids)
		}
	})
}

// uncancelableStore is a store whose Open ignores the end of its context, as the contract allows.
type uncancelableStore struct {
	store.Store
	called, proceed chan struct{}
}

func (s uncancelableStore) Open(_ context.Context, opts store.SessionOptions) (store.Session, error) {
	close(s.called)
	<-s.proceed
	return s.Store.Open(context.Background(), opts)
}

func TestClose_closesSessionOpenedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		st := uncancelableStore{mem, make(chan struct{}), make(chan struct{})}
		c, err := stile.New(st, nil)
		if err != nil {
			t.Fatal(err)
		}
		wt := wait(t.Context(), t, c, "a")
		<-st.called
		closed := make(chan error, 1)
		go func() { closed <- c.Close(t.Context()) }()
		synctest.Wait()
		close(st.proceed)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		wt.expectFailure(stile.ErrClosed)
		if ids := mem.Sessions(); len(ids) > 0 {
			t.Errorf("sessions after Close: got %v, want none", ids)
		}
	})
}

// When Close ends the session, no waiter may open another one, whichever goroutine notices the end
// first.
func TestClose_opensNoSession(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		bob := w.client("bob")
		lock(t, bob, "a")
		opened := 0
		for range 200 {
			ann := w.client("ann")
			lock(t, ann, "b")
			wt := wait(t.Context(), t, ann, "a")
			w.store.SetFaults(func(c memstore.Call) memstore.Fault {
				if c.Op == memstore.Open {
					opened++
				}
				return memstore.Fault{}
			})
			if err := ann.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			wt.expectFailure(stile.ErrClosed)
			w.heal()
		}
		if opened > 0 {
			t.Errorf("sessions opened while 200 clients were closed: got %d, want 0", opened)
		}
		if ids := w.store.Sessions(); len(ids) != 1 {
			t.Errorf("sessions: got %v, want one", ids)
		}
	})
}

func TestClose_unusedClient(t *testing.T) {
	c, err := stile.New(memstore.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestClient_manyCallsWaitForUnreachableStoreAsLongAsOne(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		unreachable := errors.New("unreachable")
		w.faults(memstore.Fault{Delay: 10 * time.Second, Err: unreachable}, on(memstore.Open))
		before := time.Now()
		ctx, end, cause := cancelable(t)
		first := wait(ctx, t, c, "first")
		var others []*waiter
		for n := range 20 {
			others = append(others, wait(t.Context(), t, c, fmt.Sprint("lock ", n)))
		}
		time.Sleep(time.Second)
		end() // the caller that opens the session gives up; the others must not fail
		first.expectFailure(context.Canceled, cause)
		time.Sleep(10 * time.Second)
		for _, wt := range others {
			wt.expectFailure(unreachable)
		}
		if took := time.Since(before); took != 11*time.Second {
			t.Errorf("the calls waited for %v, want 11s", took)
		}
	})
}

// panickingStore is a store whose first Open waits for fail to be closed and panics.
type panickingStore struct {
	store.Store
	fail   chan struct{}
	failed *atomic.Bool
}

func (s panickingStore) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	if s.failed.CompareAndSwap(false, true) {
		<-s.fail
		panic("a bug in the store")
	}
	return s.Store.Open(ctx, opts)
}

// Bug: hazelcast-csharp-client #884
func TestClient_panicWhileOpeningAffectsOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := panickingStore{memstore.New(), make(chan struct{}), new(atomic.Bool)}
		c, err := stile.New(st, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context())
		cause := make(chan any, 1)
		go func() {
			defer func() { cause <- recover() }()
			_, _ = c.Mutex("a").Lock(t.Context())
		}()
		synctest.Wait()
		other := wait(t.Context(), t, c, "b")
		close(st.fail)
		if got := <-cause; got != "a bug in the store" {
			t.Errorf("got the panic %v, want that of the store", got)
		}
		release(t, other.expectHoldNow())
		release(t, lock(t, c, "a"))
	})
}
