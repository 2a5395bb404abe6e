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
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// stile is the path of the program under test.
var stile string

// TestMain builds the program, and runs more tests at a time than there are processors: they wait more than they compute.
func TestMain(m *testing.M) {
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
		dir, err := os.MkdirTemp("", "stile-test")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		stile = filepath.Join(dir, "stile")
		build := exec.Command("go", "build", "-o", stile, ".")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			panic(err)
		}
		return m.Run()
	}())
}

// within is how long anything may take that should happen at once or after a TTL of a few seconds.
const within = 30 * time.Second

// quick is how long may take on a busy machine what should be over at once. Those who wait in vain, for an answer of the
// store or, in etcd, for clients to go, wait for 5 s at least.
const quick = 4 * time.Second

// machine is a user's account on a machine where stile has never run.
type machine struct {
	t    *testing.T
	dir  string // the home directory; its path is short, for sockets in it
	vars []string
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
	t.Cleanup(func() {
		m.killServer()
		os.RemoveAll(dir)
	})
	return m
}

// path returns a path in the home directory.
func (m *machine) path(elem ...string) string {
	return filepath.Join(append([]string{m.dir}, elem...)...)
}

// home is the home of the machine's local server.
func (m *machine) home() string { return m.path(".local", "state", "stile", "local") }

// in returns the same machine for a part of the test.
func (m *machine) in(t *testing.T) *machine {
	return &machine{t: t, dir: m.dir, vars: slices.Clone(m.vars)}
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
		c.m.t.Fatalf("%v has not ended within %v", c.Args, within)
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

// run runs stile run.
func (m *machine) run(args ...string) *command {
	m.t.Helper()
	c := m.command(append([]string{"run"}, args...)...).begin()
	c.code()
	return c
}

// start starts stile run with sh as its command, and waits until the script has made a file called started, as it must.
// What the shell itself says, of commands that were killed, is not shown.
func (m *machine) start(script string, args ...string) *command {
	m.t.Helper()
	os.Remove(m.path("started"))
	c := m.command(append(append([]string{"run"}, args...), "--", "sh", "-c", "exec 2>/dev/null; "+script)...).begin()
	eventually(m.t, "start of the script", func() bool {
		select {
		case <-c.done:
			m.t.Fatalf("%v has ended with %v: %s", c.Args, c.ProcessState, c.stderr)
		default:
		}
		_, err := os.Stat(m.path("started"))
		return err == nil
	})
	return c
}

// server is a stile serve that runs.
type server struct {
	*exec.Cmd
	url  string
	data string
	said chan []byte // all that it has said after the ready line, once it has ended
}

// serve starts stile serve on a free port of its own.
func serve(t *testing.T) *server {
	t.Helper()
	s := &server{data: t.TempDir(), said: make(chan []byte, 1)}
	s.Cmd = exec.Command(stile, "serve", "--listen", "127.0.0.1:0", "--data", s.data)
	stderr, err := s.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sync.OnceFunc(func() {
		_ = s.Process.Kill()
		_ = s.Wait()
	}))
	lines := bufio.NewReader(stderr)
	for s.url == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("no ready line, but %q, %v", line, err)
		}
		_, rest, _ := strings.Cut(line, "url=") // on a busy machine it may say before that it is still starting
		s.url, _, _ = strings.Cut(rest, " ")
	}
	go func() {
		said, _ := io.ReadAll(lines) // ends with the server
		s.said <- said
	}()
	return s
}

// endpoint is the server's host:port.
func (s *server) endpoint() string { return strings.TrimPrefix(s.url, "etcd://") }

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
