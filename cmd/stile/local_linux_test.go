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

	"github.com/stilelock/stile/cmd/stile/internal/filelock"
)

// server returns the process id of the machine's local server that was last started; 0 if none was.
func (m *machine) server() int {
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

// running reports whether there is a process that has not ended, with all its threads.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	const state, threads = 0, 17
	return f[state] != "Z" || f[threads] != "1" // Z: nobody has asked for its status yet
}

// killServer kills the machine's local server, if there is one, and waits for its end.
func (m *machine) killServer() {
	pid := m.server()
	if args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); !strings.Contains(string(args), m.home()) {
		return // it has ended, and its number may be that of another by now
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	eventually(m.t, "end of the local server", func() bool { return !running(pid) })
}

// killServers kills all local servers that the test has started here, those too that are not ready yet.
func (m *machine) killServers() {
	eventually(m.t, "end of the local servers", func() bool {
		pids := m.servers()
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(pids) == 0
	})
}

func TestTheFirstUseStartsAServerAndLaterOnesFindIt(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.run("demo", "--", "sh", "-c", "echo hello from $STILE_URL")
	c.wants(0)
	if got := c.stdout.String(); got != "hello from local:\n" {
		t.Errorf("stdout %q", got)
	}
	pid := m.server()
	if pid == 0 || !running(pid) {
		t.Fatalf("no server is running after the first use: %d", pid)
	}
	m.set("STILE_URL", "local:")
	m.run("demo", "--", "true").wants(0)
	m.set("STILE_URL", "etcd://127.0.0.1:1")
	m.run("--url", "local:", "demo", "--", "true").wants(0)
	if again := m.server(); again != pid {
		t.Errorf("later uses have started another server, %d after %d", again, pid)
	}
}

func TestRacingFirstUsesStartOneServer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.write("counter", "0", 0o600)
	var all []*command
	const racers = 8
	script := "read n <counter; sleep 0.01; echo $((n+1)) >counter"
	for range racers {
		all = append(all, m.runner("demo", "--", "sh", "-c", script).begin())
	}
	for _, c := range all {
		c.wants(0)
	}
	if got := strings.TrimSpace(m.read("counter")); got != strconv.Itoa(racers) {
		t.Errorf("%d commands have counted to %s", racers, got)
	}
}

