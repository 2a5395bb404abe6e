package main_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	lib "github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
)

// elect starts stile elect.
func (m *machine) elect(args ...string) *command {
	m.t.Helper()
	if !slices.Contains(args, "--observe") {
		args = append([]string{"--ttl", longTTL}, args...) // the last --ttl counts
	}
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

	always := m.elect("--restart", "always", "-v", "always", "--", "sh", "-c", `echo "$STILE_TOKEN" >>starts; exit 3`)
	m.awaitStarts(3)
	for _, part := range []string{
		`lock "always" acquired after `, `lock "always" released after `, `campaigning for lock "always" again in 1s`,
		`campaigning for lock "always" again in 2s`,
	} {
		if !strings.Contains(always.stderr.String(), part) {
			t.Errorf("--restart always: got %s, want %q in it", always.stderr, part)
		}
	}
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
	m.elect("--restart", "always", "-q", "api", "--", script).expectExit(127, "command not found: "+script)
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
	// The command ignores the signal, and is stopped because of a loss. This is no loss after which it is started again.
	t.Run("before a loss", func(t *testing.T) {
		t.Parallel()
		m, s := newMachine(t), shared(t)
		m.setenv("STILE_URL", s.url)
		c := m.elect("-k", "110", "--signal", "USR1", "--reason", "tests", "--label", "team=web", "api", "--", "sh", "-c",
			`exec 2>/dev/null; trap 'echo TERM >>got' TERM; trap 'echo USR1 >>got; exit' USR1; echo >>starts; `+sleepLoop)
		m.awaitStarts(1)
		if o := m.show("api").Holders[0].Owner; o.Reason != "tests" || o.Labels["team"] != "web" {
			t.Errorf("got owner %+v, want the reason and the label", o)
		}
		c.signal(syscall.SIGTERM)
		m.awaitFile("got", "TERM\n")
		m.breakHolder("api")
		c.expectExit(79, `lock "api" was broken`, "stopping the command")
		if got := m.read("got"); got != "TERM\nUSR1\n" || m.starts() != 1 {
			t.Errorf("got the signals %q and %d starts, want TERM, USR1 and 1", got, m.starts())
		}
	})
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
	observer := m.elect("--observe", "api")
	eventually(t, "nobody", func() bool { return strings.Contains(observer.stdout.String(), "nobody\n") })
	c := m.elect("--ttl", expiringTTL, "api", "--", "sh", "-c", countedScript)
	m.awaitStarts(1)
	pause(t, s.Process.Pid)
	for _, text := range []string{"lost contact with the store", "campaigning for lock \"api\" again", "trying again"} {
		eventually(t, text, func() bool { return strings.Contains(c.stderr.String(), text) })
	}
	kill(t, s.Process.Pid, syscall.SIGCONT)
	second := m.awaitStarts(2)[1]
	// An observer may skip a leader that resigns before it can read the store again.
	eventually(t, "the end of the outage, and the second leader", func() bool {
		return strings.Contains(observer.stdout.String(), "token "+second+"  ")
	})
	m.endScript()
	if code := c.exitCode(); code != 0 || !strings.Contains(c.stderr.String(), "the store can be read again") {
		t.Errorf("got exit code %d and %s, want 0 and the end of the outage", code, c.stderr)
	}
	if said := observer.stderr.String(); strings.Count(said, "\n") != 2 || !strings.Contains(said, "; trying again\n") ||
		!strings.HasSuffix(said, "stile: the store can be read again\n") {
		t.Errorf("--observe: got %s, want one line about the outage and one about its end", said)
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

// etcdctl elect and stile elect exclude each other. Of the other one, stile knows the session only. A reader of
// a pipe that ends, as head -n 1 does, ends --observe.
func TestElect_etcdctl(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t) // etcdctl has no prefix
	m.setenv("STILE_URL", s.url)
	etcdctl := testservers.Binary(t, "etcdctl")
	foreign := exec.Command(etcdctl, "--endpoints", s.endpoint(), "elect", "api", "their value")
	if err := foreign.Start(); err != nil {
		t.Fatal(err)
	}
	ended := sync.OnceFunc(func() { _ = foreign.Process.Signal(syscall.SIGINT); _ = foreign.Wait() })
	t.Cleanup(ended)
	eventually(t, "etcdctl leading", func() bool { return len(m.show("api").Holders) == 1 })
	session := m.show("api").Holders[0].Session

	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	observer := m.command("elect", "--observe", "-o", "json", "api")
	observer.Cmd.Stdout = write
	observer.spawn()
	write.Close()
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil || !strings.Contains(line, `"session":"`+session+`"`) || !strings.Contains(line, `"foreign":true`) ||
		!strings.Contains(line, `"value":""`) {
		t.Errorf("--observe -o json: got %s, %v, want session %s of a foreign client", line, err, session)
	}
	read.Close()
	observer.expectExit(128 + int(syscall.SIGPIPE))

	c := m.elect("--value", "ours", "api", "--", "sh", "-c", countedScript)
	eventually(t, "a second candidate", func() bool { return len(m.show("api").Waiters) == 1 })
	text := m.elect("--observe", "api")
	eventually(t, "the foreign leader", func() bool {
		return strings.HasSuffix(text.stdout.String(), "  unknown client, session "+session+"\n")
	})
	ended()
	m.awaitStarts(1)
	listen := exec.Command(etcdctl, "--endpoints", s.endpoint(), "elect", "-l", "api")
	var listened bytes.Buffer
	out, err := listen.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := listen.Start(); err != nil {
		t.Fatal(err)
	}
	leader, err := bufio.NewReader(io.TeeReader(out, &listened)).ReadString('\n')
	_ = listen.Process.Kill()
	_ = listen.Wait()
	if err != nil || !strings.HasPrefix(leader, "api/") {
		t.Errorf("etcdctl elect -l: got %q, %v, want the key of stile elect", listened.String(), err)
	}
	m.endScript()
	c.expectExit(0)
	text.signal(syscall.SIGINT)
	text.expectExit(-1) // as tail -f
	if status := text.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGINT {
		t.Errorf("--observe: got %v, want the signal INT", text.ProcessState)
	}
}

func TestElect_invalidArguments(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.setenv("STILE_URL", "etcd://127.0.0.1:1") // nothing listens there, so using the store would fail with another error
	plain := m.write("not-executable", "", 0o600)
	for _, c := range []struct {
		args  []string
		code  int
		parts []string
	}{
		{[]string{}, 125, []string{"missing lock name: stile elect", "--help"}},
		{[]string{"api"}, 125, []string{"no command", `"api"`, "stile elect --help"}},
		{[]string{"a//b", "--", "true"}, 125, []string{"invalid lock name"}},
		{[]string{"--restart", "sometimes", "api", "--", "true"}, 125, []string{`"sometimes"`, "on-loss, always or never"}},
		{[]string{"--observe"}, 125, []string{"missing lock name: stile elect --observe [flags] NAME", "--help"}},
		{[]string{"--observe", "api", "--", "true"}, 125, []string{"unexpected argument"}},
		{[]string{"--observe", "--value", "x", "api"}, 125, []string{"--value has no meaning with --observe"}},
		{[]string{"--observe", "-q", "api"}, 125, []string{"--quiet has no meaning with --observe"}},
		{[]string{"--observe", "-o", "yaml", "api"}, 125, []string{"must be text or json"}},
		{[]string{"--observe", "--url", "mem:", "a//b"}, 125, []string{"invalid lock name"}},
		{[]string{"--observe", "-o", "json", "api"}, 125, []string{"connection refused"}},
		{[]string{"-o", "json", "api", "--", "true"}, 125, []string{"-o is for --observe only"}},
		{[]string{"-q", "-v", "api", "--", "true"}, 125, []string{"-q and -v contradict"}},
		{[]string{"--signal", "NOSUCH", "api", "--", "true"}, 125, []string{"no such signal"}},
		{[]string{"-k", "1h", "api", "--", "true"}, 125, []string{"--kill-after 1h is too long"}},
		{[]string{"api", "--", "no-such-command"}, 127, []string{"command not found"}},
		{[]string{"api", "--", plain}, 126, []string{"cannot execute " + plain}},
		{[]string{"api", "--", "true"}, 125, []string{"connection refused"}},
	} {
		m.elect(c.args...).expectExit(c.code, c.parts...)
	}
}
