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

// here is the site that the tests run in; nil if the machine has none for us, for the reason why.
var (
	here *site.Site
	why  error
)

func TestMain(m *testing.M) {
	here, why = site.Enter()
	os.Exit(m.Run())
}

// need ends a test that the machine cannot run: it fails if STILE_TEST_REQUIRE has the word "all", else it is skipped.
func need(t *testing.T, err error) {
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

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after three minutes it is not so that %s", what)
		}
	}
}

// An idler is a worker that does nothing but hold what it is said to hold.
type idler struct {
	name  string
	node  *site.Node
	cmd   *exec.Cmd
	holds atomic.Bool
	ended chan struct{}
}

func (i *idler) Name() string     { return i.name }
func (i *idler) Pid() int         { return i.cmd.Process.Pid }
func (i *idler) Node() *site.Node { return i.node }
func (i *idler) Holds() bool      { return i.holds.Load() }
func (i *idler) Kill() error      { return i.cmd.Process.Kill() }

func (i *idler) alive() bool {
	select {
	case <-i.ended:
		return false
	default:
		return true
	}
}

// A scene is a world with real servers, and workers that are real processes.
type scene struct {
	World
	t      *testing.T
	idlers []*idler

	mu     sync.Mutex
	events []history.Event
}

// newScene starts a cluster, with all that faults may need, and three workers. They end with the test.
func newScene(t *testing.T, kind string) *scene {
	t.Helper()
	need(t, why)
	network, err := here.Network()
	must(t, err)
	t.Cleanup(func() { must(t, network.Close()) })
	cluster, err := site.Start(t.Context(), network, kind, Options(possible(kind)))
	if errors.Is(err, site.ErrMissing) {
		need(t, err)
	}
	must(t, err)
	t.Cleanup(func() { must(t, cluster.Close()) })
	s := &scene{t: t}
	for i := range 3 {
		s.idlers = append(s.idlers, newIdler(t, network, fmt.Sprintf("w%d", i+1)))
	}
	s.Cluster, s.TTL = cluster, time.Second
	s.World.Workers = func() []Worker {
		var workers []Worker
		for _, i := range s.idlers {
			if i.alive() {
				workers = append(workers, i)
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

func newIdler(t *testing.T, network *site.Network, name string) *idler {
	t.Helper()
	node, err := network.Node(name)
	must(t, err)
	i := &idler{name: name, node: node, ended: make(chan struct{})}
	// It is busy, a little: a process that only waits is not seen to starve.
	i.cmd = node.Command("bash", "-c", "while :; do sleep 0.002; done")
	must(t, network.Start(i.cmd))
	go func() {
		_ = i.cmd.Wait()
		close(i.ended)
	}()
	return i
}

// strike does a fault, with chance beginning at seed. It is healed when the test ends, if the test has not done so.
func (s *scene) strike(t *testing.T, name string, seed uint64) *Strike {
	t.Helper()
	st, err := s.try(name, seed)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return st
}

func (s *scene) try(name string, seed uint64) (*Strike, error) {
	f, err := find(name, s.Cluster.Kind())
	need(s.t, err)
	return f.Strike(s.t.Context(), &s.World, rand.New(rand.NewPCG(seed, 0)))
}

func (s *scene) idler(name string) *idler {
	i := slices.IndexFunc(s.idlers, func(i *idler) bool { return i.name == name })
	if i < 0 {
		s.t.Fatalf("there is no worker %q", name)
	}
	return s.idlers[i]
}

func (s *scene) server(name string) *site.Server {
	servers := s.Cluster.Servers()
	i := slices.IndexFunc(servers, func(s *site.Server) bool { return s.Name() == name })
	if i < 0 {
		s.t.Fatalf("there is no server %q", name)
	}
	return servers[i]
}

func (s *scene) leader() *site.Server {
	ctx, cancel := context.WithTimeout(s.t.Context(), 3*time.Minute)
	defer cancel()
	leader, err := s.Cluster.Leader(ctx)
	must(s.t, err)
	return leader
}

// strikeLeader does a fault of leaders, and returns which server led then. On a busy machine another one may be elected just
// before: then it does so again.
func (s *scene) strikeLeader(t *testing.T, name string) (*Strike, *site.Server) {
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
			t.Fatalf("%s (%s) was hit, want the leader %s, since the election %d", st.On, st.Role, before, now)
		}
		must(t, st.Heal())
	}
	t.Fatalf("%s has hit ten times another server than the one that led before", name)
	return nil, nil
}

// state returns the letter that the kernel has for the state of a process; empty if there is no such process.
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

// reached returns the servers to which connections from a node, by their proxies if they have some, can be made. What is to show
// that the others cannot be reached comes after what would have arrived there, on the same way to another address: ours.
func (s *scene) reached(from *site.Node) []string {
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

// reachesOnly waits until the servers that a node reaches are those.
func (s *scene) reachesOnly(t *testing.T, from *site.Node, want ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s reaches %v and no other server", from.Name(), want), func() bool {
		return slices.Equal(s.reached(from), want)
	})
}

// but returns the names of all servers but one.
func (s *scene) but(name string) []string {
	var others []string
	for _, server := range s.Cluster.Servers() {
		if server.Name() != name {
			others = append(others, server.Name())
		}
	}
	return others
}

// awaitAll waits until all servers serve.
func (s *scene) awaitAll() {
	s.t.Helper()
	for _, server := range s.Cluster.Servers() {
		must(s.t, server.AwaitReady(s.t.Context()))
	}
}
