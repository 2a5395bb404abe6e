//go:build linux

package site

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stilelock/stile/storeurl"
)

// newCluster starts a cluster that ends with the test, in a network of its own.
func newCluster(t *testing.T, kind string, opts Options) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), newNetwork(t), kind, opts)
	if errors.Is(err, ErrMissing) {
		need(t, err)
	}
	must(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestEveryKindServesAtItsURL(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			c := newCluster(t, k.name, Options{Proxies: true})
			if n := len(c.Servers()); n != k.servers {
				t.Errorf("it has %d servers, want %d", n, k.servers)
			}
			for i, s := range c.Servers() {
				if !s.Running() || !alive(s.Pid()) {
					t.Errorf("%s does not run", s)
				}
				if c.DirectAddrs()[i] != s.Addr() || c.Addrs()[i] != s.Proxy().Addr() || s.Addr() == s.Proxy().Addr() {
					t.Errorf("%s is at %s, its proxy at %s; Direct has %s, Addrs %s", s, s.Addr(), s.Proxy().Addr(), c.DirectAddrs()[i], c.Addrs()[i])
				}
			}
			// Open gives up after five seconds, as a busy machine may need.
			eventually(t, "there is a store at "+c.URL(), func() bool {
				opened, err := storeurl.Open(t.Context(), c.URL(), nil)
				if err != nil {
					t.Logf("a store at %s: %v", c.URL(), err)
					return false
				}
				must(t, opened.Close())
				return true
			})
			for program, version := range c.Versions(t.Context()) {
				if !strings.ContainsAny(version, "0123456789") {
					t.Errorf("%s has the version %q", program, version)
				}
			}
			if len(c.Versions(t.Context())) == 0 {
				t.Error("nothing has a version")
			}
			leader, err := c.Leader(within(t, 3*time.Minute))
			switch {
			case !c.HasLeader() && err == nil:
				t.Errorf("%s leads, where nobody can", leader)
			case c.HasLeader() && err != nil:
				t.Error(err)
			case c.HasLeader():
				eventually(t, "who leads says so", func() bool {
					leader, err = c.Leader(t.Context())
					return err == nil && leader.Leads(t.Context())
				})
			}
			must(t, c.Close())
			for _, s := range c.Servers() {
				if alive(s.Pid()) {
					t.Errorf("%s outlives the cluster", s)
				}
			}
			if left, err := os.ReadDir(here.Dir()); err != nil || len(left) > 0 {
				t.Errorf("files are left: %v, %v", left, err)
			}
			if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), here.Dir()+"/") {
				t.Errorf("mounts are left (%v):\n%s", err, mounts)
			}
		})
	}
}

func TestAClusterOfNoKindIsRefused(t *testing.T) {
	network := newNetwork(t)
	if _, err := Start(t.Context(), network, "etcd4", Options{}); err == nil || !strings.Contains(err.Error(), "etcd3") {
		t.Errorf("the error is %v, and should say which kinds there are", err)
	}
}

// put and get speak to one server of etcd.
func put(ctx context.Context, s *Server, key, value string) error {
	return kv(ctx, s, "put", map[string]string{"key": coded(key), "value": coded(value)}, &struct{}{})
}

func get(ctx context.Context, s *Server, key string) (string, error) {
	var reply struct{ Kvs []struct{ Value string } }
	if err := kv(ctx, s, "range", map[string]string{"key": coded(key)}, &reply); err != nil || len(reply.Kvs) == 0 {
		return "", err
	}
	value, err := base64.StdEncoding.DecodeString(reply.Kvs[0].Value)
	return string(value), err
}

func coded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func kv(ctx context.Context, s *Server, method string, body map[string]string, reply any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return ask(ctx, http.MethodPost, "http://"+s.Addr()+"/v3/kv/"+method, string(text), reply)
}

