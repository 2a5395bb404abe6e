// The tests of this package drive the program itself, with real processes, signals and servers. They look at processes
// in /proc, and use what only Linux has: so they are for Linux. Tests of the packages below run everywhere.
package main_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
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

// TestMain builds the program, and runs more tests at a time than there are processors: they wait more than they compute.
func TestMain(m *testing.M) {
	if file := os.Getenv(reaperVar); file != "" {
		os.Exit(reap(file, os.Args[1:]))
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "8")
	}
	// Under nohup(1), or in the background of a script, these are ignored, and would be by all that is started here.
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp(inMemory(), "st")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		defer common.stop()
		os.Setenv("TMPDIR", dir)
		stile = filepath.Join(dir, "stile")
		// As go build would, but what go run has linked is kept for the next time.
		build := exec.Command("go", "run", "-exec", "cp", ".", stile)
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			panic(err)
		}
		return m.Run()
	}())
}

// inMemory returns a directory for temporary files in memory, where there is room for the logs of many servers: each has
// 128 MB, and a disk that many write to can take seconds for what a server has to wait for. Empty means that there is none.
func inMemory() string {
	const dir = "/dev/shm"
	const noexec = 8 // ST_NOEXEC: the program is there, and scripts
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

// within is how long anything may take that happens at all. Only a failure takes that long, so it is a multiple of what a
// busy machine needs.
const within = 3 * time.Minute

// machine is a user's account on a machine where stile has never run.
type machine struct {
	t    *testing.T
	dir  string // the home directory; its path is short, for sockets in it
	long string // a part of the path of the state directory that makes it too long for a socket; usually empty
	vars []string
	// curious is set where a person is to be told of the servers of other users; in tests there are such everywhere.
	curious bool
	end     *os.File // a pipe in it, see untilTold
}

func newMachine(t *testing.T) *machine {
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
	if m.end, err = os.OpenFile(m.path("end"), os.O_RDWR, 0); err != nil { // so that neither side waits for the other to open it
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.killServers()
		if socket, err := os.Readlink(m.link()); err == nil && strings.HasPrefix(socket, "/tmp/stile-") {
			os.RemoveAll(filepath.Dir(socket))
		}
		m.end.Close()
		os.RemoveAll(dir)
	})
	return m
}

// untilTold is a script that says that it has started, and ends when it is told so by [machine.tellEnd]. It does not poll.
const untilTold = "touch started; read end <end"

// tellEnd ends one script that reads the file called end, now or later.
func (m *machine) tellEnd() {
	m.t.Helper()
	if _, err := m.end.WriteString("\n"); err != nil {
		m.t.Fatal(err)
	}
}

// path returns a path in the home directory.
func (m *machine) path(elem ...string) string {
	return filepath.Join(append([]string{m.dir}, elem...)...)
}

// home is the home of the machine's local server.
func (m *machine) home() string { return m.path(".local", "state", m.long, "stile", "local") }

// lengthen gives the machine a state directory whose path does not fit into the address of a socket.
func (m *machine) lengthen() {
	m.long = strings.Repeat("x", 100)
	m.set("XDG_STATE_HOME", m.path(".local", "state", m.long))
}

// in returns the same machine for a part of the test.
func (m *machine) in(t *testing.T) *machine {
	return &machine{t: t, dir: m.dir, long: m.long, vars: slices.Clone(m.vars), end: m.end}
}

// set puts a variable into the environment of the commands to come.
func (m *machine) set(name, value string) { m.vars = append(m.vars, name+"="+value) }

// write makes a file with some text.
func (m *machine) write(name, text string, mode os.FileMode) string {
	m.t.Helper()
	if err := os.WriteFile(m.path(name), []byte(text), mode); err != nil {
		m.t.Fatal(err)
	}
	return m.path(name)
}

