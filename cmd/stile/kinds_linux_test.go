package main_test

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Readers share the lock, and neither they nor a writer can keep the other out.
func TestRun_shared(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	reader := m.start(endableScript, "-s", "demo")
	m.run("-s", "-n", "demo", "--", "true").expectExit(0)
	m.run("-n", "demo", "--", "true").expectExit(75, `"demo" is held by`, fmt.Sprintf("pid %d (sh)", reader.Process.Pid))
	if line := m.show("demo"); line.Holders[0].Mode.String() != "shared" {
		t.Errorf("show: got mode %v, want shared", line.Holders[0].Mode)
	}
	m.startWatch("events", "demo")
	m.awaitFile("events", fmt.Sprintf("pid %d (sh) (shared)\n", reader.Process.Pid))
	ls := m.stile("ls", "demo")
	if ls.expectExit(0); !strings.Contains(ls.stdout.String(), "(sh) (shared) ") {
		t.Errorf("ls: got %s, want the mode", ls.stdout)
	}

	writer := m.startWaiter(1, "demo")
	m.run("--shared", "-n", "demo", "--", "true").expectExit(75, `"demo" is held by`) // the writer is first
	m.endScript()
	reader.expectExit(0)
	writer.expectExit(0)
}

// As many commands run at a time as there are slots, and all must agree on their number.
func TestRun_slots(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	first := m.start(endableScript, "--slots", "2", "demo")
	second := m.start(endableScript, "--slots", "2", "demo")
	m.run("--slots", "2", "-n", "demo", "--", "true").expectExit(75, `"demo" is held by`)
	m.run("--slots", "3", "-n", "demo", "--", "true").expectExit(125, "semaphore of 3 slots", "semaphore of 2 slots", "another name")
	m.run("-n", "demo", "--", "true").expectExit(125, "mutex or read-write lock", "semaphore of 2 slots")

	third := m.startWaiter(1, "demo", "--slots", "2")
	if c := m.stile("show", "demo"); !strings.HasPrefix(c.stdout.String(), "lock demo: 2 of 2 slots taken, 1 waiting\n") {
		t.Errorf("show: got %s, want the number of slots", c.stdout)
	}
	if c := m.stile("ls", "demo"); !strings.Contains(c.stdout.String(), "(sh) +1 (2 of 2 slots) ") {
		t.Errorf("ls: got %s, want the number of slots", c.stdout)
	}
	if mode := m.show("demo").Holders[0].Mode.String(); mode != "slot/2" {
		t.Errorf("show -o json: got mode %s, want slot/2", mode)
	}
	m.startWatch("events", "demo")
	m.awaitFile("events", fmt.Sprintf("pid %d (sh) (2 of 2 slots)\n", first.Process.Pid))
	eventually(t, "the slots in the description of a completion", func() bool { // not if the store takes a second
		c := m.stile("__complete", "run", "de")
		return c.exitCode() == 0 && strings.HasPrefix(c.stdout.String(), "demo\t2 of 2 slots taken, 1 waiting\n")
	})
	c := m.runCommand("-w", "1", "--slots", "2", "demo", "--", "true").spawn()
	c.expectExit(75, "within 1s: it is held by", " and 1 other")
	m.endScript()
	third.expectExit(0)
	m.endScript()
	first.expectExit(0)
	second.expectExit(0)
}

