// Package testservers starts real servers for tests and injects faults: etcd, Redis and ZooKeeper
// as separate processes, single or clustered, that can be paused, killed and restarted, and a
// [Proxy] that delays, holds and resets connections.
//
//	func TestSomething(t *testing.T) {
//		etcd := testservers.StartEtcd(t)
//		proxy := testservers.NewProxy(t, etcd.Endpoint())
//		…
//		proxy.Hold(testservers.Down) // requests arrive, replies do not
//		etcd.Pause()
//	}
//
// A server returned by a function named Start… is closed at the end of the test. A server returned
// by a function named New… belongs to no test: the function returns an error on failure, and the
// caller must call Close. [Shared] shares such a server between tests.
//
// Functions and methods that may fail a test must be called from the test's goroutine, like
// [testing.TB.FailNow]. Those of [Proxy] may be called from any goroutine, except [NewProxy] and
// [Proxy.Accept]. On a server that belongs to no test, methods panic where they would fail the
// test.
//
// All servers listen on loopback addresses only. The package imports no client of the servers: each
// test uses the client of its own module. The programs are the pinned ones that `make servers`
// builds into .bin, or those of Debian packages. Only tests import this package.
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

// A Server is one or several processes started by this package.
type Server interface {
	// Close kills the processes with SIGKILL and removes their data. It does not shut them down in
	// order, because they may be paused or without a leader.
	Close() error
	// Log returns the end of the processes' logs.
	Log() string
}

// closeWithTest closes the servers when the test ends, after showing the ends of their logs if the
// test has failed.
func closeWithTest[S Server](t testing.TB, servers ...S) {
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

// must fails t if err is not nil. If t is nil, it panics.
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

// Check ends the test if err is not nil. If a function of this package returned err because a
// program is not installed, Check skips the test or fails it as described at [Binary].
func Check(t testing.TB, err error) {
	t.Helper()
	if missing, ok := errors.AsType[*missingError](err); ok && !missing.required() {
		t.Skipf("SKIPPED, NOT TESTED: %v and test again", missing)
	}
	must(t, err)
}

// A missingError reports that a program needed by tests is not installed.
type missingError struct {
	name, path, advice string
}

func (e *missingError) Error() string {
	text := fmt.Sprintf("this test needs %s, but there is no %s: %s", e.name, e.path, e.advice)
	if e.required() {
		text += " (STILE_TEST_REQUIRE=" + os.Getenv("STILE_TEST_REQUIRE") + " forbids skipping it)"
	}
	return text
}

// required reports whether STILE_TEST_REQUIRE lists the program.
func (e *missingError) required() bool {
	required := strings.Split(os.Getenv("STILE_TEST_REQUIRE"), ",")
	return slices.Contains(required, e.name) || slices.Contains(required, "all")
}

// Binary returns the path of a server's program: $STILE_TEST_BIN/name or, if that variable is not
// set, <repository>/.bin/name.
//
// If the program does not exist, Binary skips the test. It fails the test instead if
// STILE_TEST_REQUIRE, a comma-separated list, contains the name or "all". This prevents CI from
// passing by skipping tests.
func Binary(t testing.TB, name string) string {
	t.Helper()
	path, err := pinned(name)
	Check(t, err)
	return path
}

// pinned returns the path of a program built by `make servers`.
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

// installed returns the path of a program from a Debian package: where [Binary] looks, or on the
// PATH.
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

// binaries returns the directory of the pinned programs.
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