func TestADeadServerIsReplaced(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	token := func() uint64 {
		c := m.run("demo", "--", "sh", "-c", "echo $STILE_TOKEN")
		c.wants(0)
		n, err := strconv.ParseUint(strings.TrimSpace(c.stdout.String()), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before, pid := token(), m.server()
	m.killServer()
	if _, err := os.Stat(m.link()); err != nil {
		t.Fatalf("the test wants the dead server's socket to be left: %v", err)
	}
	if after := token(); after <= before {
		t.Errorf("the token went from %d to %d", before, after)
	}
	if again := m.server(); again == pid || again == 0 {
		t.Errorf("server %d after %d", again, pid)
	}
}

func TestAServerThatDiesJustAfterItWasFoundIsReplaced(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	l, err := net.Listen("unix", m.place())
	if err != nil {
		t.Fatal(err)
	}
	runs := m.lockPID()
	go func() {
		_, _ = l.Accept() // somebody has found it
		l.Close()
		runs.Unlock()
	}()
	m.run("demo", "--", "true").wants(0)
	if m.server() == 0 {
		t.Error("no server was started")
	}
}

// A cron job has no XDG_RUNTIME_DIR, a login has one: they must exclude each other. A server of an earlier version has its
// socket there.
func TestTheSameServerIsFoundWithoutARuntimeDirectory(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.background(m.place(), time.Hour)
	m.start(sleeper, "demo")
	pid := m.server()
	m.set("XDG_RUNTIME_DIR", "")
	m.run("-n", "demo", "--", "true").wants(75, "demo")
	if again := m.server(); again != pid {
		t.Errorf("another server was started: %d after %d", again, pid)
	}
}

// It may be a part of what has started it, and end with that: a service of systemd, for example.
func TestHoldsAndWaitersOutliveTheServer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	holder := m.start(untilTold, "demo")
	waiter := m.runner("-v", "demo", "--", "true").begin()
	eventually(t, "the waiter in line", func() bool { return strings.Contains(waiter.stderr.String(), "next in line") })
	before := m.server()
	m.killServer()
	eventually(t, "another server", func() bool { return m.server() != before && running(m.server()) })
	m.run("-n", "demo", "--", "true").wants(75, "demo")
	m.tellEnd()
	holder.wants(0)
	if code := waiter.code(); code != 0 {
		t.Errorf("the waiter: exit code %d: %s", code, waiter.stderr)
	}
}

// lockPID does what a server does that runs.
func (m *machine) lockPID() *filelock.Lock {
	m.t.Helper()
	lock, err := filelock.Try(filepath.Join(m.home(), "pid"), filelock.Exclusive)
	if err != nil {
		m.t.Fatal(err)
	}
	return lock
}

// In the copy there is a link to the socket of the server of the other.
func TestACopyOfAHomeHasAServerOfItsOwn(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.start(sleeper, "demo")
	copied := m.in(t)
	copied.set("XDG_STATE_HOME", m.path("copy"))
	// While the files do not change: a copy of half of a change is damaged, as every backup of that kind is.
	original := m.server()
	if err := syscall.Kill(original, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "standstill of the server", func() bool { return stopped(t, original) })
	out, err := exec.Command("cp", "-a", m.path(".local", "state"), m.path("copy")).CombinedOutput()
	if e := syscall.Kill(original, syscall.SIGCONT); err != nil || e != nil {
		t.Fatalf("%v, %v: %s", err, e, out)
	}
	pid := filepath.Join(m.path("copy"), "stile", "local", "pid")
	before, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	copied.run("-n", "other", "--", "true").wants(0)
	after, err := os.ReadFile(pid)
	if err != nil || string(after) == string(before) {
		t.Fatalf("the server of the copy is that of the other home, or there is none: %s, %v", after, err)
	}
}

// servers returns the process ids of the machine's local servers, with those that are not ready yet.
func (m *machine) servers() []int {
	m.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		m.t.Fatal(err)
	}
	var pids []int
	for _, file := range files {
		args, _ := os.ReadFile(file) // empty once it has ended
		if !strings.Contains(string(args), "--background\x00"+m.dir+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// On a busy machine a start takes a while, and who does not want to wait types ^C and tries again.
func TestAServerThatWasOnItsWayAlreadyWillDo(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.place()
	busy := m.lockPID()
	first := m.command("serve", "--background", m.home(), "--socket", m.place()).begin() // its starter was stopped
	again := m.runner("demo", "--", "true").begin()
	busy.Unlock()
	again.wants(0)
	// If the one that was on its way has not been the first to run, it has noticed and ended. So there is never more than one.
	if pid := m.server(); pid != 0 && pid != first.Process.Pid {
		eventually(t, "end of the server that came too late", func() bool {
			select {
			case <-first.done:
				return true
			default:
				return false
			}
		})
	}
}

// There may be a hundred who hold something while the disk is full.
func TestAServerThatCannotStartIsStartedLessAndLessOften(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.start(sleeper, "--ttl", "300", "demo")
	data := filepath.Join(m.home(), "data")
	if err := os.Rename(data, data+".away"); err != nil {
		t.Fatal(err)
	}
	m.put("in the way", "data")
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
	for i, least := range []time.Duration{2 * time.Second, 4 * time.Second} {
		if got := starts[i+1].Sub(starts[i]); got < least {
			t.Errorf("started again after %v, want at least %v", got, least)
		}
	}
}

// link leads to the socket of the machine's local server.
func (m *machine) link() string { return filepath.Join(m.home(), "socket") }

// Those who hold something look for it there.
func TestTheNextServerIsWhereTheLastOneWas(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run("demo", "--", "true").wants(0)
	before, err := os.Readlink(m.link())
	m.killServer()
	m.symlink(m.path(".local", "state"), m.path("state")) // by another path it is the same home
	m.set("XDG_STATE_HOME", m.path("state"))
	m.set("XDG_RUNTIME_DIR", "")
	m.run("demo", "--", "true").wants(0)
	if after, e := os.Readlink(m.link()); err != nil || e != nil || after != before {
		t.Errorf("it was at %s, and the next one is at %s: %v, %v", before, after, err, e)
	}
}

// place makes what there is of a local server before it runs, as an earlier version would: with the socket in the runtime
// directory. It returns the path of that.
func (m *machine) place() string {
	m.t.Helper()
	sum := sha256.Sum256([]byte(m.home()))
	socket := m.path("run", "stile", fmt.Sprintf("local-%x.sock", sum[:6]))
	for _, dir := range []string{m.home(), filepath.Dir(socket)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			m.t.Fatal(err)
		}
	}
	if err := os.Symlink(socket, m.link()); err != nil && !errors.Is(err, fs.ErrExist) {
		m.t.Fatal(err)
	}
	return socket
}

// background starts the machine's local server by hand, to be idle for no longer than that.
func (m *machine) background(socket string, idle time.Duration) *command {
	m.t.Helper()
	c := m.command("serve", "--background", m.home(), "--socket", socket, "--idle", idle.String()).begin()
	eventually(m.t, "the socket", func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})
	return c
}

func TestAnIdleServerEndsByItself(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	place := m.place()
	looking, err := filelock.Try(filepath.Join(m.home(), "lock"), filelock.Shared) // it does not end while somebody looks for it
	if err != nil {
		t.Fatal(err)
	}
	server := m.background(place, time.Second)
	holder := m.start("touch started; sleep 3; kill -0 "+strconv.Itoa(server.Process.Pid), "demo")
	looking.Unlock()
	holder.wants(0) // the server was there after three times its idle time
	if code := server.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, server.stderr)
	}
	if said := server.stderr.String(); !strings.Contains(said, "idle") {
		t.Errorf("the server does not say why it ends: %s", said)
	}
	m.run("demo", "--", "true").wants(0)
	if m.server() == 0 {
		t.Error("no server was started after the idle one has ended")
	}
}

