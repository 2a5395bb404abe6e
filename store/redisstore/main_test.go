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

// soon is how long these tests wait for what should happen at once. Only what never happens takes so long, on however busy
// a machine.
const soon = 2 * time.Minute

// lasting is the TTL of sessions and locks that must not end during a test. It is much longer than soon: who is let in when a
// lease ends, and not when it should be, comes too late. Where somebody has to go earlier, the test makes it go, or sets
// the server's clock forward.
const lasting = time.Hour

// renewed is the TTL of a client's session that must not be lost: the longest that a client may have. The client renews it.
const renewed = stile.MaxTTL

// TestMain runs more tests at a time than there are processors: they wait more than they compute.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "8")
	}
	os.Exit(m.Run())
}

// newName returns a lock name that nothing else uses, whatever runs at the same time.
func newName(t *testing.T) string {
	t.Helper()
	return t.Name() + "-" + rand.Text()[:6]
}

// connect makes a client of the server at addr, which is closed when t ends.
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

// direct returns a client of the server, which may do everything, whatever its configuration demands, waits for an answer
// as long as it takes, and is closed when t ends.
func direct(t *testing.T, r *testservers.Redis) rueidis.Client {
	t.Helper()
	return connectWith(t, rueidis.ClientOption{
		InitAddress: []string{r.Addr()}, Username: testservers.RedisUser,
		ForceSingleClient: true, DisableCache: true, DisableRetry: true, PipelineMultiplex: -1, ConnWriteTimeout: soon,
	})
}

// newStore returns a store on a server, with its own connections.
func newStore(t testing.TB, cli rueidis.Client, opts *redisstore.Options) *redisstore.Store {
	t.Helper()
	st, err := redisstore.New(cli, opts)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// storeAt returns a store on the server at addr, with its own connections, as another process would have.
func storeAt(t testing.TB, addr string) *redisstore.Store {
	t.Helper()
	return newStore(t, connect(t, addr), nil)
}

// newClient returns a Stile client.
func newClient(t testing.TB, st store.Store, ttl time.Duration) *stile.Client {
	t.Helper()
	c, err := stile.New(st, &stile.Options{TTL: ttl, Owner: stile.Owner{Host: "test", Command: t.Name()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSoon(c.Close) })
	return c
}

// open opens a session of the store itself, which nobody confirms.
func open(t testing.TB, st store.Store, ttl time.Duration) store.Session {
	t.Helper()
	se := tryOpen(t, st, ttl)
	t.Cleanup(func() { closeSoon(se.Close) })
	return se
}

// tryOpen opens a session that the test closes. The store gives up when nothing has answered for ten seconds, on a machine
// that is very busy too: then it is asked again.
func tryOpen(t testing.TB, st store.Store, ttl time.Duration) store.Session {
	t.Helper()
	for end := time.Now().Add(soon); ; {
		se, err := st.Open(t.Context(), store.SessionOptions{TTL: ttl})
		if err == nil {
			return se
		}
		if _, said := errors.AsType[*rueidis.RedisError](err); said || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// openMany opens sessions that nobody confirms, on a store that may be cut off by the end of the test.
func openMany(t *testing.T, st store.Store, n int, ttl time.Duration) []store.Session {
	t.Helper()
	all := make([]store.Session, 0, n)
	for range n {
		all = append(all, tryOpen(t, st, ttl))
	}
	t.Cleanup(func() {
		var closing sync.WaitGroup
		for _, se := range all {
			closing.Go(func() { closeSoon(se.Close) })
		}
		closing.Wait()
	})
	return all
}

// confirm confirms sessions, each of which must live. A request that was not answered in time is made again: that it was not
// says nothing of the session, and is for the machine to answer for.
func confirm(t *testing.T, sessions ...store.Session) {
	t.Helper()
	for _, se := range sessions {
		eventually(t, "the session is confirmed", func() bool {
			err := se.Confirm(t.Context())
			if _, said := errors.AsType[*rueidis.RedisError](err); said || errors.Is(err, store.ErrSessionLost) {
				t.Fatalf("the session lives, and Confirm says %v", err)
			}
			return err == nil
		})
	}
}

func closeSoon(closing func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = closing(ctx)
}

// seat is an entry and what its owner was told.
type seat struct {
	store.Ticket
	name string

	mu      sync.Mutex
	last    store.Standing
	at      time.Time
	changed chan struct{}
}

func (s *seat) hear(st store.Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.at = st, time.Now()
	close(s.changed)
	s.changed = make(chan struct{})
}

// standing returns the last standing heard and when that was.
func (s *seat) standing() (store.Standing, time.Time, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.at, s.changed
}

// join puts an entry in.
func join(t *testing.T, se store.Session, name string, mode line.Mode) *seat {
	t.Helper()
	s, err := tryJoin(t.Context(), se, name, mode)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tryJoin(ctx context.Context, se store.Session, name string, mode line.Mode) (*seat, error) {
	s := &seat{name: name, changed: make(chan struct{})}
	ticket, err := se.Enqueue(ctx, store.Request{Name: name, Mode: mode, Owner: store.Owner{Host: "test"}, Notify: s.hear})
	s.Ticket = ticket
	return s, err
}

// hold puts an entry in and waits until it is admitted.
func hold(t *testing.T, se store.Session, name string) *seat {
	t.Helper()
	s := join(t, se, name, line.Exclusive)
	s.await(t, store.Admitted)
	return s
}

// await waits until the entry is told that it stands so, and returns that and when it was.
func (s *seat) await(t *testing.T, want store.State) (store.Standing, time.Time) {
	t.Helper()
	timer := time.NewTimer(soon)
	defer timer.Stop()
	for {
		st, at, changed := s.standing()
		if st.State == want && !at.IsZero() {
			return st, at
		}
		select {
		case <-changed:
		case <-timer.C:
			t.Fatalf("lock %q: waited %v to be %v; last heard: %+v", s.name, soon, want, st)
		}
	}
}

// waits checks that the entry has to wait.
func (s *seat) waits(t *testing.T) {
	t.Helper()
	if st, _, _ := s.standing(); st.State != store.Waiting {
		t.Fatalf("lock %q: want the entry to wait, it was told %+v", s.name, st)
	}
}

// waitsOn checks that the entry has to wait still when the store, which asks by the courier, has asked again how it stands.
func (s *seat) waitsOn(t *testing.T, c *courier) {
	t.Helper()
	_, before := c.counts()
	eventually(t, "who waits asks how it stands", func() bool {
		_, answered := c.counts()
		return answered >= before+3 // one may have been under way, and the last not have been told yet
	})
	s.waits(t)
}

func (s *seat) leave(t *testing.T) {
	t.Helper()
	if err := s.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// without returns what is left of a TTL when so much time has passed since then.
func without(ttl time.Duration, since time.Time) time.Duration { return ttl - time.Since(since) }

// eventually waits until is returns true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", soon, what)
		}
	}
}

// keysOf returns how many keys the server has that belong to a lock, without what remembers its past.
func keysOf(t *testing.T, server *testservers.Redis, name string) (there []string) {
	t.Helper()
	keys := redisstore.Keys("", name)[:5] // without the last order, and what must not come back
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
