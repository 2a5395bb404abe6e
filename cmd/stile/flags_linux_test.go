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

func TestTheExitCodeOfAConflictCanBeChosen(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	m.start(sleeper, "demo")
	m.run("-n", "-E", "9", "demo", "--", "true").wants(9, `"demo"`)
	m.run("-w", "0.1", "--conflict-exit-code", "0", "demo", "--", "true").wants(0, `"demo"`)
	m.run("-n", "-E", "9", "free", "--", "sh", "-c", "exit 3").wants(3)
	for _, code := range []string{"256", "-1"} {
		m.run("-n", "-E", code, "demo", "--", "true").wants(125, "--conflict-exit-code", code, "0 to 255")
	}
}

func TestQuietAndVerbose(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	c := m.run("-v", "free", "--", "true")
	if said := c.stderr.String(); c.code() != 0 || !strings.Contains(said, `lock "free" acquired after`) ||
		!strings.Contains(said, "token") || !strings.Contains(said, `lock "free" released after`) {
		t.Errorf("-v says %q", said)
	}
	m.run("-q", "free", "--", "true").wants(0)
	m.start(sleeper, "demo")
	m.run("-q", "-n", "demo", "--", "true").wants(75)
	m.run("-q", "-w", "1.2", "demo", "--", "true").wants(75)
	m.run("-q", "-v", "demo", "--", "true").wants(125, "-q", "-v", "one of them")
	m.run("-q", "--url", "gopher://x", "demo", "--", "true").wants(125, "gopher")
}

// Not at a terminal nobody is told of the waiting, unless he wants to be.
func TestVerboseTellsWhoIsWaitedFor(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	holder := m.start(sleeper, "demo")
	cli := s.client(t)
	silent := m.runner("demo", "--", "true").begin()
	eventually(t, "a waiter", func() bool { return len(entries(t, cli, "demo")) == 2 })
	c := m.runner("-v", "demo", "--", "true").begin()
	eventually(t, "word of the waiting", func() bool {
		return strings.Contains(c.stderr.String(), "next in line") || strings.Contains(c.stderr.String(), "come first")
	})
	holder.signal(syscall.SIGTERM)
	holder.wants(128 + 15)
	if code := c.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, c.stderr)
	}
	if said := c.stderr.String(); strings.Count(said, "held by") != 1 ||
		!strings.Contains(said, fmt.Sprintf("pid %d (sh) since", holder.Process.Pid)) {
		t.Errorf("-v says %q", said)
	}
	silent.wants(0)
}

func TestALineIsRunByTheShell(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	for _, args := range [][]string{
		{"-c", "echo $STILE_NAME | tr a-z A-Z; exit 4", "demo"},
		{"demo", "-c", "echo $STILE_NAME | tr a-z A-Z; exit 4"},
	} {
		c := m.run(args...)
		c.wants(4)
		if got := c.stdout.String(); got != "DEMO\n" {
			t.Errorf("%q: %q", args, got)
		}
	}
	// Never otherwise.
	c := m.run("demo", "--", "echo", "$STILE_NAME;", "exit 4")
	c.wants(0)
	if got := c.stdout.String(); got != "$STILE_NAME; exit 4\n" {
		t.Errorf("a command without -c: %q", got)
	}
}

func TestAScriptThatDoesNotSayWhoReadsItIsReadByTheShell(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	script := m.write("script", "echo \"$0 got $*\"; exit 5\n", 0o700)
	c := m.run("--url", s.url, "demo", "--", script, "a", "b c")
	c.wants(5)
	if got, want := c.stdout.String(), script+" got a b c\n"; got != want {
		t.Errorf("stdout %q, want %q", got, want)
	}
}

func TestWhoHoldsTheLockCanBeRead(t *testing.T) {
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
			t.Errorf("the entry does not say %s: %s", want, value)
		}
	}
	m.run("--label", "team", "demo", "--", "true").wants(125, "--label", `"team"`, "name=value")
}

func TestACommandThatTakesTooLongIsStopped(t *testing.T) {
	t.Parallel()
	s := shared(t)
	const sleeps = `touch started; while :; do read end <end; done`
	const limit = "5" // by then a command is ready to be told, on a busy machine too
	machine := func(t *testing.T) *machine {
		t.Parallel()
		m := newMachine(t)
		m.set("STILE_URL", s.url)
		return m
	}

	t.Run("told by TERM", func(t *testing.T) {
		m := machine(t)
		m.start(`trap 'echo told >>log; exit 3' TERM; `+sleeps, "--run-timeout", limit, "term").
			wants(124, `"term"`, "has run for 5s", "stopping it")
		if got := m.read("log"); got != "told\n" {
			t.Errorf("the command was not told to end: %q", got)
		}
	})
	t.Run("told by another signal", func(t *testing.T) {
		m := machine(t)
		m.start(`trap 'echo interrupted >>log; exit 3' INT; `+sleeps, "--run-timeout", limit, "--signal", "SIGINT", "int").
			wants(124, "stopping it")
		if got := m.read("log"); !strings.HasSuffix(got, "interrupted\n") {
			t.Errorf("the command was not interrupted: %q", got)
		}
	})
	t.Run("killed with all that it has started", func(t *testing.T) {
		m := machine(t)
		c := m.start(stubborn, "--run-timeout", limit, "-k", "0.2", "kill")
		m.await("grandchild", "\n")
		c.wants(124, "stopping it")
		m.isDead()
	})
	t.Run("not if it ends in time", func(t *testing.T) {
		m := machine(t)
		m.run("--run-timeout", "300", "quick", "--", "sh", "-c", "exit 3").wants(3)
		m.run("--run-timeout", "0", "quick", "--", "true").wants(0)
	})
}

