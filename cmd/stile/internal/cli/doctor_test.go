package cli

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stilelock/stile/store"
)

// docs/operations.md lists the IDs of all findings, and no others.
func TestDoctor_findingsAreDocumented(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## What doctor checks\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(section, -1) {
		documented = append(documented, row[1])
	}
	files, err := filepath.Glob(filepath.Join(root, "store", "*", "examine*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var made []string
	for _, file := range append(files, filepath.Join(root, "store", "internal", "redisinfo", "redisinfo.go"), "doctor.go") {
		if !strings.HasSuffix(file, "_test.go") {
			made = append(made, findingIDs(t, file)...)
		}
	}
	slices.Sort(made)
	made = slices.Compact(made)
	slices.Sort(documented)
	if !slices.Equal(made, documented) || len(made) < 20 {
		t.Errorf("the code has the findings\n%v\nand docs/operations.md\n%v", made, documented)
	}
}

// findingIDs returns the IDs in a file: the first arguments of calls that make findings, and the constants
// named id.
func findingIDs(t *testing.T, file string) (ids []string) {
	t.Helper()
	parsed, err := parser.ParseFile(gotoken.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	add := func(e ast.Expr) {
		if literal, ok := e.(*ast.BasicLit); ok && literal.Kind == gotoken.STRING {
			id, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
	}
	makers := []string{"Fine", "Attention", "Risk", "RoundTrip", "ClockRate", "KnownBugs", "finding"}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			name := ""
			switch f := n.Fun.(type) {
			case *ast.SelectorExpr:
				name = f.Sel.Name
			case *ast.Ident:
				name = f.Name
			}
			if slices.Contains(makers, name) && len(n.Args) > 0 {
				add(n.Args[0])
			}
		case *ast.ValueSpec:
			if len(n.Names) == 1 && n.Names[0].Name == "id" && len(n.Values) == 1 {
				add(n.Values[0])
			}
		}
		return true
	})
	return ids
}

func TestDiagnosis_text(t *testing.T) {
	t.Parallel()
	d := diagnosis{Store: "redis://h", From: "--url", TTL: "15s", Findings: []store.Finding{
		{ID: "a", Severity: store.Fine, What: "good", Servers: []string{"h"}},
		{ID: "b", Severity: store.Risk, Promise: "P1", What: "bad\x1b", Advice: "repair", Servers: []string{"h", "i"}},
	}}
	const want = `store redis://h (named by --url), for a TTL of 15s

a promise is at risk
✗ b (P1): bad\x1b
  at: h, i
  do: repair

fine
✓ a: good
`
	if got := string(d.text()); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
