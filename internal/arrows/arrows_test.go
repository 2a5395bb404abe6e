package arrows

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A rule restricts the direct and indirect imports of some packages. Packages are given by import
// path. A path that ends with /... includes everything below it.
type rule struct {
	packages, except []string // packages that the rule applies to, and exceptions
	allowed          []string // allowed imports besides the standard library; nil allows all
	forbidden        []string // forbidden imports
	tolerated        int      // number of forbidden imports that are tolerated
	reason           string
}

// A graph maps the import paths of packages to their imports.
type graph map[string]node

type node struct {
	standard bool // part of the standard library
	imports  []string
}

// matches reports whether path matches one of the patterns.
func matches(path string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		root, below := strings.CutSuffix(pattern, "/...")
		return path == root || below && strings.HasPrefix(path, root+"/")
	})
}

// check returns the violations of the rule. A rule that applies to no package is a violation: most
// likely a package was renamed.
func (r rule) check(g graph) (broken []string) {
	applied := 0
	for _, path := range sortedKeys(g) {
		if !matches(path, r.packages) || matches(path, r.except) {
			continue
		}
		applied++
		chains := g.uses(path)
		var found []string
		for _, used := range sortedKeys(chains) {
			outside := r.allowed != nil && !g[used].standard && !matches(used, r.allowed)
			if used != path && (outside || matches(used, r.forbidden)) {
				found = append(found, used)
			}
		}
		if len(found) <= r.tolerated {
			continue
		}
		for _, used := range found {
			between := chains[used][1 : len(chains[used])-1]
			if slices.ContainsFunc(between, func(b string) bool { return slices.Contains(found, b) }) {
				continue // imported through another violation
			}
			broken = append(broken, fmt.Sprintf("%s must not use %s (%s): %s",
				path, used, strings.Join(chains[used], " -> "), r.reason))
		}
	}
	if applied == 0 {
		broken = append(broken, fmt.Sprintf("there is no package %s: the rule has no effect",
			strings.Join(r.packages, ", ")))
	}
	return broken
}

// uses returns the direct and indirect imports of the package at path, each with a shortest chain
// of imports.
func (g graph) uses(path string) map[string][]string {
	chains := map[string][]string{path: {path}}
	for queue := []string{path}; len(queue) > 0; queue = queue[1:] {
		from := queue[0]
		for _, to := range g[from].imports {
			if chains[to] == nil {
				chains[to] = append(slices.Clone(chains[from]), to)
				queue = append(queue, to)
			}
		}
	}
	return chains
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func TestRules(t *testing.T) {
	readEverything(t)
	for _, system := range []string{"linux", "darwin", "windows"} {
		t.Run(system, func(t *testing.T) {
			g := list(t, system)
			for _, r := range rules {
				for _, b := range r.check(g) {
					t.Error(b)
				}
			}
		})
	}
}

// readEverything reads the repository's directories, so that go test includes them in its cache key
// and runs the test again when an import has changed.
func readEverything(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir("../..", func(_ string, d os.DirEntry, err error) error {
		if name := d.Name(); err == nil && d.IsDir() && (name == ".git" || name == ".bin") {
			return filepath.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// list returns all packages of the workspace and their dependencies on the given system.
func list(t *testing.T, system string) graph {
	t.Helper()
	work, err := filepath.Abs("../../go.work")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps",
		"-f", `{{.ImportPath}} {{.Standard}}{{range .Imports}} {{.}}{{end}}`, "work")
	cmd.Dir, cmd.Stderr = filepath.Dir(work), os.Stderr
	cmd.Env = append(os.Environ(), "GOWORK="+work, "GOOS="+system, "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	g := graph{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		g[fields[0]] = node{standard: fields[1] == "true", imports: fields[2:]}
	}
	return g
}

func TestRule_check(t *testing.T) {
	g := graph{
		"fmt":        {standard: true, imports: []string{"unsafe"}},
		"unsafe":     {standard: true},
		"x/pure":     {imports: []string{"fmt"}},
		"x/contract": {imports: []string{"fmt", "x/pure"}},
		"x/one":      {imports: []string{"x/contract", "y/client"}},
		"x/two":      {imports: []string{"x/contract"}},
		"x/all":      {imports: []string{"x/one", "x/two"}},
		"y/client":   {imports: []string{"y/client/deep"}},
		// Only y/client imports y/client/deep.
		"y/client/deep": {imports: []string{"fmt"}},
		"y/clients":     {},
	}
	for _, c := range []struct {
		name string
		rule rule
		want []string
	}{
		{"a package without imports", rule{packages: []string{"x/pure"}, allowed: []string{}}, nil},
		{
			"allowed: direct import",
			rule{packages: []string{"x/contract"}, allowed: []string{}, reason: "because"},
			[]string{"x/contract must not use x/pure (x/contract -> x/pure): because"},
		},
		{"allowed: allowed import", rule{packages: []string{"x/contract"}, allowed: []string{"x/pure"}}, nil},
		{
			"allowed: indirect import",
			rule{packages: []string{"x/two"}, allowed: []string{"x/contract"}, reason: "because"},
			[]string{"x/two must not use x/pure (x/two -> x/contract -> x/pure): because"},
		},
		{
			"forbidden: only the first of a chain is reported",
			rule{packages: []string{"x/all"}, forbidden: []string{"y/client/..."}, reason: "because"},
			[]string{"x/all must not use y/client (x/all -> x/one -> y/client): because"},
		},
		{
			"forbidden: package below the pattern",
			rule{packages: []string{"x/one"}, forbidden: []string{"y/client/deep/..."}, reason: "because"},
			[]string{"x/one must not use y/client/deep (x/one -> y/client -> y/client/deep): because"},
		},
		{"forbidden: not imported", rule{packages: []string{"x/pure"}, forbidden: []string{"y/client"}}, nil},
		{"forbidden: the package itself is ignored", rule{packages: []string{"x/two"}, forbidden: []string{"x/two"}}, nil},
		{
			"except",
			rule{packages: []string{"x/..."}, except: []string{"x/all"}, forbidden: []string{"y/client"}, reason: "because"},
			[]string{"x/one must not use y/client (x/one -> y/client): because"},
		},
		{
			"tolerated",
			rule{packages: []string{"x/..."}, forbidden: []string{"x/one", "x/two"}, tolerated: 1, reason: "because"},
			[]string{
				"x/all must not use x/one (x/all -> x/one): because",
				"x/all must not use x/two (x/all -> x/two): because",
			},
		},
		{
			"a rule that applies to no package",
			rule{packages: []string{"x/tow"}, allowed: []string{}},
			[]string{"there is no package x/tow: the rule has no effect"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.rule.check(g); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}
