// Package testservers starts real servers for tests and hurts them: etcd, Redis and ZooKeeper as processes of their own,
// alone or as a cluster, that can be paused, killed and restarted, and a [Proxy] that delays, holds and cuts what passes
// to it.
//
//	func TestSomething(t *testing.T) {
//		etcd := testservers.StartEtcd(t)
//		proxy := testservers.NewProxy(t, etcd.Endpoint())
//		…
//		proxy.Hold(testservers.Down) // requests arrive, replies do not
//		etcd.Pause()
//	}
//
// What a function named Start… starts ends with the test that called it. What a function named New… starts belongs to no
// test: the function returns an error if it cannot, and the caller calls Close. [Shared] shares such a server between tests.
//
// Like [testing.TB.FailNow], the functions and methods that may fail a test must be called from its own goroutine; [Proxy]
// has none such but [NewProxy] and [Proxy.Accept]. Where they would fail a test, the methods of a server that belongs to no
// test panic.
//
// Everything listens on loopback only. The package brings no client of the servers along: a test uses the one that its
// module has anyway. The programs are the pinned ones that `make servers` builds into .bin, or those of Debian packages.
// Only tests import this package.
package testservers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// A Server is what this package starts: one process or several.
type Server interface {
	// Close ends the processes with SIGKILL and removes their data. Nothing is asked of them politely: they may be paused
	// or without a leader, and nobody needs their data any more.
	Close() error
	// Log returns what the processes have logged last.
	Log() string
}

// bind ends the servers with the test, and shows what all of them logged last if it has failed.
func bind[S Server](t testing.TB, servers ...S) {
	t.Cleanup(func() {
		for _, s := range servers {
			if t.Failed() {
				t.Log(s.Log())
			}
		}
		for _, s := range servers {
			if err := s.Close(); err != nil {
				t.Errorf("testservers: %v", err)
			}
		}
	})
}

// must fails the test that a server belongs to. t is nil if there is none.
func must(t testing.TB, err error) {
	if err == nil {
		return
	}
	if t == nil {
		panic(fmt.Sprintf("testservers: %v", err))
	}
	t.Helper()
	t.Fatalf("testservers: %v", err)
}

// Check ends a test if err is not nil. If err, as functions of this package return it, says that a program is not installed
// the test is skipped, or fails, as [Binary] says.
func Check(t testing.TB, err error) {
	t.Helper()
	if missing, ok := errors.AsType[*missingError](err); ok && !missing.required() {
		t.Skipf("SKIPPED, NOT TESTED: %v and test again", missing)
	}
	must(t, err)
}

// A missingError says that a program, which some tests need, is not installed.
type missingError struct {
	name, path, advice string
}

func (e *missingError) Error() string {
	text := fmt.Sprintf("this test needs a real %s, but there is no %s: %s", e.name, e.path, e.advice)
	if e.required() {
		text += " (STILE_TEST_REQUIRE=" + os.Getenv("STILE_TEST_REQUIRE") + " forbids skipping it)"
	}
	return text
}

// required reports whether the variable STILE_TEST_REQUIRE names the program.
func (e *missingError) required() bool {
	required := strings.Split(os.Getenv("STILE_TEST_REQUIRE"), ",")
	return slices.Contains(required, e.name) || slices.Contains(required, "all")
}

// Binary returns the path of a server's program: $STILE_TEST_BIN/name or, if that variable is not set,
// <repository>/.bin/name.
//
// If the program is not there the test is skipped; it fails instead if the variable STILE_TEST_REQUIRE, a list
// separated by commas, contains the name or the word "all", so that CI cannot pass by skipping.
func Binary(t testing.TB, name string) string {
	t.Helper()
	path, err := pinned(name)
	Check(t, err)
	return path
}

// pinned returns the path of a program that `make servers` builds.
func pinned(name string) (string, error) {
	dir, err := binaries()
	if err != nil {
		return "", fmt.Errorf("cannot find the repository: %w", err)
	}
	path := filepath.Join(dir, name)
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		return "", &missingError{name, path, "run `make servers`"}
	}
	return path, nil
}

// installed returns the path of a server's program that a Debian package brings: on the PATH, or where [Binary] looks.
func installed(name string) (string, error) {
	if path, err := pinned(name); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", &missingError{name, name + " on the PATH", "run `make servers`"}
	}
	return path, nil
}

// binaries returns the directory of the servers' programs.
func binaries() (string, error) {
	if dir := os.Getenv("STILE_TEST_BIN"); dir != "" {
		return dir, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		_, err := os.Stat(filepath.Join(dir, "go.work"))
		if err == nil {
			return filepath.Join(dir, ".bin"), nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", err
		}
		dir = parent
	}
}