// On a busy machine servers may elect another leader at any time, and answer requests with errors meanwhile.
func TestALeaderIsFoundWhateverBecameOfTheLast(t *testing.T) {
	c := newCluster(t, "etcd3", Options{})
	ctx := within(t, 5*time.Minute)
	first, err := c.Leader(ctx)
	must(t, err)
	eventually(t, "what is put is stored", func() bool { return put(ctx, first, "k", "v") == nil })

	// leads waits for a leader and a term.
	leads := func() (*Server, uint64) {
		t.Helper()
		var leader *Server
		var term uint64
		eventually(t, "somebody leads", func() bool {
			leader, term = c.leader(ctx)
			return leader != nil
		})
		return leader, term
	}
	first, _ = leads()
	must(t, first.Pause())
	second, before := leads()
	if second == first {
		t.Fatalf("%s leads while it is paused", first)
	}
	must(t, first.Resume())
	if again, term := leads(); again != second && term == before {
		t.Errorf("when the paused one runs again %v leads, want %v, which was elected", again, second)
	}

	second, _ = leads()
	must(t, second.Node().Cut())
	eventually(t, "another one leads than the one that is cut off", func() bool {
		third, err := c.Leader(ctx)
		return err == nil && third != second
	})
	must(t, second.Node().Heal())

	third, err := c.Leader(ctx)
	must(t, err)
	must(t, third.Kill())
	if third.Running() || third.Leads(ctx) {
		t.Errorf("%s runs when it is killed", third)
	}
	must(t, third.Kill()) // once more is no error
	fourth, err := c.Leader(ctx)
	must(t, err)
	if fourth == third {
		t.Errorf("%s leads, which is dead", third)
	}
	must(t, third.Start())
	if err := third.Start(); err == nil {
		t.Error("a server that runs can be started")
	}
	must(t, third.AwaitReady(ctx))
	knows(ctx, t, third)
}

// knows fails unless the server has what was put before.
func knows(ctx context.Context, t *testing.T, s *Server) {
	t.Helper()
	var v string
	eventually(t, s.String()+" answers", func() (answers bool) {
		var err error
		v, err = get(ctx, s, "k")
		return err == nil
	})
	if v != "v" {
		t.Errorf("%s knows %q, want what was put before", s, v)
	}
}

func TestRedisForgetsEverythingWithItsProcess(t *testing.T) {
	c := newCluster(t, "redis", Options{})
	s := c.Servers()[0]
	must(t, say(t, s, "SET k v"))
	must(t, s.Kill())
	must(t, s.Start())
	must(t, s.AwaitReady(t.Context()))
	if text, err := redisSays(t.Context(), s, "EXISTS k"); err != nil || text != "0" {
		t.Errorf("EXISTS k says %q, %v, want 0", text, err)
	}
	if err := s.FillDisk(); err == nil {
		t.Error("a disk that it does not use can be filled")
	}
	if err := s.SetClock(t.Context(), time.Second); err == nil {
		t.Error("a clock that it does not have can be set")
	}
}

func say(t *testing.T, s *Server, command string) error {
	t.Helper()
	_, err := redisSays(t.Context(), s, command)
	return err
}

func TestTheClockOfARedisJumps(t *testing.T) {
	c := newCluster(t, "redlock3", Options{Clocks: true})
	s := c.Servers()[0]
	must(t, say(t, s, "SET k v PX 60000"))
	must(t, s.SetClock(within(t, time.Minute), -time.Hour))
	if text, err := redisSays(t.Context(), s, "PTTL k"); err != nil || len(text) < len("3600000") {
		t.Errorf("with the clock an hour behind, what lasts a minute lasts %s ms (%v)", text, err)
	}
	must(t, s.SetClock(within(t, time.Minute), 2*time.Minute))
	if text, err := redisSays(t.Context(), s, "EXISTS k"); err != nil || text != "0" {
		t.Errorf("with the clock ahead EXISTS says %q, %v, want 0", text, err)
	}
	other, err := redisTime(t.Context(), c.Servers()[1])
	must(t, err)
	if time.Since(other).Abs() > 30*time.Second {
		t.Errorf("another server believes that it is %v", other)
	}
}

// noneCrashed fails if the cluster has told of a crash.
func noneCrashed(t *testing.T, c *Cluster) {
	t.Helper()
	select {
	case err := <-c.Crashed():
		t.Errorf("told of: %v", err)
	default:
	}
}

