package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/internal/testservers"
)

// reaperVar makes the test program a reaper. Its value is the file for the process id of the
// command.
const reaperVar = "STILE_TEST_REAPER"

// reap runs a command and becomes the parent of all orphans below it, as the init of a container
// does. It waits for all children and returns the exit code of the command. A test that waits for
// what a watchdog does after the command's death needs a reaper: a watchdog also waits for orphans
// of other tests if they have the same parent, because it cannot know whether they belong to its
// command.
func reap(file string, args []string) int {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	os.Unsetenv(reaperVar)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	if err := os.WriteFile(file+".new", []byte(pid), 0o600); err != nil {
		panic(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		panic(err)
	}
	code := 0
	for {
		var status unix.WaitStatus
		reaped, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return code
		case reaped == cmd.Process.Pid:
			code = status.ExitStatus()
		}
	}
}

// startUnderReaper is like start, but stile runs under its own reaper. It also returns the process
// id of stile.
func (m *machine) startUnderReaper(script string, args ...string) (c *command, pid int) {
	m.t.Helper()
	self, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	os.Remove(m.path("started"))
	os.Remove(m.path("stile.pid"))
	c = m.runCommand(append(args, "--", "sh", "-c", "exec 2>/dev/null; "+script)...)
	c.Args = append([]string{self, stile}, c.Args[1:]...)
	c.Path = self
	c.Env = append(c.Env, reaperVar+"="+m.path("stile.pid"))
	c.spawn()
	eventually(m.t, "start of the script", func() bool {
		select {
		case <-c.done:
			m.t.Fatalf("%v ended with %v: %s", c.Args, c.ProcessState, c.stderr)
		default:
		}
		return m.exists("started")
	})
	return c, m.readPID("stile.pid")
}

// orphansScript writes the time repeatedly, and so do processes that it starts: in its process
// group, in another group, and in another session without a parent.
var orphansScript = `
	tick() { trap '' TERM; while :; do ` + uptimeScript(">>$1") + `; sleep 0.1; done; }
	tick child &
	timeout 1000 sh -c 'while :; do ` + uptimeScript(">>group") + `; sleep 0.1; done' &
	(setsid sh -c 'while :; do ` + uptimeScript(">>session") + `; sleep 0.1; done' &)
	until test -s child && test -s group && test -s session; do sleep 0.02; done
	touch started
	wait`

// stores returns functions that return the URL of a store, one for each kind of store.
func stores(t *testing.T) map[string]func(t *testing.T, m *machine) string {
	return map[string]func(t *testing.T, m *machine) string{
		"etcd":  func(t *testing.T, _ *machine) string { return shared(t).url },
		"local": func(*testing.T, *machine) string { return "local:" },
		"redis": func(t *testing.T, m *machine) string {
			m.setenv("REDIS_PASSWORD", "hunter2")
			return "redis://" + testservers.StartRedis(t, "requirepass hunter2").Addr() + "?password_env=REDIS_PASSWORD"
		},
		"redlock": func(t *testing.T, _ *machine) string {
			_, url := redlock(t, 3)
			return url
		},
		"zookeeper": func(t *testing.T, _ *machine) string {
			return "zk://" + testservers.StartZooKeeper(t).Endpoint() + "/team"
		},
	}
}

func TestWatchdog_releasesOnceCommandIsDead(t *testing.T) {
	t.Parallel()
	for name, url := range stores(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.setenv("STILE_URL", url(t, m))
			if name == "local" { // the server has to be started outside the reaper
				m.stile("ls").expectExit(0)
			}
			_, pid := m.startUnderReaper(orphansScript, "--ttl", longTTL, "demo")
			watchdog := awaitWatchdog(t, pid)
			next := m.runCommand("demo", "--", "sh", "-c", uptimeScript(">next")).spawn()
			eventually(t, "a waiter", func() bool { return len(m.show("demo").Waiters) == 1 || name == "redlock" })
			kill(t, pid, syscall.SIGKILL)
			next.expectExit(0)
			m.checkDeadBefore("next", "child", "group", "session")
			eventually(t, "end of the watchdog", func() bool { return !running(watchdog) })
		})
	}
}

