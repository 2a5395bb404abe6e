package main_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/filelock"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/storeurl"
)

// serverPID returns the process id of the machine's local server that was started last, or 0 if
// there was none.
func (m *machine) serverPID() int {
	m.t.Helper()
	log, err := os.ReadFile(filepath.Join(m.home(), "server.log"))
	if err != nil {
		return 0
	}
	found := regexp.MustCompile(`msg=ready .*pid=(\d+)`).FindSubmatch(log)
	if found == nil {
		return 0
	}
	pid, err := strconv.Atoi(string(found[1]))
	if err != nil {
		m.t.Fatal(err)
	}
	return pid
}

// running reports whether a process exists and not all of its threads have ended.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	const state, threads = 0, 17
	return f[state] != "Z" || f[threads] != "1" // Z: ended, but its parent has not waited for it
}

// killServer kills the machine's local server, if there is one, and waits until it has ended.
func (m *machine) killServer() {
	pid := m.serverPID()
	if args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); !strings.Contains(string(args), m.home()) {
		return // the server has ended, and its process id may be in use by another process
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	eventually(m.t, "end of the local server", func() bool { return !running(pid) })
}

// killServers kills all local servers that the test has started, including those that are not ready
// yet.
func (m *machine) killServers() {
	eventually(m.t, "end of the local servers", func() bool {
		pids := m.serverPIDs()
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(pids) == 0
	})
}

func TestLocal_firstUseStartsServer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.run("demo", "--", "sh", "-c", "echo hello from $STILE_URL")
	c.expectExit(0)
	if got := c.stdout.String(); got != "hello from local:\n" {
		t.Errorf("got stdout %q, want %q", got, "hello from local:\n")
	}
	pid := m.serverPID()
	if pid == 0 || !running(pid) {
		t.Fatalf("no server is running after the first use: got PID %d", pid)
	}
	m.setenv("STILE_URL", "local:")
	m.run("demo", "--", "true").expectExit(0)
	m.setenv("STILE_URL", "etcd://127.0.0.1:1")
	m.run("--url", "local:", "demo", "--", "true").expectExit(0)
	if again := m.serverPID(); again != pid {
		t.Errorf("later uses have started another server: got PID %d, want %d", again, pid)
	}
}

func TestLocal_concurrentFirstUses(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.write("counter", "0", 0o600)
	var all []*command
	const clients = 8
	script := "read n <counter; sleep 0.01; echo $((n+1)) >counter"
	for range clients {
		all = append(all, m.runCommand("demo", "--", "sh", "-c", script).spawn())
	}
	for _, c := range all {
		c.expectExit(0)
	}
	if got := strings.TrimSpace(m.read("counter")); got != strconv.Itoa(clients) {
		t.Errorf("%d commands have counted to %s", clients, got)
	}
}

func TestLocal_replacesDeadServer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	token := func() uint64 {
		c := m.run("demo", "--", "sh", "-c", "echo $STILE_TOKEN")
		c.expectExit(0)
		n, err := strconv.ParseUint(strings.TrimSpace(c.stdout.String()), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before, pid := token(), m.serverPID()
	m.killServer()
	if _, err := os.Stat(m.socketLink()); err != nil {
		t.Fatalf("this test needs the link to the dead server's socket: %v", err)
	}
	if after := token(); after <= before {
		t.Errorf("got token %[2]d after token %[1]d, want a larger one", before, after)
	}
	if again := m.serverPID(); again == pid || again == 0 {
		t.Errorf("got server PID %d, want a server other than %d", again, pid)
	}
}

func TestLocal_serverDiesAfterConnect(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	l, err := net.Listen("unix", m.prepareRuntimeSocket())
	if err != nil {
		t.Fatal(err)
	}
	lock := m.lockPIDFile()
	go func() {
		_, _ = l.Accept() // a client has found the server
		l.Close()
		lock.Unlock()
	}()
	m.run("demo", "--", "true").expectExit(0)
	if m.serverPID() == 0 {
		t.Error("no server was started")
	}
}

// A cron job has no XDG_RUNTIME_DIR and a login has one; both must use the same server, so that
// they exclude each other. A server of an earlier version has its socket in that directory.
func TestLocal_withoutRuntimeDir(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.startBackground(m.prepareRuntimeSocket(), time.Hour)
	m.start(sleepScript, "demo")
	pid := m.serverPID()
	m.setenv("XDG_RUNTIME_DIR", "")
	m.run("-n", "demo", "--", "true").expectExit(75, "demo")
	if again := m.serverPID(); again != pid {
		t.Errorf("another server was started: got PID %d, want %d", again, pid)
	}
}

// The server may end together with what started it, for example with a systemd service.
func TestLocal_holdsSurviveKilledServer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	holder := m.start(endableScript, "demo")
	waiter := m.runCommand("-v", "demo", "--", "true").spawn()
	eventually(t, "waiter in line", func() bool { return strings.Contains(waiter.stderr.String(), "next in line") })
	before := m.serverPID()
	m.killServer()
	eventually(t, "another server", func() bool { return m.serverPID() != before && running(m.serverPID()) })
	m.run("-n", "demo", "--", "true").expectExit(75, "demo")
	m.endScript()
	holder.expectExit(0)
	if code := waiter.exitCode(); code != 0 {
		t.Errorf("waiter: got exit code %d, want 0; stderr: %s", code, waiter.stderr)
	}
}

