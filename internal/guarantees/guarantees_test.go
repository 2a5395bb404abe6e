// Package guarantees maintains the lists of tests in docs/guarantees.md, for each promise, and in
// docs/known-bugs.md, for each bug of other libraries. A test lists in its comment the promises that it
// verifies, and sources of the bugs that it would find:
//
//	// Promise: P1, P6
//	// Bug: etcd #21128
package guarantees

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const listMarker = "<!-- The rest is made from the tests' comments: go test ./internal/guarantees -update -->\n"

// promises are the promises that a test may list, in the order of the page.
var promises = []string{"P1", "P2", "P3", "P4", "P5", "P6", "P7", "LockDelay"}

// minTests is the smallest plausible number of tests for a promise. A smaller number means that
// labels are not found.
const minTests = 3

func TestPage_listsTestsOfEachPromise(t *testing.T) {
	const page = "docs/guarantees.md"
	checkPage(t, page, func(text string) string {
		prose, _, found := strings.Cut(text, listMarker)
		if !found {
			t.Fatalf("%s has no line %q", page, listMarker)
		}
		for _, p := range promises[:7] {
			if !strings.Contains(prose, "\n## "+p+". ") {
				t.Errorf("%s has no section about %s", page, p)
			}
		}
		return prose + listMarker + list(t, testsOfPromises(t))
	})
}

// testsOfPromises returns the tests of each promise by folder, in the order of their files.
func testsOfPromises(t *testing.T) map[string]map[string][]string {
	t.Helper()
	found := make(map[string]map[string][]string)
	for _, p := range promises {
		found[p] = make(map[string][]string)
	}
	for _, l := range labels(t, "Promise") {
		if found[l.name] == nil {
			t.Errorf("%s: %s lists the promise %q, which does not exist", l.folder, l.test, l.name)
			continue
		}
		found[l.name][l.folder] = append(found[l.name][l.folder], l.test)
	}
	return found
}

// list formats the tests as Markdown.
func list(t *testing.T, found map[string]map[string][]string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("\n## The tests behind the promises\n")
	for _, p := range promises {
		fmt.Fprintf(&b, "\n### Tests of %s\n", p)
		folders := make([]string, 0, len(found[p]))
		n := 0
		for folder, tests := range found[p] {
			folders = append(folders, folder)
			n += len(tests)
		}
		if n < minTests {
			t.Errorf("got %d tests for %s, want at least %d", n, p, minTests)
		}
		slices.Sort(folders)
		for _, folder := range folders {
			fmt.Fprintf(&b, "\n`%s`:\n\n", packageName(folder))
			for _, test := range found[p][folder] {
				fmt.Fprintf(&b, "- %s\n", test)
			}
		}
	}
	return b.String()
}
