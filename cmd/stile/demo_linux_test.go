package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// demoRun is a stile demo that may be running. Its output goes to a file, and it has its own
// directory for temporary files.
type demoRun struct {
	*command
}

// demo starts stile demo.
func (m *machine) demo(args ...string) *demoRun {
	m.t.Helper()
	if err := os.MkdirAll(m.path("tmp"), 0o700); err != nil {
		m.t.Fatal(err)
	}
	m.setenv("TMPDIR", m.path("tmp"))
	d := &demoRun{m.command(append([]string{"demo"}, args...)...)}
	out, err := os.Create(m.path("screen"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { out.Close() })
	d.Cmd.Stdout = out
	d.spawn()
	return d
}

// screen returns what the demo has printed so far.
func (d *demoRun) screen() string { return d.m.read("screen") }

// revokeKilledWorker revokes the session of the killed worker, so that the next worker is admitted
// without waiting for the session to expire. So sessions can have a TTL that no other worker
// exceeds on a busy machine.
func (d *demoRun) revokeKilledWorker(cli *clientv3.Client) {
	d.m.t.Helper()
	d.m.awaitFile("screen", "killed with -9, at ")
	d.m.awaitFile("screen", "which is dead, holds the lock")
	time.Sleep(110 * time.Millisecond) // so that the time for which the lock stayed held is not rounded to 0
	revoke(d.m.t, cli, "demo")
}

// counts returns the two numbers in the last line.
func (d *demoRun) counts() (expected, found int) {
	d.m.t.Helper()
	match := regexp.MustCompile(`\nexpected (\d+), found (\d+)\n$`).FindStringSubmatch(d.screen())
	if match == nil {
		d.m.t.Fatalf("the last line has no result: %s", d.screen())
	}
	return d.number(match[1]), d.number(match[2])
}

// numbers returns all numbers that the only group of a pattern matches in the demo's output.
func (d *demoRun) numbers(pattern string) (all []int) {
	d.m.t.Helper()
	for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(d.screen(), -1) {
		all = append(all, d.number(found[1]))
	}
	return all
}

func (d *demoRun) number(text string) int {
	d.m.t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		d.m.t.Fatal(err)
	}
	return n
}

// workers returns the process ids of the running workers by their numbers. Workers are found by
// their working directory, the machine's home directory.
func (d *demoRun) workers() map[string]int {
	d.m.t.Helper()
	found := make(map[string]int)
	paths, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		d.m.t.Fatal(err)
	}
	for _, path := range paths {
		cwd, err := os.Readlink(path)
		if err != nil || cwd != d.m.dir {
			continue // another process, or it has just ended
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if number, ok := strings.CutPrefix(string(line), stile+"\x00demo\x00--worker\x00"); ok {
			found[strings.TrimSuffix(number, "\x00")] = d.number(strings.Split(path, "/")[2])
		}
	}
	return found
}

// expectNothingLeft checks that no workers and no temporary files are left.
func (d *demoRun) expectNothingLeft() {
	d.m.t.Helper()
	if left := d.workers(); len(left) > 0 {
		d.m.t.Errorf("running workers: %v, want none", left)
	}
	left, err := os.ReadDir(d.m.path("tmp"))
	if err != nil || len(left) > 0 {
		d.m.t.Errorf("files left: %v, %v, want none", left, err)
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	d := m.demo("--url", s.url, "--workers", "4", "--add", "900", "--ttl", longTTL)
	d.revokeKilledWorker(s.client(t))
	d.expectExit(0)
	d.expectNothingLeft()

	expected, found := d.counts()
	if want := 3*900 + 450; expected != want || found != want {
		t.Errorf("expected %d, found %d, want %d for both, with the increments of the killed worker", expected, found, want)
	}
	if !regexp.MustCompile(`line +worker \d, which is dead, holds the lock, token \d+; waiting: \d`).MatchString(d.screen()) {
		t.Error("the output does not show that the dead worker still holds the lock")
	}
	tokens := d.numbers(`has the lock, token (\d+)`)
	if len(tokens) != 4 || !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != 4 {
		t.Errorf("got tokens %v, want four increasing ones", tokens)
	}
	closed := regexp.MustCompile(`After the kill the lock stayed held for (\d+)\.(\d\d) s\.`).FindStringSubmatch(d.screen())
	if closed == nil || d.number(closed[1]+closed[2]) < 10 {
		t.Errorf("got %q for the time that the lock stayed held after the kill, want 0.10 s or more", closed)
	}
	if t.Failed() {
		t.Log(d.screen())
	}
}

// Each of several processes adds thousands of times without a pause, so some increments are lost in
// practice. The store is not used: its URL cannot be reached.
func TestDemo_withoutLock(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.setenv("STILE_URL", "etcd://127.0.0.1:1")
	d := m.demo("--without-lock", "--workers", "4", "--add", "16000")
	d.expectExit(1)
	d.expectNothingLeft()
	expected, found := d.counts()
	if want := 3*16_000 + 8_000; expected != want || found >= want {
		t.Errorf("expected %d, found %d; want %[3]d expected and fewer found", expected, found, want)
	}
	if lost := d.numbers(`(\d+) increments were lost`); len(lost) != 1 || lost[0] != expected-found {
		t.Errorf("got lost increments %v, want the difference", lost)
	}
}

func TestDemo_localServer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	d := m.demo("--workers", "2", "--add", "10", "--ttl", longTTL)
	m.awaitFile("screen", "which is dead, holds the lock")
	socket, err := os.Readlink(m.socketLink())
	if err != nil {
		t.Fatal(err)
	}
	d.revokeKilledWorker(client(t, "unix://"+socket))
	d.expectExit(0)
	if expected, found := d.counts(); expected != 15 || found != 15 {
		t.Errorf("expected %d, found %d; want 15", expected, found)
	}
	if !strings.Contains(d.screen(), " in local:,\n") {
		t.Errorf("the output does not name the store: %s", d.screen())
	}
}

