package main_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestRun_exitCode(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	for script, code := range map[string]int{
		"exit 0":        0,
		"exit 1":        1,
		"exit 75":       75,
		"exit 255":      255,
		"kill -TERM $$": 128 + 15,
		"kill -KILL $$": 128 + 9,
		"kill -USR1 $$": 128 + int(syscall.SIGUSR1),
	} {
		m.run("demo", "--", "sh", "-c", script).expectExit(code)
	}
	if left := entries(t, s.client(t), "demo"); left != nil {
		t.Errorf("entries left in the line: %v", left)
	}
}

func TestRun_commandNotFound(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.setenv("STILE_URL", "etcd://127.0.0.1:1") // nothing listens there, so using the store would fail with another error
	plain := m.write("plain", "#!/bin/sh\n", 0o600)
	m.setenv("PATH", m.dir)
	m.run("demo", "--", "no-such-command").expectExit(127, "command not found: no-such-command")
	m.run("demo", "--", m.path("nothing")).expectExit(127, "command not found: "+m.path("nothing"))
	m.run("demo", "--", plain).expectExit(126, "cannot execute "+plain+": permission denied")
	m.run("demo", "--", "plain").expectExit(126, "cannot execute plain: permission denied")
	m.run("demo", "--", m.dir).expectExit(126, "cannot execute "+m.dir, "is a directory")
}

func TestRun_releasesWhenCommandFailsToStart(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	garbage := m.write("garbage", "\x7fELF, but not really", 0o700)
	m.run("demo", "--", garbage).expectExit(126, "cannot execute "+garbage, "exec format error")
	script := m.write("script", "#!/no/such/interpreter\n", 0o700)
	m.run("demo", "--", script).expectExit(127, script, "interpreter", "not found")
	m.run("-n", "demo", "--", "true").expectExit(0)
}

func TestRun_invalidArguments(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	touch := []string{"--", "touch", m.path("was-run")}
	for _, c := range []struct {
		args  []string
		parts []string
	}{
		{[]string{}, []string{"missing lock name", "--help"}},
		{[]string{"demo"}, []string{"no command", `"demo"`, "--help"}},
		{[]string{"demo", "--"}, []string{"no command"}},
		{append([]string{"demo", "-n"}, touch...), []string{"put flags before the lock name: stile run -n … demo -- COMMAND", "--help"}},
		{append([]string{""}, touch...), []string{"invalid lock name", "empty"}},
		{append([]string{"a//b"}, touch...), []string{"invalid lock name", `"a//b"`}},
		{append([]string{"a\tb"}, touch...), []string{"invalid lock name", "control character"}},
		{append([]string{strings.Repeat("x", 513)}, touch...), []string{"invalid lock name", "513", "512"}},
		{append([]string{"-n", "-w", "1", "demo"}, touch...), []string{"-n", "-w", "one of them"}},
		{append([]string{"-w", "-1", "demo"}, touch...), []string{"--wait", "negative"}},
		{append([]string{"-w", "soon", "demo"}, touch...), []string{`"soon"`, "--wait", "seconds", "--help"}},
		{append([]string{"--no-such-flag", "demo"}, touch...), []string{"--no-such-flag", "--help"}},
		{append([]string{"--ttl", "0", "demo"}, touch...), []string{"--ttl", "at most 5m"}},
		{append([]string{"--ttl", "301", "demo"}, touch...), []string{"--ttl 5m1s: this store allows 1s to 5m"}},
		{append([]string{"--ttl", "10ms", "demo"}, touch...), []string{"--ttl 10ms: this store allows 1s to 5m"}},
		{append([]string{"--url", "etcd://127.0.0.1:1", "demo"}, touch...), []string{"127.0.0.1:1", "refused"}},
		{append([]string{"--url", "gopher://x", "demo"}, touch...), []string{"gopher", "etcd://"}},
		{append([]string{"--url", "local:x", "demo"}, touch...), []string{"local:***", "nothing may follow"}},
	} {
		t.Run(strings.Join(c.parts, " "), func(t *testing.T) {
			m := m.forSubtest(t)
			m.setenv("STILE_URL", s.url)
			m.run(c.args...).expectExit(125, c.parts...)
		})
	}
	for typed, meant := range map[string]string{
		"runn": "run", "lock": "run", "exec": `elect" or "run`, "status": "show", "unlock": "break", "list": "ls", "page": "serve", "dashboard": `serve" or "top`,
	} {
		m.command(typed, "demo").spawn().expectExit(125, `unknown command "`+typed+`"; did you mean "`+meant+`"?`)
	}
	m.command("frobnicate").spawn().expectExit(125, `unknown command "frobnicate"; see stile --help`)
	if _, err := os.Stat(m.path("was-run")); err == nil {
		t.Error("a command was run in spite of invalid arguments")
	}
}

