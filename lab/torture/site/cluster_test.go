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

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/storeurl"
)

// newCluster starts a cluster in its own network. It ends with the test.
func newCluster(t *testing.T, kind string, opts Options) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), newNetwork(t), kind, opts)
	if errors.Is(err, ErrMissing) {
		checkAvailable(t, err)
	}
	must(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func contextWithTimeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestStart_allKinds(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			c := newCluster(t, k.name, Options{Proxies: true})
			if n := len(c.Servers()); n != k.servers {
				t.Errorf("got %d servers, want %d", n, k.servers)
			}
			for i, s := range c.Servers() {
				if !s.Running() || !alive(s.Pid()) {
					t.Errorf("%s is not running", s)
				}
				if c.DirectAddrs()[i] != s.Addr() || c.Addrs()[i] != s.Proxy().Addr() || s.Addr() == s.Proxy().Addr() {
					t.Errorf("%s is at %s, its proxy at %s: got direct address %s, address %s", s, s.Addr(), s.Proxy().Addr(), c.DirectAddrs()[i], c.Addrs()[i])
				}
			}
			opened, err := testservers.Retry(func() (*storeurl.Conn, error) { return storeurl.Open(t.Context(), c.URL(), nil) })
			must(t, err)
			must(t, opened.Close())
			for program, version := range c.Versions(t.Context()) {
				if !strings.ContainsAny(version, "0123456789") {
					t.Errorf("%s: got version %q", program, version)
				}
			}
			if len(c.Versions(t.Context())) == 0 {
				t.Error("got no versions")
			}
			leader, err := c.Leader(contextWithTimeout(t, 3*time.Minute))
			switch {
			case !c.HasLeader() && err == nil:
				t.Errorf("got leader %s, want none", leader)
			case c.HasLeader() && err != nil:
				t.Error(err)
			case c.HasLeader():
				eventually(t, "the leader says that it leads", func() bool {
					leader, err = c.Leader(t.Context())
					return err == nil && leader.Leads(t.Context())
				})
			}
			must(t, c.Close())
			for _, s := range c.Servers() {
				if alive(s.Pid()) {
					t.Errorf("%s runs after Close", s)
				}
			}
			if left, err := os.ReadDir(testSite.Dir()); err != nil || len(left) > 0 {
				t.Errorf("files after Close: got %v, %v, want none", left, err)
			}
			if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), testSite.Dir()+"/") {
				t.Errorf("mounts after Close: %v\n%s", err, mounts)
			}
		})
	}
}

func TestStart_unknownKind(t *testing.T) {
	network := newNetwork(t)
	if _, err := Start(t.Context(), network, "etcd4", Options{}); err == nil || !strings.Contains(err.Error(), "etcd3") {
		t.Errorf("got error %v, want one that lists the kinds", err)
	}
}

// put and get send requests to one etcd server.
func put(ctx context.Context, s *Server, key, value string) error {
	return kvRequest(ctx, s, "put", map[string]string{"key": encode(key), "value": encode(value)}, &struct{}{})
}

func get(ctx context.Context, s *Server, key string) (string, error) {
	var reply struct{ Kvs []struct{ Value string } }
	if err := kvRequest(ctx, s, "range", map[string]string{"key": encode(key)}, &reply); err != nil || len(reply.Kvs) == 0 {
		return "", err
	}
	value, err := base64.StdEncoding.DecodeString(reply.Kvs[0].Value)
	return string(value), err
}