// longDemo is a number of increments that takes longer than any test.
const longDemo = "10000000"

func TestDemo_interrupted(t *testing.T) {
	t.Parallel()
	s := shared(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		for _, lock := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, with lock: %v", sig, lock), func(t *testing.T) {
				t.Parallel()
				m := newMachine(t)
				d := m.demo("--url", s.url, "--workers", "3", "--add", longDemo, fmt.Sprintf("--without-lock=%v", !lock))
				m.awaitFile("screen", map[bool]string{true: "waiting: ", false: "begins to add"}[lock])
				if n := len(d.workers()); n != 3 {
					t.Errorf("got %d workers, want 3", n)
				}
				d.signal(sig)
				d.expectExit(128 + int(sig))
				d.expectNothingLeft()
			})
		}
	}
}

// A signal to the whole process group, as ^C and timeout(1) send it, is handled by the parent
// alone.
func TestDemo_workersIgnoreSignals(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	d := m.demo("--url", s.url, "--workers", "2", "--add", "10000", "--ttl", longTTL)
	m.awaitFile("screen", "has the lock")
	for _, pid := range d.workers() {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
			_ = syscall.Kill(pid, sig) // the worker may have ended
		}
	}
	d.revokeKilledWorker(s.client(t))
	d.expectExit(0)
}

func TestDemo_workersEndWithParent(t *testing.T) {
	t.Parallel()
	s := shared(t)
	for _, lock := range []bool{true, false} {
		t.Run(fmt.Sprintf("with lock: %v", lock), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			d := m.demo("--url", s.url, "--workers", "3", "--add", longDemo, fmt.Sprintf("--without-lock=%v", !lock))
			m.awaitFile("screen", map[bool]string{true: "waiting: ", false: "begins to add"}[lock])
			d.signal(syscall.SIGKILL)
			<-d.done
			eventually(t, "end of the workers", func() bool { return len(d.workers()) == 0 })
		})
	}
}

// The value that the killed worker wrote last is unknown then.
func TestDemo_workerKilledFromOutside(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	d := m.demo("--url", s.url, "--workers", "3", "--add", longDemo)
	m.awaitFile("screen", "waiting: ")
	pid := d.workers()["2"]
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.expectExit(125, fmt.Sprintf("worker 2 (pid %d)", pid), "signal: killed")
	d.expectNothingLeft()
}

func TestDemo_closedPipe(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("TMPDIR", m.dir)
	c := m.atTerminal("sh", "-c", fmt.Sprintf("%s demo --url %s --add %s | head -n 2; ls -d stile-demo-*; echo over", stile, s.url, longDemo))
	c.awaitScreen("broken pipe")
	c.awaitScreen("No such file")
	c.awaitScreen("over")
}

func TestDemo_onTerminal(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	c := m.atTerminal("sh", "-c", fmt.Sprintf("stty rows 24 cols 80; TERM=xterm %s demo --url %s --workers 3 --add 4000 --ttl %s; echo code $?",
		stile, s.url, longTTL))
	c.awaitScreen("3 processes each add 1")
	c.awaitScreen("worker      pid") // the table
	c.awaitScreen("killed, holds    ##################..................")
	c.awaitScreen(" 2000")
	const hide, show = "\x1b[?25l", "\x1b[?25h"
	eventually(t, "five redraws of the table", func() bool { return strings.Count(c.screenText(), hide) >= 5 })
	revoke(t, s.client(t), "demo")
	c.awaitScreen("expected 10000, found 10000")
	c.awaitScreen("code 0")
	screen := c.screenText()
	if n := strings.Count(screen, hide); n < 5 || n != strings.Count(screen, show) {
		t.Errorf("the cursor was hidden %d times and shown %d times, want at least 5 of each", n, strings.Count(screen, show))
	}
	if strings.Contains(screen, "joins the line") {
		t.Error("the output has lines for events in addition to the table")
	}
}

func TestDemo_invalidArguments(t *testing.T) {
	t.Parallel()
	s := shared(t)
	for _, c := range []struct {
		args  []string
		parts []string
	}{
		{[]string{"--workers", "1"}, []string{"--workers 1", "2 to 20"}},
		{[]string{"--add", "0"}, []string{"--add 0", "1 to"}},
		{[]string{"--ttl", "0"}, []string{"--ttl", "longer than 0"}},
		{[]string{"--ttl", "0.5"}, []string{"TTL of 500ms", "1s to 5m0s"}},
		{[]string{"--url", "mem:"}, []string{"mem:", "memory of one process"}},
		{[]string{"--url", "etcd://127.0.0.1:1"}, []string{"127.0.0.1:1", "refused"}},
		{[]string{"--worker", "3"}, []string{"read the worker's job", "stile demo"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.setenv("STILE_URL", s.url)
			d := m.demo(c.args...)
			d.expectExit(125, c.parts...)
			d.expectNothingLeft()
			if got := d.screen(); got != "" {
				t.Errorf("the demo has started: %s", got)
			}
		})
	}
}