func TestRun_withoutDashes(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	c := m.run("--url", s.url, "-n", "demo", "echo", "-n", "--", "x")
	c.expectExit(0)
	if got, want := c.stdout.String(), "-- x"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

const sleepScript = "touch started; exec sleep 1000"

func TestRun_held(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	holder := m.start(sleepScript, "demo")
	owner := fmt.Sprintf("pid %d (sh)", holder.Process.Pid)
	m.run("-n", "demo", "--", "true").expectExit(75, `"demo"`, owner)
	m.run("--nonblock", "demo", "--", "true").expectExit(75, `"demo"`, owner)
	m.run("-w", "0", "demo", "--", "true").expectExit(75, `"demo"`, owner)
	m.run("-w", "0.2", "demo", "--", "true").expectExit(75, `"demo"`, "200ms", owner)
	m.run("--wait", "200ms", "demo", "--", "true").expectExit(75, `"demo"`, "200ms", owner)
	if left := entries(t, s.client(t), "demo"); len(left) != 1 {
		t.Errorf("got entries %v, want only the holder's", left)
	}
	m.run("-n", "demo/other", "--", "true").expectExit(0)
}

func TestRun_waitsUntilFree(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	holder := m.start(sleepScript, "demo")
	var waiters []*command
	for _, args := range [][]string{{}, {"-w", "300"}} {
		waiters = append(waiters, m.runCommand(append(args, "demo", "--", "true")...).spawn())
	}
	cli := s.client(t)
	eventually(t, "two waiters", func() bool { return len(entries(t, cli, "demo")) == 3 })
	holder.signal(syscall.SIGTERM)
	holder.expectExit(128 + 15)
	for _, w := range waiters {
		w.expectExit(0)
	}
}

func TestRun_mutualExclusion(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	const clients = 12
	script := `n=$(cat counter); sleep 0.01; echo $((n+1)) >counter; echo $STILE_TOKEN >>tokens`
	m.write("counter", "0", 0o600)
	var all []*command
	for range clients {
		all = append(all, m.runCommand("demo", "--", "sh", "-c", script).spawn())
	}
	for _, c := range all {
		c.expectExit(0)
	}
	if got := strings.TrimSpace(m.read("counter")); got != strconv.Itoa(clients) {
		t.Errorf("%d commands have counted to %s", clients, got)
	}
	var tokens []uint64
	for f := range strings.FieldsSeq(m.read("tokens")) {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, n)
	}
	if len(tokens) != clients || !slices.IsSorted(tokens) || len(slices.Compact(slices.Clone(tokens))) != clients {
		t.Errorf("got tokens %v, want increasing ones", tokens)
	}
}

func TestRun_environment(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("KEPT", "as it was")
	m.setenv("STILE_TOKEN", "outdated")
	m.setenv("STILE_NAME", "outdated")

	c := m.run("--url", s.url, "--ttl", "62500ms", "outer", "--", "sh", "-c", `
		echo "$KEPT|$STILE_NAME|$STILE_TTL|$STILE_URL"
		outer=$STILE_TOKEN
		"$0" run inner -- sh -c 'echo "$STILE_NAME|$STILE_TTL|$STILE_URL"; test "$STILE_TOKEN" -gt '$outer
	`, stile)
	c.expectExit(0)
	want := "as it was|outer|62.5|" + s.url + "\ninner|15|" + s.url + "\n"
	if got := c.stdout.String(); got != want {
		t.Errorf("got environment\n%swant\n%s", got, want)
	}

	c = m.run("--url", s.url, "demo", "--", "env")
	c.expectExit(0)
	for _, name := range []string{"STILE_NAME", "STILE_TOKEN", "STILE_TTL", "STILE_URL"} {
		if n := strings.Count("\n"+c.stdout.String(), "\n"+name+"="); n != 1 {
			t.Errorf("the environment contains %s %d times, want once:\n%s", name, n, c.stdout)
		}
	}
}

func TestRun_hidesPasswordOfURL(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t)
	cli := s.client(t)
	for _, step := range []func() error{
		func() error { _, err := cli.UserAdd(t.Context(), "root", "secret"); return err },
		func() error { _, err := cli.UserGrantRole(t.Context(), "root", "root"); return err },
		func() error { _, err := cli.AuthEnable(t.Context()); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	secret := "etcd://root:secret@" + s.endpoint()
	c := m.run("--url", secret, "demo", "--", "sh", "-c", "env")
	c.expectExit(0)
	if env := c.stdout.String(); strings.Contains(env, "secret") || !strings.Contains(env, "STILE_URL=etcd://root@"+s.endpoint()+"\n") {
		t.Errorf("the command's environment:\n%s", env)
	}
	c = m.run("--url", "etcd://root:wrong-secret@"+s.endpoint(), "demo", "--", "true")
	c.expectExit(125, "root", "password")
	if strings.Contains(c.stderr.String(), "wrong-secret") {
		t.Errorf("the error message contains the password: %s", c.stderr)
	}
	m.setenv("STILE_URL", secret) // the user has put the password into the environment, so stile keeps it there
	m.run("demo", "--", stile, "run", "inner", "--", "true").expectExit(0)
}

func TestRun_stdio(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	c := m.runCommand("--url", s.url, "demo", "--", "sh", "-c", "cat; echo to stderr >&2")
	c.Stdin = strings.NewReader("from stdin")
	c.spawn().exitCode()
	if out, err := c.stdout.String(), c.stderr.String(); out != "from stdin" || err != "to stderr\n" {
		t.Errorf("got stdout %q and stderr %q, want from stdin and to stderr", out, err)
	}
}

func TestRun_signalsReachProcessGroup(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{
		"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP,
		"QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, s := newMachine(t), shared(t)
			// The child writes after the grandchild has ended. The grandchild must not run in the
			// background of the shell: the shell would make it ignore INT and QUIT.
			c := m.start(`
				trap 'echo child >>got; exit 3' `+name+`
				sh -c 'trap "echo grandchild >>got; exit" `+name+`; touch started; `+sleepLoop+`'`,
				"--url", s.url, "demo")
			c.signal(sig)
			c.expectExit(3)
			if got, want := m.read("got"), "grandchild\nchild\n"; got != want {
				t.Errorf("processes that got the signal: got %q, want %q", got, want)
			}
		})
	}
}

