package testservers

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

//go:embed redis_clock.c.txt
var clockSource []byte

const clockVariable = "STILE_CLOCK_FILE="

// clockShim returns the environment of a program whose wall clock follows a file.
func clockShim(t testing.TB) []string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		missing(t, "cc", "cc on the PATH", "install a C compiler")
	}
	dir := t.TempDir()
	source, library, file := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so"), filepath.Join(dir, "ahead")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: this test needs a wall clock that jumps, and that did not compile: %v\n%s", err, out)
	}
	return []string{"LD_PRELOAD=" + library, clockVariable + file}
}

// clockFile returns the file that the clock of a program with the environment env follows.
func clockFile(env []string) string {
	for _, e := range env {
		if file, ok := strings.CutPrefix(e, clockVariable); ok {
			return file
		}
	}
	return ""
}
