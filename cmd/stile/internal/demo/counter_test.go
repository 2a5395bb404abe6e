package demo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func testCounter(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "counter")
	if err := os.WriteFile(path, format(0), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCounter_readable(t *testing.T) {
	t.Parallel()
	path := testCounter(t)
	for range 12 {
		if err := increment(path); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "0000000012\n" {
		t.Errorf("got file content %q, %v; want 12 in ten digits", text, err)
	}
	if n, err := readCounter(path); n != 12 || err != nil {
		t.Errorf("readCounter: got %d, %v; want 12", n, err)
	}
}

// Otherwise a short number, written over a long one, would leave some of its digits.
func TestCounter_fixedWidth(t *testing.T) {
	t.Parallel()
	path := testCounter(t)
	if got, want := len(format(maxWorkers*maxAdd)), len(format(0)); got != want {
		t.Errorf("the largest number takes %d bytes, want %d", got, want)
	}
	for _, n := range []int{maxWorkers * maxAdd, 7} {
		if err := os.WriteFile(path, format(n), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readCounter(path); got != n || err != nil {
			t.Errorf("readCounter: got %d, %v; want %d", got, err, n)
		}
	}
}

func TestCounter_errorsNameTheFile(t *testing.T) {
	t.Parallel()
	path := testCounter(t)
	for _, text := range []string{"", "12", "not a number"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := increment(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: got %v, want an error that names the file", text, err)
		}
		if _, err := readCounter(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: got %v, want an error that names the file", text, err)
		}
	}
}
