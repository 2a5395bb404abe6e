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

// offers checks what stile offers for the last of these words. Names are offered if the store tells them within a second:
// on a busy machine not each time.
func (m *machine) offers(want []string, words ...string) {
	m.t.Helper()
	var got []string
	eventually(m.t, fmt.Sprintf("%q: offer of %q", words, want), func() bool {
		got = m.complete(words...)
		if len(got) > 0 && !slices.Equal(got, want) {
			m.t.Fatalf("%q: offered %q, want %q", words, got, want)
		}
		return slices.Equal(got, want)
	})
}

// complete returns what stile offers for the last of these words, without descriptions.
func (m *machine) complete(words ...string) []string {
	m.t.Helper()
	c := m.command(append([]string{"__complete"}, words...)...).begin()
	if code := c.code(); code != 0 {
		m.t.Errorf("completing %q: exit code %d: %s", words, code, c.stderr)
	}
	offered := []string{}
	for line := range strings.Lines(c.stdout.String()) {
		word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if strings.HasPrefix(line, ":") { // what the shell should do besides
			break
		}
		offered = append(offered, word)
	}
	return offered
}

func TestLiveNamesAreCompleted(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	for _, name := range []string{"job:nightly", "job:weekly", "other"} {
		m.start(sleeper, "--url", s.url, name)
	}
	for _, c := range []struct {
		words, want []string
	}{
		{[]string{"run", "--url", s.url, ""}, []string{"job:nightly", "job:weekly", "other"}},
		{[]string{"run", "--url=" + s.url, "-n", "job:n"}, []string{"job:nightly"}},
		{[]string{"run", "--url", s.url, "x"}, []string{}},
		{[]string{"run", "--url", s.url, "other", ""}, []string{"--"}},
		{[]string{"run", "--url", s.url, "other", "--", ""}, []string{}},
		{[]string{"run", "-n", "--tt"}, []string{"--ttl"}},
		{[]string{"run", "--ttl", ""}, []string{}},
		{[]string{"ver"}, []string{"version"}},
		{[]string{"completion", ""}, []string{"bash", "zsh", "fish"}},
	} {
		m.offers(c.want, c.words...)
	}
	m.set("STILE_URL", s.url)
	for _, verb := range []string{"run", "show", "ls", "watch", "wait", "break"} {
		m.offers([]string{"job:nightly"}, verb, "job:n")
		if got := m.complete(verb, "job:nightly", "job:n"); len(got) > 0 {
			t.Errorf("%s: offered %q after a name", verb, got)
		}
	}
}

func TestNamesThatAShellDoesNotTakeAsTheyAreAreNotCompleted(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	cli := s.client(t)
	plain := []string{"A-1_b", "a%b", "a+b", "a,b", "a.b", "a/b", "a:b", "a=b", "a@b"}
	for _, name := range plain {
		put(t, cli, name)
	}
	for _, name := range []string{
		"a b", "a$b", "a`b", "a;b", "a&b", "a|b", "a<b", "a>b", "a(b", "a)b", "a{b", "a}b", "a[b", "a]b", "a*b", "a?b", "a!b",
		"a#b", "a~b", "a^b", "a'b", `a"b`, `a\b`, "a\u00a0b", "é", "-a", "--", "=a", "~a", "%a", "_activeHelp_ a",
	} {
		put(t, cli, name)
	}
	m.offers(plain, "run", "--url", s.url, "")
}

