package etcdguard_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store/etcdstore"
	"github.com/stilelock/stile/store/etcdstore/etcdguard"
	"github.com/stilelock/stile/store/memstore"
)

// server is shared by all tests; each uses a name of its own.
var server = testservers.Shared[*testservers.Etcd]{
	New: func() (*testservers.Etcd, error) { return testservers.NewEtcd() },
}

func TestMain(m *testing.M) {
	code := m.Run()
	server.Close()
	os.Exit(code)
}

func connect(t *testing.T) *clientv3.Client {
	t.Helper()
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Get(t).Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cli.Close() })
	return cli
}

// newClient returns a client whose session lasts longer than any test.
func newClient(t *testing.T, cli *clientv3.Client) *stile.Client {
	t.Helper()
	st, err := etcdstore.New(cli, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := stile.New(st, &stile.Options{TTL: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func lock(t *testing.T, c *stile.Client) *stile.Hold {
	t.Helper()
	return must[*stile.Hold](t)(c.Mutex(t.Name()).Lock(t.Context()))
}

// unaware is a hold whose process does not know that it has ended, because it was stopped.
type unaware struct{ *stile.Hold }

func (unaware) Context() context.Context { return context.Background() }

// changed is an unaware hold with another token or another key.
type changed struct {
	unaware
	token uint64
	key   string
}

func (c changed) Token() uint64    { return c.token }
func (c changed) EntryKey() string { return c.key }

// expectStale checks that a hold is refused, and that nothing has changed.
func expectStale(t *testing.T, cli *clientv3.Client, h guard.Hold, newest uint64) {
	t.Helper()
	before := value(t, cli, data(t))
	_, err := etcdguard.Do(t.Context(), cli, h, fence(t), clientv3.OpPut(data(t), "from a stale holder"))
	stale, ok := errors.AsType[*guard.StaleError](err)
	if want := (guard.StaleError{Resource: fence(t), Token: h.Token(), Newest: newest}); !ok || *stale != want {
		t.Errorf("got %v, want %v", err, &want)
	}
	if after := value(t, cli, data(t)); after != before {
		t.Errorf("the data changed from %q to %q", before, after)
	}
}

func fence(t *testing.T) string { return "fence of " + t.Name() }
func data(t *testing.T) string  { return "data of " + t.Name() }

// value returns the value of a key, and "" if there is none.
func value(t *testing.T, cli *clientv3.Client, key string) string {
	t.Helper()
	reply := must[*clientv3.GetResponse](t)(cli.Get(t.Context(), key))
	if len(reply.Kvs) == 0 {
		return ""
	}
	return string(reply.Kvs[0].Value)
}

func put(t *testing.T, cli *clientv3.Client, h guard.Hold, text string) {
	t.Helper()
	must[*clientv3.TxnResponse](t)(etcdguard.Do(t.Context(), cli, h, fence(t), clientv3.OpPut(data(t), text)))
	if got := value(t, cli, data(t)); got != text {
		t.Errorf("the data are %q, want %q", got, text)
	}
}

func TestDo_responses(t *testing.T) {
	t.Parallel()
	cli := connect(t)
	h := lock(t, newClient(t, cli))
	for _, text := range []string{"first", "second"} { // the fence is new, then it has this token
		reply := must[*clientv3.TxnResponse](t)(etcdguard.Do(t.Context(), cli, h, fence(t),
			clientv3.OpPut(data(t), text), clientv3.OpGet(data(t))))
		if len(reply.Responses) != 2 || !reply.Succeeded || reply.Header.Revision == 0 {
			t.Fatalf("got %v, want the responses of two ops", reply)
		}
		if kvs := reply.Responses[1].GetResponseRange().Kvs; len(kvs) != 1 || string(kvs[0].Value) != text {
			t.Errorf("the second response is %v, want %q", kvs, text)
		}
	}
	// An op under a condition that is false: the guard has nothing against it.
	reply := must[*clientv3.TxnResponse](t)(etcdguard.Do(t.Context(), cli, h, fence(t), clientv3.OpTxn(
		[]clientv3.Cmp{clientv3.Compare(clientv3.Value(data(t)), "=", "third")}, []clientv3.Op{clientv3.OpPut(data(t), "fourth")}, nil)))
	if reply.Responses[0].GetResponseTxn().Succeeded || value(t, cli, data(t)) != "second" {
		t.Errorf("got %v, want that nothing is done", reply)
	}
	if reply := must[*clientv3.TxnResponse](t)(etcdguard.Do(t.Context(), cli, h, fence(t))); len(reply.Responses) != 0 {
		t.Errorf("without ops: got %v, want no responses", reply)
	}
}

// A holder whose entry was removed cannot write any more, even before the next holder's first write.
// Promise: P2
func TestDo_entryRemoved(t *testing.T) {
	t.Parallel()
	cli := connect(t)
	a, b := newClient(t, cli), newClient(t, cli)
	first := lock(t, a)
	put(t, cli, first, "first")
	if _, err := b.Break(t.Context(), first.Name(), first.Token()); err != nil {
		t.Fatal(err)
	}
	expectStale(t, cli, unaware{first}, 0)
	second := lock(t, b)
	expectStale(t, cli, unaware{first}, 0)
	put(t, cli, second, "second")
	expectStale(t, cli, unaware{first}, 0)
}

// A smaller token than that of the fence is refused, though the entry is there.
// Promise: P2
func TestDo_smallerToken(t *testing.T) {
	t.Parallel()
	cli := connect(t)
	h := lock(t, newClient(t, cli))
	put(t, cli, h, "first")
	turn := changed{unaware{h}, h.Token() + 5, h.EntryKey()} // a later turn in the same entry
	put(t, cli, turn, "second")
	expectStale(t, cli, h, turn.token)
	put(t, cli, turn, "third")
}

// asExclusive is a hold whose request was made before its downgrade and is carried out afterwards.
type asExclusive struct{ *stile.Hold }

func (asExclusive) Mode() line.Mode { return line.Exclusive }

// A request for an exclusive hold is refused once the hold was downgraded, because readers may hold the
// lock. A request for the shared hold is not.
// Promise: P2
func TestDo_downgradedHold(t *testing.T) {
	t.Parallel()
	cli := connect(t)
	c := newClient(t, cli)
	h := must[*stile.Hold](t)(c.RWMutex(t.Name()).Lock(t.Context()))
	put(t, cli, h, "as a writer")
	if _, err := etcdguard.Do(t.Context(), cli, asExclusive{h}, fence(t)); err != nil {
		t.Fatalf("before the downgrade: %v", err)
	}
	if err := h.Downgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	expectStale(t, cli, asExclusive{h}, 0)
	if _, err := etcdguard.Do(t.Context(), cli, h, fence(t)); err != nil {
		t.Errorf("a reader that was a writer: %v", err)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	expectStale(t, cli, unaware{h}, 0)
}

// A key that was deleted and created again is another entry.
func TestDo_keyCreatedAgain(t *testing.T) {
	t.Parallel()
	cli := connect(t)
	h := lock(t, newClient(t, cli))
	put(t, cli, h, "first")
	must[*clientv3.DeleteResponse](t)(cli.Delete(t.Context(), h.EntryKey()))
	must[*clientv3.PutResponse](t)(cli.Put(t.Context(), h.EntryKey(), "again"))
	expectStale(t, cli, unaware{h}, 0)
}

// noRequest is a client that must not be used.
type noRequest struct {
	clientv3.KV
	t *testing.T
}

func (n noRequest) Txn(context.Context) clientv3.Txn {
	n.t.Fatal("a request was sent")
	return nil
}

func TestDo_refusedWithoutRequest(t *testing.T) {
	t.Parallel()
	cli := connect(t)
	h := lock(t, newClient(t, cli))
	kv := noRequest{cli, t}
	ended := lock(t, newMemoryClient(t))
	for _, test := range []struct {
		title string
		hold  guard.Hold
		want  error
	}{
		{"a token of zero", changed{unaware{h}, 0, h.EntryKey()}, guard.ErrBadToken},
		{"too large a token", changed{unaware{h}, 1 << 63, h.EntryKey()}, guard.ErrBadToken},
		{"a hold of another kind of store", ended, guard.ErrBadToken},
	} {
		if _, err := etcdguard.Do(t.Context(), kv, test.hold, fence(t)); !errors.Is(err, test.want) || !strings.Contains(err.Error(), fence(t)) {
			t.Errorf("%s: got %v, want %v and the fence's key", test.title, err, test.want)
		}
	}
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := etcdguard.Do(t.Context(), kv, h, fence(t))
	if !errors.Is(err, guard.ErrStale) || !errors.Is(err, stile.ErrReleased) {
		t.Errorf("a released hold: got %v, want ErrStale and ErrReleased", err)
	}
}

func newMemoryClient(t *testing.T) *stile.Client {
	t.Helper()
	return must[*stile.Client](t)(stile.New(memstore.New(), nil))
}

// Holders that hold at the same time do not refuse each other, whatever their order. Each is refused
// when its entry is gone.
// Promise: P2
func TestDo_holdersAtTheSameTime(t *testing.T) {
	t.Parallel()
	cli := connect(t)
	for _, kind := range []struct {
		title string
		lock  func(c *stile.Client) (*stile.Hold, error)
	}{
		{"readers", func(c *stile.Client) (*stile.Hold, error) { return c.RWMutex(t.Name() + "/rw").RLock(t.Context()) }},
		{"slots", func(c *stile.Client) (*stile.Hold, error) {
			return c.Semaphore(t.Name()+"/slots", 2).Acquire(t.Context())
		}},
	} {
		first := must[*stile.Hold](t)(kind.lock(newClient(t, cli)))
		second := must[*stile.Hold](t)(kind.lock(newClient(t, cli)))
		for i, h := range []*stile.Hold{first, second, first, second} {
			put(t, cli, h, kind.title+string(rune('0'+i)))
		}
		if _, err := etcdguard.Do(t.Context(), cli, first, ""); err != nil {
			t.Errorf("%s: only a check: %v", kind.title, err)
		}
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		expectStale(t, cli, unaware{first}, 0)
		put(t, cli, second, kind.title)
		if got := value(t, cli, fence(t)); got != "" {
			t.Errorf("%s: the fence was used: %q", kind.title, got)
		}
	}
}

// The goroutines of one holder use the guard at once, and for the first time.
func TestDo_firstUseAtOnce(t *testing.T) {
	t.Parallel()
	cli := connect(t)
	h := lock(t, newClient(t, cli))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := etcdguard.Do(t.Context(), cli, h, fence(t), clientv3.OpPut(data(t), "x")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestDo_damagedFence(t *testing.T) {
	t.Parallel()
	cli := connect(t)
	h := lock(t, newClient(t, cli))
	for _, text := range []string{"x", "", "7", "0", "000", "0.50", "-1", "  ", "99999999999999999999", strings.Repeat("9", 30)} {
		must[*clientv3.PutResponse](t)(cli.Put(t.Context(), fence(t), text))
		_, err := etcdguard.Do(t.Context(), cli, h, fence(t), clientv3.OpPut(data(t), "x"))
		if err == nil || errors.Is(err, guard.ErrStale) || !strings.Contains(err.Error(), "delete the key") {
			t.Errorf("with the value %q: got %v, want an error that says what to do", text, err)
		}
	}
}

func TestDo_contextEnds(t *testing.T) {
	t.Parallel()
	cli := connect(t)
	h := lock(t, newClient(t, cli))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := etcdguard.Do(ctx, cli, h, fence(t)); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), fence(t)) {
		t.Errorf("got %v, want context.Canceled and the fence's key", err)
	}
}
