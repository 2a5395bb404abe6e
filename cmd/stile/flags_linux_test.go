package main_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/internal/testservers"
)

func TestRun_conflictExitCode(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.start(sleepScript, "demo")
	m.run("-n", "-E", "9", "demo", "--", "true").expectExit(9, `"demo"`)
	m.run("-w", "0.1", "--conflict-exit-code", "0", "demo", "--", "true").expectExit(0, `"demo"`)
	m.run("-n", "-E", "9", "free", "--", "sh", "-c", "exit 3").expectExit(3)
	for _, code := range []string{"256", "-1"} {
		m.run("-n", "-E", code, "demo", "--", "true").expectExit(125, "--conflict-exit-code", code, "0 to 255")
	}
}

func TestRun_quietAndVerbose(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c := m.run("-v", "free", "--", "true")
	if printed := c.stderr.String(); c.exitCode() != 0 || !strings.Contains(printed, `lock "free" acquired after`) ||
		!strings.Contains(printed, "token") || !strings.Contains(printed, `lock "free" released after`) {
		t.Errorf("with -v, stderr is %q", printed)
	}
	m.run("-q", "free", "--", "true").expectExit(0)
	m.start(sleepScript, "demo")
	m.run("-q", "-n", "demo", "--", "true").expectExit(75)
	m.run("-q", "-w", "1.2", "demo", "--", "true").expectExit(75)
	m.run("-q", "-v", "demo", "--", "true").expectExit(125, "-q", "-v", "one of them")
	m.run("-q", "--url", "gopher://x", "demo", "--", "true").expectExit(125, "gopher")
}

// Without a terminal, stile reports waiting only with -v.
func TestRun_verboseShowsHolder(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	holder := m.start(sleepScript, "demo")
	cli := s.client(t)
	quiet := m.runCommand("demo", "--", "true").spawn()
	eventually(t, "first waiter", func() bool { return len(entries(t, cli, "demo")) == 2 })
	c := m.runCommand("-v", "demo", "--", "true").spawn()
	eventually(t, "message about the waiting", func() bool {
		return strings.Contains(c.stderr.String(), "next in line") || strings.Contains(c.stderr.String(), " ahead")
	})
	holder.signal(syscall.SIGTERM)
	holder.expectExit(128 + 15)
	if code := c.exitCode(); code != 0 {
		t.Errorf("exit code %d: %s", code, c.stderr)
	}
	if printed := c.stderr.String(); strings.Count(printed, "held by") != 1 ||
		!strings.Contains(printed, fmt.Sprintf("pid %d (sh) since", holder.Process.Pid)) {
		t.Errorf("with -v, stderr is %q", printed)
	}
	quiet.expectExit(0)
}

func TestRun_shellLine(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	for _, args := range [][]string{
		{"-c", "echo $STILE_NAME | tr a-z A-Z; exit 4", "demo"},
		{"demo", "-c", "echo $STILE_NAME | tr a-z A-Z; exit 4"},
	} {
		c := m.run(args...)
		c.expectExit(4)
		if got := c.stdout.String(); got != "DEMO\n" {
			t.Errorf("%q: got stdout %q, want %q", args, got, "DEMO\n")
		}
	}
	// Without -c no shell is run.
	c := m.run("demo", "--", "echo", "$STILE_NAME;", "exit 4")
	c.expectExit(0)
	if got := c.stdout.String(); got != "$STILE_NAME; exit 4\n" {
		t.Errorf("without -c: got stdout %q, want %q", got, "$STILE_NAME; exit 4\n")
	}
}

func TestRun_scriptWithoutInterpreterLine(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	script := m.write("script", "echo \"$0 got $*\"; exit 5\n", 0o700)
	c := m.run("--url", s.url, "demo", "--", script, "a", "b c")
	c.expectExit(5)
	if got, want := c.stdout.String(), script+" got a b c\n"; got != want {
		t.Errorf("stdout %q, want %q", got, want)
	}
}

