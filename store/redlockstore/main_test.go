package redlockstore_test

import (
	"context"
	"flag"
	"os"
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

// TestMain runs more tests at a time than there are processors: they wait more than they compute.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "10")
	}
	os.Exit(m.Run())
}

// soon is how long these tests wait for what should happen at once. Only what never happens takes so long, however busy the
// machine is.
const soon = 2 * time.Minute

// long is the TTL of sessions that outlive their test though nobody confirms them.
const long = time.Hour

// direct returns a client of the server, which may do everything, whatever its configuration demands, waits for an answer
// as long as it takes, and is closed when t ends.
func direct(t *testing.T, r *testservers.Redis) rueidis.Client {
	t.Helper()
	cli, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{r.Addr()}, Username: testservers.RedisUser,
		ForceSingleClient: true, DisableCache: true, DisableRetry: true, PipelineMultiplex: -1, ConnWriteTimeout: soon,
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

// newClient returns a client of Stile on a store of its own, as another process would have.
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

// to returns the options for connecting to the servers.
func to(servers []*testservers.Redis) []rueidis.ClientOption {
	var options []rueidis.ClientOption
	for _, r := range servers {
		options = append(options, option(r.Addr()))
	}
	return options
}

// option says how to connect to a server. Connections on which nothing is heard are not given up: on a busy machine even a
// server that is well may be silent for seconds, and who waits for one that hangs waits for longer than a test should take.
func option(addr string) rueidis.ClientOption {
	o := rueidis.ClientOption{InitAddress: []string{addr}, ConnWriteTimeout: silenceTimeout}
	o.Dialer.Timeout = silenceTimeout
	return o
}

const silenceTimeout = 3 * time.Minute

// through returns proxies to the servers, and the options for connecting to them.
func through(t *testing.T, servers []*testservers.Redis) ([]*testservers.Proxy, []rueidis.ClientOption) {
	t.Helper()
	var proxies []*testservers.Proxy
	var options []rueidis.ClientOption
	for _, r := range servers {
		p := testservers.NewProxy(t, r.Addr())
		proxies = append(proxies, p)
		options = append(options, option(p.Addr()))
	}
	return proxies, options
}

// lock takes a lock soon.
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
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := h.Release(ctx); err != nil {
		t.Fatal(err)
	}
}

// holding returns at how many of the servers a key is.
func holding(servers []*testservers.Redis, key string) (n int) {
	for _, r := range servers {
		if there, _ := r.Do("EXISTS", key).AsInt64(); there == 1 {
			n++
		}
	}
	return n
}

// text returns what is at a key, "" if nothing is.
func text(r *testservers.Redis, key string) string {
	value, _ := r.Do("EVAL", "return redis.call('GET', KEYS[1]) or ''", "1", key).ToString()
	return value
}

// everywhere waits until all of the servers, not just a majority, have a hold: all are connected, and know the scripts. One
// that was connected to too late gets it with a renewal.
func everywhere(t *testing.T, se store.Session, servers []*testservers.Redis, name string) {
	t.Helper()
	eventually(t, "all masters have the entry and its order", func() bool {
		if holding(servers, name) == len(servers) && holding(servers, "{"+name+"}//fence") == len(servers) {
			return true
		}
		if err := se.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		return false
	})
}

// eventually waits until something is so that nothing tells of.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	pause := 2 * time.Millisecond
	for end := time.Now().Add(soon); !is(); time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatalf("it has not come about within %v that %s", soon, what)
		}
		pause = min(2*pause, 50*time.Millisecond)
	}
}

// wantQuick checks that f takes no longer than most. What others do on the machine may make it slow now and then, but what
// is slow in itself is so every time: f is called until it is quick, or has not been for long.
func wantQuick(t *testing.T, most time.Duration, what string, f func()) {
	t.Helper()
	var took []time.Duration
	for end := time.Now().Add(soon); time.Now().Before(end); {
		start := time.Now()
		f()
		took = append(took, time.Since(start))
		if took[len(took)-1] <= most {
			return
		}
	}
	t.Errorf("%s took more than %v each time: %v", what, most, took)
}

// openSession opens a session that nobody confirms.
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

// enqueue puts an entry in, and returns its standings as it is told them.
func enqueue(ctx context.Context, se store.Session, name string, try bool) (store.Ticket, <-chan store.Standing, error) {
	told := make(chan store.Standing, 10)
	ticket, err := se.Enqueue(ctx, store.Request{
		Name: name, Mode: line.Exclusive, Try: try, Notify: func(st store.Standing) { told <- st },
	})
	return ticket, told, err
}

// hold puts an entry in and waits until it is admitted.
func hold(t *testing.T, se store.Session, name string) (store.Ticket, uint64) {
	t.Helper()
	ticket, told, err := enqueue(t.Context(), se, name, false)
	if err != nil {
		t.Fatal(err)
	}
	return ticket, admitted(t, told)
}

// admitted waits until an entry is admitted, and returns its order.
func admitted(t *testing.T, told <-chan store.Standing) uint64 {
	t.Helper()
	for {
		select {
		case st := <-told:
			switch st.State {
			case store.Admitted:
				return st.Order
			case store.Gone:
				t.Fatalf("the entry has gone: %v", st.Cause)
			}
		case <-time.After(soon):
			t.Fatalf("not admitted within %v", soon)
		}
	}
}

func withdraw(t *testing.T, ticket store.Ticket) {
	t.Helper()
	if err := ticket.Withdraw(timeout(t, soon)); err != nil {
		t.Fatal(err)
	}
}

// wantSaid checks that an error says all that it should.
func wantSaid(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("there was no error")
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}

// redlockStoreAt returns a store whose keys begin with a prefix.
func redlockStoreAt(t *testing.T, options []rueidis.ClientOption, prefix string) (*redlockstore.Store, error) {
	t.Helper()
	st, err := redlockstore.New(options, &redlockstore.Options{Prefix: prefix})
	if err == nil {
		t.Cleanup(func() { _ = st.Close() })
	}
	return st, err
}
