// The tests of this package run the program itself, with real processes, signals and servers. They
// read /proc and use other things that only Linux has. The tests of the internal packages run on
// all systems.
package main_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"golang.org/x/sys/unix"
)

// stile is the path of the program under test.
var stile string

// TestMain builds the program. It runs more tests at a time than there are processors, because
// tests mostly wait.
func TestMain(m *testing.M) {
	if file := os.Getenv(reaperVar); file != "" {
		os.Exit(reap(file, os.Args[1:]))
	}
	if name := os.Getenv(holderVar); name != "" {
		holdTethered(os.Getenv("STILE_URL"), name)
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "32") // most tests wait most of the time
	}
	// Under nohup(1) and in the background of a script these signals are ignored, and all processes
	// started here would inherit that. Calling Notify undoes it.
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	// Some programs leak descriptors into what they start. The processes started here must not inherit them.
	_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	os.Exit(func() int {
		dir, err := os.MkdirTemp(inMemory(), "st")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		defer killLeft()
		defer common.stop()
		os.Setenv("TMPDIR", dir)
		stile = filepath.Join(dir, "stile")
		// This does what go build does, but go run also caches the linked program.
		build := exec.Command("go", "run", "-tags=patient", "-exec", "cp", ".", stile)
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			panic(err)
		}
		return m.Run()
	}())
}