// lockPIDFile locks the pid file, as a running server does.
func (m *machine) lockPIDFile() *filelock.Lock {
	m.t.Helper()
	lock, err := filelock.Try(filepath.Join(m.home(), "pid"), filelock.Exclusive)
	if err != nil {
		m.t.Fatal(err)
	}
	return lock
}

// The copy contains a link to the original server's socket.
func TestLocal_copiedHome(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.start(sleepScript, "demo")
	copied := m.forSubtest(t)
	copied.setenv("XDG_STATE_HOME", m.path("copy"))
	// The server must not write meanwhile: a copy of a half-finished write is damaged.
	original := m.serverPID()
	pause(t, original)
	out, err := exec.Command("cp", "-a", m.path(".local", "state"), m.path("copy")).CombinedOutput()
	if e := syscall.Kill(original, syscall.SIGCONT); err != nil || e != nil {
		t.Fatalf("%v, %v: %s", err, e, out)
	}
	pid := filepath.Join(m.path("copy"), "stile", "local", "pid")
	before, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	copied.run("-n", "other", "--", "true").expectExit(0)
	after, err := os.ReadFile(pid)
	if err != nil || string(after) == string(before) {
		t.Fatalf("the copy has no server of its own: got pid file %s, %v", after, err)
	}
}

// serverPIDs returns the process ids of the machine's local servers, including those that are not
// ready yet.
func (m *machine) serverPIDs() []int {
	m.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		m.t.Fatal(err)
	}
	var pids []int
	for _, file := range files {
		args, _ := os.ReadFile(file) // empty if the process has ended
		if !strings.Contains(string(args), "--background\x00"+m.dir+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// On a busy machine a start takes a while, and a user types ^C and tries again.
func TestLocal_serverAlreadyStarting(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.prepareRuntimeSocket()
	lock := m.lockPIDFile()
	// The stile run that has started this server was interrupted.
	starting := m.command("serve", "--background", m.home(), "--socket", m.prepareRuntimeSocket()).spawn()
	next := m.runCommand("demo", "--", "true").spawn()
	lock.Unlock()
	next.expectExit(0)
	// If the first server was not the first to lock the pid file, it has noticed that and ended. So
	// there is never more than one server.
	if pid := m.serverPID(); pid != 0 && pid != starting.Process.Pid {
		eventually(t, "end of the second server", starting.hasEnded)
	}
}

// A hundred holders may try to start a server while the disk is full.
func TestLocal_restartBackoff(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.start(sleepScript, "--ttl", "300", "demo")
	data := filepath.Join(m.home(), "data")
	if err := os.Rename(data, data+".away"); err != nil {
		t.Fatal(err)
	}
	m.writeServerFile("in the way", "data")
	m.killServer()
	pid := filepath.Join(m.home(), "pid")
	last, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	var starts []time.Time
	for len(starts) < 3 {
		eventually(t, "another start", func() bool {
			now, err := os.ReadFile(pid)
			another := err == nil && strings.HasSuffix(string(now), "\n") && string(now) != string(last)
			if another {
				last = now
			}
			return another
		})
		info, err := os.Stat(pid)
		if err != nil {
			t.Fatal(err)
		}
		starts = append(starts, info.ModTime())
	}
	for i, minDelay := range []time.Duration{2 * time.Second, 4 * time.Second} {
		if got := starts[i+1].Sub(starts[i]); got < minDelay {
			t.Errorf("started again after %v, want at least %v", got, minDelay)
		}
	}
}

// socketLink returns the path of the link to the local server's socket.
func (m *machine) socketLink() string { return filepath.Join(m.home(), "socket") }

// Holders look for the next server at the same socket.
func TestLocal_keepsSocketPath(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run("demo", "--", "true").expectExit(0)
	before, err := os.Readlink(m.socketLink())
	m.killServer()
	m.symlink(m.path(".local", "state"), m.path("state")) // another path of the same home
	m.setenv("XDG_STATE_HOME", m.path("state"))
	m.setenv("XDG_RUNTIME_DIR", "")
	m.run("demo", "--", "true").expectExit(0)
	if after, e := os.Readlink(m.socketLink()); err != nil || e != nil || after != before {
		t.Errorf("the next server's socket is %[2]s, want %[1]s: %[3]v, %[4]v", before, after, err, e)
	}
}

// prepareRuntimeSocket creates the directories and the socket link of a local server of an earlier
// version, which had its socket in the runtime directory. It returns the path of the socket, which
// does not exist yet.
func (m *machine) prepareRuntimeSocket() string {
	m.t.Helper()
	sum := sha256.Sum256([]byte(m.home()))
	socket := m.path("run", "stile", fmt.Sprintf("local-%x.sock", sum[:6]))
	for _, dir := range []string{m.home(), filepath.Dir(socket)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			m.t.Fatal(err)
		}
	}
	if err := os.Symlink(socket, m.socketLink()); err != nil && !errors.Is(err, fs.ErrExist) {
		m.t.Fatal(err)
	}
	return socket
}

// startBackground starts the machine's local server directly, with this idle timeout.
func (m *machine) startBackground(socket string, idle time.Duration) *command {
	m.t.Helper()
	c := m.command("serve", "--background", m.home(), "--socket", socket, "--idle", idle.String()).spawn()
	// The file of a socket exists before its server listens.
	eventually(m.t, "a server at the socket", func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err == nil || c.hasEnded()
	})
	return c
}

