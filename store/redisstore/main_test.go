package redisstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// testTimeout is how long tests wait for events that should happen at once, on however busy a
// machine.
const testTimeout = 2 * time.Minute

// longTTL is the TTL of sessions and locks that must not end during a test. It is much longer than
// testTimeout: an admission that waits for the end of a lease fails the test. Where a lease must
// end earlier the test ends it, or sets the server's clock forward.
const longTTL = time.Hour

// clientTTL is the TTL of clients whose sessions must not be lost: the longest possible. The client
// renews them.
const clientTTL = stile.MaxTTL

// TestMain runs more tests at a time than there are processors, because tests mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "8")
	}
	os.Exit(m.Run())
}

// newName returns a unique lock name.
func newName(t *testing.T) string {
	t.Helper()
	return t.Name() + "-" + rand.Text()[:6]
}

// connect returns a Redis client of the server at addr, which is closed when t ends.
func connect(t testing.TB, addr string) rueidis.Client {
	t.Helper()
	return connectWith(t, redisstore.ClientOptions(addr))
}

func connectWith(t testing.TB, options rueidis.ClientOption) rueidis.Client {
	t.Helper()
	cli, err := rueidis.NewClient(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cli.Close)
	return cli
}

// adminClient returns a Redis client with all permissions, whatever the server's configuration, and
// without timeouts. It is closed when t ends.
func adminClient(t *testing.T, r *testservers.Redis) rueidis.Client {
	t.Helper()
	return connectWith(t, rueidis.ClientOption{
		InitAddress: []string{r.Addr()}, Username: testservers.RedisUser,
		ForceSingleClient: true, DisableCache: true, DisableRetry: true, PipelineMultiplex: -1, ConnWriteTimeout: testTimeout,
	})
}

