package main_test

import (
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// hold starts stile hold with a pipe as its stdin, and waits until it has printed that the lock is
// held.
func (m *machine) hold(args ...string) (c *command, stdin io.Closer) {
	m.t.Helper()
	c = m.command(append([]string{"hold", "--ttl", longTTL}, args...)...)
	read, write, err := os.Pipe()
	if err != nil {
		m.t.Fatal(err)
	}
	c.Stdin = read
	c.spawn()
	read.Close()
	m.t.Cleanup(func() { write.Close() })
	eventually(m.t, "the line of stile hold", func() bool { return strings.Contains(c.stdout.String(), "\n") })
	return c, write
}

func TestHold_untilStdinEnds(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c, stdin := m.hold("--reason", "tests", "demo")
	line := m.show("demo")
	if got := c.stdout.String(); !strings.HasPrefix(got, `lock "demo": held, token `) || !strings.HasSuffix(got, " if not renewed\n") {
		t.Errorf("got %q, want the lock, its token and the deadline", got)
	}
	if o := line.Holders[0].Owner; o.PID != c.Process.Pid || o.Command != "stile hold" || o.Reason != "tests" {
		t.Errorf("got owner %+v, want stile hold and the reason", o)
	}
	m.run("-n", "demo", "--", "true").expectExit(75, `"demo" is held by`)
	stdin.Close()
	c.expectExit(0)
	m.run("-n", "demo", "--", "true").expectExit(0)
}

func TestHold_signals(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		c, _ := m.hold("demo")
		c.signal(sig)
		c.expectExit(0)
		m.run("-n", "demo", "--", "true").expectExit(0)
	}
	c, stdin := m.hold("demo")
	m.stile("hold", "-w", "0.1", "-E", "9", "demo").expectExit(9, `could not acquire lock "demo" within 100ms: it is held by `)
	m.stile("hold", "--nonblock", "-q", "demo").expectExit(75)
	waiter := m.command("hold", "demo").spawn()
	eventually(t, "a waiter", func() bool { return len(m.show("demo").Waiters) == 1 })
	waiter.signal(syscall.SIGTERM)
	waiter.expectExit(128 + 15)
	stdin.Close()
	c.expectExit(0)
}

// In the background of a script stdin is /dev/null. That does not end the hold.
func TestHold_withoutStdin(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c := m.command("hold", "demo").spawn() // without Stdin, package exec opens /dev/null
	eventually(t, "the line of stile hold", func() bool { return strings.Contains(c.stdout.String(), "\n") })
	stopped := m.command("hold", "-n", "demo").spawn()
	stopped.expectExit(75, `"demo" is held by`)
	c.signal(syscall.SIGTERM)
	c.expectExit(0)
}

func TestHold_lost(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c, _ := m.hold("demo")
	m.breakHolder("demo")
	c.expectExit(79, `lock "demo" was broken, or its lease expired`)
}

func TestHold_outage(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t)
	m.setenv("STILE_URL", s.url)
	c, _ := m.hold("--ttl", expiringTTL, "-v", "demo")
	pause(t, s.Process.Pid)
	if code := c.exitCode(); code != 79 {
		t.Errorf("got exit code %d, want 79", code)
	}
	for _, part := range []string{
		`stile: lock "demo" acquired after `, `stile: lock "demo": a renewal failed (`, "; trying again\n",
		`stile: lock "demo" expired: it was not renewed in time`,
	} {
		if !strings.Contains(c.stderr.String(), part) {
			t.Errorf("got %s, want %q in it", c.stderr, part)
		}
	}
}

// The reader of the line is gone: the lock is released, and does not stay held for the TTL.
func TestHold_closedPipe(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	closed := func() *os.File {
		t.Helper()
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		read.Close()
		t.Cleanup(func() { write.Close() })
		return write
	}
	c := m.command("hold", "--ttl", "300", "demo")
	c.Cmd.Stdout = closed()
	c.spawn().expectExit(128 + int(syscall.SIGPIPE))
	m.run("-n", "demo", "--", "true").expectExit(0)
	c = m.command("hold", "--ttl", "300", "--ready-fd", "3", "demo")
	c.ExtraFiles = []*os.File{closed()}
	c.spawn().expectExit(125, "--ready-fd 3: ", "broken pipe")
	m.run("-n", "demo", "--", "true").expectExit(0)
}

// Readers and slots are held as by stile run. At a terminal, ^D ends stdin.
func TestHold_modes(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.setenv("STILE", stile)
	m.hold("-s", "shared")
	m.run("-n", "-s", "shared", "--", "true").expectExit(0)
	m.run("-n", "shared", "--", "true").expectExit(75, `"shared" is held by`, "(stile hold)")
	m.hold("-x", "exclusive")
	m.run("-n", "-s", "exclusive", "--", "true").expectExit(75, `"exclusive" is held by`)
	m.hold("--slots", "2", "--label", "team=web", "slots")
	if o := m.show("slots").Holders[0].Owner; o.Labels["team"] != "web" {
		t.Errorf("got owner %+v, want the label", o)
	}
	c, _ := m.hold("--slots", "2", "-o", "json", "slots")
	got := decodeJSON[struct {
		Holds []struct {
			Name, Token, Owner string
			Slot               *int
		}
		Deadline time.Time
	}](t, c.stdout.Bytes())
	if len(got.Holds) != 1 || got.Holds[0].Slot == nil || *got.Holds[0].Slot != 1 {
		t.Errorf("got %s, want slot 1", c.stdout)
	}

	at := m.atTerminal(stile, "hold", "--ttl", longTTL, "--all", "x", "y")
	at.awaitScreen(`locks "x" and "y": held, tokens `)
	m.run("-n", "y", "--", "true").expectExit(75, `"y" is held by`)
	at.typeKeys("\x04")
	if code := at.exitCode(); code != 0 {
		t.Errorf("after ^D: got exit code %d: %q", code, at.screenText())
	}
	m.run("-n", "y", "--", "true").expectExit(0)
}

