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

// soon is how long these tests wait for what should happen at once: so long that no machine is too busy for it.
const testTimeout = 4 * time.Minute

// rarely is how often the stores of these tests look although they have heard nothing: never while a test lasts. What is found
// out was set.
const noRecheck = time.Hour

// longTTL is that of sessions that are to live on. It is longer than any test, so nobody has to confirm them.
const longTTL = 30 * time.Minute

// TestMain runs more tests at a time than there may be processors: they wait more than they compute, once their servers run.
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

// Servers for all tests that do them no harm. Each test uses names of its own; see [newName].
var (
	sharedServer = testservers.Shared[*testservers.ZooKeeper]{
		New: func() (*testservers.ZooKeeper, error) { return testservers.NewZooKeeper(largestTTL) },
	}
	sharedEnsemble   = testservers.Shared[*testservers.ZooKeeperEnsemble]{New: newEnsemble}
	sharedRestricted = testservers.Shared[restrictedServer]{New: newRestricted}
	sharedCurator    = testservers.Shared[*curatorProcess]{New: newCurator}
)

// largestTTL is what the shared servers grant. It is not below longTTL.
const largestTTL = "maxSessionTimeout=1800000"

// newEnsemble starts three servers that wait a minute for each other, so that a busy machine makes none give up the others.
// See [testservers.ZooKeeperEnsemble.Abandon].
func newEnsemble() (*testservers.ZooKeeperEnsemble, error) {
	return testservers.NewZooKeeperEnsemble(3, largestTTL, "initLimit=240", "syncLimit=240")
}

// server returns the shared server: its tick is 100 ms, its smallest TTL one second.
func server(t *testing.T) *testservers.ZooKeeper {
	t.Helper()
	return sharedServer.Get(t)
}

// ensemble returns the shared ensemble of three.
func ensemble(t *testing.T) *testservers.ZooKeeperEnsemble {
	t.Helper()
	return sharedEnsemble.Get(t)
}

// faultEnsemble is the ensemble for tests that hurt one. One test has it at a time.
var faultEnsemble struct {
	sync.Mutex
	shared *testservers.Shared[*testservers.ZooKeeperEnsemble] // nil if there is none that is well
}

// exclusiveEnsemble returns an ensemble of three that no other test uses until this one has ended. All is to be well with it
// then, unless the test has failed.
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

// closeFaultEnsemble ends the ensemble for tests that hurt one. The next such test starts another.
func closeFaultEnsemble() {
	if faultEnsemble.shared != nil {
		faultEnsemble.shared.Close()
		faultEnsemble.shared = nil
	}
}

// newName returns a lock name that nothing else uses, whatever runs at the same time or ran before.
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
	_ = closing(ctx) // it goes with its server otherwise
}

// openSession opens a session of the store itself, which lives longer than any test.
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

// joined is an entry in the store and what was heard of it.
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

// enqueue puts an entry in.
func enqueue(t *testing.T, se store.Session, name string, mode line.Mode) *joined {
	t.Helper()
	j, err := tryEnqueue(t.Context(), se, name, mode, false)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// await waits until the entry's standing is state, and returns it. Being set that the entry is gone instead is a
// failure.
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

// next waits for what is heard next.
func (j *joined) next(t *testing.T) store.Standing {
	t.Helper()
	select {
	case st := <-j.standings:
		return st
	case <-time.After(testTimeout):
		t.Fatalf("nothing was heard of the entry for %q after %v", j.name, testTimeout)
		return store.Standing{}
	}
}

// admitted waits until it is the entry's turn.
func (j *joined) admitted(t *testing.T) store.Standing {
	t.Helper()
	return j.await(t, store.Admitted)
}

// gone waits until the entry is output to be gone; that it is admitted before is a failure, unless it was already.
func (j *joined) gone(t *testing.T, want error) {
	t.Helper()
	st := j.await(t, store.Gone)
	if !errors.Is(st.Cause, want) {
		t.Errorf("the entry for %q is gone because of %v, want an error matching %v", j.name, st.Cause, want)
	}
}

// silent checks that nothing more is heard for a moment.
func (j *joined) expectNothing(t *testing.T) {
	t.Helper()
	select {
	case st := <-j.standings:
		t.Errorf("the entry for %q was output to be %v (%v)", j.name, st.State, st.Cause)
	case <-time.After(50 * time.Millisecond):
	}
}

// withdraw takes the entry out.
func (j *joined) withdraw(t *testing.T) {
	t.Helper()
	if err := j.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// lock takes a lock that should be free soon.
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

// join gets in line behind somebody, and returns when the entry stands there.
func join(t *testing.T, c *stile.Client, name string) *stile.Place {
	t.Helper()
	p, err := c.Mutex(name).Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	await(t, "a place in the line", func() bool { return p.Ahead() > 0 })
	return p
}

// await polls until a condition of which nobody tells is met.
func await(t testing.TB, what string, met func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !met(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain for %s", testTimeout, what)
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

// awaitWatch waits until a session is to be set of what happens to a node, but not of who comes and goes below it.
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
	for l := range strings.Lines(output) { // a path, and the sessions below it, indented
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
