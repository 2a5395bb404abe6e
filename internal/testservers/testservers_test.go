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

// A fake is a server that is none.
type fake struct{ closed *int }

func (f fake) Close() error { *f.closed++; return nil }
func (f fake) Log() string  { return "" }

func TestShared_StartsOnceAndCloses(t *testing.T) {
	started, closed := 0, 0
	s := Shared[fake]{New: func() (fake, error) { started++; return fake{&closed}, nil }}
	for range 2 {
		s.Get(t)
	}
	s.Close()
	if started != 1 || closed != 1 {
		t.Errorf("it was started %d times and closed %d times, want once each", started, closed)
	}
	never := Shared[fake]{New: func() (fake, error) { started++; return fake{&closed}, nil }}
	never.Close()
	if started != 1 || closed != 1 {
		t.Error("a server that nobody needed was started, or closed")
	}
}

// getOnce calls Get as a test would.
func getOnce(s *Shared[fake]) recorder {
	var r recorder
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Get(&r)
	}()
	<-done
	return r
}

func TestShared_EveryTestHearsWhyThereIsNone(t *testing.T) {
	t.Setenv("STILE_TEST_REQUIRE", "")
	missing := Shared[fake]{New: func() (fake, error) { return fake{}, &missingError{"mydb", "mydb", "install it"} }}
	broken := Shared[fake]{New: func() (fake, error) { return fake{}, errors.New("it has a leak") }}
	for range 2 {
		if r := getOnce(&missing); !strings.Contains(r.skipped, "mydb") || r.failed != "" {
			t.Errorf("without its program: skipped %q, failed %q", r.skipped, r.failed)
		}
		if r := getOnce(&broken); !strings.Contains(r.failed, "it has a leak") || r.skipped != "" {
			t.Errorf("of a server that does not start: skipped %q, failed %q", r.skipped, r.failed)
		}
	}
	missing.Close()
	broken.Close()
}

// What fails a test panics where there is none.
func TestNewEtcd_PanicsWithoutATest(t *testing.T) {
	Binary(t, "etcd")
	e, err := NewEtcd()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if said := fmt.Sprint(recover()); !strings.Contains(said, "cannot start etcd m1: it is running already") {
			t.Errorf("it panics with %q", said)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(e.DataDir()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after Close its data are still there: %v", err)
		}
	}()
	e.Start()
}
