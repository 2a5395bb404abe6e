package main_test

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/vt"
)

// screen is what a console shows to a person: a terminal that understands the control sequences.
type screen struct {
	*console
	terminal *vt.Emulator
	fed      int // number of bytes that the terminal has got
}

// draws starts a program on a terminal that it can draw on.
func (m *machine) draws(columns int, env, name string, args ...string) *screen {
	m.t.Helper()
	// The size is set before the program asks for it.
	command := append([]string{"-c", `read size; exec env TERM=xterm-256color "$@"`, "sh", env, name}, args...)
	s := &screen{console: m.atTerminal("sh", command...), terminal: vt.NewEmulator(columns, 24)}
	// The terminal's answers to questions are typed.
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = io.Copy(s.keys, s.terminal)
	}()
	m.t.Cleanup(func() {
		_ = s.terminal.InputPipe().(io.Closer).Close() // Close is not for concurrent use
		<-answered
	})
	s.console.resize(columns)
	s.typeKeys("\n")
	return s
}

// lines returns the lines of the screen, with single spaces between words.
func (s *screen) lines() []string {
	text := s.screenText()
	_, _ = s.terminal.Write([]byte(text[s.fed:]))
	s.fed = len(text)
	var lines []string
	for y := range s.terminal.Height() {
		var b strings.Builder
		for x := range s.terminal.Width() {
			if c := s.terminal.CellAt(x, y); c != nil {
				b.WriteString(c.Content)
			}
		}
		lines = append(lines, strings.Join(strings.Fields(b.String()), " "))
	}
	return lines
}

// await waits for a line with all the texts, and returns it.
func (s *screen) await(texts ...string) (found string) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the screen shows:\n%s", strings.Join(s.lines(), "\n"))
		}
	}()
	eventually(s.t, fmt.Sprintf("%q on the screen", texts), func() bool {
	lines:
		for _, line := range s.lines() {
			for _, text := range texts {
				if !strings.Contains(line, text) {
					continue lines
				}
			}
			found = line
			return true
		}
		return false
	})
	return found
}

func (s *screen) resize(columns int) {
	s.t.Helper()
	s.lines()
	s.terminal.Resize(columns, 24)
	s.console.resize(columns)
}

func TestTop_live(t *testing.T) {
	t.Parallel()
	m, srv := newMachine(t), shared(t)
	m.setenv("STILE_URL", srv.url)
	holder := m.start(endableScript, "--reason", "release 7", "--label", "team=web", "deploy/web")
	c := m.draws(100, "A=B", stile, "top")
	line := c.await("deploy/web", fmt.Sprintf("pid %d (sh)", holder.Process.Pid), "█") // the lease is read after the line
	if !strings.HasSuffix(line, " 0") {
		t.Errorf("got the row %q, want no waiter", line)
	}
	c.await("NAME HOLDER AGE LEFT WAITING")
	c.await("q quit")

	// A waiter joins, and steps forward at the hand-over.
	next := m.runCommand("deploy/web", "--", "sh", "-c", endableScript).spawn()
	c.await("deploy/web", fmt.Sprintf("pid %d (sh)", holder.Process.Pid), " 1")
	c.typeKeys("\r")
	c.await("reason: release 7")
	c.await("label: team=web")
	c.await("waiter 1", fmt.Sprintf("pid %d", next.Process.Pid))
	c.typeKeys("\x1b")
	c.await("NAME HOLDER")
	m.endScript()
	holder.expectExit(0)
	c.await("deploy/web", fmt.Sprintf("pid %d (sh)", next.Process.Pid))

	// A filter, in a terminal that gets narrower.
	c.resize(40)
	c.await("deploy/web")
	for _, line := range c.lines() {
		if strings.Contains(line, "LEFT") {
			t.Errorf("got the heads %q in 40 columns", line)
		}
	}
	c.typeKeys("/nothing")
	c.await("no lock matches the filter")
	c.typeKeys("\x1b")
	c.await("deploy/web")
	m.endScript()
	next.expectExit(0)
	c.await("no lock is held")
	c.typeKeys("q")
	if code := c.exitCode(); code != 0 {
		t.Errorf("got exit code %d", code)
	}
	eventually(t, "the screen of before is restored", func() bool {
		text := c.screenText()
		began, ended := strings.LastIndex(text, "\x1b[?1049h"), strings.LastIndex(text, "\x1b[?1049l")
		return 0 <= began && began < ended
	})
}

