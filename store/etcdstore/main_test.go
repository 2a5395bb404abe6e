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

// soon is how long these tests wait for what should happen at once: so long that only what never happens takes longer, on
// a machine that does much else.
const soon = 3 * time.Minute

// ample is the TTL of sessions that are to live through their test.
const ample = 2 * time.Minute

// never is later than the end of any test.
const never = time.Hour

// byEvents returns the times of the stores of these tests: what they find out they were told. Nothing is read because it
// is time to look.
func byEvents() etcdstore.Times {
	times := etcdstore.DefaultTimes()
	times.RecheckInterval, times.ResyncInterval = never, never
	return times
}

// TestMain runs more tests at a time than there are processors: they wait more than they compute.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "8")
	}
	code := m.Run()
	sharedServer.Close()
	os.Exit(code)
}

// sharedServer is one etcd for all tests that do it no harm. Each uses names of its own; see [newName].
var sharedServer = testservers.Shared[*testservers.Etcd]{
	New: func() (*testservers.Etcd, error) { return testservers.NewEtcd() },
}

// server returns the shared etcd: one member, smallest TTL one second.
func server(t *testing.T) etcd {
	t.Helper()
	return etcd{sharedServer.Get(t)}
}

// etcd is a server of which there are clients.
type etcd struct{ *testservers.Etcd }

// startEtcd starts a server of the test's own.
func startEtcd(t *testing.T, flags ...string) etcd {
	t.Helper()
	return etcd{testservers.StartEtcd(t, flags...)}
}

// Client returns a client of the server, which is closed when t ends. It speaks neither TLS nor for a user.
func (e etcd) Client(t *testing.T) *clientv3.Client {
	t.Helper()
	return connect(t, e.Endpoint())
}

// newName returns a lock name that nothing else uses, whatever runs at the same time or ran before.
func newName(t *testing.T) string {
	t.Helper()
	return t.Name() + "-" + rand.Text()[:6]
}

// connect returns an etcd client of the given endpoints.
func connect(t *testing.T, endpoints ...string) *clientv3.Client {
	t.Helper()
	return connectWith(t, clientv3.Config{Endpoints: endpoints})
}

func connectWith(t *testing.T, cfg clientv3.Config) *clientv3.Client {
	t.Helper()
	cfg.Logger = zap.NewNop()
	cli, err := clientv3.New(cfg)
	if err != nil {
		t.Fatalf("connecting to %v: %v", cfg.Endpoints, err)
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
	st.SetTimes(byEvents())
	return st
}

// newClient returns a Stile client.
func newClient(t *testing.T, cli *clientv3.Client, ttl time.Duration) *stile.Client {
	t.Helper()
	return newClientOf(t, newStore(t, cli, ""), ttl)
}

func newClientOf(t *testing.T, st store.Store, ttl time.Duration) *stile.Client {
	t.Helper()
	c, err := stile.New(st, &stile.Options{TTL: ttl, Owner: stile.Owner{Host: "test", Command: t.Name()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSoon(c.Close) })
	return c
}

// openSession opens a session of the store itself. It lives for five minutes, which is longer than any test, so nobody
// confirms it.
func openSession(t *testing.T, st store.Store) store.Session {
	t.Helper()
	se, err := st.Open(t.Context(), store.SessionOptions{TTL: etcdstore.MaxTTL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSoon(se.Close) })
	return se
}

func closeSoon(closing func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = closing(ctx) // it goes with its server otherwise
}

// joined is an entry in the store and what was heard of it.
type joined struct {
	store.Ticket
	name  string
	heard chan store.Standing
}

// enqueue puts an entry in.
func enqueue(t *testing.T, se store.Session, name string) *joined {
	t.Helper()
	j, err := tryEnqueue(t.Context(), se, name, false)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func tryEnqueue(ctx context.Context, se store.Session, name string, try bool) (*joined, error) {
	heard := make(chan store.Standing, 100)
	ticket, err := se.Enqueue(ctx, store.Request{Name: name, Owner: store.Owner{Host: "test"}, Try: try, Notify: func(st store.Standing) { heard <- st }})
	return &joined{ticket, name, heard}, err
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

// gone waits until the entry is said to be gone; that it is admitted before is a failure.
func (j *joined) gone(t *testing.T) {
	t.Helper()
	late := time.After(soon)
	for {
		select {
		case st := <-j.heard:
			switch {
			case st.State == store.Admitted:
				t.Fatalf("the entry for %q was admitted, though it had been taken out", j.name)
			case st.State == store.Gone && !errors.Is(st.Cause, store.ErrGone) && !errors.Is(st.Cause, store.ErrSessionLost):
				t.Fatalf("the entry for %q is gone because of %v", j.name, st.Cause)
			case st.State == store.Gone:
				return
			}
		case <-late:
			t.Fatalf("the entry for %q was taken out, and nobody was told", j.name)
		}
	}
}

// silent checks that nothing more was heard.
func (j *joined) silent(t *testing.T) {
	t.Helper()
	select {
	case st := <-j.heard:
		t.Errorf("the entry for %q was said to be %v (%v)", j.name, st.State, st.Cause)
	default:
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

func release(t *testing.T, h *stile.Hold) {
	t.Helper()
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
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

// holdSoon waits for a place to become a hold.
func holdSoon(t *testing.T, p *stile.Place) *stile.Hold {
	t.Helper()
	select {
	case <-p.Ready():
	case <-time.After(soon):
		t.Fatalf("a waiter is not admitted after %v", soon)
	}
	h, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// await polls until a condition of which nobody tells is met.
func await(t *testing.T, what string, met func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !met(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain for %s", soon, what)
		}
	}
}

// keysUnder returns what is in etcd under a lock's name.
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

// endsWhen returns a context that ends when a condition of which nobody tells is met.
func endsWhen(t *testing.T, what string, met func() bool) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for end := time.Now().Add(soon); ctx.Err() == nil && !met(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("waited %v in vain for %s", soon, what)
				return
			}
		}
	}()
	t.Cleanup(cancel)
	return ctx
}

// there reports whether something is in etcd under a lock's name. Unlike [keysUnder] it may be called by any goroutine.
func there(t *testing.T, cli *clientv3.Client, name string) bool {
	resp, err := cli.Get(t.Context(), name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	return err == nil && resp.Count > 0
}

// until returns a context that ends after d.
func until(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func leaseRequest(id clientv3.LeaseID, seconds int64) *pb.LeaseGrantRequest {
	return &pb.LeaseGrantRequest{ID: int64(id), TTL: seconds}
}