// killLeft kills the processes of the program under test that are left. A watchdog may wait for the
// TTL, which is longer than the tests.
func killLeft() {
	programs, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range programs {
		if program, err := os.Readlink(link); err != nil || program != stile {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// inMemory returns a directory for temporary files in memory, or "" if there is none with enough
// room. Each server has a log of 128 MB. On a disk that many servers write to, a sync can take
// seconds.
func inMemory() string {
	const dir = "/dev/shm"
	const noexec = 8 // ST_NOEXEC: the directory must allow executing the program and scripts
	var fs unix.Statfs_t
	if os.Getenv("TMPDIR") != "" || unix.Statfs(dir, &fs) != nil || fs.Flags&noexec != 0 {
		return ""
	}
	if fs.Bavail*uint64(fs.Bsize) < 4<<30 || unix.Access(dir, unix.W_OK) != nil {
		return ""
	}
	var kB uint64
	memory, _ := os.ReadFile("/proc/meminfo")
	_, rest, _ := strings.Cut(string(memory), "MemAvailable:")
	if _, err := fmt.Sscan(rest, &kB); err != nil || kB < 4<<20 {
		return ""
	}
	return dir
}

// testTimeout limits the wait for anything that should happen. Only a failure takes that long, so
// it is a multiple of what a busy machine needs.
const testTimeout = 3 * time.Minute

// machine is the account of a user on a machine where stile has never run.
type machine struct {
	t       testing.TB
	dir     string // the home directory; its path is short enough for sockets in it
	longDir string // a directory name that makes the path of the state directory too long for a socket; usually empty
	vars    []string
	// showNeighborNotice lets stile print its notice about local servers of other users at a
	// terminal. Tests usually suppress it, because other tests run such servers.
	showNeighborNotice bool
	endPipe            *os.File // the named pipe end in the home directory, see endableScript
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "st")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: dir, vars: []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "XDG_RUNTIME_DIR=" + dir + "/run", "LC_ALL=C",
	}}
	if err := os.Mkdir(m.path("run"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(m.path("end"), 0o600); err != nil {
		t.Fatal(err)
	}
	// With O_RDWR, opening the pipe does not wait for the other side.
	if m.endPipe, err = os.OpenFile(m.path("end"), os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.killServers()
		if socket, err := os.Readlink(m.socketLink()); err == nil && strings.HasPrefix(socket, "/tmp/stile-") {
			os.RemoveAll(filepath.Dir(socket))
		}
		m.endPipe.Close()
		os.RemoveAll(dir)
	})
	return m
}

// endableScript creates the file started and ends when [machine.endScript] is called. It does not
// poll.
const endableScript = "touch started; read end <end"

// sleepLoop waits forever, for scripts that trap a signal. A shell notices a trapped signal that
// arrives just before it blocks in read only when read returns; sleep returns soon.
const sleepLoop = "while :; do sleep 0.1; done"

// endScript ends one script that reads from the pipe end, now or later.
func (m *machine) endScript() {
	m.t.Helper()
	if _, err := m.endPipe.WriteString("\n"); err != nil {
		m.t.Fatal(err)
	}
}

// path returns the path of a file in the home directory.
func (m *machine) path(elem ...string) string {
	return filepath.Join(append([]string{m.dir}, elem...)...)
}

// home returns the directory of the machine's local server.
func (m *machine) home() string { return m.path(".local", "state", m.longDir, "stile", "local") }

// useLongStateDir gives the machine a state directory whose path is too long for the address of a
// socket.
func (m *machine) useLongStateDir() {
	m.longDir = strings.Repeat("x", 100)
	m.setenv("XDG_STATE_HOME", m.path(".local", "state", m.longDir))
}

// forSubtest returns the same machine for a subtest.
func (m *machine) forSubtest(t testing.TB) *machine {
	return &machine{t: t, dir: m.dir, longDir: m.longDir, vars: slices.Clone(m.vars), endPipe: m.endPipe}
}

// setenv adds a variable to the environment of the commands that are started from now on.
func (m *machine) setenv(name, value string) { m.vars = append(m.vars, name+"="+value) }

// write creates a file in the home directory and returns its path.
func (m *machine) write(name, text string, mode os.FileMode) string {
	m.t.Helper()
	if err := os.WriteFile(m.path(name), []byte(text), mode); err != nil {
		m.t.Fatal(err)
	}
	return m.path(name)
}

// read returns the text of a file in the home directory, or "" if the file does not exist.
func (m *machine) read(name string) string {
	m.t.Helper()
	b, err := os.ReadFile(m.path(name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.t.Fatal(err)
	}
	return string(b)
}

// awaitFile waits until a file in the home directory contains text.
func (m *machine) awaitFile(name, text string) {
	m.t.Helper()
	eventually(m.t, fmt.Sprintf("%q in %s", text, name), func() bool { return strings.Contains(m.read(name), text) })
}

// command is a stile command. It may be running.
type command struct {
	*exec.Cmd
	m              *machine
	stdout, stderr output
	done           chan struct{}
	ended          time.Time // set before done is closed
}

// output is what a command has written so far. It goes to a file, not to a pipe: a process that the
// command leaves behind may keep it open, and all output is there when the command has ended.
type output struct{ file *os.File }

func newOutput(t testing.TB) output {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return output{f}
}

func (o output) Bytes() []byte {
	text, err := os.ReadFile(o.file.Name())
	if err != nil {
		return []byte(err.Error())
	}
	return text
}

func (o output) String() string { return string(o.Bytes()) }

// command returns stile with these arguments. It is not started yet.
func (m *machine) command(args ...string) *command {
	m.t.Helper()
	c := &command{
		Cmd: exec.Command(stile, args...), m: m, stdout: newOutput(m.t), stderr: newOutput(m.t), done: make(chan struct{}),
	}
	c.Env, c.Dir = m.vars, m.dir
	c.Cmd.Stdout, c.Cmd.Stderr = c.stdout.file, c.stderr.file
	return c
}

// spawn starts the command. The command is killed at the end of the test if it still runs.
func (c *command) spawn() *command {
	c.m.t.Helper()
	if err := c.Start(); err != nil {
		c.m.t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		_ = c.Wait() // the result is in ProcessState
		c.ended = time.Now()
	}()
	c.m.t.Cleanup(func() {
		_ = c.Process.Kill()
		<-c.done
	})
	return c
}

func (c *command) hasEnded() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// exitCode waits until the command ends and returns its exit code.
func (c *command) exitCode() int {
	c.m.t.Helper()
	select {
	case <-c.done:
	case <-time.After(testTimeout):
		c.m.t.Fatalf("%v did not end within %v; stderr: %s", c.Args, testTimeout, c.stderr)
	}
	return c.ProcessState.ExitCode()
}

// expectExit checks the exit code, and that stderr is one line that contains all parts. Without
// parts, stderr must be empty.
func (c *command) expectExit(code int, parts ...string) {
	c.m.t.Helper()
	if got := c.exitCode(); got != code {
		c.m.t.Errorf("%v: %v, want exit code %d; stderr: %s", c.Args[1:], c.ProcessState, code, c.stderr)
	}
	stderr := c.stderr.String()
	for _, part := range parts {
		if !strings.Contains(stderr, part) {
			c.m.t.Errorf("%v: stderr does not contain %q: %s", c.Args[1:], part, stderr)
		}
	}
	wantLines := min(len(parts), 1)
	if n := strings.Count(stderr, "\n"); n != wantLines || wantLines == 1 && !strings.HasPrefix(stderr, "stile: ") {
		c.m.t.Errorf("%v: stderr has %d lines, want %d, beginning with stile: %s", c.Args[1:], n, wantLines, stderr)
	}
}

// signal sends a signal to stile.
func (c *command) signal(sig syscall.Signal) {
	c.m.t.Helper()
	if err := c.Process.Signal(sig); err != nil {
		c.m.t.Fatal(err)
	}
}

// ipSockets returns the lines of a process's TCP and UDP sockets in the tables in /proc.
func ipSockets(t testing.TB, pid int) []string {
	t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(fds) == 0 {
		t.Fatalf("process %d has no open files: %v", pid, err)
	}
	own := map[string]bool{}
	for _, fd := range fds {
		target, _ := os.Readlink(fd) // fails if it was just closed
		own[target] = true
	}
	var found []string
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			const inode = 9
			if f := strings.Fields(line); len(f) > inode && own["socket:["+f[inode]+"]"] {
				found = append(found, table+line)
			}
		}
	}
	return found
}