func TestLocal_idleTimeout(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	socket := m.prepareRuntimeSocket()
	// The server does not end while a client holds this lock.
	searching, err := filelock.Try(filepath.Join(m.home(), "lock"), filelock.Shared)
	if err != nil {
		t.Fatal(err)
	}
	server := m.startBackground(socket, time.Second)
	holder := m.start("touch started; sleep 3; kill -0 "+strconv.Itoa(server.Process.Pid), "demo")
	searching.Unlock()
	holder.expectExit(0) // the server still ran after three times its idle timeout
	if code := server.exitCode(); code != 0 {
		t.Errorf("got exit code %d, want 0; stderr: %s", code, server.stderr)
	}
	if printed := server.stderr.String(); !strings.Contains(printed, "idle") {
		t.Errorf("the log does not say that the server ends because it is idle: %s", printed)
	}
	m.run("demo", "--", "true").expectExit(0)
	if m.serverPID() == 0 {
		t.Error("no server was started after the end of the idle one")
	}
}

// goProgram returns a command: a Go program that opens the store STILE_URL, locks a name and ends when
// its standard input does.
func goProgram(name string) []string {
	return []string{"env", holderVar + "=" + name, os.Args[0]}
}

// The command under stile run opens the same store by the URL that it gets.
func TestLocal_goProgram(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.run(append([]string{"outer", "--"}, goProgram("inner")...)...)
	c.expectExit(0)
	if got := c.stdout.String(); got != "held\n" {
		t.Errorf("got stdout %q, want held", got)
	}
	if pids := m.serverPIDs(); len(pids) != 1 {
		t.Errorf("%d servers run, want one", len(pids))
	}
}

func TestLocal_goProgramStartsNoServer(t *testing.T) {
	m := newMachine(t)
	t.Setenv("HOME", m.dir)
	t.Setenv("XDG_STATE_HOME", "")
	_, err := storeurl.Open(t.Context(), "local:", nil)
	if got := fmt.Sprint(err); !strings.Contains(got, "no local server runs") || !strings.Contains(got, "STILE_URL=local: stile ls") {
		t.Errorf("the error does not say what to do: %s", got)
	}
	if _, err := os.Lstat(m.path(".local")); err == nil {
		t.Error("the program has created the state directory")
	}
}

