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
	if err := os.WriteFile(path, asText(0), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheCounterIsANumberThatPeopleCanRead(t *testing.T) {
	t.Parallel()
	path := testCounter(t)
	for range 12 {
		if err := increment(path); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "0000000012\n" {
		t.Errorf("the file has %q, %v", text, err)
	}
	if n, err := readCounter(path); n != 12 || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
}

// Otherwise a late and short number, written over a long one, would leave some of its digits.
func TestTheLargestNumberHasRoom(t *testing.T) {
	t.Parallel()
	path := testCounter(t)
	if got, want := len(asText(maxWorkers*maxAdd)), len(asText(0)); got != want {
		t.Errorf("the largest number takes %d bytes, others %d", got, want)
	}
	for _, n := range []int{maxWorkers * maxAdd, 7} {
		if err := os.WriteFile(path, asText(n), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readCounter(path); got != n || err != nil {
			t.Errorf("read %d, %v; want %d", got, err, n)
		}
	}
}

func TestACounterThatIsNoneIsAnErrorThatNamesTheFile(t *testing.T) {
	t.Parallel()
	path := testCounter(t)
	for _, text := range []string{"", "12", "not a number"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := increment(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", text, err)
		}
		if _, err := readCounter(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
