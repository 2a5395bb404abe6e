package arrows

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Stores have the same files with the same functions, so that a reader of one store finds the
// counterpart in another. The memory store is smaller and combines some of the files.
var (
	allStores  = []string{"etcdstore", "redisstore", "redlockstore", "zkstore"}
	storeFiles = []string{
		"doc.go", "store.go", "session.go", "entry.go", "line.go", "read.go", "watch.go", "retry.go", "keys.go",
	}
	storeFunctions = map[string]string{ // file of each function, if a store has the function
		"New": "store.go", "Capabilities": "store.go", "Open": "store.go",
		"newSession": "session.go", "finish": "session.go",
		"Enqueue": "entry.go", "Withdraw": "entry.go", "Extensions": "entry.go",
		"Line": "read.go", "Lines": "read.go", "Break": "read.go",
		"Watch":   "watch.go",
		"refused": "retry.go", "retry": "retry.go", "retryBounded": "retry.go",
		"withdrawAfter": "outlast.go", "setOwner": "owner.go", "downgrade": "downgrade.go", "mark": "marker.go", "clearMarks": "marker.go",
		"notifyContended": "contended.go", "requeue": "requeue.go", "claimNumber": "number.go", "setLimit": "limit.go", "enqueueAll": "enqueueall.go",
		"setRecord": "record.go", "followLines": "follow.go", "Examine": "examine.go",
	}
)

func TestStores_haveTheSameFiles(t *testing.T) {
	for _, name := range allStores {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("..", "..", "store", name)
			for _, file := range storeFiles {
				if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
					t.Errorf("a file is missing that every store must have: %v", err)
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

// A function that was renamed in all stores would no longer be checked.
func TestStoreFunctions_exist(t *testing.T) {
	unused := maps.Clone(storeFunctions)
	for _, name := range allStores {
		files, err := filepath.Glob(filepath.Join("..", "..", "store", name, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for _, f := range functions(t, file) {
				delete(unused, f)
			}
		}
	}
	for name := range unused {
		t.Errorf("storeFunctions lists %s, which no store has", name)
	}
}

// checkFunctions reports functions of the file that belong in another file.
func checkFunctions(t *testing.T, file string) {
	t.Helper()
	for _, f := range functions(t, file) {
		if want, ok := storeFunctions[f]; ok && want != filepath.Base(file) {
			t.Errorf("%s has %s, want it in %s as in other stores", file, f, want)
		}
	}
}

// functions returns the names of the functions and methods of a file.
func functions(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range parsed.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			names = append(names, f.Name.Name)
		}
	}
	return names
}