// A store that a Go program has opened keeps the server, even without a lock.
func TestLocal_staysForGoProgram(t *testing.T) {
	m := newMachine(t)
	t.Setenv("HOME", m.dir)
	t.Setenv("XDG_STATE_HOME", "")
	socket := m.prepareRuntimeSocket()
	// The server does not end while a client holds this lock.
	searching, err := filelock.Try(filepath.Join(m.home(), "lock"), filelock.Shared)
	if err != nil {
		t.Fatal(err)
	}
	const idle = 500 * time.Millisecond
	server := m.startBackground(socket, idle)
	opened, err := testservers.Retry(func() (*storeurl.Conn, error) { return storeurl.Open(t.Context(), "local:", nil) })
	searching.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-server.done:
		t.Errorf("the server ended while the store was open: %s", server.stderr)
	case <-time.After(4 * idle):
	}
	if err := opened.Close(); err != nil {
		t.Error(err)
	}
	if code := server.exitCode(); code != 0 || !strings.Contains(server.stderr.String(), "idle") {
		t.Errorf("got exit code %d, want 0 and an end as idle; stderr: %s", code, server.stderr)
	}
}

func TestLocal_listensOnSocketOnly(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run("demo", "--", "true").expectExit(0)
	pid := m.serverPID()
	for _, line := range ipSockets(t, pid) {
		t.Errorf("the server has a socket: %s", line)
	}
	if info, err := os.Stat(m.home()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s: got %v, %v, want mode 0700", m.home(), info, err)
	}
}

// The server runs longer than its first user, and its environment can be read in /proc all the
// time.
func TestLocal_environment(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, name := range []string{
		"AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "STILE_SECRET", "NOTIFY_SOCKET", "SSH_AUTH_SOCK", "GOPROXY", "ETCD_NAME",
		"LCX", "PATHS", "HOMES", "_XDG_",
	} {
		m.setenv(name, "not for the server")
	}
	passed := []string{"LANG=C", "LC_TIME=C", "TMPDIR=" + m.dir, "TZ=UTC", "GOMAXPROCS=1", "XDG_DATA_HOME=" + m.dir}
	for _, v := range passed {
		name, value, _ := strings.Cut(v, "=")
		m.setenv(name, value)
	}
	m.run("demo", "--", "true").expectExit(0)
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", m.serverPID()))
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSuffix(string(environ), "\x00"), "\x00")
	want := append(passed, "PATH="+os.Getenv("PATH"), "HOME="+m.dir, "XDG_RUNTIME_DIR="+m.path("run"), "LC_ALL=C")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the server's environment is %q, want %q", got, want)
	}
}

// The processes of a command that is stopped are recognized by their environment.
func TestLocal_notStoppedWithCommand(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	c := m.start(stile+` run --url local: inner -- true; touch started; while :; do read end <end; done`, "--url", s.url, "outer")
	evict(t, s.client(t), "outer")
	c.expectExit(79, "stopping the command")
	if pid := m.serverPID(); !running(pid) {
		t.Error("the local server was stopped together with the command that started it")
	}
}

// Files that a shell has open, such as a lock file of flock(1), must not stay open as long as the
// server runs.
func TestLocal_closesInheritedFiles(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := m.runCommand("demo", "--", "sh", "-c", "echo from the command >&7")
	c.ExtraFiles = []*os.File{3: nil, 4: w} // becomes file 7, as a shell's exec 7> would
	c.Stdin = nil
	c.spawn().expectExit(0)
	w.Close()
	read := make(chan string)
	go func() {
		text, _ := io.ReadAll(r) // ends when no process has the pipe open for writing
		read <- string(text)
	}()
	select {
	case text := <-read:
		if text != "from the command\n" {
			t.Errorf("the command could not write to an inherited file: %q", text)
		}
	case <-time.After(testTimeout): // the server's idle timeout is ten minutes
		t.Error("the server keeps an inherited file open")
	}
	if pid := m.serverPID(); !running(pid) {
		t.Errorf("the server (PID %d) is not running", pid)
	}
}

func TestLocal_goRun(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := exec.Command("go", "run", ".", "run", "demo", "--", "echo", "hello")
	c.Env = append(os.Environ(), "HOME="+m.dir, "XDG_RUNTIME_DIR="+m.path("run"), "XDG_STATE_HOME=", "STILE_URL=")
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH"} { // whose defaults depend on HOME
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		c.Env = append(c.Env, name+"="+strings.TrimSpace(string(value)))
	}
	out, err := c.Output()
	if err != nil || string(out) != "hello\n" {
		t.Errorf("got stdout %q, %v, want hello", out, err)
	}
	if pid := m.serverPID(); !running(pid) {
		t.Errorf("the server (PID %d) is not running", pid)
	}
}

func TestRun_unknownScheme(t *testing.T) {
	t.Parallel()
	newMachine(t).run("--url", "foo://h", "demo", "--", "true").expectExit(125, `"foo"`, "etcd://", "local:")
}
