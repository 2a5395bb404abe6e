package zkstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/zkstore"
)

// testTimeout is how long tests wait for events that should happen at once, on however busy a
// machine.
const testTimeout = 4 * time.Minute

// noRecheck is the interval at which the stores of these tests check for changes without an event:
// longer than any test. So what a test observes was reported by an event.
const noRecheck = time.Hour

// longTTL is the TTL of sessions that must not end. It is longer than any test, so they need no
// confirmations.
const longTTL = 30 * time.Minute

// TestMain runs more tests at a time than there are processors, because tests mostly wait once
// their servers run.
func TestMain(m *testing.M) {
	flag.Parse()
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
	if !set {
		_ = flag.Set("test.parallel", "8")
	}
	code := m.Run()
	sharedCurator.Close()
	sharedServer.Close()
	sharedEnsemble.Close()
	sharedRestricted.Close()
	closeFaultEnsemble()
	os.Exit(code)
}

// Servers for all tests that do not disturb them. Each test uses its own names; see [newName].
var (
	sharedServer = testservers.Shared[*testservers.ZooKeeper]{
		New: func() (*testservers.ZooKeeper, error) { return testservers.NewZooKeeper() },
	}
	sharedEnsemble   = testservers.Shared[*testservers.ZooKeeperEnsemble]{New: newEnsemble}
	sharedRestricted = testservers.Shared[restrictedServer]{New: newRestricted}
	sharedCurator    = testservers.Shared[*curatorProcess]{New: newCurator}
)

// newEnsemble starts three servers that wait a minute for each other, so that none abandons the
// others on a busy machine. See [testservers.ZooKeeperEnsemble.Abandon].
func newEnsemble() (*testservers.ZooKeeperEnsemble, error) {
	return testservers.NewZooKeeperEnsemble(3, "initLimit=240", "syncLimit=240")
}

// server returns the shared server: its tick is 100 ms, its minimum TTL one second.
func server(t *testing.T) *testservers.ZooKeeper {
	t.Helper()
	return sharedServer.Get(t)
}

// ensemble returns the shared ensemble of three servers.
func ensemble(t *testing.T) *testservers.ZooKeeperEnsemble {
	t.Helper()
	return sharedEnsemble.Get(t)
}

// faultEnsemble is the ensemble for tests that cause faults. One test uses it at a time.
var faultEnsemble struct {
	sync.Mutex
	shared *testservers.Shared[*testservers.ZooKeeperEnsemble] // nil if no healthy one runs
}

// exclusiveEnsemble returns an ensemble of three servers that no other test uses until this one has
// ended. The test must leave it healthy, unless it fails.
func exclusiveEnsemble(t *testing.T) *testservers.ZooKeeperEnsemble {
	t.Helper()
	faultEnsemble.Lock()
	t.Cleanup(func() {
		if t.Failed() {
			closeFaultEnsemble()
		}
		faultEnsemble.Unlock()
	})
	if faultEnsemble.shared == nil {
		faultEnsemble.shared = &testservers.Shared[*testservers.ZooKeeperEnsemble]{New: newEnsemble}
	}
	return faultEnsemble.shared.Get(t)
}

// closeFaultEnsemble ends the ensemble for tests that cause faults. The next such test starts
// another.
func closeFaultEnsemble() {
	if faultEnsemble.shared != nil {
		faultEnsemble.shared.Close()
		faultEnsemble.shared = nil
	}
}

// newName returns a unique lock name.
func newName(t *testing.T) string {
	t.Helper()
	return t.Name() + "-" + rand.Text()[:6]
}