// Each command has a slot number of its own, which is free again when the command has ended.
func TestRun_slotNumbers(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.setenv("STILE_SLOT", "outdated")
	const script = `echo "$STILE_SLOT" >>slots; ` + endableScript
	first := m.start(script, "--slots", "2", "demo")
	second := m.start(script, "--slots", "2", "demo")
	third := m.runCommand("--slots", "2", "demo", "--", "sh", "-c", `echo "$STILE_SLOT" >>slots`).spawn()
	eventually(t, "a waiter", func() bool { return len(m.show("demo").Waiters) == 1 })
	if got := m.read("slots"); got != "0\n1\n" && got != "1\n0\n" {
		t.Errorf("got the slot numbers %q of two commands, want 0 and 1", got)
	}
	m.endScript()
	third.expectExit(0)
	m.endScript()
	first.expectExit(0)
	second.expectExit(0)
	if got := strings.Fields(m.read("slots")); len(got) != 3 || got[2] != "0" && got[2] != "1" {
		t.Errorf("got the slot numbers %q, want 0 or 1 for the third command", got)
	}
	c := m.run("--slots", "2", "demo", "--", "sh", "-c", `echo "<$STILE_SLOT>"; "$0" run other -- sh -c 'echo "<$STILE_SLOT>"'`, stile)
	if got := c.stdout.String(); c.exitCode() != 0 || got != "<0>\n<>\n" {
		t.Errorf("got STILE_SLOT %q, want <0>, and <> of a mutex within", got)
	}
}

func TestRun_all(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.setenv("STILE_NAME", "outdated")
	m.setenv("STILE_TOKEN", "outdated")

	c := m.run("--all", "c", "a", "b", "--", "sh", "-c",
		`echo "<$STILE_NAME> <$STILE_TOKEN> $STILE_TOKENS"; "$0" run -n b -- true; echo $?; "$0" ls`, stile)
	if code := c.exitCode(); code != 0 || !strings.Contains(c.stderr.String(), `lock "b" is held by`) {
		t.Errorf("got exit code %d and %s, want 0 and a message about lock b", code, c.stderr)
	}
	lines := strings.Split(c.stdout.String(), "\n")
	_, tokens, _ := strings.Cut(lines[0], "<> <> ")
	byName := decodeJSON[map[string]string](t, []byte(tokens))
	for _, name := range []string{"a", "b", "c"} {
		if n, err := strconv.Atoi(byName[name]); err != nil || n <= 0 {
			t.Errorf("got tokens %v, want one for %s", byName, name)
		}
		if !strings.Contains(c.stdout.String(), "\n"+name+" ") {
			t.Errorf("got locks\n%swant %s among them", c.stdout, name)
		}
	}
	if lines[1] != "75" {
		t.Errorf("a try of one of the locks: got exit code %s, want 75", lines[1])
	}

	holder := m.start(endableScript, "b")
	m.run("-n", "--all", "a", "b", "c", "--", "true").expectExit(75, `lock "b" is held by`)
	m.run("-w", "1", "--all", "a", "b", "c", "--", "true").expectExit(75, `could not acquire lock "b" within 1s`)
	waiter := m.runCommand("-v", "--all", "a", "b", "--", "true").spawn()
	eventually(t, "a waiter for b", func() bool { return len(m.show("b").Waiters) == 1 })
	m.endScript()
	holder.expectExit(0)
	code := waiter.exitCode()
	for _, part := range []string{`stile: locks "a" and "b" acquired after `, ", tokens ", `stile: locks "a" and "b" released after `} {
		if code != 0 || !strings.Contains(waiter.stderr.String(), part) {
			t.Errorf("got exit code %d and %s, want 0 and %q", code, waiter.stderr, part)
		}
	}

	m.run("--all", "--run-timeout", "0.5", "a", "b", "--", "sleep", "1000").
		expectExit(124, `the command under locks "a" and "b" has run for 500ms; stopping it`)

	// The locks may be those of a line for the shell, and outlive a short command.
	c = m.run("--all", "--min-hold", "120", "-c", `echo $STILE_TOKENS`, "a", "b")
	c.expectExit(0)
	if got := decodeJSON[map[string]string](t, c.stdout.Bytes()); len(got) != 2 {
		t.Errorf("got tokens %v, want those of a and b", got)
	}
	for _, name := range []string{"a", "b"} {
		m.run("-n", name, "--", "true").expectExit(75, fmt.Sprintf("lock %q is held by", name))
		revoke(t, s.client(t), name)
	}
	for _, name := range []string{"a", "b", "c"} {
		if left := entries(t, s.client(t), name); left != nil {
			t.Errorf("entries left in the line of %s: %v", name, left)
		}
	}
}