func kill(t testing.TB, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// pause stops a process (SIGSTOP) and returns when all of its threads have stopped. The signal only
// asks for that: before, a thread on another processor may still answer a request.
func pause(t testing.TB, pid int) {
	t.Helper()
	kill(t, pid, syscall.SIGSTOP)
	eventually(t, fmt.Sprintf("stop of process %d", pid), func() bool { return stopped(t, pid) })
}

// stopped reports whether all threads of a process are stopped.
func stopped(t testing.TB, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("process %d has no threads: %v", pid, err)
	}
	return !slices.ContainsFunc(threads, func(path string) bool {
		stat, err := os.ReadFile(path)
		return err == nil && !strings.Contains(string(stat), ") T ")
	})
}

// runCommand returns stile run with these arguments. It is not started yet. Without --ttl in the
// arguments it gets a TTL that survives any delay of a busy machine; only sessions that should
// expire in a test have a short one.
func (m *machine) runCommand(args ...string) *command {
	m.t.Helper()
	if !slices.Contains(args, "--ttl") {
		args = append([]string{"--ttl", longTTL}, args...)
	}
	return m.command(append([]string{"run"}, args...)...)
}

// longTTL is a TTL that no test waits for: a waiter that is admitted earlier has not waited for the
// session to expire.
const longTTL = "300"

// run runs stile run and waits until it ends.
func (m *machine) run(args ...string) *command {
	m.t.Helper()
	c := m.runCommand(args...).spawn()
	c.exitCode()
	return c
}

// start starts stile run with sh as its command, and waits until the script has created the file
// started. Messages of the shell itself, about commands that were killed, are discarded.
func (m *machine) start(script string, args ...string) *command {
	m.t.Helper()
	os.Remove(m.path("started"))
	c := m.runCommand(append(slices.Clone(args), "--", "sh", "-c", "exec 2>/dev/null; "+script)...).spawn()
	eventually(m.t, "start of the script", func() bool {
		started := m.exists("started")
		select {
		case <-c.done:
			if !started {
				m.t.Fatalf("%v ended with %v: %s", c.Args, c.ProcessState, c.stderr)
			}
		default:
		}
		return started
	})
	return c
}

// server is a running stile serve.
type server struct {
	*exec.Cmd
	url    string
	data   string
	prefix string      // prefix of all keys, if other tests use the server too
	logged chan []byte // receives what the server has logged after the ready line, when the server ends
}

// launchServer starts stile serve on a free port and waits until it is ready.
func launchServer(data string) (*server, error) {
	s := &server{Cmd: exec.Command(stile, "serve", "--listen", "127.0.0.1:0", "--data", data), data: data, logged: make(chan []byte, 1)}
	stderr, err := s.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(stderr)
	for s.url == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			s.kill()
			return nil, fmt.Errorf("no ready line: got %q, %w", line, err)
		}
		_, rest, _ := strings.Cut(line, "url=") // on a busy machine, lines about the start may come first
		s.url, _, _ = strings.Cut(rest, " ")
	}
	go func() {
		logged, _ := io.ReadAll(lines) // ends with the server
		s.logged <- logged
	}()
	return s, nil
}

