package testservers

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A recorder is a test that notes how it ended.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Helper() {}

func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// lookFor calls Binary as a test would.
func lookFor(name string) (path string, r recorder) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		path = Binary(&r, name)
	}()
	<-done
	return path, r
}

func TestBinaryFindsTheProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("STILE_TEST_BIN", dir)
	want := filepath.Join(dir, "mydb")
	if runtime.GOOS == "windows" {
		want += ".exe"
	}
	if err := os.WriteFile(want, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, r := lookFor("mydb"); got != want || r.skipped != "" || r.failed != "" {
		t.Errorf("%q, skipped %q, failed %q; want %q", got, r.skipped, r.failed, want)
	}
}

func TestBinaryLooksInTheRepository(t *testing.T) {
	t.Setenv("STILE_TEST_BIN", "")
	got, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(got, "..", "internal", "testservers", "testservers.go")); err != nil {
		t.Errorf("%s is not at the root of this repository: %v", got, err)
	}
}

func TestBinarySkipsLoudlyOrFailsIfRequired(t *testing.T) {
	for _, c := range []struct {
		require string
		fails   bool
	}{
		{"", false},
		{"redis", false},
		{"mydb", true},
		{"redis,mydb", true},
		{"all", true},
	} {
		t.Run("STILE_TEST_REQUIRE="+c.require, func(t *testing.T) {
			t.Setenv("STILE_TEST_BIN", t.TempDir())
			t.Setenv("STILE_TEST_REQUIRE", c.require)
			_, r := lookFor("mydb")
			said, silent := r.skipped, r.failed
			if c.fails {
				said, silent = r.failed, r.skipped
			}
			if !strings.Contains(said, "make servers") || !strings.Contains(said, "mydb") || silent != "" {
				t.Errorf("skipped %q, failed %q", r.skipped, r.failed)
			}
		})
	}
}