// A terminal may be held with ^S, a pipe be full, and whoever has read it may have gone.
func TestACommandIsStoppedThoughNobodyReadsWhatStileSays(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	full := func(t *testing.T) *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		fd := int(w.Fd())
		for { // what is left of the last page too
			if err := unix.SetNonblock(fd, true); err != nil {
				t.Fatal(err)
			}
			if _, err := unix.Write(fd, make([]byte, 1<<12)); errors.Is(err, unix.EAGAIN) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.SetNonblock(fd, false); err != nil { // for stile, which has the same file
			t.Fatal(err)
		}
		return w
	}
	unread := func(t *testing.T) *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close() })
		r.Close()
		return w
	}
	for name, pipe := range map[string]func(*testing.T) *os.File{"full": full, "unread": unread} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := m.in(t)
			c := m.runner("--url", s.url, "--run-timeout", "5", name, "--", "sh", "-c",
				`trap 'echo told >`+name+`; exit' TERM; while :; do read end <end; done 2>/dev/null`)
			c.Cmd.Stderr = pipe(t)
			if code := c.begin().code(); code != 124 {
				t.Errorf("exit code %d, want 124", code)
			}
			if m.read(name) != "told\n" {
				t.Error("the command was not told to end")
			}
			if left := entries(t, s.client(t), name); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
	t.Run("verbose", func(t *testing.T) {
		m := m.in(t)
		c := m.runner("--url", s.url, "-v", "verbose", "--", "sh", "-c", "echo ran >verbose; exit 3")
		c.Cmd.Stderr = unread(t)
		if code := c.begin().code(); code != 3 || m.read("verbose") != "ran\n" {
			t.Errorf("exit code %d, want 3, and the command wrote %q", code, m.read("verbose"))
		}
	})
}

func TestHowACommandIsStoppedMustFitIntoTheTTL(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run("--ttl", "15", "-k", "10", "demo", "--", "true").wants(125, "--kill-after 10s is too long for --ttl 15s: use at most 5.625s, or --ttl 27s or more")
	m.run("--ttl", "15", "-k", "-1", "demo", "--", "true").wants(125, "--kill-after", "negative")
	m.run("-k", "1000000h", "demo", "--", "true").wants(125, "--kill-after 1000000h is too long: use at most 1m52.5s, with --ttl 5m")
	m.run("--ttl", "1000000h", "demo", "--", "true").wants(125, "--ttl 1000000h: this store allows", "to 5m")
	m.run("--signal", "NOSUCH", "demo", "--", "true").wants(125, "--signal NOSUCH", "no such signal")
}

// Cut off, a command that wants more time to end is told so much earlier. It would have 5 s otherwise.
func TestKillAfterIsKeptWhenTheLockIsLost(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t)
	c := m.start(`trap '`+uptime(">>told")+`' HUP; touch started; while :; do `+uptime(">>alive")+`; sleep 0.1; done`,
		"--url", s.url, "--ttl", "24", "-k", "9", "--signal", "HUP", "demo")
	if err := s.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c.wants(79, "lost contact with the store", "stopping the command before lock")
	told, alive := m.stamps("told"), m.stamps("alive")
	if len(told) != 1 {
		t.Fatalf("told at %v, want it to be told once", told)
	}
	if last := alive[len(alive)-1]; last-told[0] < 5.5 {
		t.Errorf("told at %v, last seen alive at %v, want 9 s between them", told[0], last)
	}
}

// Nobody has asked it to wait for a certain time only.
func TestAnOutageWhileWaitingIsNoTimeout(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t)
	m.start(sleeper, "--url", s.url, "demo")
	waiter := m.runner("--url", s.url, "--ttl", "2", "-v", "demo", "--", "true").begin()
	eventually(t, "the waiter in line", func() bool { return strings.Contains(waiter.stderr.String(), "next in line") })
	if err := s.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if code := waiter.code(); code != 125 {
		t.Errorf("exit code %d", code)
	}
	if said := waiter.stderr.String(); !strings.Contains(said, "no answer") || strings.Contains(said, "could not acquire") {
		t.Errorf("the waiter has said %s", said)
	}
}

