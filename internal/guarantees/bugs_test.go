package guarantees

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	// testsBegin begins the list of tests of a bug, which ends with its section.
	testsBegin = "\nTests:\n\n"
	// notApplicable begins the reason why Stile cannot have a bug.
	notApplicable = "\nDoes not apply: "

	// minBugs is the smallest plausible number of bugs. A smaller number means that sections are not
	// found.
	minBugs = 40
)

// sourceLink matches a link to a source of a bug. Its text is the name that tests use for the bug.
var sourceLink = regexp.MustCompile(`\[([^]]+)\]\(https://[^)]+\)`)

// docs/known-bugs.md lists the bugs of other libraries, each with the tests that would find it in Stile,
// or with the reason why Stile cannot have it.
func TestPage_listsTestsOfEachKnownBug(t *testing.T) {
	const page = "docs/known-bugs.md"
	tests := make(map[string][]label)
	for _, l := range labels(t, "Bug") {
		tests[l.name] = append(tests[l.name], l)
	}
	checkPage(t, page, func(text string) string {
		// A section about a bug ends where the next one or the next chapter begins.
		parts := regexp.MustCompile(`\n##+ `).FindAllStringIndex(text, -1)
		var b strings.Builder
		b.WriteString(text[:parts[0][0]])
		bugs := 0
		for i, part := range parts {
			end := len(text)
			if i+1 < len(parts) {
				end = parts[i+1][0]
			}
			section := text[part[0]:end]
			if strings.HasPrefix(section, "\n### ") {
				bugs++
				section = withTests(t, section, tests)
			}
			b.WriteString(section)
		}
		if bugs < minBugs {
			t.Errorf("%s has %d bugs, want at least %d", page, bugs, minBugs)
		}
		for name, unknown := range tests {
			t.Errorf("%s: %s lists the bug %q, which is not a source in %s", unknown[0].folder, unknown[0].test, name, page)
		}
		return b.String()
	})
}

// withTests returns a section with its list of tests, and deletes the labels of its bug from tests.
func withTests(t *testing.T, section string, tests map[string][]label) string {
	t.Helper()
	title, _, _ := strings.Cut(strings.TrimPrefix(section, "\n### "), "\n")
	prose, _, _ := strings.Cut(section, testsBegin)
	sources := sourceLink.FindAllStringSubmatch(prose, -1)
	if len(sources) == 0 {
		t.Errorf("%q has no source", title)
	}
	var folders []string
	found := make(map[string][]string) // by folder, in the order of the files
	for _, source := range sources {
		name := strings.ReplaceAll(source[1], "`", "")
		for _, l := range tests[name] {
			if found[l.folder] == nil {
				folders = append(folders, l.folder)
			}
			if !slices.Contains(found[l.folder], l.test) {
				found[l.folder] = append(found[l.folder], l.test)
			}
		}
		delete(tests, name)
	}
	switch applies := !strings.Contains(prose, notApplicable); {
	case applies && len(found) == 0:
		t.Errorf("%q has no test, and does not say why it does not apply", title)
	case !applies && len(found) > 0:
		t.Errorf("%q does not apply, but has the tests %v", title, found)
	case !applies:
		return prose
	}
	slices.Sort(folders)
	var b strings.Builder
	b.WriteString(strings.TrimRight(prose, "\n") + "\n" + testsBegin)
	for _, folder := range folders {
		if folder == "store/storetest" {
			for _, test := range found[folder] {
				fmt.Fprintf(&b, "- every store: %s\n", test)
			}
			continue
		}
		for _, test := range found[folder] {
			fmt.Fprintf(&b, "- `%s`: %s\n", packageName(folder), test)
		}
	}
	return b.String()
}