func TestRun_owner(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	c := m.start("echo $STILE_OWNER >owner; touch started; exec sleep 1000", "--url", s.url,
		"--label", "team=web", "--label", "ticket=a=b", "--reason", "moving house", "demo")
	host, _ := os.Hostname()
	if got := m.read("owner"); !strings.Contains(got, fmt.Sprintf("@%s pid %d (sh)", host, c.Process.Pid)) {
		t.Errorf("STILE_OWNER is %q", got)
	}
	got, err := s.client(t).Get(t.Context(), entries(t, s.client(t), "demo")[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"reason":"moving house"`, `"team":"web"`, `"ticket":"a=b"`} {
		if value := string(got.Kvs[0].Value); !strings.Contains(value, want) {
			t.Errorf("the entry does not contain %s: %s", want, value)
		}
	}
	m.run("--label", "team", "demo", "--", "true").expectExit(125, "--label", `"team"`, "name=value")
}

func TestRun_runTimeout(t *testing.T) {
	t.Parallel()
	s := shared(t)
	const wait = "touch started; " + sleepLoop
	const limit = "20" // by then the script handles signals, even on a busy machine
	machine := func(t *testing.T) *machine {
		t.Parallel()
		m := newMachine(t)
		m.setenv("STILE_URL", s.url)
		return m
	}

	t.Run("TERM", func(t *testing.T) {
		m := machine(t)
		m.start(`trap 'echo TERM >>log; exit 3' TERM; `+wait, "--run-timeout", limit, "-k", "110", "term").
			expectExit(124, `"term"`, "has run for 20s", "stopping it")
		if got := m.read("log"); got != "TERM\n" {
			t.Errorf("got log %q, want one TERM", got)
		}
	})
	t.Run("another signal", func(t *testing.T) {
		m := machine(t)
		m.start(`trap 'echo INT >>log; exit 3' INT; `+wait, "--run-timeout", limit, "-k", "110", "--signal", "SIGINT", "int").
			expectExit(124, "stopping it")
		if got := m.read("log"); !strings.HasSuffix(got, "INT\n") {
			t.Errorf("got log %q, want INT at its end", got)
		}
	})
	t.Run("killed with its descendants", func(t *testing.T) {
		m := machine(t)
		c := m.start(ignoreTermScript, "--run-timeout", limit, "-k", "0.2", "kill")
		m.awaitFile("grandchild", "\n")
		c.expectExit(124, "stopping it")
		m.awaitCommandDead()
	})
	t.Run("ends in time", func(t *testing.T) {
		m := machine(t)
		m.run("--run-timeout", "300", "quick", "--", "sh", "-c", "exit 3").expectExit(3)
		m.run("--run-timeout", "0", "quick", "--", "true").expectExit(0)
	})
}

// stile may block when it writes to stderr: a terminal may be held with ^S, or a pipe be full. A
// closed pipe fails each write.
func TestRun_unreadStderr(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	full := func(t *testing.T) *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		fd := int(w.Fd())
		for { // until not even a part of the last page is free
			if err := unix.SetNonblock(fd, true); err != nil {
				t.Fatal(err)
			}
			if _, err := unix.Write(fd, make([]byte, 1<<12)); errors.Is(err, unix.EAGAIN) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.SetNonblock(fd, false); err != nil { // stile shares the file's flags
			t.Fatal(err)
		}
		return w
	}
	closed := func(t *testing.T) *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close() })
		r.Close()
		return w
	}
	for name, pipe := range map[string]func(*testing.T) *os.File{"full": full, "closed": closed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := m.forSubtest(t)
			c := m.runCommand("--url", s.url, "--run-timeout", "20", "-k", "110", name, "--", "sh", "-c",
				`trap 'echo TERM >`+name+`; exit' TERM; `+sleepLoop+` 2>/dev/null`)
			c.Cmd.Stderr = pipe(t)
			if code := c.spawn().exitCode(); code != 124 {
				t.Errorf("exit code %d, want 124", code)
			}
			if m.read(name) != "TERM\n" {
				t.Error("the command got no TERM")
			}
			if left := entries(t, s.client(t), name); len(left) > 0 {
				t.Errorf("entries left in the line: %q", left)
			}
		})
	}
	t.Run("verbose", func(t *testing.T) {
		m := m.forSubtest(t)
		c := m.runCommand("--url", s.url, "-v", "verbose", "--", "sh", "-c", "echo ran >verbose; exit 3")
		c.Cmd.Stderr = closed(t)
		if code := c.spawn().exitCode(); code != 3 || m.read("verbose") != "ran\n" {
			t.Errorf("exit code %d, want 3; the command wrote %q, want ran", code, m.read("verbose"))
		}
	})
}

func TestRun_invalidStopFlags(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run("--ttl", "15", "-k", "10", "demo", "--", "true").expectExit(125, "--kill-after 10s is too long for --ttl 15s: use at most 5.625s, or --ttl 27s or more")
	m.run("--ttl", "15", "-k", "-1", "demo", "--", "true").expectExit(125, "--kill-after", "negative")
	m.run("-k", "1000000h", "demo", "--", "true").expectExit(125, "--kill-after 1000000h is too long: use at most 1m52.5s, with --ttl 5m")
	m.run("--ttl", "1000000h", "demo", "--", "true").expectExit(125, "--ttl 1000000h: this store allows", "to 5m")
	m.run("--signal", "NOSUCH", "demo", "--", "true").expectExit(125, "--signal NOSUCH", "no such signal")
}

// Without -w there is no time limit, so a lost session is an error (125) and not a timeout (75).
func TestRun_outageWhileWaiting(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t)
	m.start(sleepScript, "--url", s.url, "demo")
	waiter := m.runCommand("--url", s.url, "--ttl", expiringTTL, "-v", "demo", "--", "true").spawn()
	eventually(t, "the waiter in line", func() bool { return strings.Contains(waiter.stderr.String(), "next in line") })
	pause(t, s.Process.Pid)
	if code := waiter.exitCode(); code != 125 {
		t.Errorf("got exit code %d, want 125", code)
	}
	if printed := waiter.stderr.String(); !strings.Contains(printed, "no answer") || strings.Contains(printed, "could not acquire") {
		t.Errorf("got stderr %q, want no answer and no timeout", printed)
	}
}

func TestRun_forwardsSignals(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{
		"WINCH": syscall.SIGWINCH, "ALRM": syscall.SIGALRM, "IO": syscall.SIGIO, "PWR": syscall.SIGPWR, "ABRT": syscall.SIGABRT,
		"35": 35, "64": 64,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, s := newMachine(t), shared(t)
			bash, err := exec.LookPath("bash")
			if err != nil {
				t.Skipf("SKIPPED: this test needs a shell that can trap all signals: %v", err)
			}
			m.write("script", `exec 2>/dev/null; trap 'echo got it; exit 3' `+strconv.Itoa(int(sig))+`; touch started; while :; do sleep 0.05; done`, 0o600)
			c := m.runCommand("--url", s.url, "demo", "--", bash, "script").spawn()
			eventually(t, "start of the script", func() bool { return m.exists("started") })
			c.signal(sig)
			c.expectExit(3)
		})
	}
}

// The exit status is available at once; the lock is released only after --min-hold.
func TestRun_minHold(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	const minHold = 120 * time.Second
	began := time.Now()
	c := m.run("--min-hold", minHold.String(), "demo", "--", "sh", "-c", "exit 3")
	c.expectExit(3)
	if took := time.Since(began); took >= minHold {
		t.Fatalf("stile ended after %v, when the lock was released; want the exit status at once", took)
	}
	m.run("-n", "demo", "--", "true").expectExit(75, `"demo"`, fmt.Sprintf("pid %d (sh)", c.Process.Pid))
	cli := s.client(t)
	// The store releases the lock, because stile has ended.
	if left, elapsed := remainingTTL(t, cli, "demo"), time.Since(began); left > minHold || left < minHold-elapsed-2*time.Second {
		t.Errorf("%v after the start the store keeps the lock for another %v, want %v in all", elapsed, left, minHold)
	}
	revoke(t, cli, "demo") // instead of waiting for the end of --min-hold
	m.run("demo", "--", "true").expectExit(0)
	// A command that runs for longer is not delayed.
	m.run("--min-hold", "0.1", "demo", "--", "sleep", "0.2").expectExit(0)
	m.run("-n", "demo", "--", "true").expectExit(0)
	// The lock of a command that could not be started is released at once.
	m.run("--min-hold", "60", "demo", "--", m.write("bad", "#!/no/such/interpreter\n", 0o700)).expectExit(127, "interpreter")
	m.run("-n", "demo", "--", "true").expectExit(0)
}

func TestRun_waitingLineShowsHolder(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	first := m.start(sleepScript, "demo")
	next := m.runCommand("demo", "--", "sh", "-c", "touch next; exec sleep 1000").spawn()
	cli := s.client(t)
	eventually(t, "a waiter", func() bool { return len(entries(t, cli, "demo")) == 2 })

	c := m.atTerminal(stile, "run", "--ttl", longTTL, "demo", "--", "echo", "the command")
	c.awaitScreen(fmt.Sprintf("pid %d (sh) since", first.Process.Pid))
	c.awaitScreen("2 ahead")
	first.signal(syscall.SIGTERM)
	c.awaitScreen(fmt.Sprintf("pid %d (sh) since", next.Process.Pid))
	c.awaitScreen("next in line")
	next.signal(syscall.SIGTERM)
	c.awaitScreen("\r\x1b[Kthe command") // replaces the status line
	if code := c.exitCode(); code != 0 {
		t.Errorf("exit code %d: %q", code, c.screenText())
	}
}

// A nested run that waits for a lock of an enclosing run would wait forever. It reports that, even
// if another lock is between the two.
func TestRun_nestedDeadlock(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	for name, args := range map[string][]string{
		"a-a":   {"a-a", "--", stile, "run", "a-a", "--", "true"},
		"all":   {"all", "--", stile, "run", "--all", "a", "all", "--", "true"},
		"a-b-a": {"a-b-a", "--", stile, "run", "b", "--", "sh", "-c", `exec "$0" run a-b-a -- true`, stile},
	} {
		c := m.runCommand(args...).spawn()
		eventually(t, "deadlock message", func() bool {
			return strings.Contains(c.stderr.String(), `deadlock: lock "`+name+`" is already held by a stile run that this command runs under`)
		})
		c.signal(syscall.SIGTERM)
		if code := c.exitCode(); code != 128+15 {
			t.Errorf("exit code %d, stderr: %s", code, c.stderr)
		}
	}
	m.start(sleepScript, "other")
	m.run("demo", "--", stile, "run", "-w", "3", "other", "--", "true").expectExit(75, `could not acquire lock "other" within 3s: it is held by`)
}

func TestRun_memoryStoreWarning(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run("--url", "mem:", "demo", "--", "true").expectExit(0, "mem:", "excludes no other process")
	m.run("-q", "--url", "mem:", "demo", "--", "true").expectExit(0)
}

// The command may use STILE_URL itself, so without the password it must still be a valid URL.
func TestRun_passesURLWithoutPassword(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	redis := testservers.StartRedis(t)
	redis.Do("ACL", "SETUSER", "ann", "on", ">s3cret", "~*", "&*", "+@all")
	c := m.run("--url", "redis://ann:s3cret@"+redis.Addr()+"/1", "demo", "--", "sh", "-c", `echo "$STILE_URL"`)
	c.expectExit(0)
	if got, want := c.stdout.String(), "redis://ann@"+redis.Addr()+"/1\n"; got != want {
		t.Errorf("STILE_URL is %q, want %q", got, want)
	}
}
