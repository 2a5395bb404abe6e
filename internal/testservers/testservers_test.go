package testservers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A recorder is a testing.TB that records how the test ended.
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

// callBinary calls Binary as a test would.
func callBinary(name string) (path string, r recorder) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		path = Binary(&r, name)
	}()
	<-done
	return path, r
}

func TestBinary_findsProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("STILE_TEST_BIN", dir)
	want := filepath.Join(dir, "mydb")
	if runtime.GOOS == "windows" {
		want += ".exe"
	}
	if err := os.WriteFile(want, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, r := callBinary("mydb"); got != want || r.skipped != "" || r.failed != "" {
		t.Errorf("got %q, skipped %q, failed %q; want %q", got, r.skipped, r.failed, want)
	}
}

func TestBinary_looksInRepository(t *testing.T) {
	t.Setenv("STILE_TEST_BIN", "")
	got, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(got, "..", "internal", "testservers", "testservers.go")); err != nil {
		t.Errorf("%s is not at the root of this repository: %v", got, err)
	}
}

func TestBinary_skipsOrFailsIfRequired(t *testing.T) {
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
			_, r := callBinary("mydb")
			got, none := r.skipped, r.failed
			if c.fails {
				got, none = r.failed, r.skipped
			}
			if !strings.Contains(got, "make servers") || !strings.Contains(got, "mydb") || none != "" {
				t.Errorf("skipped %q, failed %q", r.skipped, r.failed)
			}
		})
	}
}

// A fake is a Server without a process.
type fake struct{ closed *int }

func (f fake) Close() error { *f.closed++; return nil }
func (f fake) Log() string  { return "" }

func TestShared_startsOnceAndCloses(t *testing.T) {
	started, closed := 0, 0
	s := Shared[fake]{New: func() (fake, error) { started++; return fake{&closed}, nil }}
	for range 2 {
		s.Get(t)
	}
	s.Close()
	if started != 1 || closed != 1 {
		t.Errorf("started %d times and closed %d times, want once each", started, closed)
	}
	never := Shared[fake]{New: func() (fake, error) { started++; return fake{&closed}, nil }}
	never.Close()
	if started != 1 || closed != 1 {
		t.Error("a server without users was started or closed")
	}
}

// callGet calls Get as a test would.
func callGet(s *Shared[fake]) recorder {
	var r recorder
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Get(&r)
	}()
	<-done
	return r
}

func TestShared_reportsErrorToEveryTest(t *testing.T) {
	t.Setenv("STILE_TEST_REQUIRE", "")
	missing := Shared[fake]{New: func() (fake, error) { return fake{}, &missingError{"mydb", "mydb", "install it"} }}
	broken := Shared[fake]{New: func() (fake, error) { return fake{}, errors.New("broken server") }}
	for range 2 {
		if r := callGet(&missing); !strings.Contains(r.skipped, "mydb") || r.failed != "" {
			t.Errorf("without the program: skipped %q, failed %q", r.skipped, r.failed)
		}
		if r := callGet(&broken); !strings.Contains(r.failed, "broken server") || r.skipped != "" {
			t.Errorf("with a server that does not start: skipped %q, failed %q", r.skipped, r.failed)
		}
	}
	missing.Close()
	broken.Close()
}

// Methods that would fail a test panic if there is none.
func TestNewEtcd_panicsWithoutTest(t *testing.T) {
	Binary(t, "etcd")
	e, err := NewEtcd()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, "cannot start etcd m1: already running") {
			t.Errorf("got the panic %q", got)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(e.DataDir()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the data directory after Close: got %v, want ErrNotExist", err)
		}
	}()
	e.Start()
}