func TestTheServerListensOnNothingButItsSocket(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run("demo", "--", "true").wants(0)
	pid := m.server()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(fds) == 0 {
		t.Fatalf("found no open files of the server: %v", err)
	}
	sockets := map[string]bool{}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil {
			sockets[target] = true
		}
	}
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			const inode = 9
			if f := strings.Fields(line); len(f) > inode && sockets["socket:["+f[inode]+"]"] {
				t.Errorf("the server has a %s socket: %s", table, line)
			}
		}
	}
	if info, err := os.Stat(m.home()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s: %v, %v, want it to be private", m.home(), info, err)
	}
}

// The server outlives its first user, and what that had in the environment can be read in /proc for as long.
func TestTheServerGetsNoSecretsOfItsFirstUser(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, name := range []string{
		"AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "STILE_SECRET", "NOTIFY_SOCKET", "SSH_AUTH_SOCK", "GOPROXY", "ETCD_NAME",
		"LCX", "PATHS", "HOMES", "_XDG_",
	} {
		m.set(name, "not for the server")
	}
	passed := []string{"LANG=C", "LC_TIME=C", "TMPDIR=" + m.dir, "TZ=UTC", "GOMAXPROCS=1", "XDG_DATA_HOME=" + m.dir}
	for _, v := range passed {
		name, value, _ := strings.Cut(v, "=")
		m.set(name, value)
	}
	m.run("demo", "--", "true").wants(0)
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", m.server()))
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

// What is stopped with a command is known by its environment.
func TestTheServerIsNoPartOfTheCommandThatHasStartedIt(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	c := m.start(stile+` run --url local: inner -- true; touch started; while :; do read end <end; done`, "--url", s.url, "outer")
	evict(t, s.client(t), "outer")
	c.wants(79, "stopping the command")
	if pid := m.server(); !running(pid) {
		t.Error("the local server was stopped with the command that has started it")
	}
}

// What a shell has open, a lock of flock(1) for example, must not stay open for as long as the server runs.
func TestTheServerKeepsNothingOpen(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := m.runner("demo", "--", "sh", "-c", "echo from the command >&7")
	c.ExtraFiles = []*os.File{3: nil, 4: w} // becomes file 7, as a shell's exec 7> would
	c.Stdin = nil
	c.begin().wants(0)
	w.Close()
	read := make(chan string)
	go func() {
		text, _ := io.ReadAll(r) // ends when nobody has the pipe open
		read <- string(text)
	}()
	select {
	case text := <-read:
		if text != "from the command\n" {
			t.Errorf("the command could not write to an inherited file: %q", text)
		}
	case <-time.After(within): // the server waits for ten minutes for somebody to need it
		t.Error("the server has an inherited file open")
	}
	if pid := m.server(); !running(pid) {
		t.Errorf("the server, %d, is not running", pid)
	}
}

func TestOnABareMachineThroughGoRun(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := exec.Command("go", "run", ".", "run", "demo", "--", "echo", "hello")
	c.Env = append(os.Environ(), "HOME="+m.dir, "XDG_RUNTIME_DIR="+m.path("run"), "XDG_STATE_HOME=", "STILE_URL=")
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH"} { // which would follow HOME
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		c.Env = append(c.Env, name+"="+strings.TrimSpace(string(value)))
	}
	out, err := c.Output()
	if err != nil || string(out) != "hello\n" {
		t.Errorf("stdout %q, %v", out, err)
	}
	if pid := m.server(); !running(pid) {
		t.Errorf("the server, %d, is not running", pid)
	}
}

func TestAnUnknownSchemeTellsOfTheLocalServerToo(t *testing.T) {
	t.Parallel()
	newMachine(t).run("--url", "foo://h", "demo", "--", "true").wants(125, `"foo"`, "etcd://", "local:")
}
