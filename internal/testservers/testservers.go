// Package testservers starts real servers for tests and hurts them: etcd as a process of its own, alone or as a
// cluster, that can be paused, killed and restarted, and a [Proxy] that delays, holds and cuts what passes to it.
//
//	func TestSomething(t *testing.T) {
//		etcd := testservers.StartEtcd(t)
//		proxy := testservers.NewProxy(t, etcd.Endpoint())
//		…
//		proxy.Hold(testservers.Down) // requests arrive, replies do not
//		etcd.Pause()
//	}
//
// Everything listens on loopback only and ends with the test that started it. Like [testing.TB.FailNow], the
// functions and methods here that may fail the test must be called from its own goroutine; [Proxy] has none such but
// [NewProxy] and [Proxy.Accept].
//
// The programs are the pinned ones that `make servers` builds into .bin. Only tests import this package.
package testservers

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Binary returns the path of a server's program: $STILE_TEST_BIN/name or, if that variable is not set,
// <repository>/.bin/name.
//
// If the program is not there the test is skipped; it fails instead if the variable STILE_TEST_REQUIRE, a list
// separated by commas, contains the name or the word "all", so that CI cannot pass by skipping.
func Binary(t testing.TB, name string) string {
	t.Helper()
	dir, err := binaries()
	if err != nil {
		t.Fatalf("testservers: cannot find the repository: %v", err)
	}
	path := filepath.Join(dir, name)
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		return path
	}
	missing(t, name, path, "run `make servers`")
	return ""
}

// installed returns the path of a server's program that a Debian package brings: on the PATH, or where [Binary] looks. If
// it is not there the test is skipped or fails, as Binary says.
func installed(t testing.TB, name string) string {
	t.Helper()
	if dir, err := binaries(); err == nil {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && !info.IsDir() {
			return filepath.Join(dir, name)
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, name, name+" on the PATH", "run `make servers`")
	}
	return path
}

// missing ends a test whose program is not there: see [Binary].
func missing(t testing.TB, name, path, advice string) {
	t.Helper()
	required := strings.Split(os.Getenv("STILE_TEST_REQUIRE"), ",")
	if slices.Contains(required, name) || slices.Contains(required, "all") {
		t.Fatalf("this test needs a real %s and STILE_TEST_REQUIRE=%s forbids skipping it, but there is no %s: %s",
			name, os.Getenv("STILE_TEST_REQUIRE"), path, advice)
	}
	t.Skipf("SKIPPED, NOT TESTED: this test needs a real %s, but there is no %s: %s and test again", name, path, advice)
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