// The loss of one lock of several stops the command, and the others are released.
func TestRun_allLosesOne(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c := m.start(trapTermScript, "-k", "110", "--all", "a", "b", "c")
	token := strconv.FormatUint(m.show("b").Holders[0].Token, 10)
	m.stile("break", "b", "--token", token).expectExit(0)
	c.expectExit(79, `lock "b" was broken`, "stopping the command")
	if got := m.read("log"); got != "TERM\n" {
		t.Errorf("got log %q of the command, want one TERM", got)
	}
	m.run("-n", "--all", "a", "b", "c", "--", "true").expectExit(0)
}

// At a terminal the status line names the lock that is waited for, its holder, and how many come before.
func TestRun_allWaitingLine(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	holder := m.start(endableScript, "b")
	next := m.startWaiter(1, "b")
	c := m.atTerminal(stile, "run", "--ttl", longTTL, "--all", "a", "b", "--", "echo", "the command")
	c.awaitScreen(`stile: "b": held by `)
	c.awaitScreen(fmt.Sprintf("pid %d (sh)", holder.Process.Pid))
	c.awaitScreen("; 2 ahead; waited ")
	if strings.Contains(c.screenText(), "next in line") {
		t.Errorf("got %q, want 2 ahead, not next in line", c.screenText())
	}
	m.stile("break", "b", "--token", strconv.FormatUint(m.show("b").Waiters[0].Token, 10)).expectExit(0) // it rejoins at the end
	c.awaitScreen("; next in line; waited ")
	m.endScript()
	c.awaitScreen("\r\x1b[Kthe command")
	if code := c.exitCode(); code != 0 {
		t.Errorf("exit code %d: %q", code, c.screenText())
	}
	holder.expectExit(0)
	next.expectExit(0)
}

// If stile is killed, the watchdog releases all locks of the command.
func TestWatchdog_releasesAll(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	_, pid := m.startUnderReaper("touch started; "+sleepLoop, "--ttl", longTTL, "--all", "a", "b")
	awaitWatchdog(t, pid)
	kill(t, pid, syscall.SIGKILL)
	m.run("--all", "b", "a", "--", "true").expectExit(0)
}

func TestRun_invalidKinds(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.setenv("STILE_URL", "etcd://127.0.0.1:1") // nothing listens there, so using the store would fail with another error
	for _, c := range []struct {
		args  []string
		parts []string
	}{
		{[]string{"-s", "-x", "demo", "true"}, []string{"-s and -x contradict each other"}},
		{[]string{"--slots", "2", "-s", "demo", "true"}, []string{"--slots", "leave out -s"}},
		{[]string{"--slots", "0", "demo", "true"}, []string{`"0"`, "--slots", "from 1"}},
		{[]string{"--slots", "many", "demo", "true"}, []string{`"many"`, "--slots"}},
		{[]string{"--slots", "2", "-x", "demo", "true"}, []string{"--slots", "leave out -s and -x"}},
		{[]string{"--slots", "100000000", "demo", "true"}, []string{"--slots", "must be a number from 1 to "}},
		{[]string{"--all", "-s", "a", "b", "--", "true"}, []string{"--all takes exclusive locks only"}},
		{[]string{"--all", "--slots", "2", "a", "b", "--", "true"}, []string{"--all takes exclusive locks only"}},
		{[]string{"--all", "--", "true"}, []string{"--all takes one or more names before --", "--help"}},
		{[]string{"--all", "a", "b", "--"}, []string{"no command to run"}},
		{[]string{"--all", "a", "b", "true"}, []string{"--all", "names before --", "--help"}},
		{[]string{"--all", "a//b", "b", "--", "true"}, []string{"invalid lock name", `"a//b"`}},
	} {
		m.run(c.args...).expectExit(125, c.parts...)
	}
	s := shared(t)
	m.run("--url", s.url, "--all", "a", "b", "a", "--", "true").expectExit(125, `"a"`, "twice")
}
