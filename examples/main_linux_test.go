// Package examples_test runs the examples that are scripts or settings, with real processes and a real
// stile serve. Those that are Go programs have tests of their own.
package examples_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/storeurl"
)

// testTimeout limits the wait for anything that should happen. Only a failure takes that long.
const testTimeout = 4 * time.Minute

var (
	bin       string // the directory of the program stile
	serverURL string // of a stile serve for all tests
	sites     atomic.Int64
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp(inMemory(), "examples")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		bin = filepath.Join(dir, "bin")
		build := exec.Command("go", "build", "-buildvcs=false", "-o", bin+"/", ".")
		build.Dir, build.Stderr = filepath.Join("..", "cmd", "stile"), os.Stderr
		if err := build.Run(); err != nil {
			panic(err)
		}
		os.Setenv("PATH", bin+":"+os.Getenv("PATH"))
		stop, err := serve(filepath.Join(dir, "data"))
		if err != nil {
			panic(err)
		}
		defer stop()
		return m.Run()
	}())
}

// inMemory returns a directory in memory, where no sync of the server can take seconds, or "" if there is none.
func inMemory() string {
	const dir = "/dev/shm"
	if f, err := os.CreateTemp(dir, "examples"); err == nil {
		f.Close()
		os.Remove(f.Name())
		return dir
	}
	return ""
}

// serve starts a stile serve and waits until it is ready.
func serve(data string) (stop func(), err error) {
	s := exec.Command("stile", "serve", "--listen", "127.0.0.1:0", "--data", data)
	s.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := s.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.Start(); err != nil {
		return nil, err
	}
	stop = func() { _ = s.Process.Kill(); _ = s.Wait() }
	lines := bufio.NewReader(log)
	for serverURL == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			stop()
			return nil, fmt.Errorf("stile serve: got %q, %w", line, err)
		}
		_, rest, _ := strings.Cut(line, "msg=ready url=")
		serverURL, _, _ = strings.Cut(rest, " ")
	}
	go func() { _, _ = io.Copy(os.Stderr, lines) }()
	return stop, nil
}

// A site is where the programs of one test run, with locks of their own.
type site struct {
	t      *testing.T
	dir    string // the home directory
	url    string // of the store
	env    []string
	client *stile.Client
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), url: fmt.Sprintf("%s/site%d", serverURL, sites.Add(1))}
	s.env = []string{"PATH=" + s.path("bin") + ":" + os.Getenv("PATH"), "HOME=" + s.dir, "LC_ALL=C", "STILE_URL=" + s.url}
	if err := os.Mkdir(s.path("bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	conn, err := testservers.Retry(func() (*storeurl.Conn, error) { return storeurl.Open(t.Context(), s.url, nil) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if s.client, err = stile.New(conn.Store, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// require skips the test if a program is not installed. In CI it fails the test instead.
func require(t *testing.T, program string) {
	t.Helper()
	_, err := exec.LookPath(program)
	switch {
	case err == nil:
	case os.Getenv("STILE_TEST_REQUIRE") != "":
		t.Fatalf("this test needs %s: run make servers", program)
	default:
		t.Skipf("SKIPPED, NOT TESTED: this test needs %s: run make servers", program)
	}
}

func (s *site) path(elem ...string) string { return filepath.Join(append([]string{s.dir}, elem...)...) }

// script writes an executable script for sh that all programs find in their PATH.
func (s *site) script(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(s.path("bin", name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		s.t.Fatal(err)
	}
}

// read returns the text of a file in the home directory, or "" if the file does not exist.
func (s *site) read(name string) string {
	s.t.Helper()
	text, err := os.ReadFile(s.path(name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	return string(text)
}

// line returns the line of a lock.
func (s *site) line(name string) stile.Line {
	s.t.Helper()
	l, err := s.client.Line(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// awaitLine waits until a lock has these numbers of holders and waiters.
func (s *site) awaitLine(name string, holders, waiters int) (l stile.Line) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%d holders and %d waiters of lock %s", holders, waiters, name), func() bool {
		l = s.line(name)
		return len(l.Holders) == holders && len(l.Waiters) == waiters
	})
	return l
}

// A program is a running process.
type program struct {
	*exec.Cmd
	t      *testing.T
	stdin  *os.File // what the test writes here, the program reads
	output *os.File // what it has written to stdout and stderr
	done   chan struct{}
}

// start starts a program, in the directory of the examples.
func (s *site) start(name string, args ...string) *program {
	s.t.Helper()
	stdin, write, err := os.Pipe()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { write.Close() })
	defer stdin.Close()
	return s.startWith(stdin, write, name, args...)
}

func (s *site) startWith(stdin, write *os.File, name string, args ...string) *program {
	s.t.Helper()
	output, err := os.CreateTemp(s.dir, "output")
	if err != nil {
		s.t.Fatal(err)
	}
	p := &program{Cmd: exec.Command(name, args...), t: s.t, stdin: write, output: output, done: make(chan struct{})}
	p.Env, p.Stdin, p.Stdout, p.Stderr = s.env, stdin, output, output
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.Wait() // the result is in ProcessState
	}()
	s.t.Cleanup(func() {
		_ = syscall.Kill(-p.Process.Pid, syscall.SIGKILL)
		<-p.done
		output.Close()
	})
	return p
}

// text returns what the program has written so far.
func (p *program) text() string {
	p.t.Helper()
	text, err := os.ReadFile(p.output.Name())
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

// awaitText waits until the program has written a text.
func (p *program) awaitText(text string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("%q from %v", text, p.Args), func() bool {
		if strings.Contains(p.text(), text) {
			return true
		}
		select {
		case <-p.done:
			if !strings.Contains(p.text(), text) {
				p.t.Fatalf("%v ended without %q: %s", p.Args, text, p.text())
			}
		default:
		}
		return false
	})
}

// enter writes a line to the program's stdin.
func (p *program) enter(line string) {
	p.t.Helper()
	if _, err := p.stdin.WriteString(line + "\n"); err != nil {
		p.t.Fatal(err)
	}
}

// expectExit waits until the program ends, and checks its exit code.
func (p *program) expectExit(code int) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(testTimeout):
		p.t.Fatalf("%v did not end within %v: %s", p.Args, testTimeout, p.text())
	}
	if got := p.ProcessState.ExitCode(); got != code {
		p.t.Errorf("%v: got exit code %d, want %d: %s", p.Args, got, code, p.text())
	}
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %v: %s", testTimeout, what)
		}
	}
}
