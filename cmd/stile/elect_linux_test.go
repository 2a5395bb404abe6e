package main_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	lib "github.com/stilelock/stile"
)

// elect starts stile elect.
func (m *machine) elect(args ...string) *command {
	m.t.Helper()
	return m.command(append([]string{"elect"}, args...)...).spawn()
}

// countedScript appends its token to the file starts, and waits for a signal or for endScript.
const countedScript = `echo "$STILE_TOKEN" >>starts; read end <end`

// awaitStarts waits until the script has been started n times, and returns the tokens.
func (m *machine) awaitStarts(n int) []string {
	m.t.Helper()
	eventually(m.t, fmt.Sprintf("%d starts of the command", n), func() bool {
		return strings.Count(m.read("starts"), "\n") >= n
	})
	return strings.Fields(m.read("starts"))
}

// breakHolder breaks the current hold.
func (m *machine) breakHolder(name string) {
	m.t.Helper()
	token := m.show(name).Holders[0].Token
	m.stile("break", name, "--token", strconv.FormatUint(token, 10)).expectExit(0)
}

// A candidate runs its command when it leads, and ends with it.
func TestElect_inTurn(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	first := m.elect("--value", "one:80", "api", "--", "sh", "-c", countedScript+"; exit 3")
	m.awaitStarts(1)
	second := m.elect("--value", "two:80", "api", "-c", "exit 4")
	eventually(t, "a second candidate", func() bool { return len(m.show("api").Waiters) == 1 })
	if line := m.show("api"); line.Holders[0].Owner.Value != "one:80" || line.Waiters[0].Owner.Value != "two:80" {
		t.Errorf("got %+v, want the value of each candidate", line)
	}
	m.run("-n", "api", "--", "true").expectExit(75, `"api" is held by`) // an election is an exclusive lock
	m.endScript()
	first.expectExit(3)
	second.expectExit(4)
}

// After a loss the command is started again when the candidate leads again, with a larger token.
func TestElect_startsAgainAfterLoss(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c := m.elect("api", "--", "sh", "-c", countedScript)
	m.awaitStarts(1)
	m.breakHolder("api")
	tokens := m.awaitStarts(2)
	if a, b := tokens[0], tokens[1]; len(a) > len(b) || len(a) == len(b) && a >= b {
		t.Errorf("got tokens %v, want increasing ones", tokens)
	}
	m.endScript() // the command ends by itself
	if code := c.exitCode(); code != 0 {
		t.Errorf("got exit code %d, want that of the command, 0", code)
	}
	for _, part := range []string{`lock "api" was broken`, "stopping the command", `campaigning for lock "api" again in 1s`} {
		if !strings.Contains(c.stderr.String(), part) {
			t.Errorf("got %q, want %q in it", c.stderr, part)
		}
	}
}

func TestElect_restart(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)

	always := m.elect("--restart", "always", "-q", "always", "--", "sh", "-c", `echo "$STILE_TOKEN" >>starts; exit 3`)
	m.awaitStarts(3)
	always.signal(syscall.SIGTERM) // while the command runs, or in a pause, or while it is being elected
	if code := always.exitCode(); code != 3 && code != 128+15 {
		t.Errorf("--restart always: got exit code %d, want 3 or 143: %s", code, always.stderr)
	}
	if left := entries(t, s.client(t), "always"); left != nil {
		t.Errorf("entries left in the line: %v", left)
	}

	os.Remove(m.path("starts"))
	never := m.elect("--restart", "never", "never", "--", "sh", "-c", countedScript)
	m.awaitStarts(1)
	m.breakHolder("never")
	never.expectExit(79, `lock "never" was broken`, "stopping the command")
	if tokens := m.awaitStarts(1); len(tokens) != 1 {
		t.Errorf("--restart never: got %d starts, want 1", len(tokens))
	}
}

// A script that is not there when it is to be started again is reported as such, not as a script
// without an interpreter.
func TestElect_commandRemoved(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	script := m.write("script", "#!/bin/sh\nrm \"$0\"\n", 0o700)
	c := m.elect("--restart", "always", "api", "--", script)
	if code, want := c.exitCode(), "command not found: "+script; code != 127 || !strings.Contains(c.stderr.String(), want) {
		t.Errorf("got exit code %d and %q, want 127 and %q", code, c.stderr, want)
	}
}

