package godoc

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root  = "../.."
	stile = "github.com/stilelock/stile"

	// minTypes is the smallest plausible number of exported types. A smaller number means that packages are
	// not found.
	minTypes = 80
)

// notForUsers are folders whose packages users do not import. The conformance suite is for authors of stores,
// and its types are parameters of the tests that it runs.
var notForUsers = []string{"internal", "testdata", "cmd", "examples", "lab", "tools", "storetest"}

// shownElsewhere lists the types without an example of their own. Each is part of another type or result, and
// is of no use alone. The example of that one shows the type.
var shownElsewhere = []struct{ typ, example, reason string }{
	{"stile.Change", "ExampleClient_WatchChanges", "what WatchChanges yields"},
	{"stile.EndReason", "ExampleHoldEndEvent", "a field of the event"},
	{"stile.HoldStartEvent", "ExampleHooks", "the event of a hook, together with that of its end"},
	{"stile.HolderWait", "ExampleClient_WaitGraph", "an edge of the graph"},
	{"stile.Outcome", "ExampleAttemptEndEvent", "a field of the event"},
	{"stile.Reason", "ExampleLostError", "a field of the error"},
	{"stile.SessionEvent", "ExampleRiskEvent", "the event of hooks for the good news after a risk"},
	{"stile.WaitGraph", "ExampleClient_WaitGraph", "what Client.WaitGraph returns"},
	{"store.Entry", "ExampleLine", "an element of the line"},
	{"store.Held", "ExampleOwner", "an element of the owner's field Under"},
	{"store.SessionOptions", "ExampleSession", "an argument of Store.Open"},
	{"store.Severity", "ExampleFinding", "a field of the finding"},
	{"store.State", "ExampleStanding", "a field of the standing"},
	{"store.Wait", "ExampleOwner", "an element of the owner's field Waits"},
	{"store/memstore.Call", "ExampleFault", "the argument of the function that returns a fault"},
	{"store/memstore.Op", "ExampleFault", "a field of the call"},
	{"store/zkstore.Auth", "ExampleOptions", "an element of the options' field Auth"},
}

// Each exported type has an example on its page at pkg.go.dev, or is in the list above.
func TestExamples_everyTypeHasOne(t *testing.T) {
	all := packages(t)
	listed := map[string]string{}
	for _, s := range shownElsewhere {
		listed[s.typ] = s.example
	}
	count := 0
	for _, p := range all {
		for _, typ := range p.doc.Types {
			count++
			name := p.name(typ.Name)
			example, inList := listed[name]
			delete(listed, name)
			switch own := hasExample(typ); {
			case own && inList:
				t.Errorf("%s has an example of its own: remove the type from the list", name)
			case inList:
				if err := p.checkUse(example, typ.Name); err != nil {
					t.Errorf("%s is listed as shown in %s: %v", name, example, err)
				}
			case !own:
				t.Errorf("%s has no example: add the function Example%s", name, typ.Name)
			}
		}
	}
	for name := range listed {
		t.Errorf("the list has the type %s, which does not exist", name)
	}
	if count < minTypes {
		t.Errorf("found %d types, want at least %d", count, minTypes)
	}
}

// A pkg is a package that users import.
type pkg struct {
	dir   string // relative to the root
	fset  *token.FileSet
	files []*ast.File // with those of tests
	doc   *doc.Package
}

// name returns the name of a type with its package's, as in store/etcdstore.Options.
func (p *pkg) name(typ string) string {
	if p.dir == "." {
		return "stile." + typ
	}
	return p.dir + "." + typ
}

func (p *pkg) importPath() string { return path.Join(stile, p.dir) }

// packages returns all packages that users import.
func packages(t *testing.T) (all []*pkg) {
	t.Helper()
	err := filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case dir != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains(notForUsers, d.Name())):
			return fs.SkipDir
		}
		p := &pkg{dir: filepath.ToSlash(strings.TrimPrefix(dir, root+"/")), fset: token.NewFileSet()}
		if dir == root {
			p.dir = "."
		}
		if err := p.read(dir); err != nil {
			return err
		}
		if p.doc != nil {
			all = append(all, p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// read reads the package's files. If there are none, p.doc is nil.
func (p *pkg) read(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(paths) == 0 {
		return err
	}
	for _, file := range paths {
		f, err := parser.ParseFile(p.fset, file, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		p.files = append(p.files, f)
	}
	p.doc, err = doc.NewFromFiles(p.fset, p.files, p.importPath(), doc.PreserveAST)
	return err
}

// hasExample reports whether pkg.go.dev shows an example of the type or of one of its methods.
func hasExample(typ *doc.Type) bool {
	return len(typ.Examples) > 0 ||
		slices.ContainsFunc(typ.Methods, func(m *doc.Func) bool { return len(m.Examples) > 0 })
}

// checkUse returns an error unless the example with the given name uses a type of the package: its name, one
// of its fields or methods, or a constant of the type.
func (p *pkg) checkUse(example, typ string) error {
	for _, f := range p.files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == example {
				return p.checkUseIn(f, fn, typ)
			}
		}
	}
	return errors.New("there is no such example")
}

func (p *pkg) checkUseIn(file *ast.File, example *ast.FuncDecl, typ string) error {
	exports, err := p.exports(file)
	if err != nil {
		return err
	}
	imports := importer.ForCompiler(p.fset, "gc", func(importPath string) (io.ReadCloser, error) {
		if exports[importPath] == "" {
			return nil, fmt.Errorf("%s has no export data", importPath)
		}
		return os.Open(exports[importPath])
	})
	tested, err := imports.Import(p.importPath())
	if err != nil {
		return err
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	// The file may use what other files of the test declare, so errors mean nothing.
	conf := types.Config{Importer: imports, Error: func(error) {}}
	_, _ = conf.Check(p.importPath()+"_test", p.fset, []*ast.File{file}, info)
	used := false
	parts := partsOf(tested, typ)
	ast.Inspect(example, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		used = used || ok && slices.Contains(parts, info.Uses[id])
		return true
	})
	if !used {
		return errors.New("that example does not use the type")
	}
	return nil
}

// exports returns the files with the export data of all packages that a test file imports, by import path.
func (p *pkg) exports(file *ast.File) (map[string]string, error) {
	args := []string{"list", "-deps", "-export", "-f", "{{.ImportPath}} {{.Export}}", p.importPath()}
	for _, spec := range file.Imports {
		importPath, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		args = append(args, importPath)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = filepath.Join(root, p.dir)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", cmd, err, &stderr)
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		importPath, export, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[importPath] = export
	}
	return exports, nil
}

// partsOf returns a type's name, its fields and methods, and the constants of the type.
func partsOf(p *types.Package, typ string) []types.Object {
	name := p.Scope().Lookup(typ)
	parts := []types.Object{name}
	if s, ok := name.Type().Underlying().(*types.Struct); ok {
		for f := range s.Fields() {
			parts = append(parts, f)
		}
	}
	if i, ok := name.Type().Underlying().(*types.Interface); ok {
		for m := range i.Methods() {
			parts = append(parts, m)
		}
	}
	if n, ok := types.Unalias(name.Type()).(*types.Named); ok {
		for m := range n.Methods() {
			parts = append(parts, m)
		}
	}
	for _, other := range p.Scope().Names() {
		if c, ok := p.Scope().Lookup(other).(*types.Const); ok && types.Identical(c.Type(), name.Type()) {
			parts = append(parts, c)
		}
	}
	return parts
}
