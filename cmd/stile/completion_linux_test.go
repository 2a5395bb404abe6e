package main_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// expectCompletions checks the completions of the last word. It asks more than once: names are
// completed only if the store answers within a second, which may fail on a busy machine.
func (m *machine) expectCompletions(want []string, words ...string) {
	m.t.Helper()
	var got []string
	eventually(m.t, fmt.Sprintf("completions %[2]q of %[1]q", words, want), func() bool {
		got = m.completions(words...)
		if len(got) > 0 && !slices.Equal(got, want) {
			m.t.Fatalf("completions of %q: got %q, want %q", words, got, want)
		}
		return slices.Equal(got, want)
	})
}

// completions returns the completions of the last word, without descriptions.
func (m *machine) completions(words ...string) []string {
	m.t.Helper()
	c := m.command(append([]string{"__complete"}, words...)...).spawn()
	if code := c.exitCode(); code != 0 {
		m.t.Errorf("completing %q: exit code %d: %s", words, code, c.stderr)
	}
	offered := []string{}
	for line := range strings.Lines(c.stdout.String()) {
		word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if strings.HasPrefix(line, ":") { // a directive for the shell
			break
		}
		offered = append(offered, word)
	}
	return offered
}

func TestCompletion_liveNames(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	for _, name := range []string{"job:nightly", "job:weekly", "other"} {
		m.start(sleepScript, "--url", s.url, name)
	}
	for _, c := range []struct {
		words, want []string
	}{
		{[]string{"run", "--url", s.url, ""}, []string{"job:nightly", "job:weekly", "other"}},
		{[]string{"run", "--url=" + s.url, "-n", "job:n"}, []string{"job:nightly"}},
		{[]string{"run", "--url", s.url, "x"}, []string{}},
		{[]string{"run", "--url", s.url, "other", ""}, []string{"--"}},
		{[]string{"run", "--url", s.url, "other", "--", ""}, []string{}},
		{[]string{"run", "--url", s.url, "--all", "other", "job:n"}, []string{"job:nightly"}},
		{[]string{"run", "--url", s.url, "--all", "other", "job:nightly", "-"}, []string{"--"}},
		{[]string{"run", "--url", s.url, "--all", "other", "--", ""}, []string{}},
		{[]string{"hold", "--url", s.url, "--all", "other", "job:n"}, []string{"job:nightly"}},
		{[]string{"once", "--url", s.url, "--key", "a", "other", ""}, []string{"--"}},
		{[]string{"elect", "--restart", "on"}, []string{"on-loss"}},
		{[]string{"elect", "--url", s.url, "other", ""}, []string{"--"}},
		{[]string{"run", "-n", "--tt"}, []string{"--ttl"}},
		{[]string{"run", "--ttl", ""}, []string{}},
		{[]string{"ver"}, []string{"version"}},
		{[]string{"completion", ""}, []string{"bash", "zsh", "fish"}},
	} {
		m.expectCompletions(c.want, c.words...)
	}
	m.setenv("STILE_URL", s.url)
	for _, verb := range []string{"run", "elect", "once", "hold", "show", "ls", "watch", "wait", "break", "graph", "slots", "top", "trace"} {
		m.expectCompletions([]string{"job:nightly"}, verb, "job:n")
		if got := m.completions(verb, "job:nightly", "job:n"); len(got) > 0 {
			t.Errorf("%s: got completions %q after a name, want none", verb, got)
		}
	}
}

func TestCompletion_omitsNamesThatNeedQuoting(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	cli := s.client(t)
	plain := []string{"A-1_b", "a%b", "a+b", "a,b", "a.b", "a/b", "a:b", "a=b", "a@b"}
	for _, name := range plain {
		putHolder(t, cli, name)
	}
	for _, name := range []string{
		"a b", "a$b", "a`b", "a;b", "a&b", "a|b", "a<b", "a>b", "a(b", "a)b", "a{b", "a}b", "a[b", "a]b", "a*b", "a?b", "a!b",
		"a#b", "a~b", "a^b", "a'b", `a"b`, `a\b`, "a\u00a0b", "é", "-a", "--", "=a", "~a", "%a", "_activeHelp_ a",
	} {
		putHolder(t, cli, name)
	}
	m.expectCompletions(plain, "run", "--url", s.url, "")
}