func encode(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func kvRequest(ctx context.Context, s *Server, method string, body map[string]string, reply any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return ask(ctx, http.MethodPost, "http://"+s.Addr()+"/v3/kv/"+method, string(text), reply)
}

// On a busy machine the servers may elect another leader at any time, and reply with errors
// meanwhile.
func TestCluster_leaderAfterFaults(t *testing.T) {
	c := newCluster(t, "etcd3", Options{})
	ctx := contextWithTimeout(t, 5*time.Minute)
	first, err := c.Leader(ctx)
	must(t, err)
	eventually(t, "put succeeds", func() bool { return put(ctx, first, "k", "v") == nil })

	// awaitLeader waits for a leader, and returns it with its term.
	awaitLeader := func() (*Server, uint64) {
		t.Helper()
		var leader *Server
		var term uint64
		eventually(t, "there is a leader", func() bool {
			leader, term = c.leader(ctx)
			return leader != nil
		})
		return leader, term
	}
	first, _ = awaitLeader()
	must(t, first.Pause())
	second, before := awaitLeader()
	if second == first {
		t.Fatalf("got leader %s, which is paused", first)
	}
	must(t, first.Resume())
	if third, term := awaitLeader(); third != second && term == before {
		t.Errorf("after Resume: got leader %v, want %v, in the same term", third, second)
	}

	second, _ = awaitLeader()
	must(t, second.Node().Cut())
	eventually(t, "another server than the isolated one leads", func() bool {
		third, err := c.Leader(ctx)
		return err == nil && third != second
	})
	must(t, second.Node().Heal())

	third, err := c.Leader(ctx)
	must(t, err)
	must(t, third.Kill())
	if third.Running() || third.Leads(ctx) {
		t.Errorf("%s runs after Kill", third)
	}
	must(t, third.Kill()) // a second call returns nil
	fourth, err := c.Leader(ctx)
	must(t, err)
	if fourth == third {
		t.Errorf("got leader %s, which was killed", third)
	}
	must(t, third.Start())
	if err := third.Start(); err == nil {
		t.Error("Start succeeded for a running server")
	}
	must(t, third.AwaitReady(ctx))
	checkStored(ctx, t, third)
}

// checkStored fails the test unless the server has the value that was put before.
func checkStored(ctx context.Context, t *testing.T, s *Server) {
	t.Helper()
	var v string
	eventually(t, s.String()+" replies", func() (replies bool) {
		var err error
		v, err = get(ctx, s, "k")
		return err == nil
	})
	if v != "v" {
		t.Errorf("%s: got value %q, want v", s, v)
	}
}

func TestRedis_emptyAfterRestart(t *testing.T) {
	c := newCluster(t, "redis", Options{})
	s := c.Servers()[0]
	must(t, redisExec(t, s, "SET k v"))
	must(t, s.Kill())
	must(t, s.Start())
	must(t, s.AwaitReady(t.Context()))
	if text, err := redisDo(t.Context(), s, "EXISTS k"); err != nil || text != "0" {
		t.Errorf("EXISTS k: got %q, %v, want 0", text, err)
	}
	if err := s.FillDisk(); err == nil {
		t.Error("FillDisk succeeded for a server that keeps nothing on disk")
	}
	if err := s.SetClock(t.Context(), time.Second); err == nil {
		t.Error("SetClock succeeded for a server without its own clock")
	}
}

func redisExec(t *testing.T, s *Server, command string) error {
	t.Helper()
	_, err := redisDo(t.Context(), s, command)
	return err
}

func TestServer_setClock(t *testing.T) {
	c := newCluster(t, "redlock3", Options{Clocks: true})
	s := c.Servers()[0]
	must(t, redisExec(t, s, "SET k v PX 60000"))
	must(t, s.SetClock(contextWithTimeout(t, time.Minute), -time.Hour))
	if text, err := redisDo(t.Context(), s, "PTTL k"); err != nil || len(text) < len("3600000") {
		t.Errorf("PTTL with the clock set back an hour: got %s (%v), want more than an hour", text, err)
	}
	must(t, s.SetClock(contextWithTimeout(t, time.Minute), 2*time.Minute))
	if text, err := redisDo(t.Context(), s, "EXISTS k"); err != nil || text != "0" {
		t.Errorf("EXISTS with the clock ahead: got %q, %v, want 0", text, err)
	}
	other, err := redisTime(t.Context(), c.Servers()[1])
	must(t, err)
	if time.Since(other).Abs() > 30*time.Second {
		t.Errorf("time of another server: got %v, want about now", other)
	}
}

// checkNoCrash fails the test if the cluster has reported a crash.
func checkNoCrash(t *testing.T, c *Cluster) {
	t.Helper()
	select {
	case err := <-c.Crashed():
		t.Errorf("got crash %v, want none", err)
	default:
	}
}

func TestCluster_reportsCrash(t *testing.T) {
	c := newCluster(t, "redlock3", Options{})
	s := c.Servers()[1]
	must(t, os.WriteFile(s.logPath(), []byte("the log"), 0o600))
	must(t, c.Servers()[0].Kill()) // is not reported
	must(t, syscall.Kill(s.Pid(), syscall.SIGKILL))
	select {
	case err := <-c.Crashed():
		for _, want := range []string{"redlock3/s2", "signal: killed", "the log"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("got error %q, want %q in it", err, want)
			}
		}
	case <-contextWithTimeout(t, 3*time.Minute).Done():
		t.Fatal("no crash was reported")
	}
	must(t, s.Start())
	must(t, s.AwaitReady(contextWithTimeout(t, 3*time.Minute)))
	dir := t.TempDir()
	must(t, c.SaveLogs(dir))
	if text, err := os.ReadFile(filepath.Join(dir, "s2.log")); err != nil || !strings.Contains(string(text), "the log") {
		t.Errorf("saved log: got %q, %v", text, err)
	}
	must(t, c.Close())
	checkNoCrash(t, c)
}

