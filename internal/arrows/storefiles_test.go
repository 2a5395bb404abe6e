package arrows

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whoever knows one store finds the same thing in the same file of the others. The memory store is smaller, and has some of
// it in fewer files.
var (
	storeFiles = []string{
		"doc.go", "store.go", "session.go", "entry.go", "line.go", "read.go", "watch.go", "retry.go", "keys.go",
	}
	storeFunctions = map[string]string{ // as far as a store has them
		"New": "store.go", "Capabilities": "store.go", "Open": "store.go",
		"newSession": "session.go", "finish": "session.go",
		"Enqueue": "entry.go", "Withdraw": "entry.go", "Extensions": "entry.go",
		"Line": "read.go", "Lines": "read.go", "Break": "read.go",
		"Watch":   "watch.go",
		"refused": "retry.go", "patiently": "retry.go",
		"withdrawAfter": "outlast.go", "setOwner": "owner.go", "mark": "marker.go", "notifyContended": "contended.go",
	}
)

func TestStoresHaveTheSameFiles(t *testing.T) {
	for _, name := range []string{"etcdstore", "redisstore", "redlockstore", "zkstore"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("..", "..", "store", name)
			for _, file := range storeFiles {
				if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
					t.Errorf("every store has this file: %v", err)
				}
			}
			files, err := filepath.Glob(filepath.Join(dir, "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				if !strings.HasSuffix(file, "_test.go") {
					checkFunctions(t, file)
				}
			}
		})
	}
}

// checkFunctions reports the functions that are in this file and should be in another.
func checkFunctions(t *testing.T, file string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if want, ok := storeFunctions[f.Name.Name]; ok && want != filepath.Base(file) {
			t.Errorf("%s has %s, which other stores have in %s", file, f.Name.Name, want)
		}
	}
}
