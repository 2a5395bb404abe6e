package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A stile that was built with the tag lean has no server. It leaves all that needs one to stiled beside it.
func TestLean_leavesTheServerToStiled(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	lean := m.path("stile")
	build := exec.Command("go", "run", "-tags", "lean,grpcnotrace", "-exec", "cp", ".", lean)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	run := func(args ...string) *command {
		t.Helper()
		c := m.command(args...)
		c.Path = lean
		return c.spawn()
	}

	if is, whole := m.size(lean), m.size(stile); is > whole*6/10 {
		t.Errorf("it has %d bytes, and %d with the server: the linker keeps methods that nothing calls "+
			"(go build -ldflags=-dumpdep names the first ReflectMethod)", is, whole)
	}

	for _, args := range [][]string{{"serve"}, {"serve", "--help"}, {"run", "x", "--", "true"}} {
		run(args...).expectExit(125, "stiled", "no such file", "install stiled")
	}
	if err := os.Link(stile, m.path("stiled")); err != nil {
		t.Fatal(err)
	}
	run("run", "x", "--", "true").expectExit(0)
	if program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", m.serverPID())); err != nil || program != m.path("stiled") {
		t.Errorf("the local server is %s, %v; want stiled", program, err)
	}

	for _, args := range [][]string{{"serve", "--help"}, {"help", "serve"}, {"__complete", "serve", "--page"}, {"version"}, {"serve", "--nonsense"}, {"serve", "x"}, {"--help"}, {"help"}} {
		with, without := m.command(args...).spawn(), run(args...)
		if got, want := without.exitCode(), with.exitCode(); got != want {
			t.Errorf("stile %s: got exit code %d, want %d", strings.Join(args, " "), got, want)
		}
		if got, want := without.stdout.String()+without.stderr.String(), with.stdout.String()+with.stderr.String(); got != want {
			t.Errorf("stile %s: got %s\nwant %s", strings.Join(args, " "), got, want)
		}
	}
	run("man", m.path("man")).expectExit(0)
	if _, err := os.Stat(filepath.Join(m.dir, "man", "stile-serve.1")); err != nil {
		t.Error(err)
	}
}

func (m *machine) size(program string) int64 {
	m.t.Helper()
	info, err := os.Stat(program)
	if err != nil {
		m.t.Fatal(err)
	}
	return info.Size()
}
