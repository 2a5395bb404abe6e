package redlockstore_test

import (
	"context"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redlockstore"
)

// TestMain runs more tests at a time than there are processors, because tests mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "10")
	}
	os.Exit(m.Run())
}

// testTimeout is how long tests wait for events that should happen at once, on however busy a
// machine.
const testTimeout = 2 * time.Minute

// longTTL is the TTL of sessions that are not confirmed and must outlive their test.
const longTTL = time.Hour

// adminClient returns a Redis client with all permissions, whatever the server's configuration, and
// without timeouts. It is closed when t ends.
func adminClient(t *testing.T, r *testservers.Redis) rueidis.Client {
	t.Helper()
	cli, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{r.Addr()}, Username: testservers.RedisUser,
		ForceSingleClient: true, DisableCache: true, DisableRetry: true, PipelineMultiplex: -1, ConnWriteTimeout: testTimeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cli.Close)
	return cli
}

func newStore(t *testing.T, options []rueidis.ClientOption) *redlockstore.Store {
	t.Helper()
	st, err := redlockstore.New(options, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// newClient returns a Stile client with a store of its own, as in another process.
func newClient(t *testing.T, options []rueidis.ClientOption, ttl time.Duration) *stile.Client {
	t.Helper()
	c, err := stile.New(newStore(t, options), &stile.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Second)
		defer cancel()
		_ = c.Close(ctx) // fails if the test has left no majority
	})
	return c
}

// optionsFor returns the options for connecting to the servers.
func optionsFor(servers []*testservers.Redis) []rueidis.ClientOption {
	var options []rueidis.ClientOption
	for _, r := range servers {
		options = append(options, option(r.Addr()))
	}
	return options
}

// option returns the options for connecting to a server. Silent connections are not closed: on a
// busy machine even a healthy server may be silent for seconds, and a call that wrongly waits for a
// hung one then takes longer than any test allows.
func option(addr string) rueidis.ClientOption {
	o := rueidis.ClientOption{InitAddress: []string{addr}, ConnWriteTimeout: silenceTimeout}
	o.Dialer.Timeout = silenceTimeout
	return o
}

const silenceTimeout = 3 * time.Minute

// through returns proxies to the servers, and the options for connecting to these.
func through(t *testing.T, servers []*testservers.Redis) ([]*testservers.Proxy, []rueidis.ClientOption) {
	t.Helper()
	loadScripts(t, servers)
	var proxies []*testservers.Proxy
	var options []rueidis.ClientOption
	for _, r := range servers {
		p := testservers.NewProxy(t, r.Addr())
		proxies = append(proxies, p)
		options = append(options, option(p.Addr()))
	}
	return proxies, options
}

// loadScripts runs each script once at each server, without keys, which fails but loads it. A server
// that does not know a script replies NOSCRIPT, and if a proxy cuts that reply, the client never
// sends the script.
func loadScripts(t *testing.T, servers []*testservers.Redis) {
	t.Helper()
	for _, r := range servers {
		cli := adminClient(t, r)
		for _, script := range redlockstore.Scripts {
			if err := script.Exec(t.Context(), cli, nil, nil).NonRedisError(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// neverSilent makes clients keep a connection that returns no reply. A connection that is opened
// while replies are cut transmits no request.
func neverSilent(options []rueidis.ClientOption) {
	for i := range options {
		options[i].ConnWriteTimeout = testTimeout
	}
}

// lock takes a lock within testTimeout.
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
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := h.Release(ctx); err != nil {
		t.Fatal(err)
	}
}

// countKeys returns how many of the servers have a key.
func countKeys(servers []*testservers.Redis, key string) (n int) {
	for _, r := range servers {
		if there, _ := r.Do("EXISTS", key).AsInt64(); there == 1 {
			n++
		}
	}
	return n
}

// sameEntry reports whether all servers have the same entry. A withdrawn entry may still be at a
// single server.
func sameEntry(servers []*testservers.Redis, name string) bool {
	first, _, _ := strings.Cut(text(servers[0], name), "{")
	return first != "" && !slices.ContainsFunc(servers, func(r *testservers.Redis) bool {
		return !strings.HasPrefix(text(r, name), first)
	})
}

// text returns the value of a key, or "".
func text(r *testservers.Redis, key string) string {
	value, _ := r.Do("EVAL", "return redis.call('GET', KEYS[1]) or ''", "1", key).ToString()
	return value
}

// everywhere waits until all of the servers, not just a majority, have a hold. Then all are
// connected. A server that connected late gets the hold with a renewal.
func everywhere(t *testing.T, se store.Session, servers []*testservers.Redis, name string) {
	t.Helper()
	eventually(t, "all masters have the entry and its order", func() bool {
		if sameEntry(servers, name) && countKeys(servers, "{"+name+"}//fence") == len(servers) {
			return true
		}
		if err := se.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		return false
	})
}

// eventually polls until is returns true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	pause := 2 * time.Millisecond
	for end := time.Now().Add(testTimeout); !is(); time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", testTimeout, what)
		}
		pause = min(2*pause, 50*time.Millisecond)
	}
}

