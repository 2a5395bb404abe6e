package etcdstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"os"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// testTimeout is how long tests wait for events that should happen at once, on however busy a
// machine.
const testTimeout = 3 * time.Minute

// longTTL is the TTL of sessions that must not expire during a test.
const longTTL = 2 * time.Minute

// longInterval is a delay or timeout that does not end during a test.
const longInterval = time.Hour

// noPollingTimes returns the times of the tests' stores. Nothing is read periodically, so the
// stores depend on watch events.
func noPollingTimes() etcdstore.Times {
	times := etcdstore.DefaultTimes()
	times.RecheckInterval, times.ResyncInterval = longInterval, longInterval
	return times
}

// TestMain runs more tests at a time than there are processors, because tests mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "8")
	}
	code := m.Run()
	sharedServer.Close()
	os.Exit(code)
}

// sharedServer is an etcd for all tests that do not disturb it. Each test uses its own lock names;
// see [newName].
var sharedServer = testservers.Shared[*testservers.Etcd]{
	New: func() (*testservers.Etcd, error) { return testservers.NewEtcd() },
}

// server returns the shared etcd. It has one member and a minimum TTL of one second.
func server(t *testing.T) etcd {
	t.Helper()
	return etcd{sharedServer.Get(t)}
}

// etcd is a server that tests connect to.
type etcd struct{ *testservers.Etcd }

// startEtcd starts a server that no other test uses.
func startEtcd(t *testing.T, flags ...string) etcd {
	t.Helper()
	return etcd{testservers.StartEtcd(t, flags...)}
}

// Client returns a client of the server, without TLS and without a user. It is closed when t ends.
func (e etcd) Client(t *testing.T) *clientv3.Client {
	t.Helper()
	return connect(t, e.Endpoint())
}

// newName returns a unique lock name.
func newName(t *testing.T) string {
	t.Helper()
	return t.Name() + "-" + rand.Text()[:6]
}

// connect returns an etcd client of the endpoints, which is closed when t ends.
func connect(t *testing.T, endpoints ...string) *clientv3.Client {
	t.Helper()
	return connectWith(t, clientv3.Config{Endpoints: endpoints})
}

func connectWith(t *testing.T, cfg clientv3.Config) *clientv3.Client {
	t.Helper()
	cfg.Logger = zap.NewNop()
	cli, err := clientv3.New(cfg)
	if err != nil {
		t.Fatalf("connect to %v: %v", cfg.Endpoints, err)
	}
	t.Cleanup(func() { _ = cli.Close() })
	return cli
}