func TestTop_colors(t *testing.T) {
	t.Parallel()
	m, srv := newMachine(t), shared(t)
	cli := srv.client(t)
	putHolder(t, cli, "a") // it is selected, and so has no colors
	putHolder(t, cli, "b")
	color := regexp.MustCompile(`\x1b\[([0-9;]*;)?[34][0-7]m`)
	for env, want := range map[string]bool{"A=B": true, "NO_COLOR=1": false} {
		c := m.draws(100, env, stile, "top", "--url", srv.url)
		c.await("b unknown client", "█")
		c.typeKeys("q")
		c.exitCode()
		if got := color.FindString(c.screenText()); (got != "") != want {
			t.Errorf("%s: got the color %q", env, got)
		}
	}
}

func TestTop_outage(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	srv := serve(t)
	m.start(endableScript, "--url", srv.url, "demo")
	c := m.draws(100, "A=B", stile, "top", "--url", srv.url)
	c.await("demo", "pid")
	c.await("1 lock, 0 waiting, by name")
	pause(t, srv.Process.Pid)
	since := c.await("the store has not answered since", "this is old")
	c.await("demo", "pid")
	time.Sleep(2 * time.Second)
	if again := c.await("the store has not answered since"); strings.Fields(again)[6] != strings.Fields(since)[6] {
		t.Errorf("got %q, then %q, want the time at which the outage began", since, again)
	}
	kill(t, srv.Process.Pid, syscall.SIGCONT)
	c.await("1 lock, 0 waiting, by name")
	c.typeKeys(ctrlC)
	if code := c.exitCode(); code != 0 {
		t.Errorf("got exit code %d", code)
	}
	m.endScript()
}

func TestTop_hostileName(t *testing.T) {
	t.Parallel()
	m, srv := newMachine(t), shared(t)
	cli := srv.client(t)
	const evil = "\x1b]0;pwned\x07\x1b[2J"
	putHolder(t, cli, evil+"\u202e")
	m.start(endableScript, "--url", srv.url, "--reason", evil+"\u202e", "good")
	c := m.draws(100, "A=B", stile, "top", "--url", srv.url)
	c.await(`"\x1b]0;pwned\a\x1b[2J\u202e"`)
	c.typeKeys("\r")
	c.await("token", "exclusive", "held for")
	c.typeKeys("\x1b") // by itself: with another key it would be that key with Alt
	c.await("NAME HOLDER")
	c.typeKeys("j\r")
	c.await(`reason: \x1b]0;pwned\a\x1b[2J\u202e`)
	c.typeKeys("q")
	if code := c.exitCode(); code != 0 {
		t.Errorf("got exit code %d", code)
	}
	if text := c.screenText(); strings.Contains(text, "\x1b]0;pwned") || strings.Contains(text, "\u202e") {
		t.Errorf("the name reached the terminal as it is: %q", text)
	}
	m.endScript()
}

func TestTop_withoutTerminal(t *testing.T) {
	t.Parallel()
	m, srv := newMachine(t), shared(t)
	m.setenv("STILE_URL", srv.url)
	m.start(endableScript, "demo")
	m.start(endableScript, "other")
	c := m.stile("top", "de")
	c.expectExit(0)
	lines := strings.Split(c.stdout.String(), "\n")
	if len(lines) != 3 || strings.Join(strings.Fields(lines[0]), " ") != "NAME HOLDER AGE LEFT WAITING" || !strings.HasPrefix(lines[1], "demo ") {
		t.Errorf("got\n%s", c.stdout)
	}
	at := m.atTerminal(stile, "top") // TERM is dumb
	at.awaitScreen("NAME")
	at.awaitScreen("demo")
	at.awaitScreen("other")
	if code := at.exitCode(); code != 0 || strings.Contains(at.screenText(), "\x1b") {
		t.Errorf("got exit code %d and %q on a dumb terminal", code, at.screenText())
	}
	m.command("top", "--url", "redis://127.0.0.1:1").spawn().expectExit(125, "127.0.0.1:1")
	m.endScript()
	m.endScript()
}