func (s *server) kill() {
	_ = s.Process.Kill()
	_ = s.Wait()
}

// serve starts a stile serve for this test alone.
func serve(t *testing.T) *server {
	t.Helper()
	s, err := launchServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sync.OnceFunc(s.kill))
	return s
}

// common is the server of all tests that need a server only to lock on it.
var common commonServer

type commonServer struct {
	once    sync.Once
	server  *server
	err     error
	clients atomic.Int64 // number of tests that use the server
}

func (c *commonServer) stop() {
	if c.server != nil {
		c.server.kill()
	}
}

// shared returns the common server, with a key prefix for this test alone. A test that kills or
// stops its server calls serve instead.
func shared(t *testing.T) *server {
	t.Helper()
	common.once.Do(func() {
		common.server, common.err = launchServer(filepath.Join(filepath.Dir(stile), "common"))
	})
	if common.err != nil {
		t.Fatal(common.err)
	}
	prefix := fmt.Sprintf("/t%d", common.clients.Add(1))
	return &server{url: common.server.url + prefix, prefix: prefix[1:] + "/"}
}

// endpoint returns the server's host:port.
func (s *server) endpoint() string {
	return strings.TrimSuffix(strings.TrimPrefix(s.url, "etcd://"), strings.TrimSuffix("/"+s.prefix, "/"))
}

// urlVia returns the server's URL with the proxy's address in place of the server's.
func (s *server) urlVia(p *proxy) string {
	return strings.Replace(s.url, s.endpoint(), p.Addr().String(), 1)
}

// client returns an etcd client of the server, with the test's prefix.
func (s *server) client(t *testing.T) *clientv3.Client {
	t.Helper()
	cli := client(t, s.endpoint())
	if s.prefix != "" {
		cli.KV = namespace.NewKV(cli.KV, s.prefix)
		cli.Watcher = namespace.NewWatcher(cli.Watcher, s.prefix)
		cli.Lease = namespace.NewLease(cli.Lease, s.prefix)
	}
	return cli
}

// client returns an etcd client.
func client(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Close() })
	return cli
}

// entries returns the keys of the entries in a lock's line.
func entries(t *testing.T, cli *clientv3.Client, name string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	got, err := cli.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, kv := range got.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// eventually polls until condition is true.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout after %v: %s", testTimeout, what)
		}
	}
}

// uptimeScript returns a line of a script that writes the time since boot, in seconds. Unlike
// date(1) it starts no process.
func uptimeScript(redirection string) string {
	return "read up idle </proc/uptime; echo $up " + redirection
}

// checkFastest checks that one of ten runs takes less than limit. A busy machine can slow down some
// runs; a program that waits where it should not is slow in all of them.
func checkFastest(t *testing.T, limit time.Duration, what string, run func()) {
	t.Helper()
	var took []time.Duration
	for range 10 {
		began := time.Now()
		run()
		if took = append(took, time.Since(began)); took[len(took)-1] < limit {
			return
		}
	}
	t.Errorf("%s takes %v, want less than %v for one of ten runs", what, took, limit)
}

// remainingTTL returns the remaining TTL of the session of the first entry in a lock's line.
func remainingTTL(t *testing.T, cli *clientv3.Client, name string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	got, err := cli.Get(ctx, name+"/", clientv3.WithFirstCreate()...)
	if err != nil || len(got.Kvs) == 0 {
		t.Fatalf("no entry in the line of lock %s: %v", name, err)
	}
	lease, err := cli.TimeToLive(ctx, clientv3.LeaseID(got.Kvs[0].Lease))
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(lease.TTL) * time.Second
}

// sessionEnd returns the latest time at which the session of the first entry in a lock's line ends if
// it is not renewed.
func sessionEnd(t *testing.T, cli *clientv3.Client, name string) time.Time {
	t.Helper()
	remaining := remainingTTL(t, cli, name) // in whole seconds, rounded down
	return time.Now().Add(remaining + time.Second)
}

// awaitRenewal waits until the session of the first entry in a lock's line is renewed: until it ends
// later than at end, which is a result of sessionEnd.
func awaitRenewal(t *testing.T, cli *clientv3.Client, name string, end time.Time) {
	t.Helper()
	eventually(t, "renewal of the session", func() bool {
		now := time.Now()
		return now.Add(remainingTTL(t, cli, name)).After(end)
	})
}