// A process that hides its environment and has left the process group is not known to belong to the
// command, but it may.
func TestWatchdog_keepsLockOfUnknownProcess(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	_, pid := m.startUnderReaper(`env -i setsid sh -c 'echo $$ >hidden.pid; exec sleep 1000' &
		until test -s hidden.pid; do sleep 0.02; done
		echo $$ >child.pid; touch started; wait; sleep 1000`, "--ttl", longTTL, "demo")
	hidden, child := m.readPID("hidden.pid"), m.readPID("child.pid")
	t.Cleanup(func() {
		if t.Failed() {
			_ = syscall.Kill(hidden, syscall.SIGKILL)
		}
	})
	awaitWatchdog(t, pid)
	next := m.startWaiter(1, "demo")
	kill(t, pid, syscall.SIGKILL)
	eventually(t, "end of the command", func() bool { return !running(child) })
	time.Sleep(2 * time.Second) // time in which a defective watchdog would release the lock
	if l := m.show("demo"); len(l.Waiters) != 1 {
		t.Errorf("the lock was released although a process may belong to the command: %+v", l)
	}
	if !running(hidden) {
		t.Error("the process was killed although it may not belong to the command")
	}
	kill(t, hidden, syscall.SIGKILL)
	next.expectExit(0)
}

// The command under a lock may take another lock. A process under the inner lock belongs to both
// commands.
func TestWatchdog_nestedRun(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.write("inner", `sh -c 'while :; do `+uptimeScript(">>inner.ticks")+`; sleep 0.1; done' &
		echo $PPID >inner.pid; until test -s inner.ticks; do sleep 0.02; done; touch started; wait`, 0o600)
	_, pid := m.startUnderReaper(`"`+stile+`" run --ttl `+longTTL+` inner -- sh inner`, "--ttl", longTTL, "outer")
	awaitWatchdog(t, pid)
	watchdog := awaitWatchdog(t, m.readPID("inner.pid"))
	next := m.startWaiter(1, "outer")
	// The watchdog of the inner run must not be what kills the process.
	pause(t, watchdog)
	kill(t, pid, syscall.SIGKILL)
	next.expectExit(0)
	after := m.run("other", "--", "sh", "-c", uptimeScript(">next"))
	after.expectExit(0)
	m.checkDeadBefore("next", "inner.ticks")
	ticks := len(m.read("inner.ticks"))
	time.Sleep(time.Second)
	if more := len(m.read("inner.ticks")); more != ticks {
		t.Error("a process under the inner lock still runs although the outer lock was released")
	}
	kill(t, watchdog, syscall.SIGCONT)
	m.run("inner", "--", "true").expectExit(0) // released by the inner run's watchdog
}

// Another holder may have the lock by the time the command has ended.
func TestWatchdog_lockOfAnotherHolder(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	_, pid := m.startUnderReaper(sleepScript, "--ttl", longTTL, "demo")
	watchdog := awaitWatchdog(t, pid)
	token := m.show("demo").Holders[0].Token
	pause(t, watchdog)
	kill(t, pid, syscall.SIGKILL)
	m.stile("break", "demo", "--token", strconv.FormatUint(token, 10)).expectExit(0)
	other := m.start(endableScript, "demo")
	kill(t, watchdog, syscall.SIGCONT)
	eventually(t, "end of the watchdog", func() bool { return !running(watchdog) })
	if l := m.show("demo"); len(l.Holders) != 1 || l.Holders[0].Owner.PID != other.Process.Pid {
		t.Errorf("got %+v, want the lock held by process %d", l, other.Process.Pid)
	}
	m.endScript()
	other.expectExit(0)
}

// Nothing can release the lock then: it is free when the session expires, and the watchdog ends
// too.
func TestWatchdog_storeUnreachable(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	p := newProxy(t, s.endpoint())
	_, pid := m.startUnderReaper(sleepScript, "--url", s.urlVia(p), "--ttl", "12", "demo")
	watchdog := awaitWatchdog(t, pid)
	p.cut()
	kill(t, pid, syscall.SIGKILL)
	m.run("--url", s.url, "demo", "--", "true").expectExit(0)
	eventually(t, "end of the watchdog", func() bool { return !running(watchdog) })
}

// With --min-hold, users rely on the lock being held for that time, however the command ends.
func TestWatchdog_minHold(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	_, pid := m.startUnderReaper("echo $$ >child.pid; "+sleepScript, "--ttl", longTTL, "--min-hold", "1000", "demo")
	awaitWatchdog(t, pid)
	kill(t, pid, syscall.SIGKILL)
	child := m.readPID("child.pid")
	eventually(t, "end of the command", func() bool { return !running(child) })
	time.Sleep(2 * time.Second) // time in which a defective watchdog would release the lock
	m.run("-n", "demo", "--", "true").expectExit(75, `"demo" is held by`)
}