// read returns the text of a file; empty if it is not there.
func (m *machine) read(name string) string {
	m.t.Helper()
	b, err := os.ReadFile(m.path(name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.t.Fatal(err)
	}
	return string(b)
}

// await waits until a file contains some text.
func (m *machine) await(name, text string) {
	m.t.Helper()
	eventually(m.t, fmt.Sprintf("%q in %s", text, name), func() bool { return strings.Contains(m.read(name), text) })
}

// command is a command that may be running.
type command struct {
	*exec.Cmd
	m              *machine
	stdout, stderr output
	done           chan struct{}
	ended          time.Time // once done is closed
}

// output is what a command has written so far. It is in a file: what has ended has written all of it there, and what is
// left behind may have it open.
type output struct{ file *os.File }

func newOutput(t *testing.T) output {
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

// command returns stile with these arguments, to be started.
func (m *machine) command(args ...string) *command {
	m.t.Helper()
	c := &command{
		Cmd: exec.Command(stile, args...), m: m, stdout: newOutput(m.t), stderr: newOutput(m.t), done: make(chan struct{}),
	}
	c.Env, c.Dir = m.vars, m.dir
	c.Cmd.Stdout, c.Cmd.Stderr = c.stdout.file, c.stderr.file
	return c
}

// begin starts the command. It is killed at the end of the test, if need be.
func (c *command) begin() *command {
	c.m.t.Helper()
	if err := c.Start(); err != nil {
		c.m.t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		_ = c.Wait() // ProcessState has it
		c.ended = time.Now()
	}()
	c.m.t.Cleanup(func() {
		_ = c.Process.Kill()
		<-c.done
	})
	return c
}

// code waits for the end and returns the exit code.
func (c *command) code() int {
	c.m.t.Helper()
	select {
	case <-c.done:
	case <-time.After(within):
		c.m.t.Fatalf("%v has not ended within %v; stderr: %s", c.Args, within, c.stderr)
	}
	return c.ProcessState.ExitCode()
}

// wants checks the exit code and that stderr is one line with all the parts, or empty if there are none.
func (c *command) wants(code int, parts ...string) {
	c.m.t.Helper()
	if got := c.code(); got != code {
		c.m.t.Errorf("%v: exit code %d, want %d; stderr: %s", c.Args[1:], got, code, c.stderr)
	}
	said := c.stderr.String()
	for _, part := range parts {
		if !strings.Contains(said, part) {
			c.m.t.Errorf("%v: stderr does not say %q: %s", c.Args[1:], part, said)
		}
	}
	most := min(len(parts), 1)
	if n := strings.Count(said, "\n"); n != most || most == 1 && !strings.HasPrefix(said, "stile: ") {
		c.m.t.Errorf("%v: stderr has %d lines, want %d, beginning with stile: %s", c.Args[1:], n, most, said)
	}
}

// signal sends a signal to stile.
func (c *command) signal(sig syscall.Signal) {
	c.m.t.Helper()
	if err := c.Process.Signal(sig); err != nil {
		c.m.t.Fatal(err)
	}
}

// runner returns stile run with these arguments, to be started. If they name no TTL it gets one that outlasts whatever a
// busy machine does to it: only sessions that are to end have a short one.
func (m *machine) runner(args ...string) *command {
	m.t.Helper()
	if !slices.Contains(args, "--ttl") {
		args = append([]string{"--ttl", lasting}, args...)
	}
	return m.command(append([]string{"run"}, args...)...)
}

const lasting = "50"

// run runs stile run.
func (m *machine) run(args ...string) *command {
	m.t.Helper()
	c := m.runner(args...).begin()
	c.code()
	return c
}

// start starts stile run with sh as its command, and waits until the script has made a file called started, as it must.
// What the shell itself says, of commands that were killed, is not shown.
func (m *machine) start(script string, args ...string) *command {
	m.t.Helper()
	os.Remove(m.path("started"))
	c := m.runner(append(slices.Clone(args), "--", "sh", "-c", "exec 2>/dev/null; "+script)...).begin()
	eventually(m.t, "start of the script", func() bool {
		started := m.exists("started")
		select {
		case <-c.done:
			if !started {
				m.t.Fatalf("%v has ended with %v: %s", c.Args, c.ProcessState, c.stderr)
			}
		default:
		}
		return started
	})
	return c
}

// server is a stile serve that runs.
type server struct {
	*exec.Cmd
	url    string
	data   string
	prefix string      // of all keys, if others use the server too
	said   chan []byte // all that it has said after the ready line, once it has ended
}

// launchServer starts stile serve on a free port of its own, and waits until it is ready.
func launchServer(data string) (*server, error) {
	s := &server{Cmd: exec.Command(stile, "serve", "--listen", "127.0.0.1:0", "--data", data), data: data, said: make(chan []byte, 1)}
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
			return nil, fmt.Errorf("no ready line, but %q, %w", line, err)
		}
		_, rest, _ := strings.Cut(line, "url=") // on a busy machine it may say before that it is still starting
		s.url, _, _ = strings.Cut(rest, " ")
	}
	go func() {
		said, _ := io.ReadAll(lines) // ends with the server
		s.said <- said
	}()
	return s, nil
}