// put makes a holder of the lock name, as other clients of etcd do.
func put(t *testing.T, cli *clientv3.Client, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	lease, err := cli.Grant(ctx, 600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cli.Put(ctx, fmt.Sprintf("%s/%x", name, lease.ID), "", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
}

func TestFlagValuesAreCompleted(t *testing.T) {
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
		if got := m.complete(c.words...); !slices.Equal(got, c.want) {
			t.Errorf("%q: offered %q, want %q", c.words, got, c.want)
		}
	}
}

func TestCompletionStartsNoServerAndLeavesNothing(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	if got := m.complete("run", ""); len(got) > 0 {
		t.Errorf("offered %q", got)
	}
	if _, err := os.Stat(m.path(".local")); err == nil {
		t.Error("completing has made a state directory")
	}
	holder := m.start(sleeper, "demo")
	m.offers([]string{"demo"}, "run", "")
	// Who holds something would start the dead server again.
	holder.signal(syscall.SIGTERM)
	holder.wants(128 + 15)
	pid := m.server()
	m.killServer()
	if got := m.complete("run", ""); len(got) > 0 {
		t.Errorf("with a dead server: offered %q", got)
	}
	if running := m.servers(); m.server() != pid || len(running) > 0 {
		t.Errorf("completing has started a server: %d after %d; running: %v", m.server(), pid, running)
	}
}

func TestCompletionDoesNotWaitForAStoreThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	silent := listenSilently(t)
	for _, url := range []string{"etcd://" + silent, "etcd://127.0.0.1:1", "etcd+unix:///no/such", "what?"} {
		// Of that one second is spent on purpose; any other verb waits for five.
		takesAtBest(t, 4*time.Second, "completing with "+url, func() {
			if got := m.complete("run", "--url", url, ""); len(got) > 0 {
				t.Errorf("%s: offered %q", url, got)
			}
		})
	}
}

// listenSilently returns the address of a listener that never answers.
func listenSilently(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// skipWithout skips a test that needs a program that is not there, or fails it where nothing may be skipped.
func skipWithout(t *testing.T, what string, err error) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("STILE_TEST_REQUIRE"), ","), "all") {
		t.Fatalf("this test needs %s: %v; run `make servers`", what, err)
	}
	t.Skipf("SKIPPED: this test needs %s: %v; run `make servers`", what, err)
}

// bashCompletion is the package of that name.
const bashCompletion = "/usr/share/bash-completion/bash_completion"

// These are typed into real shells, which run the completed lines: the message of stile tells what became of them.
func TestShellsCompleteLines(t *testing.T) {
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
			m.write("some-file", "what is in the file\n", 0o600)
			m.set("PATH", filepath.Dir(stile)+":"+bin+":"+os.Getenv("PATH"))
			m.set("STILE_URL", s.url)
			// Whoever can write to the store chooses the names. What several begin with, bash puts into the line as it is.
			const evil = "evil$(touch pwned)`touch pwned`;touch pwned;"
			for _, name := range []string{"job:nightly", "job:weekly", "key=a.b", evil + "1", evil + "2"} {
				m.start(sleeper, name)
			}

			c := m.at(shell.argv[0], shell.argv[1:]...)
			c.editing()
			c.types(shell.setUp + "; echo set''up\n")
			c.sees("setup")
			ends := 0
			for typed, seen := range map[string]string{
				"stile run -n job:n\t-- true\n":                     `lock "job:nightly"`,
				"stile run -n key=\t-- true\n":                      `lock "key=a.b"`,
				"stile run -n -v ev\t\t -- true\n":                  `lock "ev" acquired`,
				"stile run --url " + s.url + " -n job:w\t-- true\n": `lock "job:weekly"`,
				"stile run free -- greet-every\t\n":                 "hello, everybody",
				"stile run free -- cat some-fi\t\n":                 "what is in the file",
				"stile ver\t\n":                                     "linux/",
			} {
				// What the store does not tell within a second is not completed, and the line then run as it was typed.
				eventually(t, fmt.Sprintf("%q after %q", seen, typed), func() bool {
					c.editing()
					ends++
					from := len(c.shown())
					c.types(strings.TrimSuffix(typed, "\n") + fmt.Sprintf("; echo en''d%d\n", ends))
					c.sees(fmt.Sprintf("end%d", ends))
					return strings.Contains(c.shown()[from:], seen)
				})
			}
			if _, err := os.Stat(m.path("pwned")); err == nil {
				t.Error("completing a name has run what it contains")
			}
			if screen := c.shown(); strings.Contains(screen, "not found") || strings.Contains(screen, "rror") {
				t.Errorf("errors on the screen: %s", screen)
			}
		})
	}
}