func TestWatchdog_replacedWhenKilled(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c, pid := m.startUnderReaper(sleepScript, "-v", "--ttl", longTTL, "demo")
	first := awaitWatchdog(t, pid)
	awaitIgnoredSignals(t, first)
	kill(t, first, syscall.SIGTERM) // as systemd does with all processes of a service
	kill(t, first, syscall.SIGKILL)
	eventually(t, "message about the watchdog", func() bool {
		return strings.Contains(c.stderr.String(), "the watchdog of the command was killed; starting another\n")
	})
	second := 0
	eventually(t, "another watchdog", func() bool {
		second = awaitWatchdog(t, pid)
		return second != first
	})
	next := m.startWaiter(1, "demo")
	kill(t, pid, syscall.SIGKILL)
	next.expectExit(0)
}

func TestWatchdog_ignoresSignals(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	c := m.start(endableScript, "--url", s.url, "demo")
	watchdog := awaitWatchdog(t, c.Process.Pid)
	awaitIgnoredSignals(t, watchdog)
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		kill(t, watchdog, sig)
	}
	m.endScript()
	c.expectExit(0)
	eventually(t, "end of the watchdog", func() bool { return !running(watchdog) })
}

// awaitIgnoredSignals waits until a watchdog ignores the signals that stop a service. It does so
// when it starts.
func awaitIgnoredSignals(t *testing.T, watchdog int) {
	t.Helper()
	eventually(t, "a watchdog that ignores signals", func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", watchdog))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "\nSigIgn:\t")
		var ignored uint64
		if _, err := fmt.Sscanf(rest, "%x", &ignored); err != nil {
			t.Fatal(err)
		}
		const all = 1<<(syscall.SIGHUP-1) | 1<<(syscall.SIGINT-1) | 1<<(syscall.SIGQUIT-1) | 1<<(syscall.SIGTERM-1)
		return ignored&all == all
	})
}

// A watchdog gets stile's credentials for the store, but its arguments and environment do not show
// them.
func TestWatchdog_hidesPasswords(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t)
	cli := s.client(t)
	for _, step := range []func() error{
		func() error { _, err := cli.UserAdd(t.Context(), "root", "s3cret"); return err },
		func() error { _, err := cli.UserGrantRole(t.Context(), "root", "root"); return err },
		func() error { _, err := cli.AuthEnable(t.Context()); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	m.write("password", "s3cret\n", 0o600)
	m.setenv("PASSWORD", "s3cret")
	for name, url := range map[string]string{
		"in the URL":    "etcd://root:s3cret@" + s.endpoint(),
		"in a file":     "etcd://root@" + s.endpoint() + "?password_file=password",
		"in a variable": "etcd://root@" + s.endpoint() + "?password_env=PASSWORD",
	} {
		t.Run(name, func(t *testing.T) {
			m := m.forSubtest(t)
			m.setenv("STILE_URL", url)
			lock := strings.ReplaceAll(name, " ", "-")
			_, pid := m.startUnderReaper(sleepScript, "--ttl", longTTL, lock)
			watchdog := awaitWatchdog(t, pid)
			for _, file := range []string{"cmdline", "environ"} {
				text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(watchdog), file))
				if err != nil || strings.Contains(string(text), "s3cret") {
					t.Errorf("the watchdog's %s contains the password, or cannot be read: %q, %v", file, text, err)
				}
			}
			next := m.startWaiter(1, lock)
			kill(t, pid, syscall.SIGKILL)
			next.expectExit(0)
		})
	}
}

// In a container stile may be the first process, and then becomes the parent of all orphans.
func TestRun_asInit(t *testing.T) {
	t.Parallel()
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skipf("SKIPPED: this test needs unshare: %v", err)
	}
	if out, err := exec.Command(unshare, "--pid", "--fork", "--mount-proc", "true").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no PID namespaces: %v, %s", err, out)
	}
	m, s := newMachine(t), shared(t)
	c := m.runCommand("--url", s.url, "demo", "--", "sh", "-c", `
		test $PPID = 1 || exit 8
		for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 0 &); done
		while grep -qs '^State:.Z' /proc/[0-9]*/status; do sleep 0.05; done
		echo none is left; exit 7`)
	c.Path, c.Args = unshare, append([]string{unshare, "--pid", "--fork", "--mount-proc", "--kill-child", stile}, c.Args[1:]...)
	c.spawn().expectExit(7)
	if got := c.stdout.String(); got != "none is left\n" {
		t.Errorf("got stdout %q, want none is left", got)
	}
}
