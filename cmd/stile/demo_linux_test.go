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

// stage is a stile demo that runs, or has run, with its output in a file and its own directory for temporary files.
type stage struct {
	*command
}

// demo starts stile demo.
func (m *machine) demo(args ...string) *stage {
	m.t.Helper()
	if err := os.MkdirAll(m.path("tmp"), 0o700); err != nil {
		m.t.Fatal(err)
	}
	m.set("TMPDIR", m.path("tmp"))
	d := &stage{m.command(append([]string{"demo"}, args...)...)}
	out, err := os.Create(m.path("screen"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { out.Close() })
	d.Cmd.Stdout = out
	d.begin()
	return d
}

// screen is what the demo has said so far.
func (d *stage) screen() string { return d.m.read("screen") }

// succeedKilled lets the next one in after the worker that is killed: it ends its session, rather than wait for that to run
// out, so that it can be one that none of the others loses.
func (d *stage) succeedKilled(cli *clientv3.Client) {
	d.m.t.Helper()
	d.m.await("screen", "killed with -9, at ")
	d.m.await("screen", "which is dead, holds the lock")
	time.Sleep(110 * time.Millisecond) // so that it can be said for how long the lock was closed
	revoke(d.m.t, cli, "demo")
}

// verdict returns the numbers in the last line.
func (d *stage) verdict() (expected, found int) {
	d.m.t.Helper()
	said := regexp.MustCompile(`\nexpected (\d+), found (\d+)\n$`).FindStringSubmatch(d.screen())
	if said == nil {
		d.m.t.Fatalf("the last line is no verdict: %s", d.screen())
	}
	return d.number(said[1]), d.number(said[2])
}

// numbers returns what a pattern, with one group, matches in what the demo has said.
func (d *stage) numbers(pattern string) (all []int) {
	d.m.t.Helper()
	for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(d.screen(), -1) {
		all = append(all, d.number(found[1]))
	}
	return all
}

func (d *stage) number(text string) int {
	d.m.t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		d.m.t.Fatal(err)
	}
	return n
}

// workers returns the process ids of the workers that run, by number. Nothing else runs in the machine's home.
func (d *stage) workers() map[string]int {
	d.m.t.Helper()
	found := make(map[string]int)
	paths, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		d.m.t.Fatal(err)
	}
	for _, path := range paths {
		cwd, err := os.Readlink(path)
		if err != nil || cwd != d.m.dir {
			continue // or it has ended meanwhile
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if number, ok := strings.CutPrefix(string(line), stile+"\x00demo\x00--worker\x00"); ok {
			found[strings.TrimSuffix(number, "\x00")] = d.number(strings.Split(path, "/")[2])
		}
	}
	return found
}

// leavesNothing checks that no worker and no file is left.
func (d *stage) leavesNothing() {
	d.m.t.Helper()
	if left := d.workers(); len(left) > 0 {
		d.m.t.Errorf("workers are left: %v", left)
	}
	left, err := os.ReadDir(d.m.path("tmp"))
	if err != nil || len(left) > 0 {
		d.m.t.Errorf("files are left: %v, %v", left, err)
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	d := m.demo("--url", s.url, "--workers", "4", "--add", "900", "--ttl", lasting)
	d.succeedKilled(s.client(t))
	d.wants(0)
	d.leavesNothing()

	expected, found := d.verdict()
	if want := 3*900 + 450; expected != want || found != want {
		t.Errorf("expected %d, found %d, want %d of both: the killed worker's part counts", expected, found, want)
	}
	if !regexp.MustCompile(`line +worker \d, which is dead, holds the lock, token \d+; waiting: \d`).MatchString(d.screen()) {
		t.Error("the store is not shown to keep the lock for the dead worker")
	}
	tokens := d.numbers(`has the lock, token (\d+)`)
	if len(tokens) != 4 || !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != 4 {
		t.Errorf("tokens: %v; want four that grow", tokens)
	}
	closed := regexp.MustCompile(`After the kill the lock stayed held for (\d+)\.(\d\d) s\.`).FindStringSubmatch(d.screen())
	if closed == nil || d.number(closed[1]+closed[2]) < 10 {
		t.Errorf("the lock is not said to have been closed after the kill: %q", closed)
	}
	if t.Failed() {
		t.Log(d.screen())
	}
}

// Several processes at once, each thousands of times without a break: that none gets between another's reading and
// writing does not happen. No store is asked.
func TestDemoWithoutTheLock(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.set("STILE_URL", "etcd://127.0.0.1:1")
	d := m.demo("--without-lock", "--workers", "4", "--add", "16000")
	d.wants(1)
	d.leavesNothing()
	expected, found := d.verdict()
	if want := 3*16_000 + 8_000; expected != want || found >= want {
		t.Errorf("expected %d, found %d; want %d and less", expected, found, want)
	}
	if lost := d.numbers(`(\d+) increments were lost`); len(lost) != 1 || lost[0] != expected-found {
		t.Errorf("said to be lost: %v", lost)
	}
}

func TestTheDemoNeedsNothingSetUp(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	d := m.demo("--workers", "2", "--add", "10", "--ttl", lasting)
	m.await("screen", "which is dead, holds the lock")
	socket, err := os.Readlink(m.link())
	if err != nil {
		t.Fatal(err)
	}
	d.succeedKilled(client(t, "unix://"+socket))
	d.wants(0)
	if expected, found := d.verdict(); expected != 15 || found != 15 {
		t.Errorf("expected %d, found %d; want 15", expected, found)
	}
	if !strings.Contains(d.screen(), " in local:,\n") {
		t.Errorf("not said where the lock is: %s", d.screen())
	}
}

// longer than any test takes.
const longDemo = "10000000"

func TestADemoThatIsInterruptedLeavesNothing(t *testing.T) {
	t.Parallel()
	s := shared(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		for _, lock := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, with lock: %v", sig, lock), func(t *testing.T) {
				t.Parallel()
				m := newMachine(t)
				d := m.demo("--url", s.url, "--workers", "3", "--add", longDemo, fmt.Sprintf("--without-lock=%v", !lock))
				m.await("screen", map[bool]string{true: "waiting: ", false: "begins to add"}[lock])
				if n := len(d.workers()); n != 3 {
					t.Errorf("%d workers run", n)
				}
				d.signal(sig)
				d.wants(128 + int(sig))
				d.leavesNothing()
			})
		}
	}
}

