package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// console is a terminal with a program. The test types and reads the screen.
type console struct {
	t      testing.TB
	cmd    *exec.Cmd
	keys   *os.File
	done   chan struct{}
	mu     sync.Mutex
	screen strings.Builder
	seen   int
}

// Control characters.
const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

// atTerminal starts a program on a terminal of its own.
func (m *machine) atTerminal(name string, args ...string) *console {
	m.t.Helper()
	if _, err := os.Lstat(m.home()); err != nil && !m.showNeighborNotice {
		m.writeServerFile("", "said-neighbor")
	}
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	keys := os.NewFile(uintptr(fd), "/dev/ptmx") // nonblocking, so that Close ends a Read
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		m.t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		m.t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	c := &console{t: m.t, cmd: exec.Command(name, args...), keys: keys, done: make(chan struct{})}
	c.cmd.Env, c.cmd.Dir = append(m.vars, "TERM=dumb", "PS1=ready> "), m.dir
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = tty, tty, tty
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	tty.Close()
	var reading sync.WaitGroup
	reading.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := keys.Read(buf)
			if err != nil {
				return // no process has the terminal open any more
			}
			c.mu.Lock()
			c.screen.Write(buf[:n])
			c.mu.Unlock()
		}
	})
	go func() {
		defer close(c.done)
		_ = c.cmd.Wait() // the result is in ProcessState
	}()
	m.t.Cleanup(func() {
		select {
		case <-c.done: // its process id may be in use by another process
		default:
			_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
		}
		<-c.done
		keys.Close()
		reading.Wait()
	})
	return c
}

func (c *console) typeKeys(text string) {
	c.t.Helper()
	if _, err := c.keys.WriteString(text); err != nil {
		c.t.Fatal(err)
	}
}

// screenText returns everything that was written to the screen.
func (c *console) screenText() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.screen.String()
}

// awaitScreen waits for a text on the screen, after the texts of earlier calls.
func (c *console) awaitScreen(text string) {
	c.t.Helper()
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(5 * time.Millisecond) {
		screen := c.screenText()
		if at := strings.Index(screen[c.seen:], text); at >= 0 {
			c.seen += at + len(text)
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("the screen does not show %q after the texts before it: %q", text, screen)
		}
	}
}

// awaitLineEditing waits until the program on the terminal edits the typed line. A tab that is
// typed earlier would become a part of the line.
func (c *console) awaitLineEditing() {
	c.t.Helper()
	raw, err := c.keys.SyscallConn()
	if err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, "line editing", func() bool {
		var modes *unix.Termios
		var failed error
		if err := raw.Control(func(fd uintptr) { modes, failed = unix.IoctlGetTermios(int(fd), unix.TCGETS) }); err != nil || failed != nil {
			c.t.Fatal(err, failed)
		}
		return modes.Lflag&unix.ICANON == 0
	})
}

func (c *console) exitCode() int {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(testTimeout):
		c.t.Fatalf("%v did not end within %v; screen: %q", c.cmd.Args, testTimeout, c.screenText())
	}
	return c.cmd.ProcessState.ExitCode()
}

func TestRun_readsFromTerminal(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	// stile runs twice, then the outer shell reads: stile has returned the terminal each time.
	c := m.atTerminal("sh", "-c", fmt.Sprintf(`
		for i in 1 2; do %s run --url %s demo -- sh -c 'echo ask; read x; echo "got $x"'; done
		read x; echo "shell got $x"`, stile, s.url))
	for range 2 {
		c.awaitScreen("ask")
		c.typeKeys("hello\n")
		c.awaitScreen("got hello")
	}
	c.typeKeys("bye\n")
	c.awaitScreen("shell got bye")
	if code := c.exitCode(); code != 0 {
		t.Errorf("got exit code %d", code)
	}
}