func TestHold_json(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c, stdin := m.hold("-o", "json", "--all", "b", "a")
	got := decodeJSON[struct {
		Holds []struct {
			Name  string `json:"name"`
			Token string `json:"token"`
			Owner string `json:"owner"`
		} `json:"holds"`
		Deadline time.Time `json:"deadline"`
	}](t, c.stdout.Bytes())
	if len(got.Holds) != 2 || got.Holds[0].Name != "a" || got.Holds[1].Name != "b" || got.Holds[0].Token == "" || got.Deadline.IsZero() {
		t.Errorf("got %s, want both locks with their tokens, and the deadline", c.stdout)
	}
	stdin.Close()
	c.expectExit(0)
	for _, name := range []string{"a", "b"} {
		if left := entries(t, s.client(t), name); left != nil {
			t.Errorf("entries left in the line of %s: %v", name, left)
		}
	}
}

// With --ready-fd stdout stays free, and the reader of the descriptor sees its end.
func TestHold_readyFD(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	c := m.command("hold", "--ready-fd", "3", "demo")
	c.ExtraFiles = []*os.File{write}
	c.spawn()
	write.Close()
	text, err := io.ReadAll(read)
	if err != nil || !strings.HasPrefix(string(text), `lock "demo": held, token `) || strings.Count(string(text), "\n") != 1 {
		t.Errorf("got %q, %v from the descriptor, want one line", text, err)
	}
	c.signal(syscall.SIGTERM)
	c.expectExit(0)
	if got := c.stdout.String(); got != "" {
		t.Errorf("got stdout %q, want none", got)
	}
	m.stile("hold", "--ready-fd", "99", "demo").expectExit(125, "--ready-fd 99", "bad file descriptor")
	m.run("-n", "demo", "--", "true").expectExit(0)
	m.stile("hold", "--ready-fd", "4", "demo").expectExit(125, "--ready-fd 4", "bad file descriptor") // of Go's runtime
	for _, fd := range []string{"0", "2", "-1", "x"} {
		m.stile("hold", "--ready-fd", fd, "demo").expectExit(125, "--ready-fd", "file descriptor")
	}
}

// The script of the example in the help: the hold ends with the script, even if that is killed.
func TestHold_coprocess(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.setenv("PATH", m.dir+":"+os.Getenv("PATH"))
	if err := os.Symlink(stile, m.path("stile")); err != nil {
		t.Fatal(err)
	}
	script := m.command()
	script.Path, script.Args = "/bin/bash", []string{"bash", "-c", `
		coproc stile hold demo
		read -r held <&"${COPROC[0]}" || exit 1
		echo "$held" >held
		read end <end`}
	script.spawn()
	m.awaitFile("held", `lock "demo": held, token `)
	m.run("-n", "demo", "--", "true").expectExit(75, `"demo" is held by`)
	script.signal(syscall.SIGKILL)
	m.run("demo", "--", "true").expectExit(0)

	// The lock is released before the script ends, as by flock -u.
	script = m.command()
	script.Path, script.Args = "/bin/bash", []string{"bash", "-c", `
		coproc stile hold demo
		read -r held <&"${COPROC[0]}" || exit 1
		stile run -n -q demo -- true; echo $?
		holder=$COPROC_PID
		exec {COPROC[1]}>&-
		wait "$holder"; echo $?
		stile run -n demo -- true; echo $?`}
	script.spawn().expectOutput("75\n0\n0\n")
}

func TestHold_invalidArguments(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.setenv("STILE_URL", "etcd://127.0.0.1:1") // nothing listens there
	m.stile("hold").expectExit(125, "missing lock name", "--help")
	m.stile("hold", "a", "b").expectExit(125, `unexpected argument "b"`)
	m.stile("hold", "a//b").expectExit(125, "invalid lock name")
	m.stile("hold", "-s", "-x", "a").expectExit(125, "-s and -x contradict")
	m.stile("hold", "-n", "-w", "1", "a").expectExit(125, "-n and -w contradict")
	m.stile("hold", "-q", "-v", "a").expectExit(125, "-q and -v contradict")
	m.stile("hold", "--ttl", "0", "a").expectExit(125, "--ttl must be more than 0")
	m.stile("hold", "-o", "yaml", "a").expectExit(125, "must be text or json")
	m.stile("hold", "a").expectExit(125, "connection refused")
}
