package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"

	"github.com/stilelock/stile/cmd/stile/internal/node"
	"github.com/stilelock/stile/internal/testservers"
)

// long limits waits for an event. Only a defect takes this long, however busy the machine is.
const long = 4 * time.Minute

// When etcd closes by itself, it waits for its clients, or for a new leader, for five seconds and
// two elections. With elections as long as these, that is much longer than Close takes on a very
// busy machine: quick and quickOfThree.
const (
	election        = 50 * time.Second
	quick           = 90 * time.Second
	electionOfThree = 20 * time.Second // a cluster takes up to one to start
	quickOfThree    = 40 * time.Second
)

// wantQuick checks that f returns within quick. If it takes half of that, it logs all goroutines.
// The server must have been started WithLongWaits, unless a defect would block f forever.
func wantQuick(t *testing.T, what string, quick time.Duration, f func()) {
	t.Helper()
	var stacks strings.Builder
	dumped := make(chan struct{})
	slow := time.AfterFunc(quick/2, func() {
		defer close(dumped)
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
	})
	started := time.Now()
	f()
	took := time.Since(started)
	if !slow.Stop() {
		<-dumped
		t.Logf("%s took %v; goroutines after half of %v:\n%s", what, took, quick, &stacks)
	}
	if took > quick {
		t.Errorf("%s took %v, which is too long", what, took)
	}
}

// start starts a server on a free port. It is closed when the test ends.
func start(t *testing.T, dir string) *node.Node {
	t.Helper()
	return startWith(t, node.Config{Dir: dir})
}

// client connects to the server at a URL of Stile.
func client(t *testing.T, url string) *clientv3.Client {
	t.Helper()
	endpoint := strings.TrimPrefix(strings.TrimPrefix(url, "etcd://"), "etcd+")
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: long, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Close() })
	return cli
}

func TestNode_concurrencyMutex(t *testing.T) {
	t.Parallel()
	n := start(t, t.TempDir())
	mutex := func() *concurrency.Mutex {
		s, err := concurrency.NewSession(client(t, n.URL()), concurrency.WithTTL(5))
		if err != nil {
			t.Fatal(err)
		}
		return concurrency.NewMutex(s, "demo")
	}
	first, second := mutex(), mutex()
	if err := first.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := second.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
		t.Fatalf("second TryLock: got %v, want ErrLocked", err)
	}
	if err := first.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := second.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestGateway_lockService(t *testing.T) {
	t.Parallel()
	n := start(t, t.TempDir())
	post := func(path, body string) string {
		t.Helper()
		resp, err := http.Post("http://"+strings.TrimPrefix(n.URL(), "etcd://")+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %s %v", path, resp.Status, answer, err)
		}
		return string(answer)
	}
	answer := post("/v3/lock/lock", `{"name":"ZGVtbw=="}`) // demo
	_, rest, ok := strings.Cut(answer, `"key":"`)
	key, _, _ := strings.Cut(rest, `"`)
	if !ok || key == "" {
		t.Fatalf("no key in the reply %s", answer)
	}
	keys, err := client(t, n.URL()).Get(t.Context(), "demo/", clientv3.WithPrefix())
	if err != nil || keys.Count != 1 {
		t.Fatalf("got %d keys, %v, while the lock is held, want 1", keys.Count, err)
	}
	post("/v3/lock/unlock", `{"key":"`+key+`"}`)
}