// A signal to the whole process group, as ^C and timeout(1) send it, is the parent's business.
func TestWorkersLeaveSignalsToTheirParent(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	d := m.demo("--url", s.url, "--workers", "2", "--add", "10000", "--ttl", lasting)
	m.await("screen", "has the lock")
	for _, pid := range d.workers() {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
			_ = syscall.Kill(pid, sig) // it may have ended meanwhile
		}
	}
	d.succeedKilled(s.client(t))
	d.wants(0)
}

func TestWorkersEndWhenTheirParentIsKilled(t *testing.T) {
	t.Parallel()
	s := shared(t)
	for _, lock := range []bool{true, false} {
		t.Run(fmt.Sprintf("with lock: %v", lock), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			d := m.demo("--url", s.url, "--workers", "3", "--add", longDemo, fmt.Sprintf("--without-lock=%v", !lock))
			m.await("screen", map[bool]string{true: "waiting: ", false: "begins to add"}[lock])
			d.signal(syscall.SIGKILL)
			<-d.done
			eventually(t, "end of the workers", func() bool { return len(d.workers()) == 0 })
		})
	}
}

// Then nobody knows what it has written last.
func TestADemoWhoseWorkerIsKilledBySomebodyElseFails(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	d := m.demo("--url", s.url, "--workers", "3", "--add", longDemo)
	m.await("screen", "waiting: ")
	pid := d.workers()["2"]
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.wants(125, fmt.Sprintf("worker 2 (pid %d)", pid), "signal: killed")
	d.leavesNothing()
}

func TestADemoThatNobodyReadsEnds(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("TMPDIR", m.dir)
	c := m.at("sh", "-c", fmt.Sprintf("%s demo --url %s --add %s | head -n 2; ls -d stile-demo-*; echo over", stile, s.url, longDemo))
	c.sees("broken pipe")
	c.sees("No such file")
	c.sees("over")
}

func TestTheDemoOnATerminal(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	c := m.at("sh", "-c", fmt.Sprintf("stty rows 24 cols 80; TERM=xterm %s demo --url %s --workers 3 --add 4000 --ttl %s; echo code $?",
		stile, s.url, lasting))
	c.sees("3 processes each add 1")
	c.sees("worker      pid") // the table
	c.sees("killed, holds    ##################..................")
	c.sees(" 2000")
	const hide, show = "\x1b[?25l", "\x1b[?25h"
	eventually(t, "some pictures", func() bool { return strings.Count(c.shown(), hide) >= 5 })
	revoke(t, s.client(t), "demo")
	c.sees("expected 10000, found 10000")
	c.sees("code 0")
	screen := c.shown()
	if n := strings.Count(screen, hide); n < 5 || n != strings.Count(screen, show) {
		t.Errorf("the cursor was hidden %d times and shown %d times", n, strings.Count(screen, show))
	}
	if strings.Contains(screen, "joins the line") {
		t.Error("there are lines for events besides the table")
	}
}

func TestBadUseOfTheDemo(t *testing.T) {
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
			m.set("STILE_URL", s.url)
			d := m.demo(c.args...)
			d.wants(125, c.parts...)
			d.leavesNothing()
			if got := d.screen(); got != "" {
				t.Errorf("it has begun all the same: %s", got)
			}
		})
	}
}