func (s *server) kill() {
	_ = s.Process.Kill()
	_ = s.Wait()
}

// serve starts stile serve for this test alone.
func serve(t *testing.T) *server {
	t.Helper()
	s, err := launchServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sync.OnceFunc(s.kill))
	return s
}

// common is the server of all tests that want one only to lock there.
var common commonServer

type commonServer struct {
	once    sync.Once
	server  *server
	err     error
	folders atomic.Int64
}

func (c *commonServer) stop() {
	if c.server != nil {
		c.server.kill()
	}
}

// shared returns the server that tests have in common, with a prefix for this one alone: to end a server, or to make it stand
// still, there is serve.
func shared(t *testing.T) *server {
	t.Helper()
	common.once.Do(func() {
		common.server, common.err = launchServer(filepath.Join(filepath.Dir(stile), "common"))
	})
	if common.err != nil {
		t.Fatal(common.err)
	}
	folder := fmt.Sprintf("/t%d", common.folders.Add(1))
	return &server{url: common.server.url + folder, prefix: folder[1:] + "/"}
}

// endpoint is the server's host:port.
func (s *server) endpoint() string {
	return strings.TrimSuffix(strings.TrimPrefix(s.url, "etcd://"), strings.TrimSuffix("/"+s.prefix, "/"))
}

// through is the server's URL for those who reach it by way of a wire.
func (s *server) through(w *wire) string {
	return strings.Replace(s.url, s.endpoint(), w.Addr().String(), 1)
}

// client connects to the server as anybody could.
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

// client connects to an etcd as anybody could.
func client(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Close() })
	return cli
}

// entries returns the keys in the line behind a name.
func entries(t *testing.T, cli *clientv3.Client, name string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
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

// eventually waits for something that is no event.
func eventually(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !happened(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// uptime is a line of a script that writes down when it was run, in seconds since the machine was started. Unlike date(1)
// that takes no process.
func uptime(redirection string) string {
	return "read up idle </proc/uptime; echo $up " + redirection
}

// takesAtBest checks that something takes less than a time, which one of ten times is enough for: a busy machine can make it
// take longer, but a program that waits where it should not does so each time.
func takesAtBest(t *testing.T, most time.Duration, what string, once func()) {
	t.Helper()
	var took []time.Duration
	for range 10 {
		began := time.Now()
		once()
		if took = append(took, time.Since(began)); took[len(took)-1] < most {
			return
		}
	}
	t.Errorf("%s takes %v, want less than %v", what, took, most)
}

// remaining returns how long the session of the first entry in a line has left.
func remaining(t *testing.T, cli *clientv3.Client, name string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	got, err := cli.Get(ctx, name+"/", clientv3.WithFirstCreate()...)
	if err != nil || len(got.Kvs) == 0 {
		t.Fatalf("nobody is in line for %s: %v", name, err)
	}
	lease, err := cli.TimeToLive(ctx, clientv3.LeaseID(got.Kvs[0].Lease))
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(lease.TTL) * time.Second
}

// awaitRenewal waits until the session of the first entry in a line is renewed: it has more time left than a moment before.
func awaitRenewal(t *testing.T, cli *clientv3.Client, name string) {
	t.Helper()
	last := remaining(t, cli, name)
	eventually(t, "a renewal", func() bool {
		before := last
		last = remaining(t, cli, name)
		return last > before
	})
}