func TestGateway_refusesOtherHosts(t *testing.T) {
	t.Parallel()
	n := start(t, t.TempDir())
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"http://"+strings.TrimPrefix(n.URL(), "etcd://")+"/v3/kv/range", strings.NewReader(`{"key":"YQ=="}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "evil.example"
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("a request for another host: got %s, want 421", resp.Status)
	}
}

func TestNode_grantsTTLOfOneSecond(t *testing.T) {
	t.Parallel()
	// With the default elections, which determine the minimum TTL.
	n, err := node.Start(t.Context(), node.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	cli := client(t, n.URL())
	insist(t, "grant a lease", func(ctx context.Context) error {
		lease, err := cli.Grant(ctx, 1)
		if err == nil && lease.TTL != 1 {
			t.Errorf("got lease %+v, want a TTL of 1 s", lease)
		}
		return err
	})
}

func TestClose_clientsConnected(t *testing.T) {
	t.Parallel()
	n := start(t, t.TempDir())
	for i := range 3 {
		cli := client(t, n.URL())
		s, err := concurrency.NewSession(cli)
		if err != nil {
			t.Fatal(err)
		}
		<-cli.Watch(t.Context(), "demo", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		if i > 0 {
			continue
		}
		if err := concurrency.NewMutex(s, "demo").Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// And a waiter through the gateway.
	waiting := make(chan struct{})
	go func() {
		defer close(waiting)
		resp, err := http.Post("http://"+strings.TrimPrefix(n.URL(), "etcd://")+"/v3/lock/lock",
			"application/json", strings.NewReader(`{"name":"ZGVtbw=="}`))
		if err == nil {
			resp.Body.Close()
		}
	}()
	for cli := client(t, n.URL()); ; {
		keys, err := cli.Get(t.Context(), "demo/", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		if keys.Count == 2 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}

	wantQuick(t, "closing", quick, n.Close)
	<-waiting
	select {
	case <-n.Stopped():
	default:
		t.Error("not stopped after Close")
	}
}

func TestNode_dataSurvivesRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, dir)
	if _, err := client(t, first.URL()).Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	first.Close()
	got, err := client(t, start(t, dir).URL()).Get(t.Context(), "k")
	if err != nil || got.Count != 1 {
		t.Errorf("after the restart: got %v, %v; want one key", got, err)
	}
}

// emptyLog creates etcd's log in the state just before etcd writes its members to it.
func emptyLog(t *testing.T, dir string) {
	t.Helper()
	member := filepath.Join(dir, "etcd", "member")
	if err := os.MkdirAll(filepath.Join(member, "snap"), 0o700); err != nil {
		t.Fatal(err)
	}
	metadata := []byte{1 << 3, 1, 2 << 3, 1} // in protocol buffers: member 1 of cluster 1
	log, err := wal.Create(zap.NewNop(), filepath.Join(member, "wal"), metadata)
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestStart_afterKillDuringFirstStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	emptyLog(t, dir)
	n := start(t, dir)
	if _, err := client(t, n.URL()).Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
}

// A log may also be empty because of a broken disk. Then the database must not be removed.
func TestStart_keepsDataWithEmptyLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := start(t, dir)
	if _, err := client(t, n.URL()).Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	n.Close()
	database := filepath.Join(dir, "etcd", "member", "snap", "db")
	before, err := os.Stat(database)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "etcd", "member", "wal")); err != nil {
		t.Fatal(err)
	}
	emptyLog(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log, logIn := newLog()
	go func() {
		<-log // etcd has opened the data, and waits
		cancel()
	}()
	n, err = node.Start(ctx, node.Config{Dir: dir, Listen: "127.0.0.1:0", Logger: slog.New(slog.NewTextHandler(logIn, nil))})
	if err == nil {
		n.Close()
		t.Error("the server started without its log, want an error")
	}
	t.Log(err)
	if after, err := os.Stat(database); err != nil || !os.SameFile(before, after) {
		t.Errorf("the database was replaced: %v", err)
	}
}

func TestStart_socketOnly(t *testing.T) {
	// Not parallel: it reads all sockets of this process.
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: listening sockets are counted in /proc, which only Linux has")
	}
	dir, err := os.MkdirTemp("", "node") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	before := listening(t)
	n, err := node.Start(t.Context(), node.Config{
		Dir: dir, Socket: filepath.Join(dir, "s"), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if want := "etcd+unix://" + dir + "/s"; n.URL() != want {
		t.Errorf("got URL %s, want %s", n.URL(), want)
	}
	if _, err := client(t, n.URL()).Put(t.Context(), "k", "v"); err != nil {
		t.Error(err)
	}
	for inode := range listening(t) {
		if !before[inode] {
			t.Errorf("the process listens on TCP: socket %s", inode)
		}
	}
}

// listening returns the listening TCP sockets of this process, by inode.
func listening(t *testing.T) map[string]bool {
	t.Helper()
	ours := map[string]bool{}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		target, _ := os.Readlink(fd) // an error means that it was just closed
		ours[target] = true
	}
	found := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		data, err := os.ReadFile(table)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			const state, inode, listen = 3, 9, "0A"
			f := strings.Fields(line)
			if len(f) > inode && f[state] == listen && ours["socket:["+f[inode]+"]"] {
				found[f[inode]] = true
			}
		}
	}
	return found
}

func TestStart_errors(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	used := t.TempDir()
	start(t, used)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := t.TempDir()
	start(t, damaged).Close()
	dbs, err := filepath.Glob(filepath.Join(damaged, "etcd", "member", "snap", "db"))
	if err != nil || len(dbs) != 1 {
		t.Fatalf("found databases %v, %v", dbs, err)
	}
	if err := os.WriteFile(dbs[0], bytes.Repeat([]byte("x"), 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}

	const any4, loopback = "0.0.0.0:0", "127.0.0.1:0"
	for name, c := range map[string]struct {
		dir, listen string
		want        []string
	}{
		"every interface":        {"", any4, []string{any4, "not a loopback address", "TLS", "127.0.0.1"}},
		"every interface, short": {"", ":2379", []string{"IP address or localhost", "0.0.0.0"}},
		"another address":        {"", "192.0.2.1:2379", []string{"not a loopback address"}},
		"a host name":            {"", "example.com:2379", []string{"IP address or localhost", "0.0.0.0"}},
		"no port":                {"", "127.0.0.1", []string{"host:port"}},
		"a port by name":         {"", "127.0.0.1:http", []string{"port must be a number"}},
		"a port in use":          {"", taken.Addr().String(), []string{taken.Addr().String(), "in use", "--listen"}},
		"a directory in use":     {used, loopback, []string{used, "in use", "another stile serve", "--data"}},
		"a file for a directory": {file, loopback, []string{file, "--data"}},
		"damaged data":           {damaged, loopback, []string{damaged, "damaged"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := c.dir
			if dir == "" {
				dir = t.TempDir()
			}
			n, err := node.Start(t.Context(), node.Config{Dir: dir, Listen: c.listen, Logger: slog.New(slog.DiscardHandler)})
			if err == nil {
				n.Close()
				t.Fatal("started")
			}
			t.Log(err)
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got %[2]v, want an error with %[1]q", part, err)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("got an error of more than one line: %v", err)
			}
		})
	}
}

func TestHealth_cannotListen(t *testing.T) {
	t.Parallel()
	const loopback = "127.0.0.1:0"
	taken := testservers.FreeAddress(t)
	startWith(t, node.Config{Listen: taken})
	refused(t, node.Config{Listen: loopback, Health: taken}, taken, "in use", "--health")
	refused(t, node.Config{Listen: loopback, Health: "2381"}, "2381", "missing port", "--health")
	refused(t, node.Config{Listen: loopback, Health: "no-such-host.invalid:0"}, "no-such-host.invalid", "--health")
}

func TestStart_failureReleasesDirectory(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	dir := t.TempDir()
	cfg := node.Config{Dir: dir, Listen: taken.Addr().String(), Logger: slog.New(slog.DiscardHandler)}
	if _, err := node.Start(t.Context(), cfg); err == nil {
		t.Fatal("started on a port in use")
	}
	start(t, dir)
}

// Another program may take a port between its choice and its use.
func TestStart_replacesTakenPort(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", testservers.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	taken, free := listener.Addr().String(), testservers.FreeAddress(t)
	anyPort := node.Config{Listen: testservers.Host() + ":0"}
	picking := func(addresses ...string) func(string) (string, error) {
		return func(string) (string, error) {
			_, port, err := net.SplitHostPort(addresses[0])
			if len(addresses) > 1 {
				addresses = addresses[1:]
			}
			return port, err
		}
	}
	n := startWith(t, anyPort.WithPorts(picking(taken, taken, free)))
	if want := "etcd://" + free; n.URL() != want {
		t.Errorf("URL %s, want %s", n.URL(), want)
	}
	if _, err := client(t, n.URL()).Put(t.Context(), "k", "v"); err != nil {
		t.Error(err)
	}
	refused(t, anyPort.WithPorts(picking(taken)), taken, "in use", "--listen") // the number of retries is limited
}

func TestStart_waitsForDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, dir)
	type result struct {
		n   *node.Node
		err error
	}
	second := make(chan result)
	go func() {
		n, err := node.Start(t.Context(), node.Config{
			Dir: dir, Listen: "127.0.0.1:0", LockTimeout: long, Logger: slog.New(slog.DiscardHandler),
		})
		second <- result{n, err}
	}()
	select {
	case r := <-second:
		t.Fatalf("a second server in the directory of the first returned early: %v", r.err)
	case <-time.After(50 * time.Millisecond): // long enough to reach the lock, usually
	}
	first.Close()
	if r := <-second; r.err != nil {
		t.Error(r.err)
	} else {
		r.n.Close()
	}
}

// The process that asks regularly whether the server is idle must notice that it has failed.
func TestIdleFor_failureDuringCommit(t *testing.T) {
	t.Parallel()
	n := start(t, t.TempDir())
	fail := n.BlockReads()
	idle := make(chan time.Duration, 1)
	go func() { idle <- n.IdleFor() }()
	fail(errors.New("no space left on device"))
	select {
	case d := <-idle:
		if d != 0 {
			t.Errorf("got idle for %v, want 0", d)
		}
	case <-time.After(long):
		t.Fatal("IdleFor still waits for etcd after a failure")
	}
	<-n.Stopped()
	n.Close()
}

func TestIdleFor(t *testing.T) {
	t.Parallel()
	n := start(t, t.TempDir())
	const idleTime = 50 * time.Millisecond
	becomesIdle := func() error {
		for deadline := time.Now().Add(long); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if n.IdleFor() > idleTime {
				return nil
			}
		}
		return fmt.Errorf("never idle for %v", idleTime)
	}
	staysBusy := func() error {
		for end := time.Now().Add(3 * idleTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if idle := n.IdleFor(); idle > 0 {
				return fmt.Errorf("idle for %v", idle)
			}
		}
		return nil
	}
	if err := becomesIdle(); err != nil {
		t.Fatalf("without clients: %v", err)
	}
	cli := client(t, n.URL())
	lease, err := cli.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	cli.Close()
	if err := staysBusy(); err != nil {
		t.Errorf("with a lease: %v", err)
	}
	cli = client(t, n.URL())
	if _, err := cli.Revoke(context.Background(), lease.ID); err != nil {
		t.Fatal(err)
	}
	if err := staysBusy(); err != nil {
		t.Errorf("with a client connected: %v", err)
	}
	cli.Close()
	if err := becomesIdle(); err != nil {
		t.Errorf("after all clients have gone: %v", err)
	}
}