func TestRun_signalWhileWaiting(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.start(sleepScript, "demo")
	cli := s.client(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		waiter := m.runCommand("demo", "--", "touch", m.path("was-run")).spawn()
		eventually(t, "waiter in line", func() bool { return len(entries(t, cli, "demo")) == 2 })
		waiter.signal(syscall.SIGUSR1) // must have no effect: there is no command yet
		waiter.signal(sig)
		waiter.expectExit(128 + int(sig))
		if line := entries(t, cli, "demo"); len(line) != 1 {
			t.Errorf("%v: got entries %v, want only the holder's", sig, line)
		}
	}
	if _, err := os.Stat(m.path("was-run")); err == nil {
		t.Error("a waiter whose wait was interrupted has run its command")
	}
}

func TestRun_ignoredSignals(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	script := `trap "" HUP; exec "$0" run demo -- sh -c 'kill -HUP $PPID $$; sleep 0.1; echo survived'`
	c := m.command()
	c.Path, c.Args = "/bin/sh", []string{"sh", "-c", script, stile}
	c.spawn().expectExit(0)
	if got := c.stdout.String(); got != "survived\n" {
		t.Errorf("got stdout %q, want survived", got)
	}
}

// A stopped process does not handle the signal, so stile continues it too, as timeout(1) does.
func TestRun_signalToStoppedCommand(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	c := m.start(`echo $$ >pid; touch started; kill -STOP $$; exec sleep 1000`, "--url", s.url, "demo")
	pid := m.readPID("pid")
	eventually(t, "stop of the command", func() bool {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		return strings.Contains(string(status), "\nState:\tT")
	})
	c.signal(syscall.SIGTERM)
	c.expectExit(128 + 15)
}

func TestRun_releaseNotConfirmed(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t)
	// The command stops the lock server and ends.
	c := m.run("--url", s.url, "--ttl", "60", "demo", "--", "sh", "-c", fmt.Sprintf(
		`kill -STOP %[1]d; while grep -L '^State:.T' /proc/%[1]d/task/*/status | grep -q .; do sleep 0.05; done; exit 3`, s.Process.Pid))
	c.expectExit(3, `"demo"`, "could not confirm the release of lock", "it may stay held for up to 1m")
}

func TestVersion(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{
		"--version": "^stile .*\n$",
		"version":   `^stile .*\nstore etcd://ann:\*\*\*@h \(named by STILE_URL\)\n$`,
	} {
		m := newMachine(t)
		m.setenv("STILE_URL", "etcd://ann:secret@h")
		c := m.command(arg).spawn()
		c.expectExit(0)
		if stdout := c.stdout.String(); !regexp.MustCompile(want).MatchString(stdout) {
			t.Errorf("%s: got %q, want a match for %s", arg, stdout, want)
		}
	}
}

func TestHelp_examples(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, verb := range []string{"", "run", "elect", "once", "hold", "assert", "serve", "demo", "version", "completion", "man"} {
		args := strings.Fields(verb + " --help")
		c := m.command(args...).spawn()
		c.expectExit(0)
		if !strings.Contains(c.stdout.String(), "Examples:") {
			t.Errorf("%v prints no examples", args)
		}
		if strings.Contains(c.stdout.String(), "default 0s") {
			t.Errorf("%v shows a default of 0s, which is not the effect of leaving out the flag: %s", args, c.stdout)
		}
	}
}

// Without PATH, as under env -i, stile uses the default path of the system, as a shell does.
func TestRun_withoutPATH(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.vars = slices.DeleteFunc(m.vars, func(v string) bool { return strings.HasPrefix(v, "PATH=") })
	m.run("demo", "--", "true").expectExit(0)
	m.run("-c", "exit 3", "demo").expectExit(3)
	m.run("demo", "--", "no-such-command").expectExit(127, "command not found: no-such-command")
}

func TestCommands_unexpectedArgument(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, verb := range []string{"serve", "demo", "version", "man here"} {
		args := strings.Fields(verb + " more")
		m.command(args...).spawn().expectExit(125, `unexpected argument "more"`, "stile "+args[0]+" --help")
	}
	m.command("man").spawn().expectExit(125, "missing directory", "stile man --help")
}