func newStore(t *testing.T, cli *clientv3.Client, prefix string) *etcdstore.Store {
	t.Helper()
	st, err := etcdstore.New(cli, &etcdstore.Options{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	st.SetTimes(noPollingTimes())
	return st
}

// newClient returns a Stile client with a store of its own on cli.
func newClient(t *testing.T, cli *clientv3.Client, ttl time.Duration) *stile.Client {
	t.Helper()
	return newClientOn(t, newStore(t, cli, ""), ttl)
}

func newClientOn(t *testing.T, st store.Store, ttl time.Duration) *stile.Client {
	t.Helper()
	c, err := stile.New(st, &stile.Options{TTL: ttl, Owner: stile.Owner{Host: "test", Command: t.Name()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeQuickly(c.Close) })
	return c
}

// openSession opens a session of the store. Nothing confirms it: its TTL of five minutes is longer
// than any test.
func openSession(t *testing.T, st store.Store) store.Session {
	t.Helper()
	se, err := st.Open(t.Context(), store.SessionOptions{TTL: etcdstore.MaxTTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeQuickly(se.Close) })
	return se
}

func closeQuickly(closeFn func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = closeFn(ctx) // if it fails, the session ends with its server
}

// testEntry is an entry and the standings that its owner received.
type testEntry struct {
	store.Ticket
	name      string
	standings chan store.Standing
}

// enqueue inserts an entry.
func enqueue(t *testing.T, se store.Session, name string) *testEntry {
	t.Helper()
	j, err := tryEnqueue(t.Context(), se, name, false)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func tryEnqueue(ctx context.Context, se store.Session, name string, try bool) (*testEntry, error) {
	standings := make(chan store.Standing, 100)
	ticket, err := se.Enqueue(ctx, store.Request{Name: name, Owner: store.Owner{Host: "test"}, Try: try, Notify: func(st store.Standing) { standings <- st }})
	return &testEntry{ticket, name, standings}, err
}

// await waits until the entry has a standing in the given state, and returns it. The test fails if
// the entry is gone instead.
func (j *testEntry) await(t *testing.T, state store.State) store.Standing {
	t.Helper()
	timeout := time.After(testTimeout)
	for {
		select {
		case st := <-j.standings:
			if st.State == state {
				return st
			}
			if st.State == store.Gone {
				t.Fatalf("lock %q: the entry is gone (%v), want %v", j.name, st.Cause, state)
			}
		case <-timeout:
			t.Fatalf("lock %q: no standing %v within %v", j.name, state, testTimeout)
		}
	}
}

// awaitGone waits for the standing Gone. The test fails if the entry is admitted before.
func (j *testEntry) awaitGone(t *testing.T) {
	t.Helper()
	timeout := time.After(testTimeout)
	for {
		select {
		case st := <-j.standings:
			switch {
			case st.State == store.Admitted:
				t.Fatalf("lock %q: the entry was admitted, but it was deleted", j.name)
			case st.State == store.Gone && !errors.Is(st.Cause, store.ErrGone) && !errors.Is(st.Cause, store.ErrSessionLost):
				t.Fatalf("lock %q: the entry is gone because of %v, want ErrGone or ErrSessionLost", j.name, st.Cause)
			case st.State == store.Gone:
				return
			}
		case <-timeout:
			t.Fatalf("lock %q: the entry was deleted, and its owner was not notified", j.name)
		}
	}
}

// checkNotNotified checks that the entry's owner received no further standing.
func (j *testEntry) checkNotNotified(t *testing.T) {
	t.Helper()
	select {
	case st := <-j.standings:
		t.Errorf("lock %q: unexpected standing %v (%v)", j.name, st.State, st.Cause)
	default:
	}
}

// withdraw withdraws the entry.
func (j *testEntry) withdraw(t *testing.T) {
	t.Helper()
	if err := j.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// lock acquires a lock that is free, or is about to be.
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

func release(t *testing.T, h *stile.Hold) {
	t.Helper()
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// join joins a line that is not empty, and returns when the entry is in it.
func join(t *testing.T, c *stile.Client, name string) *stile.Place {
	t.Helper()
	p, err := c.Mutex(name).Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the entry is in the line", func() bool { return p.Ahead() > 0 })
	return p
}

// awaitHold waits until a place becomes a hold.
func awaitHold(t *testing.T, p *stile.Place) *stile.Hold {
	t.Helper()
	select {
	case <-p.Ready():
	case <-time.After(testTimeout):
		t.Fatalf("not within %v: the waiter is admitted", testTimeout)
	}
	h, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// eventually waits until met returns true.
func eventually(t *testing.T, what string, met func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !met(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", testTimeout, what)
		}
	}
}

// keysUnder returns the keys in etcd under a lock's name.
func keysUnder(t *testing.T, cli *clientv3.Client, name string) []string {
	t.Helper()
	resp, err := cli.Get(t.Context(), name+"/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// contextUntil returns a context that ends when met returns true.
func contextUntil(t *testing.T, what string, met func() bool) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for end := time.Now().Add(testTimeout); ctx.Err() == nil && !met(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("not within %v: %s", testTimeout, what)
				return
			}
		}
	}()
	t.Cleanup(cancel)
	return ctx
}

// keyExists reports whether etcd has a key under a lock's name. Unlike [keysUnder] it may be called
// by any goroutine.
func keyExists(t *testing.T, cli *clientv3.Client, name string) bool {
	resp, err := cli.Get(t.Context(), name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	return err == nil && resp.Count > 0
}

// contextFor returns a context that ends after d.
func contextFor(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func leaseRequest(id clientv3.LeaseID, seconds int64) *pb.LeaseGrantRequest {
	return &pb.LeaseGrantRequest{ID: int64(id), TTL: seconds}
}