// A command that was asked to end is not started again, however it ends.
func TestElect_signals(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			m, s := newMachine(t), shared(t)
			m.setenv("STILE_URL", s.url)
			c := m.elect("--restart", "always", "api", "--", "sh", "-c", `echo "$STILE_TOKEN" >>starts; exec sleep 1000`)
			m.awaitStarts(1)
			c.signal(sig)
			c.expectExit(128 + int(sig))
			if tokens := m.awaitStarts(1); len(tokens) != 1 {
				t.Errorf("got %d starts, want 1", len(tokens))
			}
		})
	}
	t.Run("while waiting", func(t *testing.T) {
		t.Parallel()
		m, s := newMachine(t), shared(t)
		m.setenv("STILE_URL", s.url)
		leader := m.elect("api", "--", "sh", "-c", countedScript)
		m.awaitStarts(1)
		c := m.elect("api", "--", "touch", "was-run")
		eventually(t, "a second candidate", func() bool { return len(m.show("api").Waiters) == 1 })
		c.signal(syscall.SIGTERM)
		c.expectExit(128 + 15)
		if m.exists("was-run") {
			t.Error("the command was run")
		}
		m.endScript()
		leader.expectExit(0)
	})
}

// A candidate that has led survives an outage of the store, and leads again after it.
func TestElect_outage(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t)
	m.setenv("STILE_URL", s.url)
	c := m.elect("--ttl", expiringTTL, "api", "--", "sh", "-c", countedScript)
	m.awaitStarts(1)
	if err := s.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"lost contact with the store", "campaigning for lock \"api\" again", "trying again"} {
		eventually(t, text, func() bool { return strings.Contains(c.stderr.String(), text) })
	}
	if err := s.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.awaitStarts(2)
	m.endScript()
	if code := c.exitCode(); code != 0 || !strings.Contains(c.stderr.String(), "the store can be read again") {
		t.Errorf("got exit code %d and %s, want 0 and the end of the outage", code, c.stderr)
	}
}

// The leaders are printed as they come, and nobody when there is none.
func TestElect_observe(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	text, inJSON := m.elect("--observe", "api"), m.elect("--observe", "-o", "json", "api")
	// Both have to print a state before the next change: states that end at once may be skipped.
	await := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d leaders", n), func() bool {
			return strings.Count(text.stdout.String(), "\n") >= n && strings.Count(inJSON.stdout.String(), "\n") >= n
		})
	}
	await(1)
	leader := m.elect("--value", "one\x1b:80", "api", "--", "sh", "-c", countedScript)
	token := m.awaitStarts(1)[0]
	await(2)
	m.endScript()
	leader.expectExit(0)
	await(3)

	owner := fmt.Sprintf("pid %d (sh)", leader.Process.Pid)
	lines := strings.Split(text.stdout.String(), "\n")
	if !strings.HasSuffix(lines[0], "  nobody") || !strings.HasSuffix(lines[2], "  nobody") ||
		!strings.Contains(lines[1], "  leader  token "+token+"  ") || !strings.HasSuffix(lines[1], owner+`  value: one\x1b:80`) {
		t.Errorf("got\n%swant nobody, token %s with the value, nobody", text.stdout, token)
	}
	type object struct {
		Time   time.Time `json:"time"`
		Name   string    `json:"name"`
		Leader *struct {
			Value   string    `json:"value"`
			Token   string    `json:"token"`
			Owner   lib.Owner `json:"owner"`
			Session string    `json:"session"`
		} `json:"leader"`
	}
	var objects []object
	for line := range strings.Lines(inJSON.stdout.String()) {
		objects = append(objects, decodeJSON[object](t, []byte(line)))
	}
	l := objects[1].Leader
	if objects[0].Leader != nil || objects[2].Leader != nil || l == nil || l.Value != "one\x1b:80" || l.Token != token ||
		l.Owner.PID != leader.Process.Pid || l.Session == "" || objects[1].Name != "api" || objects[1].Time.IsZero() {
		t.Errorf("got\n%swant nobody, token %s with the value, nobody", inJSON.stdout, token)
	}
}

func TestElect_invalidArguments(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.setenv("STILE_URL", "etcd://127.0.0.1:1") // nothing listens there, so using the store would fail with another error
	for _, c := range []struct {
		args  []string
		parts []string
	}{
		{[]string{}, []string{"missing lock name: stile elect", "--help"}},
		{[]string{"api"}, []string{"no command", `"api"`, "stile elect --help"}},
		{[]string{"--restart", "sometimes", "api", "--", "true"}, []string{`"sometimes"`, "on-loss, always or never"}},
		{[]string{"--observe"}, []string{"missing lock name"}},
		{[]string{"--observe", "api", "--", "true"}, []string{"unexpected argument"}},
		{[]string{"-o", "json", "api", "--", "true"}, []string{"-o is for --observe only"}},
		{[]string{"api", "--", "no-such-command"}, []string{"command not found"}},
		{[]string{"api", "--", "true"}, []string{"connection refused"}},
	} {
		e := m.elect(c.args...)
		if code := e.exitCode(); code != 125 && code != 127 {
			t.Errorf("%q: got exit code %d, want 125 or 127", c.args, code)
		}
		for _, part := range c.parts {
			if !strings.Contains(e.stderr.String(), part) {
				t.Errorf("%q: got %s, want %q in it", c.args, e.stderr, part)
			}
		}
	}
}
