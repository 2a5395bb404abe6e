package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// traceEvent is what the tests here look at; the format is tested in package trace.
type traceEvent struct {
	Phase string            `json:"ph"`
	Name  string            `json:"name"`
	Args  map[string]string `json:"args"`
}

// readTrace returns the events of a file, as PHASE NAME.
func readTrace(t *testing.T, text string) (all []string) {
	t.Helper()
	var events []traceEvent
	if err := json.Unmarshal([]byte(text), &events); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for _, e := range events {
		if e.Phase != "M" {
			all = append(all, e.Phase+" "+e.Name)
		}
	}
	return all
}

const holdAndEnd = "B holds demo, E holds demo"

func TestTrace_untilInterrupted(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c := m.atTerminal(stile, "trace", "-o", m.path("x.json"))
	c.awaitScreen("0 events")
	holder := m.start(endableScript, "demo")
	c.awaitScreen("1 events")
	m.endScript()
	holder.expectExit(0)
	c.awaitScreen("2 events")
	c.typeKeys(ctrlC)
	c.awaitScreen("stile: 2 events recorded")
	if code := c.exitCode(); code != 0 {
		t.Errorf("got exit code %d, want 0: ^C ends a recording", code)
	}
	if got := strings.Join(readTrace(t, m.read("x.json")), ", "); got != holdAndEnd {
		t.Errorf("got %s, want %s", got, holdAndEnd)
	}
}

// A trace whose writer was killed lacks only the bracket at its end, which viewers do not need.
func TestTrace_killed(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c := m.command("trace", "-o", m.path("x.json")).spawn()
	m.awaitFile("x.json", "stile trace")
	holder := m.start(endableScript, "demo")
	next := m.runCommand("demo", "--", "sh", "-c", endableScript).spawn() // it must hold for long enough to be seen
	m.awaitFile("x.json", "waits demo")
	m.endScript()
	holder.expectExit(0)
	m.awaitFile("x.json", `"ph":"f"`)
	c.signal(syscall.SIGKILL)
	c.exitCode()
	m.endScript()
	next.exitCode()
	const want = "B holds demo, B waits demo, E holds demo, E waits demo, B holds demo, s hand-over, f hand-over"
	if got := strings.Join(readTrace(t, m.read("x.json")+"]"), ", "); !strings.HasPrefix(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTrace_output(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.start(endableScript, "demo")
	c := m.command("trace", "-o", "-", "--for", "0.1", "de").spawn()
	c.expectExit(0)
	if got := strings.Join(readTrace(t, c.stdout.String()), ", "); got != holdAndEnd {
		t.Errorf("got %s, want %s", got, holdAndEnd)
	}
	c = m.command("trace", "-o", "-", "--for", "0.1", "other").spawn()
	c.expectExit(0)
	if got := readTrace(t, c.stdout.String()); len(got) > 0 {
		t.Errorf("got %s, want no lock: none has the prefix", got)
	}
	m.command("trace").spawn().expectExit(125, "missing -o FILE")
	m.command("trace", "-o", m.path("no", "x.json")).spawn().expectExit(125, "no/x.json", "no such file")
	m.command("trace", "-o", "/dev/full", "--for", "0.1").spawn().expectExit(125, "/dev/full", "no space left")
	m.command("trace", "-o", m.path("y.json"), "--url", "redis://127.0.0.1:1").spawn().expectExit(125, "127.0.0.1:1")
	if _, err := os.Stat(m.path("y.json")); err == nil {
		t.Error("a trace of a store that cannot be reached was begun")
	}
	m.endScript()
}

// A program that reads the trace has ended.
func TestTrace_readerGone(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c := m.atTerminal("bash", "-c", fmt.Sprintf("%s trace -o - | head -n 1; echo codes ${PIPESTATUS[*]}", stile))
	c.awaitScreen("codes 141 0")
}