func TestRun_ctrlC(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]string{
		// The inner shell reports that it runs. A plain sleep could get the signal between its fork
		// and its exec; it is still a copy of the outer shell then, which catches the signal and
		// loses it, and the sleep continues.
		"command does not read": `sh -c "echo begun; exec sleep 1000"`,
		"command reads":         "echo begun; read x",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, s := newMachine(t), shared(t)
			c := m.atTerminal(stile, "run", "--url", s.url, "--ttl", longTTL, "demo", "--",
				"sh", "-c", `trap 'n=$((n+1)); echo "interrupted $n"' INT; `+wait+`; sleep 0.3; exit 5`)
			c.awaitScreen("begun")
			eventually(t, "command waiting", func() bool { return foregroundIs(t, c.cmd.Process.Pid, name != "command reads") })
			c.typeKeys(ctrlC)
			c.awaitScreen("interrupted 1")
			if code := c.exitCode(); code != 5 {
				t.Errorf("got exit code %d", code)
			}
			if strings.Contains(c.screenText(), "interrupted 2") {
				t.Errorf("the command was interrupted twice: %q", c.screenText())
			}
		})
	}
}

// foregroundIs reports whether stile, with this process id, is in the terminal's foreground
// (inForeground) or not. The command then waits: stile is in the foreground, unless the command
// reads from the terminal.
func foregroundIs(t *testing.T, pid int, inForeground bool) bool {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	f := strings.Fields(rest)
	const group, foreground = 2, 5
	return (f[group] == f[foreground]) == inForeground
}

func TestRun_ctrlCWhileWaiting(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.start(sleepScript, "--url", s.url, "demo")
	c := m.atTerminal(stile, "run", "--url", s.url, "--ttl", longTTL, "demo", "--", "echo", "was run")
	cli := s.client(t)
	eventually(t, "waiter in line", func() bool { return len(entries(t, cli, "demo")) == 2 })
	c.typeKeys(ctrlC)
	if code := c.exitCode(); code != 128+2 {
		t.Errorf("got exit code %d", code)
	}
}

// startShell starts a shell with job control.
func (m *machine) startShell() *console {
	m.t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		m.t.Skipf("SKIPPED: this test needs a shell with job control: %v", err)
	}
	c := m.atTerminal(bash, "--norc", "--noprofile", "--noediting", "-i")
	c.awaitScreen("ready> ")
	return c
}