func TestAServerThatEndsByItselfIsToldOf(t *testing.T) {
	c := newCluster(t, "redlock3", Options{})
	s := c.Servers()[1]
	must(t, os.WriteFile(s.log(), []byte("the last words"), 0o600))
	must(t, c.Servers()[0].Kill()) // of which nobody is told: it is done when Kill returns
	must(t, syscall.Kill(s.Pid(), syscall.SIGKILL))
	select {
	case err := <-c.Crashed():
		for _, want := range []string{"redlock3/s2", "signal: killed", "the last words"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("told is %q, which lacks %q", err, want)
			}
		}
	case <-within(t, 3*time.Minute).Done():
		t.Fatal("nobody was told")
	}
	must(t, s.Start())
	must(t, s.AwaitReady(within(t, 3*time.Minute)))
	saved := t.TempDir()
	must(t, c.SaveLogs(saved))
	if text, err := os.ReadFile(filepath.Join(saved, "s2.log")); err != nil || !strings.Contains(string(text), "the last words") {
		t.Errorf("saved is %q, %v", text, err)
	}
	must(t, c.Close())
	noneCrashed(t, c)
}

func TestAServerWithoutRoomEndsAndComesBack(t *testing.T) {
	c := newCluster(t, "etcd", Options{})
	s := c.Servers()[0]
	ctx := within(t, 5*time.Minute)
	eventually(t, "what is put is stored", func() bool { return put(ctx, s, "k", "v") == nil })
	must(t, s.FillDisk())
	big := strings.Repeat("x", 1<<20)
	eventually(t, "etcd has ended", func() bool {
		once, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = put(once, s, "big", big)
		return !s.Running()
	})
	must(t, s.FreeDisk())
	must(t, s.Start())
	must(t, s.AwaitReady(ctx))
	knows(ctx, t, s)
	noneCrashed(t, c) // it is no wonder that it ended
}

// The proxies are this process, which no fault cuts off; but the workers reach them on the servers' nodes.
func TestAFaultOfAServerConcernsItsProxy(t *testing.T) {
	c := newCluster(t, "redis", Options{Proxies: true})
	s := c.Servers()[0]
	worker := newNode(t, c.Network(), "w1")
	// What is to show that nothing passes comes after what would have passed, on the same way to another address: ours.
	control, err := net.Listen("tcp", net.JoinHostPort(ObserverIP, "0"))
	must(t, err)
	defer control.Close()
	reaches := func(within time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		answered := make(chan bool, 1)
		go func() {
			conn, err := worker.Dial(ctx, c.Addrs()[0])
			if err != nil {
				answered <- false
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(within))
			_, _ = io.WriteString(conn, "PING\r\n")
			line, err := bufio.NewReader(conn).ReadString('\n')
			answered <- err == nil && line == "+PONG\r\n"
		}()
		select {
		case yes := <-answered:
			return yes
		case <-time.After(within):
		}
		conn, err := worker.Dial(ctx, control.Addr().String())
		must(t, err)
		conn.Close()
		cancel()
		return <-answered
	}
	const long, moment = time.Minute, 200 * time.Millisecond
	if !reaches(long) {
		t.Fatal("the worker does not reach the server")
	}
	for _, fault := range []func() error{
		func() error { return s.Node().Cut() }, func() error { return s.Node().Deafen(worker) }, func() error { return worker.Mute() },
	} {
		must(t, fault())
		if reaches(moment) {
			t.Error("the worker reaches the server through its proxy, past the fault")
		}
		if _, err := redisSays(t.Context(), s, "PING"); err != nil {
			t.Errorf("the observer does not reach the server: %v", err)
		}
		must(t, errors.Join(s.Node().Heal(), worker.Heal()))
	}
	if !reaches(long) {
		t.Error("when all is healed the worker does not reach the server")
	}
}

func TestWhatIsNotInstalledIsMissing(t *testing.T) {
	network := newNetwork(t)
	t.Setenv("STILE_TEST_BIN", t.TempDir())
	if _, err := Start(t.Context(), network, "etcd", Options{}); !errors.Is(err, ErrMissing) {
		t.Errorf("without an etcd the error is %v, want %v", err, ErrMissing)
	}
}