// putHolder creates an entry of a client other than stile, which then holds the lock. Its
// session needs no renewal.
func putHolder(t *testing.T, cli *clientv3.Client, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	lease, err := cli.Grant(ctx, 600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cli.Put(ctx, fmt.Sprintf("%s/%x", name, lease.ID), "", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
}

func TestCompletion_flagValues(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, c := range []struct {
		words, want []string
	}{
		{[]string{"run", "--signal", "I"}, []string{"INT"}},
		{[]string{"run", "--signal", "usr"}, []string{"USR1", "USR2"}},
		{[]string{"ls", "-o", ""}, []string{"json", "text"}},
		{[]string{"show", "--output", "j"}, []string{"json"}},
	} {
		if got := m.completions(c.words...); !slices.Equal(got, c.want) {
			t.Errorf("completions of %q: got %q, want %q", c.words, got, c.want)
		}
	}
}

func TestCompletion_startsNoServer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	if got := m.completions("run", ""); len(got) > 0 {
		t.Errorf("got completions %q without a server, want none", got)
	}
	if _, err := os.Stat(m.path(".local")); err == nil {
		t.Error("completion has created a state directory")
	}
	holder := m.start(sleepScript, "demo")
	m.expectCompletions([]string{"demo"}, "run", "")
	// A holder would start the dead server again, so it is stopped first.
	holder.signal(syscall.SIGTERM)
	holder.expectExit(128 + 15)
	pid := m.serverPID()
	m.killServer()
	if got := m.completions("run", ""); len(got) > 0 {
		t.Errorf("got completions %q with a dead server, want none", got)
	}
	if running := m.serverPIDs(); m.serverPID() != pid || len(running) > 0 {
		t.Errorf("completion has started a server: got PID %d, want %d; running: %v", m.serverPID(), pid, running)
	}
}

func TestCompletion_unreachableStore(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	silent := silentListener(t)
	for _, url := range []string{"etcd://" + silent, "etcd://127.0.0.1:1", "etcd+unix:///no/such", "what?"} {
		// Completion waits for the store for one second; all other commands wait for five, or
		// for 20 in the tested build.
		checkFastest(t, 4*time.Second, "completion with "+url, func() {
			if got := m.completions("run", "--url", url, ""); len(got) > 0 {
				t.Errorf("%s: got completions %q, want none", url, got)
			}
		})
	}
}

// silentListener returns the address of a listener that accepts connections and never answers.
func silentListener(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// skipWithout skips a test that needs a missing program. It fails the test if STILE_TEST_REQUIRE
// forbids skipping.
func skipWithout(t *testing.T, what string, err error) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("STILE_TEST_REQUIRE"), ","), "all") {
		t.Fatalf("this test needs %s: %v; run `make servers`", what, err)
	}
	t.Skipf("SKIPPED: this test needs %s: %v; run `make servers`", what, err)
}

// bashCompletion is the script of the package bash-completion.
const bashCompletion = "/usr/share/bash-completion/bash_completion"

// Command lines are typed into real shells, which run the completed lines. The output of stile
// shows what was completed.
func TestCompletion_inShells(t *testing.T) {
	t.Parallel()
	for _, shell := range []struct {
		name, needs string
		argv        []string
		setUp       string
	}{
		{"bash", "/bin/bash", []string{"bash", "--noprofile", "--norc", "-i"}, "source <(stile completion bash)"},
		{
			"bash with its package", bashCompletion,
			[]string{"bash", "--noprofile", "--norc", "-i"},
			"source " + bashCompletion + "; source <(stile completion bash)",
		},
		{
			"zsh", "/usr/bin/zsh",
			[]string{"zsh", "-f", "-i"},
			"autoload -U compinit; compinit -u -D; source <(stile completion zsh)",
		},
		{"fish", "/usr/bin/fish", []string{"fish", "--no-config", "-i"}, "stile completion fish | source"},
	} {
		t.Run(shell.name, func(t *testing.T) {
			t.Parallel()
			_, err := os.Stat(shell.needs)
			if _, e := exec.LookPath(shell.argv[0]); err != nil || e != nil {
				skipWithout(t, shell.name, cmp.Or(err, e))
			}
			m, s := newMachine(t), shared(t)
			bin := m.path("bin")
			if err := os.Mkdir(bin, 0o700); err != nil {
				t.Fatal(err)
			}
			m.write("bin/greet-everybody", "#!/bin/sh\necho hello, everybody\n", 0o700)
			m.write("some-file", "content of the file\n", 0o600)
			m.setenv("PATH", filepath.Dir(stile)+":"+bin+":"+os.Getenv("PATH"))
			m.setenv("STILE_URL", s.url)
			// All clients that can write to the store choose lock names, and bash inserts their
			// common prefix unquoted.
			const evil = "evil$(touch pwned)`touch pwned`;touch pwned;"
			for _, name := range []string{"job:nightly", "job:weekly", "key=a.b", evil + "1", evil + "2"} {
				m.start(sleepScript, name)
			}

			c := m.atTerminal(shell.argv[0], shell.argv[1:]...)
			c.awaitLineEditing()
			c.typeKeys(shell.setUp + "; echo set''up\n")
			c.awaitScreen("setup")
			ends := 0
			for typed, seen := range map[string]string{
				"stile run -n job:n\t-- true\n":                     `lock "job:nightly"`,
				"stile run -n key=\t-- true\n":                      `lock "key=a.b"`,
				"stile run -n -v ev\t\t -- true\n":                  `lock "ev" acquired`,
				"stile run --url " + s.url + " -n job:w\t-- true\n": `lock "job:weekly"`,
				"stile run free -- greet-every\t\n":                 "hello, everybody",
				"stile run free -- cat some-fi\t\n":                 "content of the file",
				"stile elect free -- greet-every\t\n":               "hello, everybody",
				"stile once --key a free -- greet-every\t\n":        "hello, everybody",
				"stile ver\t\n":                                     "linux/",
			} {
				// A name that the store does not return within a second is not completed, and the
				// line is then run as it was typed.
				eventually(t, fmt.Sprintf("%q after %q", seen, typed), func() bool {
					c.awaitLineEditing()
					ends++
					from := len(c.screenText())
					c.typeKeys(strings.TrimSuffix(typed, "\n") + fmt.Sprintf("; echo en''d%d\n", ends))
					c.awaitScreen(fmt.Sprintf("end%d", ends))
					return strings.Contains(c.screenText()[from:], seen)
				})
			}
			if _, err := os.Stat(m.path("pwned")); err == nil {
				t.Error("completing a name has run a command in it")
			}
			if screen := c.screenText(); strings.Contains(screen, "not found") || strings.Contains(screen, "rror") {
				t.Errorf("errors on the screen: %s", screen)
			}
		})
	}
}
