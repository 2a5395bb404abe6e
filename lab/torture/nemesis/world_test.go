//go:build linux

package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/site"
)

// testSite is the site of the tests. It is nil if the machine cannot provide one, for the reason
// errSite.
var (
	testSite *site.Site
	errSite  error
)

func TestMain(m *testing.M) {
	testSite, errSite = site.Enter()
	os.Exit(m.Run())
}

// checkAvailable skips a test if err is not nil, because the machine cannot run the test. If
// STILE_TEST_REQUIRE contains "all", the test fails instead.
func checkAvailable(t *testing.T, err error) {
	t.Helper()
	switch {
	case err == nil:
	case slices.Contains(strings.Split(os.Getenv("STILE_TEST_REQUIRE"), ","), "all"):
		t.Fatalf("STILE_TEST_REQUIRE=all forbids skipping this test: %v", err)
	default:
		t.Skipf("SKIPPED, NOT TESTED: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within three minutes: %s", what)
		}
	}
}

// A testWorker is a process that uses no locks. Its field holds determines whether it counts as a
// holder.
type testWorker struct {
	name  string
	node  *site.Node
	cmd   *exec.Cmd
	holds atomic.Bool
	ended chan struct{}
}

func (w *testWorker) Name() string     { return w.name }
func (w *testWorker) Pid() int         { return w.cmd.Process.Pid }
func (w *testWorker) Node() *site.Node { return w.node }
func (w *testWorker) Holds() bool      { return w.holds.Load() }
func (w *testWorker) Kill() error      { return w.cmd.Process.Kill() }

func (w *testWorker) alive() bool {
	select {
	case <-w.ended:
		return false
	default:
		return true
	}
}

// A testWorld is a world with a real cluster, and with workers that are real processes.
type testWorld struct {
	World
	t           *testing.T
	testWorkers []*testWorker

	mu     sync.Mutex
	events []history.Event
}

// newTestWorld starts a cluster with the options of all faults, and three workers. They end with
// the test.
func newTestWorld(t *testing.T, kind string) *testWorld {
	t.Helper()
	checkAvailable(t, errSite)
	network, err := testSite.Network()
	must(t, err)
	t.Cleanup(func() { must(t, network.Close()) })
	cluster, err := site.Start(t.Context(), network, kind, Options(possible(kind)))
	if errors.Is(err, site.ErrMissing) {
		checkAvailable(t, err)
	}
	must(t, err)
	t.Cleanup(func() { must(t, cluster.Close()) })
	s := &testWorld{t: t}
	for i := range 3 {
		s.testWorkers = append(s.testWorkers, newTestWorker(t, network, fmt.Sprintf("w%d", i+1)))
	}
	s.Cluster, s.TTL = cluster, time.Second
	s.World.Workers = func() []Worker {
		var workers []Worker
		for _, w := range s.testWorkers {
			if w.alive() {
				workers = append(workers, w)
			}
		}
		return workers
	}
	s.World.Record = func(e history.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events = append(s.events, e)
	}
	s.World.Evict = func(context.Context, bool) (history.Fault, error) {
		return history.Fault{On: "w1", Lock: "a", What: "deleted a/1", Took: []uint64{1}}, nil
	}
	s.World.Compact = func(context.Context) error { return nil }
	return s
}

func newTestWorker(t *testing.T, network *site.Network, name string) *testWorker {
	t.Helper()
	node, err := network.Node(name)
	must(t, err)
	w := &testWorker{name: name, node: node, ended: make(chan struct{})}
	// The process runs for a moment now and then. A process that only sleeps shows no effect of
	// cpu-starve.
	w.cmd = node.Command("bash", "-c", "while :; do sleep 0.002; done")
	must(t, network.Start(w.cmd))
	go func() {
		_ = w.cmd.Wait()
		close(w.ended)
	}()
	return w
}

// strike lets a fault strike with this seed. The test fails if it cannot. The test heals it.
func (s *testWorld) strike(t *testing.T, name string, seed uint64) *Strike {
	t.Helper()
	st, err := s.tryStrike(name, seed)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return st
}

