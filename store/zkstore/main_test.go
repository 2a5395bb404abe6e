package zkstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
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

// soon is how long these tests wait for what should happen at once, on a busy machine.
const soon = 45 * time.Second

// rarely is how often the stores of these tests read a line with waiters although nothing was heard of it: so rarely that
// what takes less than beforeRecheck was not found out by that reading.
const (
	rarely        = 10 * time.Second
	beforeRecheck = 7 * time.Second
)

// TestMain runs more tests at a time than there may be processors: they wait more than they compute, once their servers run.
func TestMain(m *testing.M) {
	flag.Parse()
	told := false
	flag.Visit(func(f *flag.Flag) { told = told || f.Name == "test.parallel" })
	if !told {
		_ = flag.Set("test.parallel", "5")
	}
	code := m.Run()
	shared.end()
	os.Exit(code)
}

// shared are servers for all tests that do them no harm. Each test uses names of its own; see [newName].
var shared serversOfMain

type serversOfMain struct {
	testing.TB // for what is not defined below; nil, because nothing else is used

	once         sync.Once
	onceEnsemble sync.Once
	onceCurator  sync.Once
	server       *testservers.ZooKeeper
	ensemble     *testservers.ZooKeeperEnsemble
	curator      string // the directory of its compiled classes

	mu       sync.Mutex
	cleanups []func()
}

func (s *serversOfMain) Helper()      {}
func (s *serversOfMain) Failed() bool { return false }
func (s *serversOfMain) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}
func (s *serversOfMain) Fatal(a ...any) { panic(fmt.Sprint(a...)) }

func (s *serversOfMain) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
func (s *serversOfMain) Errorf(format string, a ...any) { fmt.Fprintf(os.Stderr, format+"\n", a...) }

func (s *serversOfMain) Logf(format string, a ...any) { fmt.Fprintf(os.Stderr, format+"\n", a...) }

func (s *serversOfMain) end() {
	for _, f := range s.cleanups {
		f()
	}
}

// server returns the shared server: its tick is 100 ms, its smallest TTL one second.
func server(t *testing.T) *testservers.ZooKeeper {
	t.Helper()
	needZooKeeper(t)
	shared.once.Do(func() { shared.server = testservers.StartZooKeeper(&shared) })
	return shared.server
}

// ensemble returns the shared ensemble of three.
func ensemble(t *testing.T) *testservers.ZooKeeperEnsemble {
	t.Helper()
	needZooKeeper(t)
	shared.onceEnsemble.Do(func() { shared.ensemble = testservers.StartZooKeeperEnsemble(&shared, 3) })
	return shared.ensemble
}

// needZooKeeper skips the test, and not all of them, if there is none.
func needZooKeeper(t *testing.T) {
	t.Helper()
	testservers.Java(t)
	testservers.Jars(t, "zookeeper")
}

// newName returns a lock name that nothing else uses, whatever runs at the same time or ran before.
func newName(t *testing.T) string {
	t.Helper()
	return t.Name() + "-" + rand.Text()[:6]
}

// newStore returns a store on the given servers.
func newStore(t *testing.T, opts *zkstore.Options, servers ...string) *zkstore.Store {
	t.Helper()
	st, err := zkstore.New(servers, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	st.SetRecheck(rarely)
	return st
}

// newClient returns a Stile client.
func newClient(t *testing.T, st store.Store, ttl time.Duration) *stile.Client {
	t.Helper()
	c, err := stile.New(st, &stile.Options{TTL: ttl, Owner: stile.Owner{Host: "test", Command: t.Name()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSoon(c.Close) })
	return c
}

// connect returns a go-zookeeper client.
func connect(t *testing.T, servers ...string) *zk.Conn {
	t.Helper()
	conn, events, err := zk.Connect(servers, 10*time.Second, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	late := time.After(soon)
	for {
		select {
		case ev := <-events:
			if ev.State == zk.StateHasSession {
				return conn
			}
		case <-late:
			t.Fatalf("no session at %v after %v", servers, soon)
		}
	}
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func closeSoon(closing func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = closing(ctx) // it goes with its server otherwise
}

// openSession opens a session of the store itself. It lives for as long as the server allows at most, which is longer than
// any test, so nobody confirms it.
func openSession(t *testing.T, st store.Store) store.Session {
	t.Helper()
	return openFor(t, st, 60*time.Second, nil)
}

func openFor(t *testing.T, st store.Store, ttl time.Duration, lost func(error)) store.Session {
	t.Helper()
	se, err := st.Open(t.Context(), store.SessionOptions{
		TTL: ttl, Owner: store.Owner{Host: "test", Command: t.Name()}, Lost: lost,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSoon(se.Close) })
	return se
}

// joined is an entry in the store and what was heard of it.
type joined struct {
	store.Ticket
	name  string
	heard chan store.Standing
}

func tryEnqueue(ctx context.Context, se store.Session, name string, mode line.Mode, try bool) (*joined, error) {
	heard := make(chan store.Standing, 100)
	ticket, err := se.Enqueue(ctx, store.Request{
		Name: name, Mode: mode, Try: try, Notify: func(st store.Standing) { heard <- st },
	})
	return &joined{ticket, name, heard}, err
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

// await waits until the entry's standing is state, and returns it. Being told that the entry is gone instead is a
// failure.
func (j *joined) await(t *testing.T, state store.State) store.Standing {
	t.Helper()
	late := time.After(soon)
	for {
		select {
		case st := <-j.heard:
			if st.State == state {
				return st
			}
			if st.State == store.Gone {
				t.Fatalf("the entry for %q is gone (%v), want %v", j.name, st.Cause, state)
			}
		case <-late:
			t.Fatalf("the entry for %q is not %v after %v", j.name, state, soon)
		}
	}
}

// admitted waits until it is the entry's turn, but not so long that a mere look at the line may have told.
func (j *joined) admitted(t *testing.T) store.Standing {
	t.Helper()
	start := time.Now()
	st := j.await(t, store.Admitted)
	if took := time.Since(start); took > beforeRecheck {
		t.Errorf("the entry for %q was told of its turn only after %v", j.name, took)
	}
	return st
}

// gone waits until the entry is said to be gone; that it is admitted before is a failure, unless it was already.
func (j *joined) gone(t *testing.T, want error) {
	t.Helper()
	st := j.await(t, store.Gone)
	if !errors.Is(st.Cause, want) {
		t.Errorf("the entry for %q is gone because of %v, want an error matching %v", j.name, st.Cause, want)
	}
}

// silent checks that nothing more is heard for a moment.
func (j *joined) silent(t *testing.T) {
	t.Helper()
	select {
	case st := <-j.heard:
		t.Errorf("the entry for %q was said to be %v (%v)", j.name, st.State, st.Cause)
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
	ctx, cancel := context.WithTimeout(t.Context(), soon)
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
func await(t *testing.T, what string, met func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !met(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain for %s", soon, what)
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

// ensemble3 returns an ensemble of three that the test may do harm to.
func ensemble3(t *testing.T, config ...string) *testservers.ZooKeeperEnsemble {
	t.Helper()
	return testservers.StartZooKeeperEnsemble(t, 3, config...)
}

// until returns a context that ends after d.
func until(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), d)
}
