package zkguard_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store/memstore"
	"github.com/stilelock/stile/store/zkstore"
	"github.com/stilelock/stile/store/zkstore/zkguard"
)

// longTTL is longer than any test.
const longTTL = 10 * time.Minute

// server is shared by all tests; each uses names of its own.
var server = testservers.Shared[*testservers.ZooKeeper]{
	New: func() (*testservers.ZooKeeper, error) { return testservers.NewZooKeeper() },
}

func TestMain(m *testing.M) {
	code := m.Run()
	server.Close()
	os.Exit(code)
}

type noLog struct{}

func (noLog) Printf(string, ...any) {}

func connect(t *testing.T) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect([]string{server.Get(t).Endpoint()}, longTTL, zk.WithLogger(noLog{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func newClient(t *testing.T) *stile.Client {
	t.Helper()
	st, err := zkstore.New([]string{server.Get(t).Endpoint()}, nil)
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
		_ = errors.Join(c.Close(ctx), st.Close())
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

// acl lets everybody do everything.
var acl = zk.WorldACL(zk.PermAll)

// A testCase is a lock with data that it protects.
type testCase struct {
	t                 *testing.T
	conn              *zk.Conn
	name, fence, data string
}

func newCase(t *testing.T) *testCase {
	t.Helper()
	id := strings.ReplaceAll(t.Name(), "/", "-") + "-" + rand.Text()[:6]
	c := &testCase{t: t, conn: connect(t), name: id, fence: "/fence-" + id, data: "/data-" + id}
	must[string](t)(c.conn.Create(c.data, nil, 0, acl))
	return c
}

func (c *testCase) lock(by *stile.Client) *stile.Hold {
	c.t.Helper()
	return must[*stile.Hold](c.t)(by.Mutex(c.name).Lock(c.t.Context()))
}

func (c *testCase) write(h guard.Hold, text string) error {
	_, err := zkguard.Do(c.t.Context(), c.conn, h, c.fence, acl, &zk.SetDataRequest{Path: c.data, Data: []byte(text), Version: -1})
	return err
}

func (c *testCase) expectWrite(h guard.Hold, text string) {
	c.t.Helper()
	if err := c.write(h, text); err != nil {
		c.t.Fatal(err)
	}
	if got := c.read(); got != text {
		c.t.Errorf("the data are %q, want %q", got, text)
	}
}

func (c *testCase) read() string {
	c.t.Helper()
	data, _, err := c.conn.Get(c.data)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(data)
}

// expectStale checks that a hold is refused, and that nothing has changed.
func (c *testCase) expectStale(h guard.Hold, newest uint64) {
	c.t.Helper()
	before := c.read()
	err := c.write(h, "from a stale holder")
	stale, ok := errors.AsType[*guard.StaleError](err)
	if want := (guard.StaleError{Resource: c.fence, Token: h.Token(), Newest: newest}); !ok || *stale != want {
		c.t.Errorf("got %v, want %v", err, &want)
	}
	if after := c.read(); after != before {
		c.t.Errorf("the data changed from %q to %q", before, after)
	}
}

// unaware is a hold whose process does not know that it has ended, because it was stopped.
type unaware struct{ *stile.Hold }

func (unaware) Context() context.Context { return context.Background() }

// changed is an unaware hold with another token.
type changed struct {
	unaware
	token uint64
}

func (c changed) Token() uint64 { return c.token }

func TestDo_responses(t *testing.T) {
	t.Parallel()
	c := newCase(t)
	h := c.lock(newClient(t))
	for i := range 2 { // the fence is new, then it has this token
		replies := must[[]zk.MultiResponse](t)(zkguard.Do(t.Context(), c.conn, h, c.fence, acl,
			&zk.SetDataRequest{Path: c.data, Data: []byte("x"), Version: -1},
			&zk.CreateRequest{Path: c.data + "/child-", Acl: acl, Flags: zk.FlagSequence}))
		if len(replies) != 2 || replies[0].Stat == nil || !strings.HasPrefix(replies[1].String, c.data+"/child-") {
			t.Fatalf("write %d: got %v, want the responses of both ops", i, replies)
		}
	}
	if replies := must[[]zk.MultiResponse](t)(zkguard.Do(t.Context(), c.conn, h, c.fence, acl)); len(replies) != 0 {
		t.Errorf("without ops: got %v, want no responses", replies)
	}
}

// The refusal of an op is not that of the guard, wherever the op is, and nothing has changed.
func TestDo_opRefused(t *testing.T) {
	t.Parallel()
	c := newCase(t)
	h := c.lock(newClient(t))
	set := &zk.SetDataRequest{Path: c.data, Data: []byte("x"), Version: -1}
	for range 2 {
		for _, test := range []struct {
			op   any
			want error
		}{
			{&zk.CheckVersionRequest{Path: c.data, Version: 77}, zk.ErrBadVersion},
			{&zk.DeleteRequest{Path: c.data + "/no", Version: -1}, zk.ErrNoNode},
			{&zk.CreateRequest{Path: c.data, Acl: acl}, zk.ErrNodeExists},
		} {
			for _, ops := range [][]any{{test.op, set}, {set, test.op}} {
				_, err := zkguard.Do(t.Context(), c.conn, h, c.fence, acl, ops...)
				if !errors.Is(err, test.want) || errors.Is(err, guard.ErrStale) || !strings.Contains(err.Error(), c.fence) {
					t.Errorf("got %v, want %v and the fence's path", err, test.want)
				}
			}
		}
		must[[]zk.MultiResponse](t)(zkguard.Do(t.Context(), c.conn, h, c.fence, acl)) // makes the fence
	}
	if got := c.read(); got != "" {
		t.Errorf("the data changed to %q", got)
	}
	_, err := zkguard.Do(t.Context(), c.conn, h, c.fence+"/below/nothing", acl)
	if !errors.Is(err, zk.ErrNoNode) || errors.Is(err, guard.ErrStale) {
		t.Errorf("a fence below no node: got %v, want ErrNoNode", err)
	}
}

// A holder whose entry was removed cannot write any more, even before the next holder's first write.
// Promise: P2
func TestDo_entryRemoved(t *testing.T) {
	t.Parallel()
	c := newCase(t)
	a, b := newClient(t), newClient(t)
	first := c.lock(a)
	c.expectWrite(first, "first")
	if _, err := b.Break(t.Context(), c.name, first.Token()); err != nil {
		t.Fatal(err)
	}
	c.expectStale(unaware{first}, 0)
	second := c.lock(b)
	c.expectStale(unaware{first}, 0)
	c.expectWrite(second, "second")
	c.expectStale(unaware{first}, second.Token())
}

// A smaller token than that of the fence is refused, though the entry is there.
// Promise: P2
func TestDo_smallerToken(t *testing.T) {
	t.Parallel()
	c := newCase(t)
	h := c.lock(newClient(t))
	c.expectWrite(h, "first")
	turn := changed{unaware{h}, h.Token() + 5} // a later turn in the same entry
	c.expectWrite(turn, "second")
	c.expectStale(h, turn.token)
	c.expectWrite(turn, "third")
}

func TestDo_refusedWithoutRequest(t *testing.T) {
	t.Parallel()
	c := newCase(t)
	h := c.lock(newClient(t))
	memory := must[*stile.Client](t)(stile.New(memstore.New(), nil))
	for _, test := range []struct {
		title string
		hold  guard.Hold
	}{
		{"a token of zero", changed{unaware{h}, 0}},
		{"too large a token", changed{unaware{h}, 1 << 63}},
		{"a hold of another kind of store", c.lock(memory)},
	} {
		_, err := zkguard.Do(t.Context(), nil, test.hold, c.fence, acl)
		if !errors.Is(err, guard.ErrBadToken) || !strings.Contains(err.Error(), c.fence) {
			t.Errorf("%s: got %v, want ErrBadToken and the fence's path", test.title, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := zkguard.Do(ended, nil, h, c.fence, acl); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: got %v, want context.Canceled", err)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.write(h, "x"); !errors.Is(err, guard.ErrStale) || !errors.Is(err, stile.ErrReleased) {
		t.Errorf("a released hold: got %v, want ErrStale and ErrReleased", err)
	}
}

// Holders that hold at the same time do not refuse each other, whatever their order. Each is refused
// when its entry is gone.
// Promise: P2
func TestDo_holdersAtTheSameTime(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		title string
		lock  func(c *stile.Client, name string) (*stile.Hold, error)
	}{
		{"readers", func(c *stile.Client, name string) (*stile.Hold, error) { return c.RWMutex(name).RLock(t.Context()) }},
		{"slots", func(c *stile.Client, name string) (*stile.Hold, error) {
			return c.Semaphore(name, 2).Acquire(t.Context())
		}},
	} {
		t.Run(kind.title, func(t *testing.T) {
			c := newCase(t)
			first := must[*stile.Hold](t)(kind.lock(newClient(t), c.name))
			second := must[*stile.Hold](t)(kind.lock(newClient(t), c.name))
			for i, h := range []*stile.Hold{first, second, first, second} {
				c.expectWrite(h, string(rune('0'+i)))
			}
			if _, err := zkguard.Do(t.Context(), c.conn, first, "", nil); err != nil {
				t.Errorf("only a check: %v", err)
			}
			if err := first.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.expectStale(unaware{first}, 0)
			c.expectWrite(second, "last")
			if exists, _, err := c.conn.Exists(c.fence); err != nil || exists {
				t.Errorf("the fence exists: %v, %v; want that it is not used", exists, err)
			}
		})
	}
}

// Goroutines of one holder use the guard at once, and for the first time. Each is overtaken by others
// between its reading of the fence and its change.
func TestDo_atOnce(t *testing.T) {
	t.Parallel()
	c := newCase(t)
	h := c.lock(newClient(t))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				if err := c.write(h, "x"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// Whatever order the writes of several turns arrive in: once one is accepted, none with a smaller token is.
// Promise: P2
func TestDo_turnsAtOnce(t *testing.T) {
	t.Parallel()
	c := newCase(t)
	h := c.lock(newClient(t))
	var wg sync.WaitGroup
	for i := range uint64(8) {
		wg.Go(func() {
			for j := range uint64(10) {
				turn := changed{unaware{h}, h.Token() + i + 8*j}
				_, err := zkguard.Do(t.Context(), c.conn, turn, c.fence, acl,
					&zk.CreateRequest{Path: fmt.Sprintf("%s/%d-", c.data, turn.token), Acl: acl, Flags: zk.FlagSequence})
				if err != nil && !errors.Is(err, guard.ErrStale) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	nodes := must[[]string](t)(children(c.conn, c.data))
	slices.SortFunc(nodes, func(a, b string) int { return strings.Compare(a[len(a)-10:], b[len(b)-10:]) }) // as they were created
	if !slices.IsSortedFunc(nodes, func(a, b string) int { return cmp.Compare(tokenOf(t, a), tokenOf(t, b)) }) {
		t.Errorf("tokens, and numbers in the order of the writes: %v; want tokens that never decrease", nodes)
	}
}

func children(conn *zk.Conn, dir string) ([]string, error) {
	nodes, _, err := conn.Children(dir)
	return nodes, err
}

func tokenOf(t *testing.T, node string) uint64 {
	t.Helper()
	digits, _, _ := strings.Cut(node, "-")
	return must[uint64](t)(strconv.ParseUint(digits, 10, 64))
}

func TestDo_damagedFence(t *testing.T) {
	t.Parallel()
	c := newCase(t)
	h := c.lock(newClient(t))
	must[string](t)(c.conn.Create(c.fence, nil, 0, acl))
	for _, text := range []string{"x", "", "7", "99999999999999999999", strings.Repeat("9", 30)} {
		must[*zk.Stat](t)(c.conn.Set(c.fence, []byte(text), -1))
		if err := c.write(h, "x"); err == nil || errors.Is(err, guard.ErrStale) || !strings.Contains(err.Error(), "delete the node") {
			t.Errorf("with the data %q: got %v, want an error that says what to do", text, err)
		}
	}
}
