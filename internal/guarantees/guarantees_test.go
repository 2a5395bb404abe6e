// Package guarantees maintains the list of tests for each promise in docs/guarantees.md. A test
// lists in its doc comment the promises that it verifies:
//
//	// Promise: P1, P6
package guarantees

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the list of tests to docs/guarantees.md")

const (
	root       = "../.."
	docPage    = "docs/guarantees.md"
	listMarker = "<!-- The rest is made from the tests' comments: go test ./internal/guarantees -update -->\n"
)

// promises are the promises that a test may list, in the order of the page.
var promises = []string{"P1", "P2", "P3", "P4", "P5", "P6", "P7", "LockDelay"}

// minTests is the smallest plausible number of tests for a promise. A smaller number means that
// labels are not found.
const minTests = 3

func TestPage_listsTestsOfEachPromise(t *testing.T) {
	listed := list(t, labels(t))
	path := filepath.Join(root, docPage)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	prose, old, found := strings.Cut(string(text), listMarker)
	if !found {
		t.Fatalf("%s has no line %q", docPage, listMarker)
	}
	for _, p := range promises[:7] {
		if !strings.Contains(prose, "\n## "+p+". ") {
			t.Errorf("%s has no section about %s", docPage, p)
		}
	}
	if old == listed {
		return
	}
	if !*update {
		t.Fatalf("%s does not list the tests as labeled in their comments: run go test ./internal/guarantees -update", docPage)
	}
	if err := os.WriteFile(path, []byte(prose+listMarker+listed), 0o644); err != nil {
		t.Fatal(err)
	}
}

// labels returns the tests of each promise by folder, in the order of their files.
func labels(t *testing.T) map[string]map[string][]string {
	t.Helper()
	found := make(map[string]map[string][]string)
	for _, p := range promises {
		found[p] = make(map[string][]string)
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			for _, p := range promisesOf(f.Doc) {
				if found[p] == nil || !strings.HasPrefix(f.Name.Name, "Test") {
					t.Errorf("%s: %s lists the promise %q, which does not exist, or %[2]s is not a test", path, f.Name.Name, p)
					continue
				}
				found[p][folder] = append(found[p][folder], f.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// promisesOf returns the promises that a doc comment lists.
func promisesOf(doc *ast.CommentGroup) []string {
	if doc == nil {
		return nil
	}
	for _, c := range doc.List {
		if names, ok := strings.CutPrefix(c.Text, "// Promise: "); ok {
			return strings.Split(names, ", ")
		}
	}
	return nil
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
			name := folder
			if name == "." {
				name = "stile"
			}
			fmt.Fprintf(&b, "\n`%s`:\n\n", name)
			for _, test := range found[p][folder] {
				fmt.Fprintf(&b, "- %s\n", test)
			}
		}
	}
	return b.String()
}