func TestServer_fullDisk(t *testing.T) {
	c := newCluster(t, "etcd", Options{})
	s := c.Servers()[0]
	ctx := contextWithTimeout(t, 5*time.Minute)
	eventually(t, "put succeeds", func() bool { return put(ctx, s, "k", "v") == nil })
	must(t, s.FillDisk())
	big := strings.Repeat("x", 1<<20)
	eventually(t, "etcd has ended", func() bool {
		requestCtx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = put(requestCtx, s, "big", big)
		return !s.Running()
	})
	must(t, s.FreeDisk())
	must(t, s.Start())
	must(t, s.AwaitReady(ctx))
	checkStored(ctx, t, s)
	checkNoCrash(t, c) // its end was expected
}

// The proxies run in this process, which no fault affects. But the workers reach them on the
// servers' nodes.
func TestNode_faultsAffectProxy(t *testing.T) {
	c := newCluster(t, "redis", Options{Proxies: true})
	s := c.Servers()[0]
	worker := newNode(t, c.Network(), "w1")
	// A later connection to an address that no fault affects, that of this process, gives the
	// attempt time to succeed.
	control, err := net.Listen("tcp", net.JoinHostPort(ObserverIP, "0"))
	must(t, err)
	defer control.Close()
	canReach := func(timeout time.Duration) bool {
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
			_ = conn.SetDeadline(time.Now().Add(timeout))
			_, _ = io.WriteString(conn, "PING\r\n")
			line, err := bufio.NewReader(conn).ReadString('\n')
			answered <- err == nil && line == "+PONG\r\n"
		}()
		select {
		case yes := <-answered:
			return yes
		case <-time.After(timeout):
		}
		conn, err := worker.Dial(ctx, control.Addr().String())
		must(t, err)
		conn.Close()
		cancel()
		return <-answered
	}
	const longTimeout, shortTimeout = time.Minute, 200 * time.Millisecond
	if !canReach(longTimeout) {
		t.Fatal("the worker cannot reach the server")
	}
	for _, fault := range []func() error{
		func() error { return s.Node().Cut() }, func() error { return s.Node().Deafen(worker) }, func() error { return worker.Mute() },
	} {
		must(t, fault())
		if canReach(shortTimeout) {
			t.Error("the worker reaches the server through its proxy despite the fault")
		}
		if _, err := redisDo(t.Context(), s, "PING"); err != nil {
			t.Errorf("the observer cannot reach the server: %v", err)
		}
		must(t, errors.Join(s.Node().Heal(), worker.Heal()))
	}
	if !canReach(longTimeout) {
		t.Error("the worker cannot reach the server after the heal")
	}
}

func TestStart_missingProgram(t *testing.T) {
	network := newNetwork(t)
	t.Setenv("STILE_TEST_BIN", t.TempDir())
	if _, err := Start(t.Context(), network, "etcd", Options{}); !errors.Is(err, ErrMissing) {
		t.Errorf("without etcd: got error %v, want %v", err, ErrMissing)
	}
}
