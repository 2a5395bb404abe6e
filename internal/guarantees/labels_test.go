package guarantees

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the lists of tests to docs/guarantees.md and docs/known-bugs.md")

const root = "../.."

// A label is one name in the comment of a test.
type label struct {
	name   string
	folder string
	test   string
}

// labels returns the names after "// kind: " in the comments of tests, in the order of the files. The
// tests are functions, and the subtests of the suite in store/storetest.
func labels(t *testing.T, kind string) []label {
	t.Helper()
	var found []label
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go"):
			return nil
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		suite := folder == filepath.Join("store", "storetest")
		if !suite && !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		add := func(comment *ast.CommentGroup, test string) {
			for _, name := range namesIn(comment, kind) {
				found = append(found, label{name, folder, test})
			}
		}
		above := make(map[int]*ast.CommentGroup) // by the line below
		for _, c := range file.Comments {
			above[fset.Position(c.End()).Line+1] = c
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if len(namesIn(f.Doc, kind)) > 0 && !strings.HasPrefix(f.Name.Name, "Test") {
				t.Errorf("%s: %s is labeled %q, but is not a test", path, f.Name.Name, kind)
				continue
			}
			add(f.Doc, f.Name.Name)
			if !suite {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if name := subtest(n); name != "" {
					add(above[fset.Position(n.Pos()).Line], name)
				}
				return true
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// subtest returns the name of a subtest of the suite if n is the call that makes it.
func subtest(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return ""
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	text, isText := call.Args[0].(*ast.BasicLit)
	if !ok || !isText || method.Sel.Name != "test" {
		return ""
	}
	name, err := strconv.Unquote(text.Value)
	if err != nil {
		return ""
	}
	return name
}

// namesIn returns the names of a kind that a comment lists.
func namesIn(comment *ast.CommentGroup, kind string) []string {
	if comment == nil {
		return nil
	}
	for _, c := range comment.List {
		if names, ok := strings.CutPrefix(c.Text, "// "+kind+": "); ok {
			return strings.Split(names, ", ")
		}
	}
	return nil
}

// checkPage compares a page with what it should be, and writes it if the flag update is set.
func checkPage(t *testing.T, page string, want func(text string) string) {
	t.Helper()
	path := filepath.Join(root, page)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	now := want(string(text))
	switch {
	case t.Failed(), now == string(text):
	case !*update:
		t.Fatalf("%s does not list the tests as labeled in their comments: run go test ./internal/guarantees -update", page)
	default:
		if err := os.WriteFile(path, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// packageName returns the name of a folder for a list of tests.
func packageName(folder string) string {
	if folder == "." {
		return "stile"
	}
	return filepath.ToSlash(folder)
}
