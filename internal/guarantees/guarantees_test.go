// Package guarantees writes the tests behind each promise into docs/guarantees.md. A test says in its comment which
// promises it fails for when they are broken:
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

var update = flag.Bool("update", false, "write the list of tests into docs/guarantees.md")

const (
	root  = "../.."
	page  = "docs/guarantees.md"
	begin = "<!-- The rest is made from the tests' comments: go test ./internal/guarantees -update -->\n"
)

// promises are those that a test may name, in the page's order.
var promises = []string{"P1", "P2", "P3", "P4", "P5", "P6", "P7", "LockDelay"}

// fewest is how many tests stand behind each promise at least. A smaller number means that labels are not found.
const fewest = 3

func TestThePageListsTheTestsBehindEachPromise(t *testing.T) {
	listed := list(t, labels(t))
	path := filepath.Join(root, page)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	prose, old, found := strings.Cut(string(text), begin)
	if !found {
		t.Fatalf("%s has no line %q", page, begin)
	}
	for _, p := range promises[:7] {
		if !strings.Contains(prose, "\n## "+p+". ") {
			t.Errorf("%s does not say what %s is", page, p)
		}
	}
	if old == listed {
		return
	}
	if !*update {
		t.Fatalf("%s does not list the tests as their comments have them: go test ./internal/guarantees -update", page)
	}
	if err := os.WriteFile(path, []byte(prose+begin+listed), 0o644); err != nil {
		t.Fatal(err)
	}
}

// labels returns the tests that name each promise: by package, in the order of their files.
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
					t.Errorf("%s: %s names the promise %q: there is none, or it is not a test", path, f.Name.Name, p)
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

// promisesOf returns the promises that a comment names.
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

// list writes the tests down in Markdown.
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
		if n < fewest {
			t.Errorf("%d tests stand behind %s, want %d at least", n, p, fewest)
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