// newStore returns a store on the given servers.
func newStore(t testing.TB, opts *zkstore.Options, servers ...string) *zkstore.Store {
	t.Helper()
	st, err := zkstore.New(servers, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	st.SetPatience(testTimeout, noRecheck)
	return st
}

// newClient returns a Stile client.
func newClient(t *testing.T, st store.Store, ttl time.Duration) *stile.Client {
	t.Helper()
	c, err := stile.New(st, &stile.Options{TTL: ttl, Owner: stile.Owner{Host: "test", Command: t.Name()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWithTimeout(c.Close) })
	return c
}

// connect returns a go-zookeeper client.
func connect(t *testing.T, servers ...string) *zk.Conn {
	t.Helper()
	conn, events, err := zk.Connect(servers, longTTL, zk.WithLogger(discardLogger{}), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	timeout := time.After(testTimeout)
	for {
		select {
		case ev := <-events:
			if ev.State == zk.StateHasSession {
				return conn
			}
		case <-timeout:
			t.Fatalf("no session at %v after %v", servers, testTimeout)
		}
	}
}

type discardLogger struct{}

func (discardLogger) Printf(string, ...any) {}

func closeWithTimeout(closing func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = closing(ctx) // if it fails, the session ends with its server
}

// openSession opens a session in the store that lives longer than any test.
func openSession(t *testing.T, st store.Store) store.Session {
	t.Helper()
	return openSessionTTL(t, st, longTTL, nil)
}

func openSessionTTL(t *testing.T, st store.Store, ttl time.Duration, lost func(error)) store.Session {
	t.Helper()
	se, err := st.Open(t.Context(), store.SessionOptions{
		TTL: ttl, Lost: lost,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWithTimeout(se.Close) })
	return se
}

// joined is an entry and the standings that were delivered for it.
type joined struct {
	store.Ticket
	name      string
	standings chan store.Standing
}

func tryEnqueue(ctx context.Context, se store.Session, name string, mode line.Mode, try bool) (*joined, error) {
	standings := make(chan store.Standing, 100)
	ticket, err := se.Enqueue(ctx, store.Request{
		Name: name, Mode: mode, Try: try, Notify: func(st store.Standing) { standings <- st },
	})
	return &joined{ticket, name, standings}, err
}

// enqueue adds an entry to the line.
func enqueue(t *testing.T, se store.Session, name string, mode line.Mode) *joined {
	t.Helper()
	j, err := tryEnqueue(t.Context(), se, name, mode, false)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// await waits until the entry's standing is state, and returns it. If the entry is gone instead,
// the test fails.
func (j *joined) await(t *testing.T, state store.State) store.Standing {
	t.Helper()
	timeout := time.After(testTimeout)
	for {
		select {
		case st := <-j.standings:
			if st.State == state {
				return st
			}
			if st.State == store.Gone {
				t.Fatalf("the entry for %q is gone (%v), want %v", j.name, st.Cause, state)
			}
		case <-timeout:
			t.Fatalf("the entry for %q is not %v after %v", j.name, state, testTimeout)
		}
	}
}

// next waits for the next standing.
func (j *joined) next(t *testing.T) store.Standing {
	t.Helper()
	select {
	case st := <-j.standings:
		return st
	case <-time.After(testTimeout):
		t.Fatalf("no standing was delivered for the entry for %q within %v", j.name, testTimeout)
		return store.Standing{}
	}
}

// admitted waits until the entry is admitted.
func (j *joined) admitted(t *testing.T) store.Standing {
	t.Helper()
	return j.await(t, store.Admitted)
}

// gone waits until the entry is reported gone. It fails if the cause does not match want.
func (j *joined) gone(t *testing.T, want error) {
	t.Helper()
	st := j.await(t, store.Gone)
	if !errors.Is(st.Cause, want) {
		t.Errorf("the entry for %q is gone because of %v, want an error matching %v", j.name, st.Cause, want)
	}
}

// expectNothing checks that no standing is delivered for a moment.
func (j *joined) expectNothing(t *testing.T) {
	t.Helper()
	select {
	case st := <-j.standings:
		t.Errorf("the entry for %q is %v (%v), want no delivery", j.name, st.State, st.Cause)
	case <-time.After(50 * time.Millisecond):
	}
}

// withdraw withdraws the entry.
func (j *joined) withdraw(t *testing.T) {
	t.Helper()
	if err := j.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// lock acquires a lock that must be free or become free.
func lock(t *testing.T, c *stile.Client, name string) *stile.Hold {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	h, err := c.Mutex(name).Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// join joins a line that has entries, and returns when the entry is in it.
func join(t *testing.T, c *stile.Client, name string) *stile.Place {
	t.Helper()
	p, err := c.Mutex(name).Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	await(t, "a place in the line", func() bool { return p.Ahead() > 0 })
	return p
}

// await polls until a condition is met that no event reports.
func await(t testing.TB, what string, met func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !met(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout after %v: %s", testTimeout, what)
		}
	}
}

// nodes returns the children of a lock's directory.
func nodes(t *testing.T, conn *zk.Conn, dir string) []string {
	t.Helper()
	children, _, err := conn.Children(dir)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	return children
}

// awaitWatch waits until a session watches a node itself, not its children.
func awaitWatch(t *testing.T, z *testservers.ZooKeeper, se store.Session, path string) {
	t.Helper()
	await(t, fmt.Sprintf("session %s to watch %s", se.ID(), path), func() bool {
		return slices.Contains(watchers(t, z, path), se.ID())
	})
}

// watchers returns the sessions that watch a node.
func watchers(t *testing.T, z *testservers.ZooKeeper, path string) (sessions []string) {
	t.Helper()
	output, err := z.Say("wchp")
	if err != nil {
		t.Fatal(err)
	}
	under := ""
	for l := range strings.Lines(output) { // a path, then its sessions, indented
		l = strings.TrimSuffix(l, "\n")
		if session, indented := strings.CutPrefix(l, "\t"); !indented {
			under = l
		} else if under == path {
			sessions = append(sessions, session)
		}
	}
	return sessions
}

// until returns a context that ends after d.
func until(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), d)
}