func TestEverySignalIsPassedOn(t *testing.T) {
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
				t.Skipf("SKIPPED: needs a shell that can trap every signal: %v", err)
			}
			m.write("script", `exec 2>/dev/null; trap 'echo got it; exit 3' `+strconv.Itoa(int(sig))+`; touch started; while :; do sleep 0.05; done`, 0o600)
			c := m.runner("--url", s.url, "demo", "--", bash, "script").begin()
			eventually(t, "start of the script", func() bool { return m.exists("started") })
			c.signal(sig)
			c.wants(3)
		})
	}
}

// The status is there at once, the lock is not.
func TestALockIsHeldForALeastTime(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	const least = 120 * time.Second
	began := time.Now()
	c := m.run("--min-hold", least.String(), "demo", "--", "sh", "-c", "exit 3")
	c.wants(3)
	if took := time.Since(began); took >= least {
		t.Fatalf("the status was there after %v, that is, when the lock was let go", took)
	}
	m.run("-n", "demo", "--", "true").wants(75, `"demo"`, fmt.Sprintf("pid %d (sh)", c.Process.Pid))
	cli := s.client(t)
	// The store lets the lock go: nobody else is there who could.
	if left, gone := remaining(t, cli, "demo"), time.Since(began); left > least || left < least-gone-2*time.Second {
		t.Errorf("%v after the start the store will keep the lock for %v, want %v in all", gone, left, least)
	}
	revoke(t, cli, "demo") // rather than wait for it
	m.run("demo", "--", "true").wants(0)
	// A command that takes longer anyway is not held up.
	m.run("--min-hold", "0.1", "demo", "--", "sleep", "0.2").wants(0)
	m.run("-n", "demo", "--", "true").wants(0)
	// One that could not be run has not had the lock.
	m.run("--min-hold", "60", "demo", "--", m.write("bad", "#!/no/such/interpreter\n", 0o700)).wants(127, "interpreter")
	m.run("-n", "demo", "--", "true").wants(0)
}

func TestAWaiterAtATerminalIsToldWhoHasTheLock(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	first := m.start(sleeper, "demo")
	next := m.runner("demo", "--", "sh", "-c", "touch next; exec sleep 1000").begin()
	cli := s.client(t)
	eventually(t, "the next one in line", func() bool { return len(entries(t, cli, "demo")) == 2 })

	c := m.at(stile, "run", "--ttl", lasting, "demo", "--", "echo", "the command")
	c.sees(fmt.Sprintf("pid %d (sh) since", first.Process.Pid))
	c.sees("2 come first")
	first.signal(syscall.SIGTERM)
	c.sees(fmt.Sprintf("pid %d (sh) since", next.Process.Pid))
	c.sees("next in line")
	next.signal(syscall.SIGTERM)
	c.sees("\r\x1b[Kthe command") // in place of the line about the waiting
	if code := c.code(); code != 0 {
		t.Errorf("exit code %d: %q", code, c.shown())
	}
}

// A nested run that waits for a lock held by a run around it would never get it. It says so, also if another lock is between the two.
func TestWhoWaitsForItselfIsTold(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.set("STILE_URL", s.url)
	for name, args := range map[string][]string{
		"a-a":   {"a-a", "--", stile, "run", "a-a", "--", "true"},
		"a-b-a": {"a-b-a", "--", stile, "run", "b", "--", "sh", "-c", `exec "$0" run a-b-a -- true`, stile},
	} {
		c := m.runner(args...).begin()
		eventually(t, "it is told", func() bool {
			return strings.Contains(c.stderr.String(), `deadlock: lock "`+name+`" is already held by a stile run that this command runs under`)
		})
		c.signal(syscall.SIGTERM)
		if code := c.code(); code != 128+15 {
			t.Errorf("exit code %d, stderr: %s", code, c.stderr)
		}
	}
	m.start(sleeper, "other")
	m.run("demo", "--", stile, "run", "-w", "3", "other", "--", "true").wants(75, `could not acquire lock "other" within 3s: it is held by`)
}

func TestALockInMemoryIsRemarkedOn(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run("--url", "mem:", "demo", "--", "true").wants(0, "mem:", "excludes no other process")
	m.run("-q", "--url", "mem:", "demo", "--", "true").wants(0)
}

// STILE_URL is for those who use it: without the password it is a URL all the same.
func TestTheURLThatIsPassedOnIsOne(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	redis := testservers.StartRedis(t)
	redis.Do("ACL", "SETUSER", "ann", "on", ">s3cret", "~*", "&*", "+@all")
	c := m.run("--url", "redis://ann:s3cret@"+redis.Addr()+"/1", "demo", "--", "sh", "-c", `echo "$STILE_URL"`)
	c.wants(0)
	if got, want := c.stdout.String(), "redis://ann@"+redis.Addr()+"/1\n"; got != want {
		t.Errorf("STILE_URL is %q, want %q", got, want)
	}
}