// wantQuick checks that f takes no longer than limit. A busy machine may make it slow now and then,
// but what is slow by itself is so every time: f is repeated until it is quick or testTimeout has
// passed.
func wantQuick(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	var took []time.Duration
	for end := time.Now().Add(testTimeout); time.Now().Before(end); {
		start := time.Now()
		f()
		took = append(took, time.Since(start))
		if took[len(took)-1] <= limit {
			return
		}
	}
	t.Errorf("%s took more than %v each time: %v", what, limit, took)
}

// openSession opens a session that is not confirmed.
func openSession(t *testing.T, st store.Store, ttl time.Duration) store.Session {
	t.Helper()
	se, err := st.Open(t.Context(), store.SessionOptions{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Second)
		defer cancel()
		_ = se.Close(ctx)
	})
	return se
}

// enqueue puts an entry in, and returns a channel that receives its standings.
func enqueue(ctx context.Context, se store.Session, name string, try bool) (store.Ticket, <-chan store.Standing, error) {
	standings := make(chan store.Standing, 10)
	ticket, err := se.Enqueue(ctx, store.Request{
		Name: name, Mode: line.Exclusive, Try: try, Notify: func(st store.Standing) { standings <- st },
	})
	return ticket, standings, err
}

// hold puts an entry in and waits until it is admitted.
func hold(t *testing.T, se store.Session, name string) (store.Ticket, uint64) {
	t.Helper()
	ticket, standings, err := enqueue(t.Context(), se, name, false)
	if err != nil {
		t.Fatal(err)
	}
	return ticket, admitted(t, standings)
}

// admitted waits until an entry is admitted, and returns its order.
func admitted(t *testing.T, standings <-chan store.Standing) uint64 {
	t.Helper()
	for {
		select {
		case st := <-standings:
			switch st.State {
			case store.Admitted:
				return st.Order
			case store.Gone:
				t.Fatalf("the entry is gone: %v", st.Cause)
			}
		case <-time.After(testTimeout):
			t.Fatalf("not admitted within %v", testTimeout)
		}
	}
}

func withdraw(t *testing.T, ticket store.Ticket) {
	t.Helper()
	if err := ticket.Withdraw(timeout(t, testTimeout)); err != nil {
		t.Fatal(err)
	}
}

// wantErr checks that an error contains all the given texts.
func wantErr(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("got no error")
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("no %q in the error: %v", w, err)
		}
	}
}

// newStoreWithPrefix returns a store whose keys begin with a prefix.
func newStoreWithPrefix(t *testing.T, options []rueidis.ClientOption, prefix string) (*redlockstore.Store, error) {
	t.Helper()
	st, err := redlockstore.New(options, &redlockstore.Options{Prefix: prefix})
	if err == nil {
		t.Cleanup(func() { _ = st.Close() })
	}
	return st, err
}
