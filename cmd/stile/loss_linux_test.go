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
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// proxy is a TCP proxy between a client and a server. After cut it forwards nothing more, and
// closes no connection.
type proxy struct {
	net.Listener
	ctx context.Context
	cut context.CancelFunc
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
	closed := false
	var mu sync.Mutex
	var all sync.WaitGroup
	all.Go(func() {
		for {
			inbound, err := l.Accept()
			if err != nil {
				return
			}
			outbound, err := net.Dial("tcp", to)
			if err != nil {
				inbound.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, inbound, outbound)
			if closed { // while it was dialing
				inbound.Close()
				outbound.Close()
			}
			mu.Unlock()
			all.Go(func() { p.forward(inbound, outbound) })
			all.Go(func() { p.forward(outbound, inbound) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		closed = true
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return p
}

// forward copies data until the proxy is cut.
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

// readTimes returns the times that scripts have written to a file, in seconds since boot.
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

// ignoreTermScript writes the time repeatedly and ignores TERM. A grandchild does the same.
var ignoreTermScript = `
	trap '' TERM
	tick() { while :; do ` + uptimeScript(">>$1") + `; sleep 0.1; done; }
	tick grandchild &
	echo $! >grandchild.pid
	echo $$ >child.pid
	touch started
	tick child`

// awaitCommandDead waits until the processes of ignoreTermScript have ended. stile has ended
// before, so only the SIGKILL that it has sent can end them.
func (m *machine) awaitCommandDead() {
	m.t.Helper()
	for _, name := range []string{"child", "grandchild"} {
		pid := m.readPID(name + ".pid")
		eventually(m.t, "end of the "+name, func() bool { return !running(pid) })
	}
}

// readPID returns the process id that a script has written to a file.
func (m *machine) readPID(name string) int {
	m.t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(m.read(name)))
	if err != nil {
		m.t.Fatal(err)
	}
	return pid
}

// checkDeadBefore checks that the last times in the files names are before the first time in the
// file next.
func (m *machine) checkDeadBefore(next string, names ...string) {
	m.t.Helper()
	started := m.readTimes(next)[0]
	for _, name := range names {
		ticks := m.readTimes(name)
		last := ticks[len(ticks)-1]
		m.t.Logf("the last time in %s is %.0f ms before the start of the next command", name, (started-last)*1000)
		if last >= started {
			m.t.Errorf("the last time in %s is %.0f ms after the start of the next command, want it before", name, (last-started)*1000)
		}
	}
}

const (
	// expiringTTL is the TTL of sessions that expire in a test.
	expiringTTL = "16"
	// killedTTL is the same for tests whose command must be dead before its session expires. The
	// command is killed when a tenth of the TTL is left, so a busy machine has 4 s for that.
	killedTTL = "40"
)

// Promise: P6
func TestRun_cutOffCommandDiesBeforeNextStarts(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	p := newProxy(t, s.endpoint())
	previous := m.start(ignoreTermScript, "--url", s.urlVia(p), "--ttl", killedTTL, "demo")
	m.awaitFile("grandchild", "\n")
	m.awaitFile("child", "\n")
	next := m.runCommand("--url", s.url, "demo", "--", "sh", "-c", uptimeScript(">next")).spawn()
	cli := s.client(t)
	eventually(t, "a waiter", func() bool { return len(entries(t, cli, "demo")) == 2 })

	p.cut()
	previous.expectExit(79, "lost contact with the store", `stopping the command before lock "demo" expires`)
	next.expectExit(0)
	m.awaitCommandDead()
	m.checkDeadBefore("next", "child", "grandchild")
}

// etcd ends a connection that is pinged while it has no request, at the fourth ping. The pings are ten
// seconds apart, and gRPC prints an error then.
func TestRun_idleConnections(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	direct, idle := s.endpoint(), newProxy(t, s.endpoint()).Addr().String()
	url := strings.Replace(s.url, direct, direct+","+idle, 1)
	m.run("--url", url, "demo", "--", "sleep", "45").expectExit(0)
}

// trapTermScript writes TERM to the file log when it gets SIGTERM, and ends. On a busy machine that
// may take longer than the default of --kill-after.
const trapTermScript = `trap 'echo TERM >>log; exit 0' TERM; touch started; ` + sleepLoop

// TestRun_killAfter in package supervise shows when the stop signal is sent. Here a starved machine may stand
// still for 44 seconds between the signal and SIGKILL.
//
// Promise: P6
func TestRun_frozenStore(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t)
	previous := m.start(trapTermScript, "--url", s.url, "--ttl", "120", "-k", "44", "demo")
	pause(t, s.Process.Pid)
	previous.expectExit(79, `"demo"`, "lost contact with the store", "stopping the command before lock")
	if got := m.read("log"); got != "TERM\n" {
		t.Errorf("got log %q, want one TERM before SIGKILL", got)
	}
}

func TestRun_shortOutage(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t)
	cli := s.client(t)
	const ttl = time.Minute
	c := m.start(endableScript, "--url", s.url, "--ttl", ttl.String(), "demo")
	end := sessionEnd(t, cli, "demo")
	pause(t, s.Process.Pid)
	time.Sleep(ttl / 3) // a renewal is overdue now; the command would be stopped after another ttl/6 at the earliest
	kill(t, s.Process.Pid, syscall.SIGCONT)
	awaitRenewal(t, cli, "demo", end)
	m.endScript()
	c.expectExit(0)
}

// evict deletes the entries of a lock's line, as etcdctl del does.
func evict(t *testing.T, cli *clientv3.Client, name string) {
	t.Helper()
	if _, err := cli.Delete(t.Context(), name+"/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
}

// The command needs seven seconds to end. By default it would be killed five seconds after the stop signal.
func TestRun_evicted(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	// The next renewal, which would also find the entry gone, is due 90 s after the first.
	c := m.start(`trap 'sleep 7; echo HUP >>log; exit 0' HUP; touch started; `+sleepLoop,
		"--url", s.url, "--ttl", "300", "-k", "110", "--signal", "HUP", "demo")
	evicted := time.Now()
	evict(t, s.client(t), "demo")
	c.expectExit(79, `lock "demo" was broken, or its lease expired; stopping the command`)
	if took := time.Since(evicted); took > 75*time.Second {
		t.Errorf("the command ended %v after the eviction, at the next renewal; want it stopped by the watch", took)
	}
	if got := m.read("log"); got != "HUP\n" {
		t.Errorf("got log %q, want one HUP before SIGKILL", got)
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

// revoke ends the session of the first entry in a lock's line, as if it had expired.
func revoke(t testing.TB, cli *clientv3.Client, name string) {
	t.Helper()
	got, err := cli.Get(t.Context(), name+"/", clientv3.WithFirstCreate()...)
	if err != nil || len(got.Kvs) == 0 {
		t.Fatalf("no entry in the line of lock %s: %v", name, err)
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

// awaitWatchdog waits until the stile run with this process id has a watchdog, and returns the
// watchdog's process id.
func awaitWatchdog(t testing.TB, stile int) (watchdog int) {
	t.Helper()
	eventually(t, "a watchdog", func() bool {
		children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", stile))
		if err != nil || len(children) == 0 || !running(stile) {
			t.Fatalf("stile ended before there was a watchdog")
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

// stile itself is stopped: it can neither renew the session nor stop the command. (The watchdog
// kills it.)
// Promise: P6
func TestWatchdog_stileStopped(t *testing.T) {
	t.Parallel()
	for argument, name := range map[string]string{"demo": "demo", `"--help"`: "--help"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testStileStopped(t, argument, name)
		})
	}
}

func testStileStopped(t *testing.T, argument, name string) {
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	previous := m.start(ignoreTermScript, "--ttl", killedTTL, argument)
	m.awaitFile("grandchild", "\n")
	m.awaitFile("child", "\n")
	watchdog := awaitWatchdog(t, previous.Process.Pid)
	next := m.runCommand(argument, "--", "sh", "-c", uptimeScript(">next")).spawn()
	cli := s.client(t)
	eventually(t, "a waiter", func() bool { return len(entries(t, cli, name)) == 2 })

	pause(t, previous.Process.Pid)
	next.expectExit(0)
	m.awaitCommandDead()
	m.checkDeadBefore("next", "child", "grandchild")
	previous.signal(syscall.SIGCONT)
	previous.expectExit(79, name, "expired")
	eventually(t, "end of the watchdog", func() bool { return !running(watchdog) })
}

// Promise: P6
func TestWatchdog_killsDescendants(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	_, pid := m.startUnderReaper("sleep 1000 & echo $! >grandchild.pid; touch started; wait", "--url", s.url, "demo")
	grandchild := m.readPID("grandchild.pid")
	watchdog := awaitWatchdog(t, pid)
	kill(t, pid, syscall.SIGKILL)
	eventually(t, "end of the grandchild", func() bool { return !running(grandchild) })
	eventually(t, "end of the watchdog", func() bool { return !running(watchdog) })
}

// Many processes leave the command's process group: timeout(1) in a script creates a group of its
// own, and setsid(1) even a session, whose parent has ended here.
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
		"stopped": func(t *testing.T, c *command, _ *server) { pause(t, c.Process.Pid) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, s := newMachine(t), shared(t)
			ttl := longTTL
			if name == "stopped" { // the processes are then killed only when the session expires
				ttl = "10"
			}
			c := m.start(script, "--url", s.url, "--ttl", ttl, "-k", "0.5", "demo")
			awaitWatchdog(t, c.Process.Pid)
			var pids []int
			for _, file := range []string{"group", "session"} {
				pid := m.readPID(file)
				t.Cleanup(func() {
					if t.Failed() { // otherwise the process has ended, and its id may be in use by another process
						_ = syscall.Kill(pid, syscall.SIGKILL)
					}
				})
				pids = append(pids, pid)
			}
			end(t, c, s)
			for _, pid := range pids {
				eventually(t, "end of a process outside the group", func() bool { return !running(pid) })
			}
		})
	}
}

// A watchdog shares nothing with its command: not the output, which a reader may read until its
// end, not the working directory and not the environment.
func TestWatchdog_keepsNothingOpen(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	inherited, err := os.Create(m.path("inherited"))
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	const ttl = 20 * time.Second
	c := m.runCommand("--url", s.url, "--ttl", ttl.String(), "demo", "--", "sh", "-c", "read end <end; exit 3")
	c.ExtraFiles = []*os.File{4: inherited} // becomes file 7, like a shell's exec 7>, which may be the lock file of flock(1)
	c.spawn()
	watchdog := awaitWatchdog(t, c.Process.Pid)
	proc := fmt.Sprintf("/proc/%d/", watchdog)
	eventually(t, "close of the inherited file", func() bool {
		to, _ := os.Readlink(proc + "fd/7")
		return to != inherited.Name() && running(watchdog)
	})
	if dir, err := os.Readlink(proc + "cwd"); err != nil || dir != "/" {
		t.Errorf("got working directory %s, %v, want /", dir, err)
	}
	for _, fd := range []string{"1", "2"} {
		if to, err := os.Readlink(proc + "fd/" + fd); err != nil || to != os.DevNull {
			t.Errorf("descriptor %s is %s, %v, want /dev/null", fd, to, err)
		}
	}
	if env, err := os.ReadFile(proc + "environ"); err != nil || len(env) > 0 {
		t.Errorf("got environment %q, %v, want none", env, err)
	}
	time.Sleep(ttl) // the session is renewed meanwhile, and the watchdog gets the new deadlines
	m.endScript()
	c.expectExit(3)
	eventually(t, "end of the watchdog", func() bool { return !running(watchdog) })
}

// A watchdog that was stopped for longer than a TTL learns that the lock was renewed before it does
// anything.
func TestWatchdog_stoppedMeanwhile(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	const ttl = 20 * time.Second
	c := m.start(endableScript+"; exit 3", "--url", s.url, "--ttl", ttl.String(), "demo")
	watchdog := awaitWatchdog(t, c.Process.Pid)
	pause(t, watchdog)
	time.Sleep(ttl)
	kill(t, watchdog, syscall.SIGCONT)
	time.Sleep(time.Second) // enough for a wrong kill
	m.endScript()
	c.expectExit(3)
	eventually(t, "end of the watchdog", func() bool { return !running(watchdog) })
}
