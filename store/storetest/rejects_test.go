//go:build !race

// Each bug needs a process, and processes with the race detector take ten times as long to start.
// The suite itself runs with the race detector in every store's tests, so this test is excluded
// there, and make test runs it separately.

package storetest_test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/stilelock/stile/store/storetest/internal/broken"
)

func TestSuite_rejectsEveryBug(t *testing.T) {
	for _, bug := range broken.Bugs() {
		t.Run(bug.Name, func(t *testing.T) {
			t.Parallel()
			topic, _, _ := strings.Cut(bug.Caught, "/")
			out, err := runSuite(t, bug.Name, "TestSuite/"+topic)
			exit, failed := errors.AsType[*exec.ExitError](err)
			switch {
			case err == nil:
				t.Fatalf("the suite accepts a store that %s\n%s", bug.Name, out)
			case !failed || exit.ExitCode() != 1:
				t.Fatalf("the suite ended otherwise than by failed tests: %v\n%s", err, out)
			case !tests(out, "FAIL")["TestSuite/"+rewritten(bug.Caught)]:
				t.Fatalf("the suite rejects the store, but not with the test %q\n%s", bug.Caught, out)
			}
		})
	}
}
