//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stilelock/stile/internal/testservers"
)

// TestMain makes the test binary a worker if it is started as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "-endpoint=") {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// All rows are measured once: a second run finds them in the file of results, though its last line
// is incomplete.
func TestRun_resumes(t *testing.T) {
	results := filepath.Join(t.TempDir(), "results")
	args := []string{"-etcd", testservers.Binary(t, "etcd"), "-results", results, "-idle", "0s", "-waiters", "1,12"}
	var first bytes.Buffer
	if err := run(t.Context(), args, &first); err != nil {
		t.Fatal(err)
	}
	for _, contender := range contenders {
		if n := strings.Count(first.String(), "| "+contender+" |"); n != 2 {
			t.Errorf("got %d rows of %s, want 2:\n%s", n, contender, first.String())
		}
	}
	f, err := os.OpenFile(results, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"contender":"sti`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var second bytes.Buffer
	args[1] = "no such program"
	if err := run(t.Context(), args, &second); err != nil {
		t.Fatal(err)
	}
	if second.String() != first.String() {
		t.Errorf("the second run printed\n%s\nwant\n%s", second.String(), first.String())
	}
}

func TestRun_invalidArguments(t *testing.T) {
	for _, args := range [][]string{{"-waiters", "0"}, {"-waiters", "1,,2"}, {"-waiters", "x"}, {"-idle", "-1s"}, {"more"}} {
		if err := run(t.Context(), append(args, "-results", filepath.Join(t.TempDir(), "results")), &bytes.Buffer{}); err == nil {
			t.Errorf("run with %q succeeded", args)
		}
	}
}
