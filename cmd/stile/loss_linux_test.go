package main_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// wire is a network between client and server that can be cut: nothing goes through any more, and nobody is told.
type proxy struct {
	net.Listener
	ctx  context.Context
	cut  context.CancelFunc
	accepted atomic.Bool // somebody has connected
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: l}
	p.ctx, p.cut = context.WithCancel(t.Context())
	var conns []net.Conn
	var mu sync.Mutex
	var all sync.WaitGroup
	all.Go(func() {
		for {
			inbound, err := l.Accept()
			if err != nil {
				return
			}
			p.accepted.Store(true)
			outbound, err := net.Dial("tcp", to)
			if err != nil {
				inbound.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, inbound, outbound)
			mu.Unlock()
			all.Go(func() { p.forward(inbound, outbound) })
			all.Go(func() { p.forward(outbound, inbound) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return p
}

// pass passes on what comes, until the wire is cut.
func (p *proxy) forward(to io.Writer, from io.Reader) {
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil || p.ctx.Err() != nil {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// stamps are times that commands have written down, in seconds.
func (m *machine) readTimes(name string) []float64 {
	m.t.Helper()
	var all []float64
	for f := range strings.FieldsSeq(m.read(name)) {
		s, err := strconv.ParseFloat(f, 64)
		if err != nil {
			m.t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// stubborn writes down the time again and again and does not listen to TERM; nor does a grandchild that does the same.
var ignoreTermScript = `
	trap '' TERM
	tick() { while :; do ` + uptimeScript(">>$1") + `; sleep 0.1; done; }
	tick grandchild &
	echo $! >grandchild.pid
	echo $$ >child.pid
	touch started
	tick child`

// awaitCommandDead waits for the end of a stubborn command: once stile has ended nothing is left that could end it but the KILL that
// stile has sent.
func (m *machine) awaitCommandDead() {
	m.t.Helper()
	for _, name := range []string{"child", "grandchild"} {
		pid := m.readPID(name + ".pid")
		eventually(m.t, "end of the "+name, func() bool { return !running(pid) })
	}
}

// pid returns the process id that a script has written into a file.
func (m *machine) readPID(name string) int {
	m.t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(m.read(name)))
	if err != nil {
		m.t.Fatal(err)
	}
	return pid
}

// checkDeadBefore checks that the last signs of life are older than the moment when the next one started.
func (m *machine) checkDeadBefore(next string, names ...string) {
	m.t.Helper()
	started := m.readTimes(next)[0]
	for _, name := range names {
		ticks := m.readTimes(name)
		last := ticks[len(ticks)-1]
		m.t.Logf("the last sign of life in %s was %.0f ms before the next one started", name, (started-last)*1000)
		if last >= started {
			m.t.Errorf("the last sign of life in %s was %.0f ms after the next one started", name, (last-started)*1000)
		}
	}
}

// expiringTTL is the TTL of sessions that run out in a test. The command of such a one is dead when a tenth of it is left: that
// is what a busy machine has for killing it.
const expiringTTL = "16"

// Promise: P6
func TestRun_cutOffCommandDiesBeforeNextStarts(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	p := newProxy(t, s.endpoint())
	old := m.start(ignoreTermScript, "--url", s.urlVia(p), "--ttl", expiringTTL, "demo")
	m.awaitFile("grandchild", "\n")
	m.awaitFile("child", "\n")
	next := m.runCommand("--url", s.url, "demo", "--", "sh", "-c", uptimeScript(">next")).spawn()
	cli := s.client(t)
	eventually(t, "the next one in line", func() bool { return len(entries(t, cli, "demo")) == 2 })

	p.cut()
	old.expectExit(79, "lost contact with the store", `stopping the command before lock "demo" expires`)
	next.expectExit(0)
	m.awaitCommandDead()
	m.checkDeadBefore("next", "child", "grandchild")
}

// listening is a script that writes down that it was told to end.
const trapTermScript = `trap 'echo told >>log; exit 0' TERM; touch started; while :; do read end <end; done`

// Promise: P6
func TestRun_frozenStore(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t)
	old := m.start(trapTermScript, "--url", s.url, "--ttl", expiringTTL, "demo")
	if err := s.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	old.expectExit(79, `"demo"`, "lost contact with the store")
	if got := m.read("log"); got != "told\n" {
		t.Errorf("the command was not asked to end first: %q", got)
	}
	if err := s.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.run("--url", s.url, "demo", "--", "true").expectExit(0)
}

func TestRun_shortOutage(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t)
	cli := s.client(t)
	const ttl = 30 * time.Second
	c := m.start(endableScript, "--url", s.url, "--ttl", ttl.String(), "demo")
	if err := s.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(ttl / 3) // a renewal is overdue by now; the command would be stopped after another ttl/3, at the earliest
	if err := s.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	awaitRenewal(t, cli, "demo")
	m.endScript()
	c.expectExit(0)
}

// evict does what etcdctl del does.
func evict(t *testing.T, cli *clientv3.Client, name string) {
	t.Helper()
	if _, err := cli.Delete(t.Context(), name+"/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
}

func TestRun_evicted(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	// The next renewal, which would find the entry gone too, is due 90 s after the first.
	c := m.start(trapTermScript, "--url", s.url, "--ttl", "300", "demo")
	evicted := time.Now()
	evict(t, s.client(t), "demo")
	c.expectExit(79, `lock "demo" was broken, or its lease expired; stopping the command`)
	if took := time.Since(evicted); took > 45*time.Second {
		t.Errorf("the command was stopped %v after the eviction: that is a renewal's time, not an event's", took)
	}
	if got := m.read("log"); got != "told\n" {
		t.Errorf("the command was not asked to end first: %q", got)
	}
}

func TestRun_evictedIgnoresTERM(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	c := m.start(ignoreTermScript, "--url", s.url, "-k", "0.5", "demo")
	m.awaitFile("grandchild", "\n")
	evict(t, s.client(t), "demo")
	c.expectExit(79, `"demo"`, "was broken, or its lease expired")
	m.awaitCommandDead()
}

// revoke ends the session of the first entry in a line, as if it had run out.
func revoke(t *testing.T, cli *clientv3.Client, name string) {
	t.Helper()
	got, err := cli.Get(t.Context(), name+"/", clientv3.WithFirstCreate()...)
	if err != nil || len(got.Kvs) == 0 {
		t.Fatalf("nobody is in line for %s: %v", name, err)
	}
	if _, err := cli.Revoke(t.Context(), clientv3.LeaseID(got.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
}

func TestRun_sessionRevoked(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	c := m.start(sleepScript, "--url", s.url, "demo")
	revoke(t, s.client(t), "demo")
	c.expectExit(79, `lock "demo" was broken, or its lease expired; stopping the command`)
}

// Promise: P6
func TestRun_stileKilled(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	c := m.start("echo $$ >pid; touch started; exec sleep 1000", "--url", s.url, "demo")
	pid := m.readPID("pid")
	c.signal(syscall.SIGKILL)
	eventually(t, "end of the command", func() bool { return !running(pid) })
}

// watched waits until the command under stile, a process with this number, has a watchdog, and returns its process id.
func awaitWatchdog(t *testing.T, stile int) (watchdog int) {
	t.Helper()
	eventually(t, "a watchdog", func() bool {
		children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", stile))
		if err != nil || len(children) == 0 || !running(stile) {
			t.Fatalf("stile has ended before there was a watchdog")
		}
		for _, list := range children {
			text, _ := os.ReadFile(list)
			for f := range strings.FieldsSeq(string(text)) {
				args, _ := os.ReadFile("/proc/" + f + "/cmdline")
				if strings.HasPrefix(string(args), "stile\x00watchdog\x00") {
					watchdog, _ = strconv.Atoi(f)
					return true
				}
			}
		}
		return false
	})
	return watchdog
}

// Stile itself stands still: it cannot renew, and it cannot stop the command either.
// Promise: P6
func TestWatchdog_stileStopped(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	old := m.start(ignoreTermScript, "--ttl", expiringTTL, "demo")
	m.awaitFile("grandchild", "\n")
	m.awaitFile("child", "\n")
	watchdog := awaitWatchdog(t, old.Process.Pid)
	next := m.runCommand("demo", "--", "sh", "-c", uptimeScript(">next")).spawn()
	cli := s.client(t)
	eventually(t, "the next one in line", func() bool { return len(entries(t, cli, "demo")) == 2 })

	old.signal(syscall.SIGSTOP)
	next.expectExit(0)
	m.awaitCommandDead()
	m.checkDeadBefore("next", "child", "grandchild")
	old.signal(syscall.SIGCONT)
	old.expectExit(79, `"demo"`, "expired")
	eventually(t, "end of the watchdog", func() bool { return !running(watchdog) })
}

// Promise: P6
func TestWatchdog_killsDescendants(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	c := m.start("sleep 1000 & echo $! >pid; touch started; wait", "--url", s.url, "demo")
	pid := m.readPID("pid")
	watchdog := awaitWatchdog(t, c.Process.Pid)
	c.signal(syscall.SIGKILL)
	eventually(t, "end of the grandchild", func() bool { return !running(pid) })
	eventually(t, "end of the watchdog", func() bool { return !running(watchdog) })
}

// Much of what a command starts leaves its process group: timeout(1) in a script makes one of its own, and setsid(1) even a
// session, whose parent has ended here.
// Promise: P6
func TestRun_stopsProcessesOutsideGroup(t *testing.T) {
	t.Parallel()
	const script = `
		timeout 1000 sh -c 'trap "" TERM; echo $$ >group; while :; do read end <end; done' &
		(setsid sh -c 'echo $$ >session; exec sleep 1000' &)
		until test -s group && test -s session; do sleep 0.02; done
		touch started
		wait`
	for name, end := range map[string]func(*testing.T, *command, *server){
		"evicted": func(t *testing.T, c *command, s *server) {
			evict(t, s.client(t), "demo")
			c.expectExit(79, "stopping the command")
		},
		"killed":  func(_ *testing.T, c *command, _ *server) { c.signal(syscall.SIGKILL) },
		"stopped": func(_ *testing.T, c *command, _ *server) { c.signal(syscall.SIGSTOP) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, s := newMachine(t), shared(t)
			ttl := longTTL
			if name == "stopped" { // then only the end of the session ends it
				ttl = "10"
			}
			c := m.start(script, "--url", s.url, "--ttl", ttl, "-k", "0.5", "demo")
			awaitWatchdog(t, c.Process.Pid)
			var pids []int
			for _, file := range []string{"group", "session"} {
				pid := m.readPID(file)
				t.Cleanup(func() {
					if t.Failed() { // otherwise it has ended, and its number may be that of another
						_ = syscall.Kill(pid, syscall.SIGKILL)
					}
				})
				pids = append(pids, pid)
			}
			end(t, c, s)
			for _, pid := range pids {
				eventually(t, "end of what has left the group", func() bool { return !running(pid) })
			}
		})
	}
}

// A watchdog has nothing of its command's but the right to kill it: neither its output, which somebody may read to the end,
// nor its directory, nor an environment.
func TestWatchdog_keepsNothingOpen(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	inherited, err := os.Create(m.path("inherited"))
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	const ttl = 15 * time.Second
	c := m.runCommand("--url", s.url, "--ttl", ttl.String(), "demo", "--", "sh", "-c", "read end <end; exit 3")
	c.ExtraFiles = []*os.File{4: inherited} // becomes file 7, as a shell's exec 7> would: the lock of a flock(1) perhaps
	c.spawn()
	watchdog := awaitWatchdog(t, c.Process.Pid)
	proc := fmt.Sprintf("/proc/%d/", watchdog)
	eventually(t, "closing of what it has inherited", func() bool {
		to, _ := os.Readlink(proc + "fd/7")
		return to != inherited.Name() && running(watchdog)
	})
	if dir, err := os.Readlink(proc + "cwd"); err != nil || dir != "/" {
		t.Errorf("its directory is %s, %v", dir, err)
	}
	for _, fd := range []string{"1", "2"} {
		if to, err := os.Readlink(proc + "fd/" + fd); err != nil || to != os.DevNull {
			t.Errorf("its descriptor %s is %s, %v", fd, to, err)
		}
	}
	if env, err := os.ReadFile(proc + "environ"); err != nil || len(env) > 0 {
		t.Errorf("its environment is %q, %v", env, err)
	}
	time.Sleep(ttl) // it is told of renewals
	m.endScript()
	c.expectExit(3)
	eventually(t, "end of the watchdog", func() bool { return !running(watchdog) })
}