func (s *testWorld) tryStrike(name string, seed uint64) (*Strike, error) {
	f, err := find(name, s.Cluster.Kind())
	checkAvailable(s.t, err)
	return f.Strike(s.t.Context(), &s.World, rand.New(rand.NewPCG(seed, 0)))
}

func (s *testWorld) worker(name string) *testWorker {
	i := slices.IndexFunc(s.testWorkers, func(w *testWorker) bool { return w.name == name })
	if i < 0 {
		s.t.Fatalf("no worker %q", name)
	}
	return s.testWorkers[i]
}

func (s *testWorld) server(name string) *site.Server {
	servers := s.Cluster.Servers()
	i := slices.IndexFunc(servers, func(s *site.Server) bool { return s.Name() == name })
	if i < 0 {
		s.t.Fatalf("no server %q", name)
	}
	return servers[i]
}

func (s *testWorld) leader() *site.Server {
	ctx, cancel := context.WithTimeout(s.t.Context(), 3*time.Minute)
	defer cancel()
	leader, err := s.Cluster.Leader(ctx)
	must(s.t, err)
	return leader
}

// strikeLeader lets a fault of leaders strike, and returns the server that led before. If another
// server was elected in between, as may happen on a busy machine, it repeats that.
func (s *testWorld) strikeLeader(t *testing.T, name string) (*Strike, *site.Server) {
	t.Helper()
	for range 10 {
		s.awaitAll()
		term := s.Cluster.Term(t.Context())
		before := s.leader()
		st := s.strike(t, name, 1)
		if st.Role == "leader" && st.On == before.Name() {
			return st, before
		}
		if now := s.Cluster.Term(t.Context()); term == now {
			t.Fatalf("victim: got %s (%s), want the leader %s of term %d", st.On, st.Role, before, now)
		}
		must(t, st.Heal())
	}
	t.Fatalf("%s: the victim was not the previous leader in ten strikes", name)
	return nil, nil
}

// state returns the kernel's letter for the state of a process, empty if there is no such process.
func state(pid int) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(text), ") ")
	return after[:1]
}

func stopped(pid int) bool { return state(pid) == "T" }

func running(pid int) bool { return slices.Contains([]string{"R", "S", "D"}, state(pid)) }

// reachableServers returns the servers that accept connections from a node, through their proxies
// if they have any. A later connection to an address that no fault affects, that of this process,
// gives the attempts time to succeed.
func (s *testWorld) reachableServers(from *site.Node) []string {
	s.t.Helper()
	control, err := net.Listen("tcp", net.JoinHostPort(site.ObserverIP, "0"))
	must(s.t, err)
	defer control.Close()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	servers := s.Cluster.Servers()
	yes := make([]bool, len(servers))
	var dialing sync.WaitGroup
	for i, addr := range s.Cluster.Addrs() {
		dialing.Go(func() {
			if conn, err := from.Dial(ctx, addr); err == nil {
				yes[i] = conn.Close() == nil
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	conn, err := from.Dial(ctx, control.Addr().String())
	must(s.t, err)
	conn.Close()
	cancel()
	dialing.Wait()
	var names []string
	for i, server := range servers {
		if yes[i] {
			names = append(names, server.Name())
		}
	}
	return names
}

// awaitReachable waits until a node can reach these servers and no others.
func (s *testWorld) awaitReachable(t *testing.T, from *site.Node, want ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s reaches the servers %v and no others", from.Name(), want), func() bool {
		return slices.Equal(s.reachableServers(from), want)
	})
}

// serversExcept returns the names of all servers but one.
func (s *testWorld) serversExcept(name string) []string {
	var others []string
	for _, server := range s.Cluster.Servers() {
		if server.Name() != name {
			others = append(others, server.Name())
		}
	}
	return others
}

// awaitAll waits until all servers are ready.
func (s *testWorld) awaitAll() {
	s.t.Helper()
	for _, server := range s.Cluster.Servers() {
		must(s.t, server.AwaitReady(s.t.Context()))
	}
}