func newStore(t testing.TB, cli rueidis.Client, opts *redisstore.Options) *redisstore.Store {
	t.Helper()
	st, err := redisstore.New(cli, opts)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// storeAt returns a store on the server at addr with connections of its own, as in another process.
func storeAt(t testing.TB, addr string) *redisstore.Store {
	t.Helper()
	return newStore(t, connect(t, addr), nil)
}

func newClient(t testing.TB, st store.Store, ttl time.Duration) *stile.Client {
	t.Helper()
	c, err := stile.New(st, &stile.Options{TTL: ttl, Owner: stile.Owner{Host: "test", Command: t.Name()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeQuickly(c.Close) })
	return c
}

// open opens a session of the store that is not confirmed.
func open(t testing.TB, st store.Store, ttl time.Duration) store.Session {
	t.Helper()
	se := tryOpen(t, st, ttl)
	t.Cleanup(func() { closeQuickly(se.Close) })
	return se
}

// tryOpen opens a session that the test closes. It repeats Open, which on a very busy machine may
// time out.
func tryOpen(t testing.TB, st store.Store, ttl time.Duration) store.Session {
	t.Helper()
	for end := time.Now().Add(testTimeout); ; {
		se, err := st.Open(t.Context(), store.SessionOptions{TTL: ttl})
		if err == nil {
			return se
		}
		if _, reply := errors.AsType[*rueidis.RedisError](err); reply || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// openMany opens sessions that are not confirmed, on a store that may be disconnected when the test
// ends.
func openMany(t *testing.T, st store.Store, n int, ttl time.Duration) []store.Session {
	t.Helper()
	all := make([]store.Session, 0, n)
	for range n {
		all = append(all, tryOpen(t, st, ttl))
	}
	t.Cleanup(func() {
		var closing sync.WaitGroup
		for _, se := range all {
			closing.Go(func() { closeQuickly(se.Close) })
		}
		closing.Wait()
	})
	return all
}

// confirm confirms sessions, which must be alive. It repeats a request that timed out on a busy
// machine.
func confirm(t *testing.T, sessions ...store.Session) {
	t.Helper()
	for _, se := range sessions {
		eventually(t, "the session is confirmed", func() bool {
			err := se.Confirm(t.Context())
			if _, reply := errors.AsType[*rueidis.RedisError](err); reply || errors.Is(err, store.ErrSessionLost) {
				t.Fatalf("Confirm: %v", err)
			}
			return err == nil
		})
	}
}

func closeQuickly(closing func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = closing(ctx)
}

// testEntry is an entry and the last standing that its owner got.
type testEntry struct {
	store.Ticket
	name string

	mu      sync.Mutex
	last    store.Standing
	at      time.Time
	changed chan struct{}
}

func (s *testEntry) receive(st store.Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.at = st, time.Now()
	close(s.changed)
	s.changed = make(chan struct{})
}

// standing returns the last standing, when it was received, and a channel that is closed with the
// next one.
func (s *testEntry) standing() (store.Standing, time.Time, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.at, s.changed
}

// join puts an entry in.
func join(t *testing.T, se store.Session, name string, mode line.Mode) *testEntry {
	t.Helper()
	s, err := tryJoin(t.Context(), se, name, mode)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tryJoin(ctx context.Context, se store.Session, name string, mode line.Mode) (*testEntry, error) {
	s := &testEntry{name: name, changed: make(chan struct{})}
	ticket, err := se.Enqueue(ctx, store.Request{Name: name, Mode: mode, Owner: store.Owner{Host: "test"}, Notify: s.receive})
	s.Ticket = ticket
	return s, err
}

// hold puts an entry in and waits until it is admitted.
func hold(t *testing.T, se store.Session, name string) *testEntry {
	t.Helper()
	s := join(t, se, name, line.Exclusive)
	s.await(t, store.Admitted)
	return s
}

// await waits until the entry has a standing in the given state, and returns the standing and when
// it was received.
func (s *testEntry) await(t *testing.T, want store.State) (store.Standing, time.Time) {
	t.Helper()
	timer := time.NewTimer(testTimeout)
	defer timer.Stop()
	for {
		st, at, changed := s.standing()
		if st.State == want && !at.IsZero() {
			return st, at
		}
		select {
		case <-changed:
		case <-timer.C:
			t.Fatalf("lock %q: no standing %[3]v within %[2]v; last: %+[4]v", s.name, testTimeout, want, st)
		}
	}
}

// checkWaits checks that the entry waits.
func (s *testEntry) checkWaits(t *testing.T) {
	t.Helper()
	if st, _, _ := s.standing(); st.State != store.Waiting {
		t.Fatalf("lock %q: got %+v, want Waiting", s.name, st)
	}
}

// checkStillWaits checks that the entry still waits after the store, whose requests go through c,
// has polled again.
func (s *testEntry) checkStillWaits(t *testing.T, c *interceptor) {
	t.Helper()
	_, before := c.counts()
	eventually(t, "the store polls", func() bool {
		_, answered := c.counts()
		return answered >= before+3 // one may have been in flight before, and the last may not have been delivered
	})
	s.checkWaits(t)
}

func (s *testEntry) leave(t *testing.T) {
	t.Helper()
	if err := s.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// timeLeft returns what is left of a TTL that began at since.
func timeLeft(ttl time.Duration, since time.Time) time.Duration { return ttl - time.Since(since) }

// eventually waits until is returns true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", testTimeout, what)
		}
	}
}

// keysOf returns the existing keys of a line, except the last order and the void entries.
func keysOf(t *testing.T, server *testservers.Redis, name string) (there []string) {
	t.Helper()
	keys := redisstore.Keys("", name)[:5] // without the last order and the void entries
	const look = `local there = {}
		for _, key in ipairs(KEYS) do
			if redis.call('EXISTS', key) == 1 then there[#there + 1] = key end
		end
		return there`
	there, err := server.Do(append([]string{"EVAL", look, strconv.Itoa(len(keys))}, keys...)...).AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	return there
}