func TestRun_jobControl(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"stopped before it reads": `touch started; read end <end; echo ask; read x; echo "got $x"`,
		"stopped while it reads":  `touch started; read x; echo "first $x"; read x; echo "got $x"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, s := newMachine(t), shared(t)
			m.write("script", script, 0o600)
			c := m.startShell()
			c.typeKeys(fmt.Sprintf("%s run --url %s --ttl %s demo -- sh script\n", stile, s.url, longTTL))
			eventually(t, "start of the script", func() bool { return m.exists("started") })
			if name == "stopped while it reads" {
				c.typeKeys("line\n")
				c.awaitScreen("first line")
			}
			c.typeKeys(ctrlZ)
			c.awaitScreen("Stopped")
			c.awaitScreen("ready> ")
			c.typeKeys("echo in the shell\n")
			c.awaitScreen("in the shell\r\n")
			m.endScript()
			c.typeKeys("fg\n")
			if name == "stopped before it reads" {
				c.awaitScreen("ask\r\n")
			}
			c.typeKeys("hello\n")
			c.awaitScreen("got hello")
			c.awaitScreen("ready> ")
			c.typeKeys("exit 0\n")
			if code := c.exitCode(); code != 0 {
				t.Errorf("shell: got exit code %d, want 0", code)
			}
		})
	}
}

func TestRun_readsInBackground(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.write("script", `touch started; read x; echo "got $x"`, 0o600)
	c := m.startShell()
	c.typeKeys(fmt.Sprintf("%s run --url %s --ttl %s demo -- sh script &\n", stile, s.url, longTTL))
	eventually(t, "start of the script", func() bool { return m.exists("started") })
	eventually(t, "stop of the command", func() bool {
		c.typeKeys("jobs\n")
		c.awaitScreen("stile run")
		return strings.Contains(c.screenText(), "Stopped")
	})
	c.typeKeys("fg\n")
	c.typeKeys("hello\n")
	c.awaitScreen("got hello")
	c.typeKeys("exit 0\n")
	c.exitCode()
}

// While a command is suspended, its lock may be acquired by another client. The command must not
// make another step then.
func TestRun_suspendedPastDeadline(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.write("script", "while :; do echo >>steps; done", 0o600)
	c := m.startShell()
	c.typeKeys(fmt.Sprintf("%s run --url %s --ttl 12 demo -- sh script\n", stile, s.url))
	m.awaitFile("steps", "\n")
	c.typeKeys(ctrlZ)
	c.awaitScreen("Stopped")
	steps := len(m.read("steps"))
	m.run("--url", s.url, "demo", "--", "true").expectExit(0)
	c.typeKeys("fg; echo code $?\n")
	c.awaitScreen("expired")
	c.awaitScreen("code 79")
	if n := len(m.read("steps")) - steps; n != 0 {
		t.Errorf("the command made %d steps after it had lost the lock, want 0", n)
	}
}

// ^Z does not stop processes that have left the process group, as timeout(1) in a script does.
func TestRun_suspendedOutsideGroup(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.write("inner", "echo $$ >inner.pid; while :; do "+uptimeScript(">>steps")+"; sleep 0.1; done", 0o600)
	m.write("script", "echo $PPID >stile.pid; timeout 1000 sh inner; :", 0o600)
	c := m.startShell()
	c.typeKeys(fmt.Sprintf("%s run --url %s --ttl %s demo -- sh script\n", stile, s.url, killedTTL))
	m.awaitFile("steps", "\n")
	awaitWatchdog(t, m.readPID("stile.pid"))
	c.typeKeys(ctrlZ)
	c.awaitScreen("Stopped")
	m.run("--url", s.url, "demo", "--", "sh", "-c", uptimeScript(">next")).expectExit(0)
	inner := m.readPID("inner.pid")
	eventually(t, "end of the process outside the group", func() bool { return !running(inner) })
	m.checkDeadBefore("next", "steps")
}

// An editor restores the screen when it gets TSTP.
func TestRun_handlesTSTP(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.write("script", `trap 'echo preparing; kill -STOP $$' TSTP; echo begun; while :; do read end <end; done`, 0o600)
	c := m.startShell()
	c.typeKeys(fmt.Sprintf("%s run --url %s --ttl %s demo -- sh script\n", stile, s.url, longTTL))
	c.awaitScreen("begun\r\n")
	c.typeKeys(ctrlZ)
	c.awaitScreen("preparing\r\n")
	c.awaitScreen("Stopped")
}

// A command is suspended for less than the time in which the lock is lost. It continues after the
// next renewal.
func TestRun_suspendedBriefly(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	cli := s.client(t)
	m.write("script", endableScript, 0o600)
	c := m.startShell()
	c.typeKeys(fmt.Sprintf("%s run --url %s --ttl 90 -k 33 demo -- sh script\n", stile, s.url))
	eventually(t, "start of the script", func() bool { return m.exists("started") })
	c.typeKeys(ctrlZ)
	c.awaitScreen("Stopped")
	// This is longer than the 47.7 s after which the command would be stopped if it were not suspended,
	// and shorter than the 81 s after which the lock would be lost. Both are counted from the last
	// renewal, which was a few seconds ago at most, or half a minute on a busy machine.
	time.Sleep(48 * time.Second)
	end := sessionEnd(t, cli, "demo")
	c.typeKeys("fg; echo code $?\n")
	awaitRenewal(t, cli, "demo", end)
	m.endScript()
	c.awaitScreen("code 0")
}

// A shell's kill sends TERM and then CONT to a stopped job. The command reads again as soon as it
// continues, and is stopped again.
func TestRun_killOfStoppedJob(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	c := m.startShell()
	for i := range 5 {
		m.write("script", fmt.Sprintf("touch started%d; read x; echo read $x", i), 0o600)
		c.typeKeys(fmt.Sprintf("%s run --url %s --ttl %s demo -- sh script &\n", stile, s.url, longTTL))
		eventually(t, "start of the script", func() bool { return m.exists(fmt.Sprintf("started%d", i)) })
		eventually(t, "stop of the command", func() bool { return strings.Contains(c.jobs(), "Stopped") })
		c.typeKeys("kill %1\n")
		eventually(t, "end of the job", func() bool { return !strings.Contains(c.jobs(), "stile run") })
	}
	c.typeKeys("exit 0\n")
	if code := c.exitCode(); code != 0 {
		t.Errorf("shell: got exit code %d, want 0", code)
	}
}

// The two signals of a shell's kill may arrive in any order and at different times. Here TERM
// arrives 100 ms after CONT. One success in ten runs is enough, because a busy machine can delay
// the command.
func TestRun_termAfterCont(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	c := m.startShell()
	state := func(pid int) string {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		_, rest, _ := strings.Cut(string(status), "\nState:\t")
		return rest[:min(len(rest), 1)]
	}
	for i := range 10 {
		m.write("script", fmt.Sprintf("echo $PPID >pid%d.new; mv pid%d.new pid%d; read x", i, i, i), 0o600)
		c.typeKeys(fmt.Sprintf("%s run --url %s --ttl %s demo -- sh script &\n", stile, s.url, longTTL))
		file := fmt.Sprintf("pid%d", i)
		eventually(t, "start of the script", func() bool { return m.exists(file) })
		pid := m.readPID(file)
		eventually(t, "stop of the command", func() bool { return state(pid) == "T" })
		kill(t, pid, syscall.SIGCONT)
		time.Sleep(100 * time.Millisecond)
		kill(t, pid, syscall.SIGTERM)
		stopped := false
		eventually(t, "end or stop of stile", func() bool {
			stopped = state(pid) == "T"
			return stopped || !running(pid)
		})
		if !stopped {
			return
		}
		kill(t, pid, syscall.SIGCONT)
		eventually(t, "end of the job", func() bool { return !running(pid) })
	}
	t.Error("stile was stopped again in each of ten runs before it handled the signal")
}

// jobs returns the shell's list of jobs.
func (c *console) jobs() string {
	c.t.Helper()
	c.typeKeys("jobs; echo 'end of jobs'\n")
	c.awaitScreen("echo 'end of jobs'\r\n")
	at := c.seen
	c.awaitScreen("end of jobs\r\n")
	return c.screenText()[at:c.seen]
}

// resize sets the number of columns of the terminal.
func (c *console) resize(columns int) {
	c.t.Helper()
	raw, err := c.keys.SyscallConn()
	if err != nil {
		c.t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)})
	})
	if err != nil || failed != nil {
		c.t.Fatal(err, failed)
	}
}

func TestRun_waitingLineFitsTerminal(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	holder := m.start(sleepScript, "demo")
	eventually(t, "the holder publishes when it obtained the lock", func() bool {
		return !m.show("demo").Holders[0].Owner.Obtained.IsZero()
	})
	owner := m.show("demo").Holders[0].Owner
	full := fmt.Sprintf(`stile: "demo": held by %v since %s; next in line; waited `, owner, owner.Obtained.Local().Format(time.TimeOnly))
	c := m.atTerminal(stile, "run", "--ttl", longTTL, "demo", "--", "echo", "was run")
	c.resize(200)
	c.awaitScreen(full)
	short := fmt.Sprintf(`stile: "demo": held by %v; next in line`, owner)
	c.resize(len(short) + 3)
	c.awaitScreen("\x1b[K" + short)
	c.resize(25)
	c.awaitScreen("\x1b[Kstile: next in line")
	c.resize(10)
	c.awaitScreen("\x1b[Knext i…")
	c.typeKeys(ctrlC)
	if code := c.exitCode(); code != 128+2 {
		t.Errorf("got exit code %d", code)
	}
	eventually(t, "cleared status line", func() bool { return strings.HasSuffix(c.screenText(), "\r\x1b[K") })
	holder.signal(syscall.SIGTERM)
	holder.expectExit(128 + 15)
}
